/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth info, berth plan and dry runs show alike, as text. */
#ifndef BERTH_BIN_SHOW_H
#define BERTH_BIN_SHOW_H

#include <jansson.h>
#include <stddef.h>

#include "base/env.h"
#include "hostlist/idset.h"
#include "stages.h"

/* A formatted cell; longer text is cut. Long texts (reasons) are passed as they are. */
struct cell {
	char text[512];
};

/* Each fills the cell anew and returns its text. */
const char *cell(struct cell *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *cell_set(struct cell *out, const struct idset *set); /* "0-3,8" */
/* "1 package, 2 NUMA nodes, 8 cores, 4 GPUs, 1 NIC" */
const char *cell_inventory(struct cell *out, const struct inventory *inventory);

const char *plural(size_t count); /* "" for 1, else "s" */

/* Print text. Sections begin with an empty line, a title and, wrapped, what is most important. */
void show_section(const struct paint *paint, const char *title, const char *text);
/* The allocation and the job. */
void show_alloc(const struct stages *stages);
/* The allocation's nodes; counts: the ranks of each, or NULL. */
void show_nodes(const struct stages *stages, const int *counts);
/* How berth run starts agents; line: also the command line, in full with stages->verbose. */
void show_launch(const struct stages *stages, bool line);
/* The rendezvous; without a plan, what the options say of it. */
void show_network(const struct stages *stages);
/* The ranks of count nodes of the plan. own: the rank that this process is, or -1. */
void show_plan(const struct stages *stages, size_t node, size_t count, int own);
/* The ranks of nodes, each with its GPUs (place in PCI order and PCI id), CPUs, and NICs with how
 * near they are to the GPU. */
void show_ranks(const struct plan_node *nodes, size_t count, int own, const struct paint *paint);
/* A rank's environment, with marks where it differs from another rank's of its node. own: that of
 * this process, which is the rank, to show instead; or NULL. Return 0, or an error of
 * stages_environment. */
int show_environment(const struct stages *stages, size_t node, size_t local_rank,
		     const struct env *own, struct error *err);
/* An array of strings; nothing if it is empty. */
void show_warnings(const struct paint *paint, const json_t *warnings);

/* [{name, value, from, why}]: a rank's environment. A new reference; NULL when memory is out. */
json_t *environment_json(const struct env *changes);

#endif
