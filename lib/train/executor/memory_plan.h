/* SPDX-License-Identifier: BSD-3-Clause */
/* Many tensors that live at different times, in one piece of memory. */
#ifndef BERTH_TRAIN_EXECUTOR_MEMORY_PLAN_H
#define BERTH_TRAIN_EXECUTOR_MEMORY_PLAN_H

#include <stddef.h>

#include "base/error.h"

/* A tensor that holds something from position first to position last of a step, both included;
 * positions are any numbers that grow with time. offset is the answer. */
struct memory_item {
	size_t size_bytes;
	int first, last;
	size_t offset;
};

/* Give each item a place so that no two that live at once overlap: the largest first, each in the
 * lowest gap that holds it. The same items give the same places.
 * alignment: of every offset, a power of two. total_bytes: how much memory holds them all.
 * No I/O; items are changed only in offset. -ERR_UNAVAILABLE: memory, or sizes whose sum is none.
 */
int memory_plan(struct memory_item *items, size_t count, size_t alignment, size_t *total_bytes,
		struct error *err);

#endif
