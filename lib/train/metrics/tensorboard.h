/* SPDX-License-Identifier: BSD-3-Clause */
/* TensorBoard's event files: events.out.tfevents.SECONDS.HOST.PID, scalars alone. */
#ifndef BERTH_TRAIN_METRICS_TENSORBOARD_H
#define BERTH_TRAIN_METRICS_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct tensorboard; /* opaque */

struct tensorboard_scalar {
	const char *tag; /* at most 64 bytes */
	double value;	 /* goes as float; NaN and infinities too, which TensorBoard marks */
};
#define TENSORBOARD_SCALARS_MAX 16

/* Begin a new file in folder (made where it is missing), named so that TensorBoard reads it after
 * those that are there. Its first events are the format's version and a start of session at
 * first_step: what files before it have from that step on is purged by TensorBoard, not from disk.
 * 0 for a new run. -ERR_OUTPUT, -ERR_IO. */
int tensorboard_open(const char *directory, int64_t first_step, struct tensorboard **out,
		     struct error *err);
/* One event with all values, one write(2); 1 to TENSORBOARD_SCALARS_MAX of them. NULL does nothing.
 * -ERR_IO. */
int tensorboard_write(struct tensorboard *tensorboard, int64_t step,
		      const struct tensorboard_scalar *scalars, size_t count, struct error *err);
void tensorboard_close(struct tensorboard *tensorboard); /* NULL is fine */

/* The records, for whoever writes them elsewhere: a TFRecord (length, masked CRC-32C of it, data,
 * masked CRC-32C of the data) that holds one Event. to: room for TENSORBOARD_RECORD_MAX bytes; the
 * record's size is returned. Pure. */
#define TENSORBOARD_RECORD_MAX (64 + TENSORBOARD_SCALARS_MAX * 80)
size_t tensorboard_version_record(double wall_time, unsigned char *to);
size_t tensorboard_start_record(double wall_time, int64_t step, unsigned char *to);
size_t tensorboard_scalars_record(double wall_time, int64_t step,
				  const struct tensorboard_scalar *scalars, size_t count,
				  unsigned char *to);

#endif
