/* SPDX-License-Identifier: BSD-3-Clause */
#include "overlay/tree.h"

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

long tree_next_hop(long above, size_t node, size_t fanout)
{
	long at = (long)node;

	while (at >= 0) {
		long parent = tree_parent((size_t)at, fanout);

		if (parent == above)
			return at;
		at = parent;
	}
	return -1;
}
