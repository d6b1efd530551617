/* SPDX-License-Identifier: BSD-3-Clause */
/* What a CUDA executor will do, decided before anything runs: the plan of a step, copies of the
 * weights, and which batch norms a convolution may take over. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_LOWERED_GRAPH_H
#define BERTH_TRAIN_DEVICE_CUDA_LOWERED_GRAPH_H

#include "train/comm/ddp.h"
#include "train/device/cuda/kernels/kernels.h"
#include "train/executor/executor.h"
#include "train/executor/step_plan.h"
#include "train/model/graph.h"

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

/* What this device adds to a node of the plan. */
struct lowered_node {
	const struct step_node *step;
	struct shape x_shape, y_shape; /* x: with padded channels, as in memory */
	struct lowered_weight weight;
	size_t saved; /* of a batch norm: offset in floats into the statistics, [SAVED_ROWS][c] */
	/* Of a convolution: the node of the batch norm whose sums it may make; -1: none. */
	int norm;
	int sums_conv; /* of a batch norm: that convolution; -1: none */
	/* Of a convolution: the node of the batch norm whose x it may read itself; -1: none. */
	int fused_norm;
	int fused_conv; /* of a batch norm: that convolution; -1: none */
};

enum { SCRATCH_SUMS, SCRATCH_WEIGHT_GRADIENT }; /* step_plan.scratch */

struct lowered_graph {
	enum number number;
	int batch;
	int input_channels; /* including padding, as in memory */
	struct step_plan plan;
	struct lowered_node *nodes; /* as the plan's */
	size_t copies_bytes, saved_floats;
};

/* Lower request's graph: it decides by graph, buckets, batch, precision and train. multiprocessors
 * is the GPU's. Pure. Return 0; -ERR_INTERNAL or -ERR_UNAVAILABLE as step_plan_make. */
int lowered_graph_make(const struct executor_request *request, int multiprocessors,
		       struct lowered_graph *out, struct error *err);
void lowered_graph_free(struct lowered_graph *lowered); /* clears it */

#endif
