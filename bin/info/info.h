/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth info found, and its output for people. */
#ifndef BERTH_BIN_INFO_INFO_H
#define BERTH_BIN_INFO_INFO_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "launch/launcher.h"
#include "stages.h"
#include "table.h"

struct info {
	struct plan_options options;
	struct stages stages;
	bool json;	       /* --json */
	bool verbose;	       /* --verbose */
	int wanted_rank;       /* --rank; -1: this process's, or the first on this node */
	const char *plan_file; /* BERTH_PLAN_FILE if this process is a rank; else NULL */
	size_t node_index;     /* index of this node in the plan */
	size_t local_rank;     /* the rank whose environment is shown */
	size_t own_local_rank; /* inside a rank: its own local rank */
	bool outside;	       /* this machine is not one of the job's nodes, so there is no plan */
	const struct launcher *launcher; /* how berth run would start agents; NULL: in a rank */
	char *launcher_line;		 /* its command line */
	size_t omitted_nodes;		 /* nodes of the allocation that this plan leaves out */
	struct env *changes;		 /* what that rank gets, with provenance */
	/* The same for another rank of the node, to show what differs; or NULL. */
	struct env *other;
	char *bound_to;	       /* inside a rank: the CPUs it may use now, "0-3" */
	json_t *claims;	       /* of other runs of the job here, see process/claims.h; or NULL */
	json_t *warnings;      /* array of strings without repeats */
	bool warnings_missing; /* memory was out */
};

/* Why there is no plan, and how to see one. */
#define INFO_NOT_KNOWN_MAX 400
const char *info_not_known(const struct info *info, char out[INFO_NOT_KNOWN_MAX]);

/* Print sections of text. */
void info_print(const struct info *info, const struct paint *paint);

#endif
