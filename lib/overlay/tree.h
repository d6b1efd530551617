/* SPDX-License-Identifier: BSD-3-Clause */
/* The shape of the tree of agents, from node indices alone.
 *
 * With fan-out F the head has the nodes 0 .. F-1 below it, node 0 the nodes F .. 2F-1, node 1 the
 * next F, and so on; nobody has more than F children. -1 stands for the head.
 *
 * What it costs (tests/bench/exchange.c measures it up to 64 nodes: 2 n messages a fence).
 * A collective is one message up and one down each edge, since contributions of a subtree go up as
 * one: 2 n messages for n nodes. Cards, and what each node is told at the start, are n messages
 * over as many edges as their node is deep: n log n to the base F.
 * On paper, 10,000 nodes of one rank with 1 KiB each: three levels (32, 1,024 and 8,944 nodes);
 * 20,000 messages a fence (n log2 n: 133,000), at most 2 (F + 1) = 66 of them through one agent.
 * Everybody gets everybody's 10 MB: that is n^2 bytes in all, 100 GB, whoever passes them on; the
 * head and each inner agent send 32 times 10 MB, levels one after the other. At 10 Gb/s that is
 * 0.26 s a level and 0.8 s in all. The time for it grows with n times the number of levels.
 * A message has at most WIRE_MAX_MESSAGE bytes (64 MiB): more than 65,000 ranks with 1 KiB each
 * are refused; what is fetched when it is needed (MESSAGE_FETCH) has no such end. */
#ifndef BERTH_OVERLAY_TREE_H
#define BERTH_OVERLAY_TREE_H

#include <stddef.h>

#define TREE_FANOUT 32

/* The node above; -1: the head. */
long tree_parent(size_t node, size_t fanout);
/* The nodes directly below node (-1: the head): [*first, *end) among count nodes; may be empty. */
void tree_children(long node, size_t count, size_t fanout, size_t *first, size_t *end);
/* The child of above (-1: the head) through which node is reached: node itself when it is a
 * child; -1 when node is not below it. */
long tree_next_hop(long above, size_t node, size_t fanout);

#endif
