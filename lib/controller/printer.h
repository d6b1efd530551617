/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes the ranks' lines to two descriptors from its own thread, so that a paused terminal or a
 * slow pipe never blocks the controller. Lines stay whole. */
#ifndef BERTH_CONTROLLER_PRINTER_H
#define BERTH_CONTROLLER_PRINTER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct printer; /* opaque */

/* out_fd and err_fd stay the caller's. label: print "[RANK] " before each line. The thread
 * starts with the first line, so a process may still fork safely before that. */
int printer_new(int out_fd, int err_fd, bool label, struct printer **out, struct error *err);

/* Queue a line, or a piece of one if newline is false. is_err: for err_fd. If another rank's
 * line follows an unfinished piece, a newline is inserted. */
void printer_line(struct printer *printer, int rank, bool is_err, const char *text, size_t size,
		  bool newline);

/* Is so much output waiting that no more should be added? If so, drained_fd becomes readable
 * once there is room; printer_full clears it. */
bool printer_full(struct printer *printer);
int printer_drained_fd(const struct printer *printer);

/* Wait until everything is written, at most timeout_ms (-1: no limit), and free the printer;
 * NULL is allowed. problem (may be NULL): why output could not be written, "" if all was. */
void printer_free(struct printer *printer, int timeout_ms, char *problem, size_t size);

#endif
