/* SPDX-License-Identifier: BSD-3-Clause */
/* What a step on the GPU keeps in memory: the plan's arena, lists for the kernels, small state that
 * lives on the device between log lines, and the way in for batches. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_MEMORY_H
#define BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_MEMORY_H

#include "train/device/cuda/compiled_graph.h"
#include "train/device/cuda/executor_size.h"
#include "train/executor/executor_common.h"

/* What is read back, in pinned host memory. */
struct step_mail {
	struct kernel_totals totals, none;
	struct kernel_scaler scaler;
	float votes;
};

/* A batch on its way: pinned host memory and device memory of one form, run and targets first. Two
 * of them, so that one batch comes while the other is computed. */
struct step_way {
	char *host, *device;
	cudaEvent_t copied, taken; /* the host may write again; the copy may */
	bool used;
};

struct step_memory {
	struct program_memory program;
	size_t workspace_bytes;
	struct kernel_weight *weights; /* device lists */
	int weight_count;
	struct kernel_stretch *stretches;
	int stretch_count;
	float *table; /* of raw bytes, or NULL */
	float *losses;
	int32_t *places;
	struct kernel_totals *totals;
	struct kernel_scaler *scaler;
	struct step_mail *mail;
	cudaEvent_t answered; /* mail->votes has come */

	struct step_sizes sizes;
	struct step_way ways[2];
	int next_way;
	char *front; /* device memory at one place, for graphs: run and targets of this run */
	cudaStream_t side; /* batches come on it */
};

/* Reserve and fill; parts: for the stretches. -ERR_UNAVAILABLE: what asked, what is free, and where
 * all of it, with the evaluation's, is more than that, the largest batch that would fit. */
int step_memory_new(struct cuda *cuda, const struct step_request *request, const struct plan *plan,
		    const struct step_parts *parts, struct step_memory *out, struct error *err);
void step_memory_free(struct step_memory *memory);
/* At least bytes of workspace. *moved: graphs that know the old one are void. stream: idle then. */
int step_memory_workspace(struct step_memory *memory, size_t bytes, cudaStream_t stream,
			  bool *moved, struct error *err);
/* Bring a batch in: copied on the side, made NHWC in the plan's input slot on stream. */
int step_memory_bring(struct step_memory *memory, const struct kernel_on *on,
		      const struct step_request *request, const struct plan *plan,
		      const struct step_input *input, struct error *err);

#endif
