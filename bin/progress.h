/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank of berth train shows its progress on berth's terminal: if PROGRESS_ENV is set, lines
 * that begin with PROGRESS_MARK may overwrite each other. */
#ifndef BERTH_BIN_PROGRESS_H
#define BERTH_BIN_PROGRESS_H

#include <stddef.h>

#define PROGRESS_ENV "BERTH_PROGRESS"
#define PROGRESS_MARK "\r"
#define PROGRESS_OVER "\r\033[K" /* overwrite the current line */

/* Return how many of a line's size characters (ASCII) fit on the terminal at fd; size if its width
 * is unknown. */
size_t progress_fit(int fd, size_t size);

#endif
