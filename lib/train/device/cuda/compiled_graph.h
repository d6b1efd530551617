/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan made ready for one number of samples: its layers' descriptors and algorithms, and the
 * calls that put it on a stream. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_COMPILED_GRAPH_H
#define BERTH_TRAIN_DEVICE_CUDA_COMPILED_GRAPH_H

#include "train/device/cuda/cuda.h"
#include "train/device/cuda/lowered_graph.h"

struct program; /* opaque */

/* Device memory that programs of one plan share. */
struct program_memory {
	char *arena, *copies;
	float *saved;
	void *workspace;
};

/* All is borrowed until program_free. count: 1 to plan->batch. tune: choose algorithms by time. */
int program_new(struct cuda *cuda, const struct step_request *request, const struct plan *plan,
		int count, bool tune, struct program **out, struct error *err);
void program_free(struct program *program); /* NULL is fine */
size_t program_workspace(const struct program *program);

/* For who measures: called when all of a node is on the stream. */
struct program_watch {
	void *context;
	void (*passed)(void *context, int node, bool backward); /* NULL: nobody */
};
void program_watch(struct program *program, const struct program_watch *watch);

/* From the plan's input slot to its output slot. */
int program_forward(const struct program *program, const struct program_memory *memory,
		    cudaStream_t stream, struct error *err);
/* From its output_gradient slot to the flat gradients; add: to those of earlier runs. After each
 * node whose parameters have their gradients ready is called for it. */
struct program_sink {
	void *context;
	int (*ready)(void *context, const struct graph_op *op, struct error *err);
};
int program_backward(const struct program *program, const struct program_memory *memory,
		     cudaStream_t stream, bool add, const struct program_sink *sink,
		     struct error *err);

#endif
