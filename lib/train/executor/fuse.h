/* SPDX-License-Identifier: BSD-3-Clause */
/* A graph's ops as devices with fused passes run them. A batch norm absorbs the addition that alone
 * reads its result, and the ReLU that alone reads that. */
#ifndef BERTH_TRAIN_EXECUTOR_FUSE_H
#define BERTH_TRAIN_EXECUTOR_FUSE_H

#include <stdbool.h>

#include "base/error.h"
#include "train/model/graph.h"

/* One fused op. kind is what is done: an OP_BATCHNORM with input2 >= 0 adds that value; relu
 * applies a ReLU after it. op is borrowed from the graph; for a batch norm it is the batch norm.
 * Values have the graph's numbers; values inside a fused op are never written. */
struct fused {
	enum op_kind kind;
	const struct graph_op *op;
	int input, input2, output;
	bool relu;
};

/* Make the fused ops, malloced, in an order in which each reads only what was written before.
 * Return 0; -ERR_INTERNAL for an op that no network has, or one that reads a value twice;
 * -ERR_UNAVAILABLE if memory is out. */
int fuse_graph(const struct graph *graph, struct fused **out, int *count, struct error *err);
/* How many ops, including the loss, read each value: value_count numbers, malloced. NULL if memory
 * is out. */
int *fuse_readers(const struct graph *graph);

#endif
