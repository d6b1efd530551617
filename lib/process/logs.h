/* SPDX-License-Identifier: BSD-3-Clause */
/* What ranks print: bytes into lines, the last lines of each rank, and a file a rank. */
#ifndef BERTH_PROCESS_LOGS_H
#define BERTH_PROCESS_LOGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* ---- lines ---- */

/* A line longer than this is handed on in pieces of this size. */
#define LOGS_LINE_MAX (64 << 10)

/* The bytes of one stream that do not make a line yet. Zero-initialised; holds at most
 * LOGS_LINE_MAX bytes however much is fed. */
struct logs_splitter {
	char *text;
	size_t size, room;
};

/* text, size: without the newline, borrowed during the call, any bytes (NUL, no UTF-8), not
 * NUL-terminated. newline: false for a piece of a line that is cut or not finished yet: what
 * follows on the same stream belongs to the same line. */
typedef void logs_line_fn(void *context, const char *text, size_t size, bool newline);

/* Feed bytes; calls line for each complete line in order. Where memory is out a line is handed
 * on in smaller pieces, never lost. */
void logs_split(struct logs_splitter *splitter, const char *data, size_t size, logs_line_fn *line,
		void *context);
/* The stream has ended: hands on the unterminated rest (newline false), if any, and frees. */
void logs_split_end(struct logs_splitter *splitter, logs_line_fn *line, void *context);

/* ---- files and last lines ---- */

/* The ranks of one node and attempt.
 *
 * File of rank 3: DIR/rank-0003.log (four digits, more where needed), both streams in the order
 * they were read. It is appended to, never truncated, so that an attempt or a run in the same
 * folder loses nothing of the one before; each begins with a header line
 *   ==== berth: job JOB attempt 0 rank 3 host NODE 2026-01-31T12:00:00Z ==== */
struct logs; /* opaque */

struct logs_options {
	const char *dir;    /* --log-dir, made where it is missing; NULL: no files */
	const char *job_id; /* for the header */
	const char *host;
	int attempt;
	int tail_lines;	   /* last lines kept of each rank (LOGS_TAIL_LINES by default: 0) */
	size_t rank_count; /* of this node */
	const int *ranks;  /* [rank_count] by local rank; copied */
};
#define LOGS_TAIL_LINES 20
#define LOGS_TAIL_LINE_BYTES 1024 /* of a kept line; the rest is left out and "..." put there */

/* Make the folder and open every file, before any rank is started.
 * 0; -ERR_OUTPUT: the folder or a file cannot be made or written, err names it and why;
 * -ERR_UNAVAILABLE: memory, or more files than descriptors. *out: logs_free it. */
int logs_open(const struct logs_options *options, struct logs **out, struct error *err);

/* Can files be made in folder (made where it is missing)? For the head, before anything is
 * started; leaves no file. 0 or -ERR_OUTPUT. */
int logs_check_dir(const char *dir, struct error *err);

/* Log files in folder of ranks that a run of rank_count has not: how many, and the lowest of these
 * ranks. For the head. A folder that cannot be read holds none. */
size_t logs_stale_ranks(const char *dir, int rank_count, int *lowest);

/* A line of a local rank, as struct supervise_events hands it over; stream: 1 stdout, 2 stderr
 * (an unfinished line is ended before a line of the other stream). Kept, and buffered for the
 * file. Never fails: see logs_problem. */
void logs_line(struct logs *logs, size_t local_rank, int stream, const char *text, size_t size,
	       bool newline);

/* Write what is buffered (at most 64 KiB a rank). Call after each dispatch of events: what was
 * flushed survives the agent. */
void logs_flush(struct logs *logs);

/* A sentence about the first write error (disk full...), once; then NULL until logs_free.
 * What cannot be written is counted and left out, the job goes on; when writing works again the
 * file says how many bytes are missing there. Borrowed. */
const char *logs_problem(struct logs *logs);

/* The last lines of a local rank that are not blank, oldest first; returns how many. Each is
 * NUL-terminated, of a line with carriage returns (a progress bar) the last part, control bytes
 * replaced by '?', so that a terminal is safe. Borrowed until the next call on logs. */
size_t logs_tail(struct logs *logs, size_t local_rank, const char *const **lines);

void logs_free(struct logs *logs); /* flushes; NULL is fine */

#endif
