/* SPDX-License-Identifier: BSD-3-Clause */
/* This rank's heartbeat: how many steps it has done since its start, and what it does now, in the
 * file that BERTH_HEARTBEAT_FILE names. Whoever started the ranks sees from it that they make
 * progress, and which of them is behind; see berth-run(1), RESTARTS. A process is one rank, so
 * there is one.
 */
#ifndef BERTH_TRAIN_RUN_HEARTBEAT_H
#define BERTH_TRAIN_RUN_HEARTBEAT_H

#include <stdint.h>

/* From here on. path: NULL or "" for none; a file that cannot be written is ignored. */
void train_heartbeat_open(const char *path);
/* So many are done (a part of one counts as such), of which the last is step; activity: "computes".
 * One write(2) of one line; nothing without a file. */
void train_heartbeat_write(double done, int64_t step, const char *activity);
/* The same number with another activity. */
void train_heartbeat_activity(const char *activity);

#endif
