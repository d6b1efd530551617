/* SPDX-License-Identifier: BSD-3-Clause */
/* The entries of a gather are lists of: node (4 bytes), size (4 bytes), data. They go up in the
 * order in which they arrive; gather_join, at the end, puts them in the order of the nodes. */
#include "overlay/tree.h"

#include <stdlib.h>
#include <string.h>

#define ENTRY_HEADER 8

long tree_parent(size_t node, size_t fanout)
{
	return (long)(node / fanout) - 1;
}

void tree_children(long node, size_t count, size_t fanout, size_t *first, size_t *end)
{
	size_t begin = (size_t)(node + 1) * fanout;

	*first = begin < count ? begin : count;
	*end = count - *first < fanout ? count : *first + fanout;
}

/* ---- collectives ---- */

struct gather *gathers_find(const struct gathers *gathers, uint64_t sequence)
{
	struct gather *gather = gathers->first;

	while (gather && gather->sequence != sequence)
		gather = gather->next;
	return gather;
}

struct gather *gathers_get(struct gathers *gathers, uint64_t sequence)
{
	struct gather *gather = gathers_find(gathers, sequence);

	if (gather || gathers->count >= GATHERS_MAX)
		return gather;
	gather = calloc(1, sizeof *gather);
	if (!gather)
		return NULL;
	gather->sequence = sequence;
	gather->next = gathers->first;
	gathers->first = gather;
	gathers->count++;
	return gather;
}

void gathers_drop(struct gathers *gathers, struct gather *gather)
{
	struct gather **at = &gathers->first;

	while (*at && *at != gather)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = gather->next;
	gathers->count--;
	bytes_free(&gather->entries);
	free(gather);
}

void gathers_free(struct gathers *gathers)
{
	while (gathers->first)
		gathers_drop(gathers, gathers->first);
}

int gather_add(struct gather *gather, uint32_t node, const void *data, size_t size,
	       struct error *err)
{
	unsigned char *at = bytes_extend(&gather->entries, ENTRY_HEADER + size);

	if (!at)
		return error_memory(err, "a collective");
	bytes_put_u32(at, node);
	bytes_put_u32(at + 4, (uint32_t)size);
	if (size)
		memcpy(at + ENTRY_HEADER, data, size);
	gather->nodes++;
	return 0;
}

/* Take one entry off the front. Return 1, 0 at the end, or -1 if it is cut short or of an unknown
 * node. */
static int take_entry(const unsigned char **at, size_t *left, size_t node_count, uint32_t *node,
		      uint32_t *size)
{
	if (!*left)
		return 0;
	if (*left < ENTRY_HEADER)
		return -1;
	*node = bytes_get_u32(*at);
	*size = bytes_get_u32(*at + 4);
	if (*node >= node_count || *left - ENTRY_HEADER < *size)
		return -1;
	*at += ENTRY_HEADER + *size;
	*left -= ENTRY_HEADER + *size;
	return 1;
}

int gather_merge(struct gather *gather, const void *entries, size_t size, size_t node_count,
		 struct error *err)
{
	const unsigned char *at = entries;
	size_t left = size, nodes = 0;
	uint32_t node, bytes;
	int rc;

	/* Check all entries before any is added: gather_join relies on it. */
	while ((rc = take_entry(&at, &left, node_count, &node, &bytes)) > 0)
		nodes++;
	if (rc < 0)
		return error_set(
			err, ERR_DATA,
			"the entries of collective %llu are truncated or name an unknown node",
			(unsigned long long)gather->sequence);
	if (bytes_add(&gather->entries, entries, size))
		return error_memory(err, "a collective");
	gather->nodes += nodes;
	return 0;
}

int gather_join(const struct gather *gather, size_t node_count, void **out, size_t *size,
		struct error *err)
{
	const unsigned char *at = gather->entries.data, **where;
	size_t left = gather->entries.size, total = 0;
	uint32_t node, bytes;
	unsigned char *joined;

	where = calloc(node_count, sizeof *where);
	/* All may be empty, and malloc(0) may return NULL. */
	joined = malloc(left + 1);
	if (!where || !joined) {
		free(where);
		free(joined);
		return error_memory(err, "a collective");
	}
	for (;;) {
		const unsigned char *entry = at;

		if (take_entry(&at, &left, node_count, &node, &bytes) <= 0)
			break;
		if (where[node]) {
			free(where);
			free(joined);
			return error_set(err, ERR_DATA,
					 "node %u contributed twice to collective %llu", node,
					 (unsigned long long)gather->sequence);
		}
		where[node] = entry;
	}
	for (size_t i = 0; i < node_count; i++) {
		if (!where[i])
			continue;
		bytes = bytes_get_u32(where[i] + 4);
		memcpy(joined + total, where[i] + ENTRY_HEADER, bytes);
		total += bytes;
	}
	free(where);
	*out = joined;
	*size = total;
	return 0;
}
