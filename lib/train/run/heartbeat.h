/* SPDX-License-Identifier: BSD-3-Clause */
/* This rank's heartbeat: how many steps it has done since its start and what it does now, in the
 * file that BERTH_HEARTBEAT_FILE names. The launcher of the ranks sees from it that they make
 * progress, and which one is behind; see berth-run(1), RESTARTS. A process is one rank, so it has
 * one heartbeat file. */
#ifndef BERTH_TRAIN_RUN_HEARTBEAT_H
#define BERTH_TRAIN_RUN_HEARTBEAT_H

#include <stdint.h>

/* Write heartbeats from now on. path: NULL or "" for none; a file that cannot be written is
 * ignored. */
void train_heartbeat_open(const char *path);
/* Write that done steps (fractions allowed) are done, the last of which is step, and the present
 * activity, such as "computes". One write(2) of one line; does nothing without a file. */
void train_heartbeat_write(double done, int64_t step, const char *activity);
/* Write the last number of steps again, with another activity. */
void train_heartbeat_activity(const char *activity);

#endif
