/* SPDX-License-Identifier: BSD-3-Clause */
/* The tree of agents: its shape, computed from node indices alone, and the collectives of the PMIx
 * servers that go up it. No I/O.
 *
 * With fan-out F, nodes 0 .. F-1 are children of the controller, nodes F .. 2F-1 are children of
 * node 0, the next F are children of node 1, and so on. No agent has more than F children. -1
 * stands for the controller.
 *
 * Costs (tests/bench/exchange.c measures them for up to 64 nodes). A collective sends one message
 * up and one down each edge, because a subtree's contributions go up as one: 2 n messages for n
 * nodes. Inventories and start messages are n messages, each over as many edges as its node is
 * deep: n log n, to the base F.
 *
 * An estimate for 10,000 nodes of one rank with 1 KiB each: the tree has three levels (32, 1,024
 * and 8,944 nodes). A fence takes 20,000 messages (n log2 n would be 133,000), at most 2 (F + 1) =
 * 66 of them through one agent. Every node receives all 10 MB: n^2 contributions in all, 100 GB,
 * whatever the tree. The controller and each inner agent send 10 MB 32 times, one level after the
 * other. At 10 Gb/s that is 0.26 s per level and 0.8 s in all. The time grows with n times the
 * number of levels.
 *
 * A message has at most WIRE_MAX_MESSAGE bytes (64 MiB), so more than 65,000 ranks with 1 KiB each
 * are refused. Data fetched on demand (MESSAGE_FETCH) has no such limit. */
#ifndef BERTH_OVERLAY_TREE_H
#define BERTH_OVERLAY_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define TREE_FANOUT 32

/* The parent of node; -1: the controller. */
long tree_parent(size_t node, size_t fanout);
/* The children of node (-1: the controller): [*first, *end) among count nodes; may be empty. */
void tree_children(long node, size_t count, size_t fanout, size_t *first, size_t *end);

/* ---- collectives ----
 *
 * Each node's contribution goes up the tree, with the entries of several nodes in one message. The
 * controller puts them in node order. An entry is the node (4 bytes), the size (4 bytes) and that
 * many bytes. */

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
