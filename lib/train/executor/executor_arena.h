/* SPDX-License-Identifier: BSD-3-Clause */
/* What the default step knows of a graph before it runs: which op writes a gradient and which adds
 * to it, and where each value and each gradient lies while it is needed. */
#ifndef BERTH_TRAIN_EXECUTOR_EXECUTOR_ARENA_H
#define BERTH_TRAIN_EXECUTOR_EXECUTOR_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "train/model/graph.h"

/* A value without a gradient, or a gradient that nobody wants: the input's. */
#define ARENA_NONE ((size_t)-1)

/* What the backward pass of an op does with the gradients of its inputs: the first op of the
 * backward pass that reaches a value's gradient writes it, later ones add. */
struct executor_accumulate {
	bool add_dx, add_dx2;
};

/* values and gradients: offsets in one arena of arena_bytes, for each value of the graph, 64-byte
 * aligned. A ReLU that alone reads its input works in place: both values have one offset, and so
 * have their gradients. A forward value lives until its last reader, of the forward pass or, in
 * training, of the backward pass, which reads of OP_RELU y (not x) and of OP_ADD and OP_AVGPOOL
 * neither; a gradient from its first writer to the op that made its value. */
struct executor_arena {
	struct executor_accumulate *accumulate; /* one an op; NULL without train */
	size_t *values, *gradients;
	size_t arena_bytes;
};

/* Plan a step of at most batch samples. Pure. -ERR_INTERNAL: a value that nobody reads, or an
 * addition of a value to itself; -ERR_UNAVAILABLE: memory, or a network larger than any. */
int executor_arena_make(const struct graph *graph, int batch, bool train,
			struct executor_arena *out, struct error *err);
void executor_arena_free(struct executor_arena *arena_map); /* clears it */

#endif
