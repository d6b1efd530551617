/* SPDX-License-Identifier: BSD-3-Clause */
/* A graph's ops as a device with fused passes walks them: a batch norm takes the addition that
 * alone reads its result, and the ReLU that alone reads that, with it. */
#ifndef BERTH_TRAIN_EXECUTOR_FUSE_H
#define BERTH_TRAIN_EXECUTOR_FUSE_H

#include <stdbool.h>

#include "base/error.h"
#include "train/model/graph.h"

/* kind: of what is done: an OP_BATCHNORM with input2 >= 0 adds that value; relu: and then the ReLU.
 * op: borrowed from the graph; of a batch norm that itself. Values as the graph numbers them; those
 * between fused ops are written by none. */
struct fused {
	enum op_kind kind;
	const struct graph_op *op;
	int input, input2, output;
	bool relu;
};

/* Malloced, in an order in which each reads what was written before. -ERR_INTERNAL: an op that no
 * network has, or one that reads a value twice; -ERR_UNAVAILABLE: memory. */
int fuse_graph(const struct graph *graph, struct fused **out, int *count, struct error *err);
/* How many ops read each value, the loss counted: value_count numbers, malloced; NULL: memory. */
int *fuse_readers(const struct graph *graph);

#endif
