/* SPDX-License-Identifier: BSD-3-Clause */
/* What a step on the GPU keeps in memory: the lowered graph's arena, lists for the kernels, small
 * state that lives on the device between log lines, and the way in for batches. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_MEMORY_H
#define BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_MEMORY_H

#include "train/device/cuda/compiled_graph.h"
#include "train/device/cuda/executor_size.h"
#include "train/executor/executor_common.h"

/* What is read back, in pinned host memory. */
struct executor_readback {
	struct kernel_totals totals, none;
	struct kernel_scaler scaler;
	float votes;
};

/* A batch on its way: pinned host memory and device memory of one form, run and targets first. Two
 * of them, so that one batch comes while the other is computed. */
struct executor_staging {
	char *host, *device;
	cudaEvent_t copied, consumed; /* the host may write again; the copy may */
	bool used;
};

struct executor_memory {
	struct compiled_graph_memory graph_memory;
	size_t workspace_bytes;
	struct kernel_weight *weights; /* device lists */
	int weight_count;
	struct kernel_param_range *param_ranges;
	int param_range_count;
	float *table; /* of raw bytes, or NULL */
	float *losses;
	int32_t *label_ranks;
	struct kernel_totals *totals;
	struct kernel_scaler *scaler;
	struct executor_readback *readback;
	cudaEvent_t answered; /* readback->votes has come */

	struct executor_sizes sizes;
	struct executor_staging staging[2];
	int next_staging;
	char *graph_inputs; /* device memory at one place, for graphs: run and targets of this run
			     */
	cudaStream_t side;  /* batches come on it */
};

/* Reserve and fill; common: for the parameter ranges. -ERR_UNAVAILABLE: what asked, what is free,
 * and where all of it, with the evaluation's, is more than that, the largest batch that would fit.
 */
int executor_memory_new(struct cuda *cuda, const struct executor_request *request,
			const struct lowered_graph *lowered, const struct executor_common *common,
			struct executor_memory *out, struct error *err);
void executor_memory_free(struct executor_memory *memory);
/* At least bytes of workspace. *moved: graphs that know the old one are void. stream: idle then. */
int executor_memory_grow_workspace(struct executor_memory *memory, size_t bytes,
				   cudaStream_t stream, bool *moved, struct error *err);
/* Bring a batch in: copied on the side, made NHWC in the lowered graph's input slot on stream. */
int executor_memory_load_batch(struct executor_memory *memory, const struct kernel_config *config,
			       const struct executor_request *request,
			       const struct lowered_graph *lowered,
			       const struct executor_input *input, struct error *err);

#endif
