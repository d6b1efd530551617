/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes the ranks' lines to two descriptors from a thread of its own, so that a terminal that is
 * held or a slow pipe never keeps the controller from its agents. Lines stay whole. */
#ifndef BERTH_CONTROLLER_PRINTER_H
#define BERTH_CONTROLLER_PRINTER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct printer; /* opaque */

/* out_fd, err_fd: the caller's. label: "[RANK] " before each line. The thread is started with the
 * first line (a process that forks before that forks no thread). */
int printer_new(int out_fd, int err_fd, bool label, struct printer **out, struct error *err);

/* A line, or a piece of one when newline is false. is_err: to err_fd. A piece that another rank's
 * line would follow gets a newline of its own. */
void printer_line(struct printer *printer, int rank, bool is_err, const char *text, size_t size,
		  bool newline);

/* Is so much waiting that no more should come? Then drained_fd becomes readable once it is not
 * (read it away with printer_full). */
bool printer_full(struct printer *printer);
int printer_drained_fd(const struct printer *printer);

/* Wait until all is written, at most timeout_ms (-1: no limit), and free; NULL is fine. problem
 * (may be NULL): why something could not be written, "" when nothing was wrong. */
void printer_free(struct printer *printer, int timeout_ms, char *problem, size_t size);

#endif
