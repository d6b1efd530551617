/* SPDX-License-Identifier: BSD-3-Clause */
/* Places many tensors with different lifetimes in one block of memory. */
#ifndef BERTH_TRAIN_EXECUTOR_MEMORY_PLAN_H
#define BERTH_TRAIN_EXECUTOR_MEMORY_PLAN_H

#include <stddef.h>

#include "base/error.h"

/* A tensor that is live from position first to position last, both included. Positions are any
 * numbers that grow with time. offset is the result. */
struct memory_item {
	size_t size_bytes;
	int first, last;
	size_t offset;
};

/* Give each item an offset so that no two live items overlap: the largest item first, each in the
 * lowest gap that fits. The same items give the same offsets. alignment, a power of two, applies to
 * every offset. *total_bytes is the size of the block. Does no I/O and changes only the offsets.
 * Return 0, or -ERR_UNAVAILABLE if memory is out or the sum of the sizes overflows. */
int memory_plan(struct memory_item *items, size_t count, size_t alignment, size_t *total_bytes,
		struct error *err);

#endif
