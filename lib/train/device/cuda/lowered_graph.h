/* SPDX-License-Identifier: BSD-3-Clause */
/* What a step on the GPU does and where everything lies, before any of it is done: fused layers,
 * places of activations and of their gradients in one arena, copies of the weights. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_LOWERED_GRAPH_H
#define BERTH_TRAIN_DEVICE_CUDA_LOWERED_GRAPH_H

#include "train/comm/ddp.h"
#include "train/device/cuda/kernels/kernels.h"
#include "train/executor/fuse.h"
#include "train/executor/memory_plan.h"
#include "train/model/graph.h"

#define NO_SLOT (-1)
/* Rows of a batch norm's statistics: mean, 1/std, scale, shift; sums of its x, or of its gradient;
 * where it has a taker, scale and shift in 16 bits, copies of w and b (in the flat buffer they
 * begin anywhere), and what cuDNN writes that nobody reads. */
#define SAVED_SUMS 4
#define SAVED_APPLY 6
#define SAVED_REST 9
#define SAVED_ROWS 12
#define LOWERED_ALIGNMENT ((size_t)256)

/* The weight of a convolution or linear layer as its library reads it: [outputs][inner][padded],
 * where the flat buffers have [outputs][channels][inner]. */
struct lowered_weight {
	int param; /* of the graph; -1: this node has none */
	int outputs, channels, inner, padded;
	bool in_place;		/* what lies in the flat buffer can be read as it is */
	bool gradient_in_place; /* and its gradient be written there */
	size_t copy;		/* else: bytes into the copies */
};

/* One thing to do forward and backward. Times: node i runs forward at i, the loss at node_count,
 * node i backward at 2 node_count - i. */
struct lowered_node {
	struct fused fused;
	struct shape x_shape, y_shape; /* x: channels as they lie, padded */
	struct lowered_weight weight;
	int x, z, y;	/* slots; z: what is added */
	int argmax;	/* of a maximum pooling */
	int dy, dx, dz; /* slots of gradients; NO_SLOT: nobody asks */
	bool add_dx, add_dz;
	bool dx_is_dy, dz_is_dy; /* they have one place, and nothing is to do but in it */
	size_t saved;		 /* of a batch norm: floats into the statistics, [SAVED_ROWS][c] */
	int norm;      /* of a convolution: the node of the batch norm whose sums it may make; -1 */
	int sums_conv; /* of a batch norm: that convolution's; -1 */
	int fused_norm; /* of a convolution: the node of the batch norm whose x it may read itself;
			   -1 */
	int fused_conv; /* of a batch norm: that convolution's; -1 */
};

struct lowered_graph {
	enum number number;
	int batch, node_count, slot_count;
	int input_channels; /* as they lie */
	struct lowered_node *nodes;
	struct memory_item *slots;
	int input, output, output_gradient; /* slots */
	int sums, weight_gradient;	    /* scratch */
	size_t arena_bytes, copies_bytes, saved_floats;
};

/* For at most batch samples. multiprocessors: of the GPU. Pure. -ERR_DATA: a batch norm of one
 * value; -ERR_INTERNAL, -ERR_UNAVAILABLE: as fuse_graph. */
int lowered_graph_make(const struct graph *graph, const struct buckets *buckets, int batch,
		       enum number number, bool train, int multiprocessors,
		       struct lowered_graph *out, struct error *err);
void lowered_graph_free(struct lowered_graph *lowered); /* clears it */

#endif
