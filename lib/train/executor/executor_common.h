/* SPDX-License-Identifier: BSD-3-Clause */
/* What the executors of all devices have in common: they add up losses, pass buckets to comm in
 * order, and know which parts of the flat buffers have weight decay. Host memory only. */
#ifndef BERTH_TRAIN_EXECUTOR_EXECUTOR_COMMON_H
#define BERTH_TRAIN_EXECUTOR_EXECUTOR_COMMON_H

#include "train/executor/executor.h"
#include "train/model/graph.h"

/* A range of the flat layout with one decay setting. */
struct param_range {
	size_t offset, count;
	bool decay;
};

struct executor_common {
	const struct executor_request *request; /* borrowed, as queue */
	struct device_queue *queue;
	struct param_range *param_ranges; /* a single range if decay_vectors is set */
	size_t param_range_count;
	int *pending;	    /* parameters each bucket still waits for */
	size_t next_bucket; /* the first bucket not passed on yet */
	double update_loss; /* from this update's runs so far */
	int64_t update_samples;
	struct executor_totals totals;
};

/* request and queue must outlive *out. Return 0; -ERR_DATA if batch norm cannot train on a full
 * batch; -ERR_UNAVAILABLE if memory is out. */
int executor_common_new(const struct executor_request *request, struct device_queue *queue,
			struct executor_common *out, struct error *err);
void executor_common_free(struct executor_common *common);

/* Check that request allows input. Return 0; -ERR_DATA if batch norm cannot train on so few values;
 * or -ERR_INTERNAL. */
int executor_common_check(const struct executor_common *common, const struct executor_input *input,
			  struct error *err);
/* The loss of one run, forward. x: what the graph outputs; target and losses ([count]): in the
 * memory of the device that runs the call. Its scale serves the backward pass. */
struct op_call executor_common_loss(const struct executor_common *common,
				    const struct executor_input *input, const void *x,
				    const void *target, float *losses);
/* Add one run: the loss of each sample and its OP_LABEL_RANK (not read with LOSS_MSE). */
void executor_common_add_losses(struct executor_common *common, const struct executor_input *input,
				const float *losses, const int32_t *label_ranks);
/* Copy the update's vote behind the gradients. Call this after executor_common_add_losses, before
 * the last run's backward pass. Returns the device's errors. */
int executor_common_vote(struct executor_common *common, const struct executor_input *input,
			 struct error *err);
/* Get the totals so far and start new sums. */
void executor_common_take_totals(struct executor_common *common, struct executor_totals *out);

/* Call this before the backward pass of an update's last run. */
void executor_common_begin_update(struct executor_common *common);
/* The gradients of op's parameters are on queue. Passes full buckets to comm, first to last, and
 * lets it make progress. Returns comm's errors. */
int executor_common_op_ready(struct executor_common *common, const struct graph_op *op,
			     struct error *err);

/* ---- what an executor compiled, per number of samples ---- */

/* The batch, an epoch's last one, and those after a change of ranks. */
#define COMPILED_SIZES_MAX 4

/* Most recently used first; it ends at the first without compiled. */
struct compiled_sizes {
	struct {
		int count;
		void *compiled;
	} list[COMPILED_SIZES_MAX];
};

/* What was compiled for count samples; it becomes the first. NULL: nothing was. */
void *compiled_sizes_use(struct compiled_sizes *sizes, int count);
/* Add compiled as the first. Return the one that it replaces, for the caller to free, or NULL. */
void *compiled_sizes_add(struct compiled_sizes *sizes, int count, void *compiled);

#endif
