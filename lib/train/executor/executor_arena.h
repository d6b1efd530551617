/* SPDX-License-Identifier: BSD-3-Clause */
/* What the default executor derives from a graph before it runs: which op writes a gradient and
 * which adds to it, and where each value and gradient lies while it is needed. */
#ifndef BERTH_TRAIN_EXECUTOR_EXECUTOR_ARENA_H
#define BERTH_TRAIN_EXECUTOR_EXECUTOR_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "train/model/graph.h"

/* A value without a gradient, or a gradient that no op reads (the input's). */
#define ARENA_NONE ((size_t)-1)

/* What an op's backward pass does with the gradients of its inputs. The first op of the backward
 * pass that reaches a value's gradient writes it; later ones add. */
struct executor_accumulate {
	bool add_dx, add_dx2;
};

/* values and gradients: offsets in one arena of arena_bytes, per value of the graph, 64-byte
 * aligned. A ReLU that is the only reader of its input works in place: both values share one
 * offset, and so do their gradients.
 *
 * A forward value lives until its last reader in the forward pass or, in training, in the backward
 * pass. Backward of OP_RELU reads y (not x); OP_ADD and OP_AVGPOOL read neither. A gradient lives
 * from its first writer to the op that made its value. */
struct executor_arena {
	struct executor_accumulate *accumulate; /* one per op; NULL without train */
	size_t *values, *gradients;
	size_t arena_bytes;
};

/* Plan an executor of at most batch samples. Pure. Return 0; -ERR_INTERNAL if no op reads a value
 * or an addition reads a value twice; -ERR_UNAVAILABLE if memory is out or the sizes overflow. */
int executor_arena_make(const struct graph *graph, int batch, bool train,
			struct executor_arena *out, struct error *err);
void executor_arena_free(struct executor_arena *arena_map); /* clears it */

#endif
