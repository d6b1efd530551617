/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives of the PMIx servers. Each node's contribution goes up the tree, with the entries of
 * several nodes in one message. The controller puts them in node order.
 *
 * An entry is the node (4 bytes), the size (4 bytes) and that many bytes. This file does no I/O. */
#ifndef BERTH_OVERLAY_GATHER_H
#define BERTH_OVERLAY_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define GATHERS_MAX 4096 /* collectives in progress at once */

/* One collective at one agent, or at the controller. */
struct gather {
	struct gather *next;
	uint64_t sequence;
	size_t nodes; /* nodes whose entries have arrived */
	struct bytes entries;
	void *token; /* the token of this node's own contribution; NULL before it or without one */
	bool own;    /* this node's own contribution has arrived */
	bool sent;   /* already sent upwards */
};

/* All collectives at one agent, or at the controller. Zero-initialised. */
struct gathers {
	struct gather *first;
	size_t count;
};

/* Find the collective with that number, or add it. NULL if memory is out or there would be more
 * than GATHERS_MAX. */
struct gather *gathers_get(struct gathers *gathers, uint64_t sequence);
struct gather *gathers_find(const struct gathers *gathers, uint64_t sequence); /* or NULL */
void gathers_drop(struct gathers *gathers, struct gather *gather);
void gathers_free(struct gathers *gathers);

/* Add one node's contribution, or the entries of a message from below. gather_merge checks that the
 * entries are whole and of nodes below node_count. Return 0, -ERR_DATA or -ERR_UNAVAILABLE; nothing
 * is added on failure. */
int gather_add(struct gather *gather, uint32_t node, const void *data, size_t size,
	       struct error *err);
int gather_merge(struct gather *gather, const void *entries, size_t size, size_t node_count,
		 struct error *err);
/* Concatenate the contributions in node order; *out is malloced. A node that occurs twice is
 * -ERR_DATA. */
int gather_join(const struct gather *gather, size_t node_count, void **out, size_t *size,
		struct error *err);

#endif
