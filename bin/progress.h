/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank of berth train shows its progress on berth's terminal: if PROGRESS_ENV is set, lines
 * that begin with PROGRESS_MARK may overwrite each other, and so may those of LOGS_STATUS_MARK
 * (process/logs.h), which appear nowhere else. */
#ifndef BERTH_BIN_PROGRESS_H
#define BERTH_BIN_PROGRESS_H

#include <stddef.h>

#define PROGRESS_ENV "BERTH_PROGRESS"
#define PROGRESS_NONE "none" /* its value if berth train is to print errors and the result only */
#define PROGRESS_MARK "\r"
#define PROGRESS_OVER "\r\033[K" /* overwrite the current line */

/* Return how many of a line's size characters (ASCII) fit on the terminal at fd; size if its width
 * is unknown. */
size_t progress_fit(int fd, size_t size);

/* Write a status line: text ("": none), the elapsed time, and the present activity. */
void progress_elapsed(const char *text, double seconds, const char *activity, char *out,
		      size_t size);

#endif
