/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank of berth train shows its progress on the terminal that berth has: where PROGRESS_ENV
 * is set, lines that begin with PROGRESS_MARK may go over each other. */
#ifndef BERTH_BIN_PROGRESS_H
#define BERTH_BIN_PROGRESS_H

#include <stddef.h>

#define PROGRESS_ENV "BERTH_PROGRESS"
#define PROGRESS_MARK "\r"
#define PROGRESS_OVER "\r\033[K" /* go over the line that is there */

/* How many of a line's size characters (ASCII) the terminal at fd has room for; all where its width
 * is not known. */
size_t progress_fit(int fd, size_t size);

#endif
