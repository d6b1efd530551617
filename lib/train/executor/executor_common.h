/* SPDX-License-Identifier: BSD-3-Clause */
/* What every device's step does alike: add up losses, hand out buckets in order, and know which
 * parts of the flat buffers decay. Host memory only. */
#ifndef BERTH_TRAIN_EXECUTOR_EXECUTOR_COMMON_H
#define BERTH_TRAIN_EXECUTOR_EXECUTOR_COMMON_H

#include "train/device/device.h"

/* A part of the flat layout that decays, or that does not. */
struct stretch {
	size_t offset, count;
	bool decay;
};

struct step_parts {
	const struct step_request *request; /* borrowed */
	struct stretch *stretches;	    /* without decay_vectors = false, one in all */
	size_t stretch_count;
	int *pending;	    /* parameters a bucket still waits for */
	size_t next_bucket; /* the first that was not handed out */
	double update_loss; /* of this update's runs so far */
	int64_t update_samples;
	struct step_totals totals;
};

/* request must outlive parts. -ERR_UNAVAILABLE: memory. */
int step_parts_new(const struct step_request *request, struct step_parts *out, struct error *err);
void step_parts_free(struct step_parts *parts);

/* Is input one that request allows? -ERR_INTERNAL. */
int step_parts_check(const struct step_parts *parts, const struct step_input *input,
		     struct error *err);
/* Add up one run: the loss of each of its samples, and each one's OP_LABEL_RANK (NULL with
 * LOSS_MSE). */
void step_parts_count(struct step_parts *parts, const struct step_input *input, const float *losses,
		      const int32_t *places);
/* The totals so far; new sums begin. */
void step_parts_read(struct step_parts *parts, struct step_totals *out);

/* Before the backward pass of an update's last run. */
void step_parts_begin(struct step_parts *parts);
/* The gradients of param (-1: none) are on queue: buckets go to comm, first to last, as soon as
 * they are full. Errors: comm's. */
int step_parts_ready(struct step_parts *parts, int param, struct device_queue *queue,
		     struct error *err);

#endif
