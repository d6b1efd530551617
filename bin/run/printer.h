/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes the ranks' lines and berth's own to two descriptors from its own thread, so that a paused
 * terminal or a slow pipe never blocks the controller. Lines stay whole. */
#ifndef BERTH_BIN_RUN_PRINTER_H
#define BERTH_BIN_RUN_PRINTER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct printer; /* opaque */

/* out_fd and err_fd stay the caller's. The thread starts with the first line, so a process may
 * still fork safely before that. */
int printer_new(int out_fd, int err_fd, struct printer **out, struct error *err);

/* Are both descriptors the same terminal, pipe or file? */
bool printer_is_one(const struct printer *printer);

/* Queue a line, or a piece of one if newline is false. rank: a number of the console's for whoever
 * writes; label: print "[LABEL] " before the line, or NULL. is_err: for err_fd. If another rank's
 * line follows an unfinished piece, a newline is inserted. */
void printer_line(struct printer *printer, int rank, const char *label, bool is_err,
		  const char *text, size_t size, bool newline);

/* Queue a line of berth itself, with its newline, for err_fd. If err_fd accepts nothing, the line
 * is dropped when 2 MiB are queued, or when it has delayed the ranks' output on another out_fd by
 * 1 s. A later line reports the number of dropped lines. */
void printer_note(struct printer *printer, const char *line, size_t size);

/* Is so much output waiting that no more should be added? If so, drained_fd becomes readable
 * once there is room; printer_full clears it. */
bool printer_full(struct printer *printer);
/* Did a write to out_fd fail because its reader has gone? */
bool printer_has_no_reader(const struct printer *printer);
int printer_drained_fd(const struct printer *printer);

/* Wait until everything is written, and free the printer; NULL is allowed. The ranks' output waits
 * at most timeout_ms (-1: no limit), berth's own lines at most 5 s. problem (may be NULL): why
 * output of the ranks could not be written, "" if all was. Return false if the thread is still
 * blocked in a write. */
bool printer_free(struct printer *printer, int timeout_ms, char *problem, size_t size);

#endif
