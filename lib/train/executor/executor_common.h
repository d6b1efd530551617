/* SPDX-License-Identifier: BSD-3-Clause */
/* What every device's step does alike: add up losses, hand out buckets in order, and know which
 * parts of the flat buffers decay. Host memory only. */
#ifndef BERTH_TRAIN_EXECUTOR_EXECUTOR_COMMON_H
#define BERTH_TRAIN_EXECUTOR_EXECUTOR_COMMON_H

#include "train/device/device.h"

/* A part of the flat layout that decays, or that does not. */
struct param_range {
	size_t offset, count;
	bool decay;
};

struct executor_common {
	const struct executor_request *request; /* borrowed */
	struct param_range *param_ranges;	/* without decay_vectors = false, one in all */
	size_t param_range_count;
	int *pending;	    /* parameters a bucket still waits for */
	size_t next_bucket; /* the first that was not handed out */
	double update_loss; /* of this update's runs so far */
	int64_t update_samples;
	struct executor_totals totals;
};

/* request must outlive parts. -ERR_UNAVAILABLE: memory. */
int executor_common_new(const struct executor_request *request, struct executor_common *out,
			struct error *err);
void executor_common_free(struct executor_common *common);

/* Is input one that request allows? -ERR_INTERNAL. */
int executor_common_check(const struct executor_common *common, const struct executor_input *input,
			  struct error *err);
/* Add up one run: the loss of each of its samples, and each one's OP_LABEL_RANK (NULL with
 * LOSS_MSE). */
void executor_common_add_losses(struct executor_common *common, const struct executor_input *input,
				const float *losses, const int32_t *label_ranks);
/* The totals so far; new sums begin. */
void executor_common_take_totals(struct executor_common *common, struct executor_totals *out);

/* Before the backward pass of an update's last run. */
void executor_common_begin_update(struct executor_common *common);
/* The gradients of param (-1: none) are on queue: buckets go to comm, first to last, as soon as
 * they are full. Errors: comm's. */
int executor_common_gradient_ready(struct executor_common *common, int param,
				   struct device_queue *queue, struct error *err);

#endif
