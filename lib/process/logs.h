/* SPDX-License-Identifier: BSD-3-Clause */
/* Output of ranks: bytes into lines, the last lines of each rank, and a log file per rank. */
#ifndef BERTH_PROCESS_LOGS_H
#define BERTH_PROCESS_LOGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

/* ---- lines ---- */

/* A line that begins with this is a rank's status for berth's terminal. It is not logged or kept as
 * one of the last lines, and it does not count as output that shows that the job makes progress. */
#define LOGS_STATUS_MARK "\r\033[K\r"
bool logs_is_status(const char *text, size_t size);

/* A longer line is passed on in pieces of this size. */
#define LOGS_LINE_MAX (64 << 10)

/* text has size bytes without the newline, borrowed during the call. It may hold any bytes (NUL,
 * invalid UTF-8) and is not NUL-terminated. newline is false for a piece of a line that was cut or
 * is unfinished: the stream's next text continues the same line. */
typedef void logs_line_fn(void *context, const char *text, size_t size, bool newline);

/* Feed bytes of a stream; calls line for each complete line in order. pending, zero-initialised,
 * holds the bytes that do not make a line yet, at most LOGS_LINE_MAX. If memory is out, a line is
 * passed on in smaller pieces, never lost. */
void logs_split(struct bytes *pending, const char *data, size_t size, logs_line_fn *line,
		void *context);
/* The stream has ended: pass on the unterminated rest (newline false), if any, and free pending. */
void logs_split_end(struct bytes *pending, logs_line_fn *line, void *context);

/* ---- files and last lines ---- */

/* Format the directory of an attempt's logs: DIR/attempt-2, or DIR itself without restarts. */
void logs_attempt_dir(const char *log_dir, int max_restarts, int attempt, char *out, size_t size);

/* The log files and last lines of the ranks of one node and attempt.
 *
 * The file of rank 3 is DIR/rank-0003.log (four digits, or more if needed), with both streams in
 * the order they were read. berth appends to it and never truncates it, so another attempt or run
 * in the same directory keeps the earlier output. Each begins with a header line:
 *
 *   ==== berth: job JOB attempt 0 rank 3 host NODE 2026-01-31T12:00:00Z ==== */
struct logs; /* opaque */

struct logs_options {
	const char *dir;    /* --log-dir, created if missing; NULL: no files */
	const char *job_id; /* for the header */
	const char *host;
	int attempt;
	int tail_lines;	   /* last lines kept per rank; 0: LOGS_TAIL_LINES */
	size_t rank_count; /* of this node */
	const int *ranks;  /* [rank_count], by local rank; copied */
};
#define LOGS_TAIL_LINES 32	  /* a traceback of PyTorch 2.15, in a child of the rank, has 26 */
#define LOGS_TAIL_LINE_BYTES 1024 /* of a kept line; "..." replaces the rest */

/* Create the directory and open every file, before any rank starts. Return 0; -ERR_OUTPUT if the
 * directory or a file cannot be created or written (err names it and the cause); -ERR_UNAVAILABLE
 * if memory is out or there are more files than descriptors. The caller frees *out with
 * logs_free. */
int logs_open(const struct logs_options *options, struct logs **out, struct error *err);

/* Can files be created in dir (created if missing)? The controller calls this before anything
 * starts; it leaves no file. Return 0 or -ERR_OUTPUT. */
int logs_check_dir(const char *dir, struct error *err);

/* Count the log files in dir of ranks that a run of rank_count ranks lacks; *lowest is the lowest
 * of these ranks. For the controller. An unreadable directory counts as empty. */
size_t logs_stale_ranks(const char *dir, int rank_count, int *lowest);

/* Add a line of a local rank, as struct supervise_events delivers it. stream: 1 stdout, 2 stderr;
 * an unfinished line is ended before a line of the other stream. The line is kept and buffered for
 * the file. Never fails: see logs_problem. */
void logs_line(struct logs *logs, size_t local_rank, int stream, const char *text, size_t size,
	       bool newline);

/* Queue what is buffered (at most 64 KiB per rank). Call it after each dispatch of events: a thread
 * then writes the lines, so they soon survive the agent's end. */
void logs_flush(struct logs *logs);

/* Is so much queued that the ranks' output should wait? If so, logs_fd (-1 without files) becomes
 * readable once it can continue. A write that takes LOGS_STALL_MS counts as stalled: from then on
 * the ranks do not wait, and what the queue cannot hold is dropped, counted and marked in the file.
 * The queue takes LOGS_QUEUE_BYTES of memory, plus one read from the pipes of each rank. Call it
 * after each round of the event loop. */
#define LOGS_QUEUE_BYTES ((size_t)4 << 20)
#define LOGS_STALL_MS 10000
bool logs_full(struct logs *logs);
int logs_fd(const struct logs *logs);

/* The ranks have ended: is everything written, or has the caller waited LOGS_END_MS for it? If not,
 * logs_fd becomes readable once everything is written. *lost: a sentence about what is missing,
 * borrowed, or NULL.
 */
#define LOGS_END_MS 5000
bool logs_settled(struct logs *logs, int64_t waited_ms, const char **lost);

/* Return a sentence about the first write error (disk full...) or stall once; afterwards NULL until
 * logs_free. What cannot be written is counted and left out, and the job continues. When writing
 * works again, the file states how many bytes are missing there. Borrowed. */
const char *logs_problem(struct logs *logs);

/* The last non-blank lines of a local rank, oldest first; returns their number. Each is
 * NUL-terminated. Of a line with carriage returns (a progress bar) only the last part is kept, and
 * control bytes become '?', so that printing to a terminal is safe. Borrowed until the next call on
 * logs. */
size_t logs_tail(struct logs *logs, size_t local_rank, const char *const **lines);

void logs_free(struct logs *logs); /* writes what is left, for at most 1 s; NULL is allowed */

#endif
