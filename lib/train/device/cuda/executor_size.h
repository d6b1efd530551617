/* SPDX-License-Identifier: BSD-3-Clause */
/* How much GPU memory an executor needs, computed before it takes any, and the largest batch that
 * fits. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_SIZE_H
#define BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_SIZE_H

#include "train/device/cuda/lowered_graph.h"
#include "train/device/device.h"

/* Sizes in bytes. A staging buffer holds one batch. struct kernel_run_params comes first, then
 * targets, augmentations, indices and samples at the offsets below. sample is one sample. */
struct executor_sizes {
	size_t arena, copies, saved, losses, label_ranks, weights, param_ranges, table,
		graph_inputs, staging;
	size_t targets_at, augments_at, indices_at, samples_at, sample;
};

/* The share of all memory that stays unplanned: CUDA takes some over time, for kernel code and for
 * graphs. */
#define RESERVED_FRACTION 64

/* Compute the sizes for request and lowered. param_range_count is from its executor_common.
 * Pure. */
void executor_sizes_compute(const struct executor_request *request,
			    const struct lowered_graph *lowered, size_t param_range_count,
			    struct executor_sizes *out);

/* Bytes for request's executor, and for the evaluation's if one will follow (evaluates), with the
 * least workspace that their layers need. multiprocessors: as in lowered_graph_make, whose errors
 * it returns. Pure. */
int executor_bytes_with_eval(const struct executor_request *request, size_t param_range_count,
			     int multiprocessors, size_t *out, struct error *err);
/* Bytes of the evaluation's executor next to request's; 0 if there is none. Pure. */
size_t executor_bytes_of_eval(const struct executor_request *request, int multiprocessors);
/* The largest batch below request's that fits into available bytes; 0: none. Pure. */
int executor_largest_batch(const struct executor_request *request, size_t param_range_count,
			   int multiprocessors, size_t available);

#endif
