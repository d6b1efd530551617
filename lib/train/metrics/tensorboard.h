/* SPDX-License-Identifier: BSD-3-Clause */
/* TensorBoard event files, events.out.tfevents.SECONDS.HOST.PID, with scalars only. */
#ifndef BERTH_TRAIN_METRICS_TENSORBOARD_H
#define BERTH_TRAIN_METRICS_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct tensorboard; /* opaque */

struct tensorboard_scalar {
	const char *tag; /* at most 64 bytes */
	double value; /* stored as float, including NaN and infinities, which TensorBoard marks */
};
#define TENSORBOARD_SCALARS_MAX 16

/* Start a new file in directory (created if missing), named so that TensorBoard reads it after the
 * existing ones. Its first events are the format's version and a session start at first_step (0 for
 * a new run). TensorBoard then hides, without deleting, what earlier files have from that step on.
 * Return 0, -ERR_OUTPUT or -ERR_IO. */
int tensorboard_open(const char *directory, int64_t first_step, struct tensorboard **out,
		     struct error *err);
/* Write one event with all values (1 to TENSORBOARD_SCALARS_MAX) in one write(2). NULL does
 * nothing. Return 0 or -ERR_IO. */
int tensorboard_write(struct tensorboard *tensorboard, int64_t step,
		      const struct tensorboard_scalar *scalars, size_t count, struct error *err);
void tensorboard_close(struct tensorboard *tensorboard); /* NULL is fine */

/* The records, for callers that write them elsewhere. Each is a TFRecord with one Event: length,
 * masked CRC-32C of it, data, masked CRC-32C of the data. to has room for TENSORBOARD_RECORD_MAX
 * bytes. Return the record's size. Pure. */
#define TENSORBOARD_RECORD_MAX (64 + TENSORBOARD_SCALARS_MAX * 80)
size_t tensorboard_version_record(double wall_time, unsigned char *to);
size_t tensorboard_start_record(double wall_time, int64_t step, unsigned char *to);
size_t tensorboard_scalars_record(double wall_time, int64_t step,
				  const struct tensorboard_scalar *scalars, size_t count,
				  unsigned char *to);

#endif
