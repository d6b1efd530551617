/* SPDX-License-Identifier: BSD-3-Clause */
/* The shape of the tree of agents, from node indices alone.
 *
 * With fan-out F the head has the nodes 0 .. F-1 below it, node 0 the nodes F .. 2F-1, node 1 the
 * next F, and so on; nobody has more than F children. -1 stands for the head. */
#ifndef BERTH_AGENT_TREE_H
#define BERTH_AGENT_TREE_H

#include <stddef.h>

#define TREE_FANOUT 32

/* The node above; -1: the head. */
long tree_parent(size_t node, size_t fanout);
/* The nodes directly below node (-1: the head): [*first, *end) among count nodes; may be empty. */
void tree_children(long node, size_t count, size_t fanout, size_t *first, size_t *end);
/* The child of above (-1: the head) through which node is reached: node itself when it is a
 * child; -1 when node is not below it. */
long tree_towards(long above, size_t node, size_t fanout);

#endif
