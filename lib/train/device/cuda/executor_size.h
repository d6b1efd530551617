/* SPDX-License-Identifier: BSD-3-Clause */
/* What a step takes of the GPU's memory, before any of it is taken, and the largest batch by that. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_SIZE_H
#define BERTH_TRAIN_DEVICE_CUDA_EXECUTOR_SIZE_H

#include "train/device/cuda/lowered_graph.h"
#include "train/device/device.h"

/* Bytes. A way in holds one batch: struct kernel_run and targets (front in all), then choices,
 * indices and samples at the places that are said. */
struct step_sizes {
	size_t arena, copies, saved, losses, places, weights, stretches, table, front, way;
	size_t targets_at, choices_at, indices_at, samples_at, sample;
};

/* A part of all memory that nobody is promised: CUDA's own takes some as it goes, for the code of
 * kernels and for graphs. */
#define KEPT_PART 64

/* Of a step by request and plan. stretch_count: of its step_parts. Pure. */
void step_sizes(const struct step_request *request, const struct plan *plan, size_t stretch_count,
		struct step_sizes *out);
/* All of it as a GPU hands it out, with the least that its layers work in. Pure. */
size_t step_bytes(const struct step_request *request, const struct step_sizes *sizes);

/* Bytes of request's step, and of the evaluation's beside it where there is one (evaluates). number,
 * multiprocessors: as plan_make. -ERR_*: plan_make's. Pure. */
int step_bytes_all(const struct step_request *request, size_t stretch_count, enum number number,
		   int multiprocessors, size_t *out, struct error *err);
/* Bytes of the evaluation's step that comes beside request's; 0: there is none. Pure. */
size_t step_bytes_beside(const struct step_request *request, enum number number,
			 int multiprocessors);
/* The largest batch below request's for which that is at most available bytes, 0: none. Pure. */
int step_largest_batch(const struct step_request *request, size_t stretch_count,
		       enum number number, int multiprocessors, size_t available);

#endif
