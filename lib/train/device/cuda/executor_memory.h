/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory of a CUDA executor: the lowered graph's arena, lists for the kernels, small state that
 * stays on the device between log lines, and the staging buffers for batches. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_MEMORY_H
#define BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_MEMORY_H

#include "train/device/cuda/compiled_graph.h"
#include "train/device/cuda/executor_size.h"
#include "train/executor/executor_common.h"

/* What the host reads back, in pinned host memory. */
struct executor_readback {
	struct kernel_totals totals, none;
	struct kernel_scaler scaler;
	float votes;
};

/* A staging buffer for one batch: pinned host memory and device memory of the same layout, run
 * parameters and targets first. There are two, so that one batch arrives while the other is
 * computed. */
struct executor_staging {
	char *host, *device;
	/* copied: the host may write again; consumed: the copy may start again. */
	cudaEvent_t copied, consumed;
	bool used;
};

struct executor_memory {
	const struct executor_request *request;
	const struct lowered_graph *lowered;
	struct compiled_graph_memory graph_memory;
	size_t workspace_bytes;
	struct kernel_weight *weights; /* device lists */
	int weight_count;
	struct kernel_param_range *param_ranges;
	int param_range_count;
	float *table; /* for raw samples of bytes, or NULL */
	float *losses;
	int32_t *label_ranks;
	struct kernel_totals *totals;
	struct kernel_scaler *scaler;
	struct executor_readback *readback;
	cudaEvent_t answered; /* readback->votes has arrived */

	struct executor_sizes sizes;
	struct executor_staging staging[2];
	int next_staging;
	/* Device memory at a fixed address, for graphs: run parameters and targets of this run. */
	char *graph_inputs;
	cudaStream_t side; /* the stream on which batches arrive */
};

/* Reserve and fill the memory; common provides the parameter ranges. request and lowered are
 * borrowed until executor_memory_free. Return 0, or -ERR_UNAVAILABLE. err then reports what was
 * requested and what is free. If everything, evaluation included, exceeds the free memory, err also
 * names the largest batch that fits. */
int executor_memory_new(struct cuda *cuda, const struct executor_request *request,
			const struct lowered_graph *lowered, const struct executor_common *common,
			struct executor_memory *out, struct error *err);
void executor_memory_free(struct executor_memory *memory);
/* Reserve the workspace, once: graphs have its address. It is at least LINEAR_WORKSPACE. */
int executor_memory_reserve_workspace(struct executor_memory *memory, size_t bytes,
				      struct error *err);
/* The GPU's loss scale where PyTorch's is 1. */
float executor_scale_unit(const struct executor_request *request);
/* Load a batch: copy it on the side stream, then convert it to NHWC in the lowered graph's input
 * slot on the main stream. */
int executor_memory_load_batch(struct executor_memory *memory, const struct kernel_config *config,
			       const struct executor_input *input, struct error *err);

#endif
