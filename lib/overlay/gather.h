/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives of the PMIx servers: each node's contribution goes up the tree, entries of several
 * nodes in one message; the head puts them in node order.
 *
 * An entry is node (4 bytes), size (4 bytes), bytes. No I/O here. */
#ifndef BERTH_OVERLAY_GATHER_H
#define BERTH_OVERLAY_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define GATHERS_MAX 4096 /* collectives under way at once */

/* One collective at one place of the tree. */
struct gather {
	struct gather *next;
	uint64_t sequence;
	size_t nodes; /* whose entries are here */
	struct bytes entries;
	void *token; /* of the own contribution; NULL before it or without one */
	bool own;    /* the own contribution is in */
	bool sent;   /* passed on upwards */
};

/* All collectives at one place. Zero-initialised. */
struct gathers {
	struct gather *first;
	size_t count;
};

/* The collective with that number, made when new. NULL: memory out or more than GATHERS_MAX. */
struct gather *gathers_get(struct gathers *gathers, uint64_t sequence);
struct gather *gathers_find(const struct gathers *gathers, uint64_t sequence); /* or NULL */
void gathers_drop(struct gathers *gathers, struct gather *gather);
void gathers_free(struct gathers *gathers);

/* Add one node's contribution, or the entries of a message from below (checked: whole entries of
 * nodes below node_count). -ERR_DATA, -ERR_UNAVAILABLE; nothing is added then. */
int gather_add(struct gather *gather, uint32_t node, const void *data, size_t size,
	       struct error *err);
int gather_merge(struct gather *gather, const void *entries, size_t size, size_t node_count,
		 struct error *err);
/* The contributions one after another in node order, malloced (free it); a node twice is
 * -ERR_DATA. */
int gather_join(const struct gather *gather, size_t node_count, void **out, size_t *size,
		struct error *err);

#endif
