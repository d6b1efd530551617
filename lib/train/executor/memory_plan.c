/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/memory_plan.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static int larger_first(const void *left, const void *right)
{
	const struct memory_item *a = *(struct memory_item *const *)left;
	const struct memory_item *b = *(struct memory_item *const *)right;

	if (a->size_bytes != b->size_bytes)
		return a->size_bytes < b->size_bytes ? 1 : -1;
	/* Items are one array: their positions in it break ties. */
	return a < b ? -1 : a > b;
}

static bool live_at_once(const struct memory_item *a, const struct memory_item *b)
{
	return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset at which item overlaps no placed item; these are in order of offset. */
static size_t lowest_gap(const struct memory_item *item, struct memory_item *const *placed,
			 size_t count, size_t alignment)
{
	size_t offset = 0;

	for (size_t i = 0; i < count; i++) {
		const struct memory_item *other = placed[i];
		size_t end = other->offset + other->size_bytes;

		if (!live_at_once(item, other) || end <= offset)
			continue;
		if (other->offset >= offset && other->offset - offset >= item->size_bytes)
			break;
		offset = (end + alignment - 1) & ~(alignment - 1);
	}
	return offset;
}

int memory_plan(struct memory_item *items, size_t count, size_t alignment, size_t *total_bytes,
		struct error *err)
{
	struct memory_item **order = calloc(count + 1, sizeof *order);
	struct memory_item **placed = calloc(count + 1, sizeof *placed);
	size_t total = 0, sum = 0, placed_count = 0;
	int rc = order && placed ? 0 : error_memory(err, "the memory plan");

	for (size_t i = 0; !rc && i < count; i++) {
		order[i] = &items[i];
		/* As long as this sum fits, no offset can overflow. */
		if (items[i].size_bytes > SIZE_MAX / 2 - alignment ||
		    sum > SIZE_MAX / 2 - alignment - items[i].size_bytes)
			rc = error_memory(err, "tensors of this size");
		else
			sum += items[i].size_bytes + alignment;
	}
	if (!rc)
		qsort(order, count, sizeof *order, larger_first);
	for (size_t i = 0; !rc && i < count; i++) {
		struct memory_item *item = order[i];
		size_t at = placed_count;

		if (!item->size_bytes) {
			item->offset = 0;
			continue;
		}
		item->offset = lowest_gap(item, placed, placed_count, alignment);
		if (item->offset + item->size_bytes > total)
			total = item->offset + item->size_bytes;
		for (; at && placed[at - 1]->offset > item->offset; at--)
			placed[at] = placed[at - 1];
		placed[at] = item;
		placed_count++;
	}
	free(order);
	free(placed);
	if (!rc)
		*total_bytes = total;
	return rc;
}
