/* SPDX-License-Identifier: BSD-3-Clause */
/* A lowered graph prepared for one number of samples: its layers' descriptors and algorithms, and
 * the calls that put it on a stream. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_COMPILED_GRAPH_H
#define BERTH_TRAIN_DEVICE_CUDA_COMPILED_GRAPH_H

#include "train/device/cuda/cuda.h"
#include "train/device/cuda/lowered_graph.h"

struct compiled_graph; /* opaque */

/* Device memory that the compiled graphs of one lowered graph share. */
struct compiled_graph_memory {
	char *arena, *copies;
	float *saved;
	void *workspace;
};

/* Compile for count samples (1 to lowered->batch). All pointers are borrowed until
 * compiled_graph_free. tune: choose algorithms by measured time. */
int compiled_graph_new(struct cuda *cuda, const struct executor_request *request,
		       const struct lowered_graph *lowered, int count, bool tune,
		       struct compiled_graph **out, struct error *err);
void compiled_graph_free(struct compiled_graph *compiled); /* NULL is fine */
size_t compiled_graph_workspace(const struct compiled_graph *compiled);

/* For measurements: passed is called when all of a node is on the stream. */
struct node_observer {
	void *context;
	void (*passed)(void *context, int node, bool backward); /* NULL: no observer */
};
void compiled_graph_set_observer(struct compiled_graph *compiled,
				 const struct node_observer *observer);

/* Where a backward run reports each node whose parameters have their gradients. */
struct gradient_sink {
	void *context;
	int (*ready)(void *context, const struct graph_op *op, struct error *err);
};
/* Without sink: run forward, from the lowered graph's input slot to its output slot. With sink: run
 * backward, from the output_gradient slot to the flat gradients; add: add to those of earlier
 * runs. */
int compiled_graph_run(const struct compiled_graph *compiled,
		       const struct compiled_graph_memory *memory, cudaStream_t stream, bool add,
		       const struct gradient_sink *sink, struct error *err);

#endif
