/* SPDX-License-Identifier: BSD-3-Clause */
/* What one training step does, decided before anything runs: which ops are fused, where each value
 * and gradient lies while it is needed, and which gradients are added up. A device says how large
 * things are and what it can do (step_rules). Its emitter then turns each node into calls of its
 * library, forward and backward: cpu/compiled_graph_run.c, cuda/compiled_graph.c. */
#ifndef BERTH_TRAIN_EXECUTOR_STEP_PLAN_H
#define BERTH_TRAIN_EXECUTOR_STEP_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "train/executor/memory_plan.h"
#include "train/model/graph.h"

#define NO_SLOT (-1)
#define STEP_READERS_MAX 8 /* of one value */
#define STEP_SCRATCHES 2

/* One node, which runs forward and backward. kind is what is done: an OP_BATCHNORM with input2 >= 0
 * adds that value; relu applies a ReLU after it. op is borrowed from the graph; for a batch norm it
 * is the batch norm. Values have the graph's numbers; values inside a node are never written.
 *
 * Of the forward pass, backward may read: x, or copy if there is one, of a convolution or linear
 * layer; x of a batch norm; y of a ReLU, and of a batch norm with input2 and relu; kept. The rest
 * may be overwritten by then.
 *
 * Times: node i runs forward at i, the loss at node_count, and node i backward at 2 * node_count -
 * i. Slots are indices in step_plan.slots. */
struct step_node {
	enum op_kind kind;
	const struct graph_op *op;
	int input, input2, output;
	bool relu;

	/* Slots of input, input2 and output. A ReLU that is the only reader of its input has both
	 * in one slot: its gradient needs only the result. */
	int x, z, y;
	int copy; /* slot for a copy of x, or of z if there is one, in the node's own layout */
	int kept; /* slot for what the node writes for its backward pass (a pooling: positions) */

	/* Backward. dy: the parts of the gradient of the result. If there are more than the node
	 * reads itself, it first adds them up in sum. */
	int dy[STEP_READERS_MAX], dy_count, sum;
	/* Where the node writes the gradients of input and input2; NO_SLOT: not needed. Each may be
	 * a slot of dy, which the node then overwrites (write dz before dx); an addition's gradient
	 * is there already, and without step_rules.adds both may be in that slot. add: add to what
	 * is there. */
	int dx, dz;
	bool add_dx, add_dz;
	/* The slot to which the node copies dx, or dz if there is one, in the value's layout. */
	int copy_out;
};

struct step_plan {
	const struct graph *graph; /* borrowed */
	bool train;
	int node_count, slot_count;
	struct step_node *nodes;
	int *readers; /* per value: how many ops read it, the loss included */
	struct memory_item *slots;
	int input, output, output_gradient; /* slots; input: NO_SLOT if it has no size */
	int scratch[STEP_SCRATCHES];	    /* slots that live throughout */
	size_t arena_bytes;
};

/* What a node needs besides its values, in bytes; 0: it does not need that. copy: its input in its
 * own layout, kept for backward by convolutions and linear layers only; copy_out: the gradient of
 * that input in its own layout, 0 if the device adds to gradients. kept: see step_node. */
struct step_size {
	size_t copy, copy_out, kept;
};

struct step_rules {
	size_t alignment; /* of slots, a power of two */
	/* Per value, and of its gradient. The input's may be 0: it then lies elsewhere. */
	const size_t *value_bytes;
	const struct step_size *sizes; /* per node */
	size_t scratch_bytes[STEP_SCRATCHES];
	/* Can the device's ops add to a gradient? Then the first node that reaches a gradient
	 * writes it, and later ones add: each node has one dy and no sum. Otherwise each writes a
	 * part of its own, batch norms read two parts at once, and gradients take the place of
	 * those that they are made from. */
	bool adds;
};

/* Fuse graph into nodes, in an order in which each reads only what was written before: a batch norm
 * absorbs the addition that alone reads its result, and the ReLU that alone reads that. Pure. Nodes
 * have no slots yet, and their sizes may depend on what they are. Return 0; -ERR_INTERNAL for an op
 * that no network has, one that reads a value twice, or a value that no op or too many ops read;
 * -ERR_UNAVAILABLE if memory is out. */
int step_plan_make(const struct graph *graph, bool train, struct step_plan *out, struct error *err);
/* Give each value and gradient a slot, and each slot its place. Pure. Return 0 or
 * -ERR_UNAVAILABLE. */
int step_plan_place(struct step_plan *plan, const struct step_rules *rules, struct error *err);
void step_plan_free(struct step_plan *plan); /* clears it */

/* The slot of a node's dy after summation. */
int step_node_dy(const struct step_node *node);
/* Does it have a weight that its values are multiplied by? */
bool step_node_is_layer(const struct step_node *node);

#endif
