/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank of berth train shows its progress on the terminal that berth has: where PROGRESS_ENV
 * is set, lines that begin with PROGRESS_MARK may go over each other. */
#ifndef BERTH_BIN_PROGRESS_H
#define BERTH_BIN_PROGRESS_H

#define PROGRESS_ENV "BERTH_PROGRESS"
#define PROGRESS_MARK "\r"

#endif
