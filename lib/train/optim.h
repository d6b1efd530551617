/* SPDX-License-Identifier: BSD-3-Clause */
/* What training changes: the flat buffers on the device, and their copies for checkpoints. */
#ifndef BERTH_TRAIN_OPTIM_H
#define BERTH_TRAIN_OPTIM_H

#include "base/error.h"
#include "train/ddp.h"
#include "train/device/device.h"

/* Device memory of one layout (ddp.h). */
struct optim {
	struct device_queue *queue;
	size_t count;
	float *weights, *gradients, *momentum;
};

/* Reserve for buckets->total elements; momentum is zeros, weights are not set. */
int optim_new(struct device_queue *queue, const struct buckets *buckets, struct optim *out,
	      struct error *err);
void optim_free(struct optim *optim); /* clears it */

/* Host to device; NULL leaves that buffer alone. count elements each. */
int optim_load(struct optim *optim, const float *weights, const float *momentum, struct error *err);
/* Device to host, malloced, waits for the queue. */
int optim_store(const struct optim *optim, float **weights, float **momentum, struct error *err);

#endif
