/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth info has found out, and its two ways of showing it. */
#ifndef BERTH_BIN_INFO_INFO_H
#define BERTH_BIN_INFO_INFO_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "stages.h"
#include "table.h"

struct info {
	struct options options;
	struct stages stages;
	bool json;	       /* --json */
	int wanted_rank;       /* --rank; -1: this process's, or the first of this node */
	const char *plan_file; /* BERTH_PLAN_FILE: this process is a rank; else NULL */
	size_t node_index;     /* of this node in the plan */
	size_t local_rank;     /* whose environment is shown */
	size_t own_local_rank; /* inside a rank: its own */
	size_t omitted_nodes;  /* of the allocation, that this plan leaves out */
	struct env *changes;   /* what that rank gets, with provenance */
	struct env *other;     /* the same of another rank of the node, or NULL: what differs */
	char *bound_to;	       /* inside a rank: the CPUs it may use now, "0-3" */
	json_t *warnings;      /* array of strings, each once */
};

/* Sections of text on stream. */
void info_print(const struct info *info, FILE *stream, const struct paint *paint);

/* berth.info/1: {schema, alloc, ranks, rank, machine, network, plan, environment, warnings}.
 * A new reference; NULL when memory is out. */
json_t *info_to_json(const struct info *info);

#endif
