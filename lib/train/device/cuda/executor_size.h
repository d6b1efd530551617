/* SPDX-License-Identifier: BSD-3-Clause */
/* What a step takes of the GPU's memory, before any of it is taken, and the largest batch by that.
 */
#ifndef BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_SIZE_H
#define BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_SIZE_H

#include "train/device/cuda/lowered_graph.h"
#include "train/device/device.h"

/* Bytes. A way in holds one batch: struct kernel_run_params and targets (front in all), then
 * choices, indices and samples at the places that are said. */
struct executor_sizes {
	size_t arena, copies, saved, losses, label_ranks, weights, param_ranges, table,
		graph_inputs, staging;
	size_t targets_at, augments_at, indices_at, samples_at, sample;
};

/* A part of all memory that nobody is promised: CUDA's own takes some as it goes, for the code of
 * kernels and for graphs. */
#define RESERVED_FRACTION 64

/* Of a step by request and plan. param_range_count: of its executor_common. Pure. */
void executor_sizes_compute(const struct executor_request *request,
			    const struct lowered_graph *lowered, size_t param_range_count,
			    struct executor_sizes *out);
/* All of it as a GPU hands it out, with the least that its layers work in. Pure. */
size_t executor_bytes(const struct executor_request *request, const struct executor_sizes *sizes);

/* Bytes of request's step, and of the evaluation's beside it where there is one (evaluates).
 * number, multiprocessors: as lowered_graph_make. -ERR_*: lowered_graph_make's. Pure. */
int executor_bytes_with_eval(const struct executor_request *request, size_t param_range_count,
			     enum number number, int multiprocessors, size_t *out,
			     struct error *err);
/* Bytes of the evaluation's step that comes beside request's; 0: there is none. Pure. */
size_t executor_bytes_of_eval(const struct executor_request *request, enum number number,
			      int multiprocessors);
/* The largest batch below request's for which that is at most available bytes, 0: none. Pure. */
int executor_largest_batch(const struct executor_request *request, size_t param_range_count,
			   enum number number, int multiprocessors, size_t available);

#endif
