/* SPDX-License-Identifier: BSD-3-Clause */
/* What a CUDA executor will do and where everything lies, decided before anything runs: fused
 * layers, places of activations and their gradients in one arena, copies of the weights. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_LOWERED_GRAPH_H
#define BERTH_TRAIN_DEVICE_CUDA_LOWERED_GRAPH_H

#include "train/comm/ddp.h"
#include "train/device/cuda/kernels/kernels.h"
#include "train/executor/fuse.h"
#include "train/executor/memory_plan.h"
#include "train/model/graph.h"

#define NO_SLOT (-1)
/* Rows of a batch norm's saved statistics. Rows 0 to 3: mean, 1/std, scale and shift. SAVED_SUMS:
 * the sums of its input or of its gradient. If a convolution applies this batch norm itself,
 * SAVED_APPLY: scale and shift in 16 bits, then copies of w and b, whose offset in the flat buffer
 * need not be aligned. SAVED_REST: values that cuDNN writes but nothing reads. */
#define SAVED_SUMS 4
#define SAVED_APPLY 6
#define SAVED_REST 9
#define SAVED_ROWS 12
#define LOWERED_ALIGNMENT ((size_t)256)

/* The weight of a convolution or linear layer as its library reads it: [outputs][inner][padded].
 * The flat buffers have [outputs][channels][inner]. */
struct lowered_weight {
	int param; /* index in the graph; -1: this node has none */
	int outputs, channels, inner, padded;
	bool in_place;		/* the library can read the flat buffer directly */
	bool gradient_in_place; /* and write the gradient there */
	size_t copy;		/* else: offset in bytes into the copies */
};

/* One node, which runs forward and backward. Times: node i runs forward at i, the loss at
 * node_count, and node i backward at 2 * node_count - i. */
struct lowered_node {
	struct fused fused;
	struct shape x_shape, y_shape; /* x: with padded channels, as in memory */
	struct lowered_weight weight;
	int x, z, y;	/* slots; z: the value added */
	int argmax;	/* slot of a max pooling */
	int dy, dx, dz; /* slots of gradients; NO_SLOT: not needed */
	bool add_dx, add_dz;
	/* They share one slot, and work happens in place, if any. */
	bool dx_is_dy, dz_is_dy;
	size_t saved; /* of a batch norm: offset in floats into the statistics, [SAVED_ROWS][c] */
	/* Of a convolution: the node of the batch norm whose sums it may make; -1: none. */
	int norm;
	int sums_conv; /* of a batch norm: that convolution; -1: none */
	/* Of a convolution: the node of the batch norm whose x it may read itself; -1: none. */
	int fused_norm;
	int fused_conv; /* of a batch norm: that convolution; -1: none */
};

struct lowered_graph {
	enum number number;
	int batch, node_count, slot_count;
	int input_channels; /* including padding, as in memory */
	struct lowered_node *nodes;
	struct memory_item *slots;
	int input, output, output_gradient; /* slots */
	int sums, weight_gradient;	    /* scratch */
	size_t arena_bytes, copies_bytes, saved_floats;
};

/* Lower request's graph: it decides by graph, buckets, batch, precision and train. multiprocessors
 * is the GPU's. Pure. Return 0; -ERR_DATA for a batch norm over one value; -ERR_INTERNAL or
 * -ERR_UNAVAILABLE as fuse_graph. */
int lowered_graph_make(const struct executor_request *request, int multiprocessors,
		       struct lowered_graph *out, struct error *err);
void lowered_graph_free(struct lowered_graph *lowered); /* clears it */

#endif
