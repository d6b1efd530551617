/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth info, berth plan and dry runs show alike: nodes, ranks, an environment. */
#ifndef BERTH_BIN_SHOW_H
#define BERTH_BIN_SHOW_H

#include <jansson.h>
#include <stddef.h>

#include "base/env.h"
#include "alloc/alloc.h"
#include "hostlist/idset.h"
#include "plan/plan.h"
#include "table.h"

/* A formatted cell; longer text is cut. Long texts (reasons) are passed as they are. */
struct cell {
	char text[512];
};

/* Each fills the cell anew and returns its text. */
const char *cell(struct cell *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *cell_set(struct cell *out, const struct idset *set); /* "0-3,8" */

const char *plural(size_t count); /* "" for 1, else "s" */

/* Print the allocation's nodes; counts: the ranks of each, or NULL. */
void show_nodes(const struct alloc *alloc, const int *counts, const struct paint *paint);
/* Print the ranks of count nodes, each with its GPUs (place in PCI order and PCI id), CPUs, and
 * NICs with how near they are to the GPU. own: the rank that this process is, or -1. */
void show_ranks(const struct plan_node *nodes, size_t count, int own, const struct paint *paint);
/* Print a rank's environment. other: that of another rank of its node, to mark what differs; or
 * NULL. */
void show_environment(const struct env *changes, const struct env *other,
		      const struct paint *paint);

/* [{name, value, from, why}]: a rank's environment. A new reference; NULL when memory is out. */
json_t *environment_json(const struct env *changes);

#endif
