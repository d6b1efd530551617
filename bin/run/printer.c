/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/printer.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/write_queue.h"

#define FULL (1u << 20)
#define NOTES_FULL (2u << 20) /* berth's own lines are dropped beyond this */
#define NOTE_HOLDS_MS 1000    /* the ranks' output waits behind such a line */
#define NOTE_MS 5000	      /* how long berth's last lines may wait for a reader */
#define NO_RANK (-1)
#define BERTH (-2) /* the owner of berth's own lines, which are whole */

struct printer {
	struct write_queue *queue;
	int fds[2];
	bool started;		   /* the queue has its thread */
	int owner[2];		   /* the rank whose line is unfinished; NO_RANK: none */
	bool same;		   /* both descriptors are the same terminal or file */
	_Atomic size_t dropped;	   /* berth's own lines */
	_Atomic size_t rank_bytes; /* unwritten bytes of ranks */
	atomic_int error[2];	   /* errno of a failed write; nothing more is written afterwards */
};

/* berth's own lines wait for the reader of stderr, unless that delays the ranks' stdout for too
 * long. */
static bool is_ready_for_note(struct printer *printer)
{
	char text[80];
	int length;

	for (int ms = 100; !printer->same && !file_wait_writable(printer->fds[1], 100); ms += 100)
		if (printer->rank_bytes && (printer->dropped || ms >= NOTE_HOLDS_MS))
			return false;
	if (!printer->dropped)
		return true;
	length = snprintf(text, sizeof text, LOG_DROPPED, printer->dropped);
	printer->dropped = 0;
	return !file_write_all(printer->fds[1], text, (size_t)length);
}

/* target: bit 0 for stderr, bit 1 for a rank's piece. */
static void write_piece(void *context, unsigned target, const void *data, size_t size)
{
	struct printer *printer = context;
	unsigned which = target & 1;

	if (target & 2) {
		if (!printer->error[which] && file_write_all(printer->fds[which], data, size))
			printer->error[which] = errno;
		printer->rank_bytes -= size;
	} else if (is_ready_for_note(printer)) {
		file_write_all(printer->fds[which], data, size);
	} else {
		printer->dropped++;
	}
}

int printer_new(int out_fd, int err_fd, struct printer **out, struct error *err)
{
	struct printer *printer = calloc(1, sizeof *printer);
	struct stat files[2];
	int rc;

	if (!printer)
		return error_memory(err, "the output");
	rc = write_queue_new(write_piece, printer, &printer->queue, err);
	if (rc) {
		free(printer);
		return rc;
	}
	printer->fds[0] = out_fd;
	printer->fds[1] = err_fd;
	printer->same = !fstat(out_fd, &files[0]) && !fstat(err_fd, &files[1]) &&
			files[0].st_dev == files[1].st_dev && files[0].st_ino == files[1].st_ino;
	printer->owner[0] = printer->owner[1] = NO_RANK;
	*out = printer;
	return 0;
}

/* Queue one piece per line, written with one write(2), so that other writers to a pipe cannot
 * interleave. */
static void add_line(struct printer *printer, const char *label, int rank, unsigned which,
		     const char *text, size_t size, bool newline)
{
	int owner = printer->owner[which];
	bool begins = owner != rank;
	char before[128];
	struct iovec parts[] = {{before, 0}, {(void *)text, size}, {(char *)"\n", newline}};

	parts[0].iov_len =
		(size_t)snprintf(before, sizeof before, "%s%s%s%s",
				 begins && owner >= 0 ? "\n" : "", begins && label ? "[" : "",
				 begins && label ? label : "", begins && label ? "] " : "");
	size += parts[0].iov_len + newline;
	printer->started = true;
	if (rank >= 0)
		printer->rank_bytes += size;
	if (write_queue_add(printer->queue, which | (rank >= 0 ? 2 : 0), parts, 3))
		printer->owner[which] = newline ? NO_RANK : rank;
	else if (rank >= 0)
		printer->rank_bytes -= size;
}

void printer_line(struct printer *printer, int rank, const char *label, bool is_err,
		  const char *text, size_t size, bool newline)
{
	add_line(printer, label, rank, is_err, text, size, newline);
}

void printer_note(struct printer *printer, const char *line, size_t size)
{
	bool newline = size && line[size - 1] == '\n';

	/* Do not start the thread for notes before the agents are forked. A pipe that is ready
	 * takes a line of PIPE_BUF bytes. */
	if (!printer->started && file_wait_writable(printer->fds[1], 0))
		file_write_all(printer->fds[1], line, size);
	else if (write_queue_size(printer->queue) > NOTES_FULL)
		printer->dropped++;
	else
		add_line(printer, NULL, BERTH, 1, line, size - newline, newline);
}

bool printer_is_one(const struct printer *printer)
{
	return printer->same;
}

bool printer_full(struct printer *printer)
{
	return write_queue_over(printer->queue, FULL);
}

bool printer_has_no_reader(const struct printer *printer)
{
	return printer->error[0] == EPIPE;
}

int printer_drained_fd(const struct printer *printer)
{
	return write_queue_fd(printer->queue);
}

bool printer_free(struct printer *printer, int timeout_ms, char *problem, size_t size)
{
	static const char *const names[] = {"stdout", "stderr"};
	bool done;

	if (problem && size)
		problem[0] = 0;
	if (!printer)
		return true;
	/* The ranks' output has the caller's limit; berth's own lines wait no longer than NOTE_MS.
	 */
	do
		done = write_queue_wait(printer->queue, timeout_ms < 0 ? NOTE_MS : timeout_ms);
	while (!done && timeout_ms < 0 && printer->rank_bytes);
	if (!done && printer->rank_bytes && problem)
		snprintf(problem, size,
			 "stdout or stderr accepts no more output; the remaining output is lost");
	for (int i = 0; i < 2 && problem; i++)
		if (printer->error[i])
			snprintf(problem, size, "lost output of the ranks: cannot write %s: %s",
				 names[i], strerror(printer->error[i]));
	if (!write_queue_free(printer->queue, 0))
		return false;
	free(printer);
	return true;
}
