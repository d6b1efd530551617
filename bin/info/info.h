/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth info found, and its output for people. */
#ifndef BERTH_BIN_INFO_INFO_H
#define BERTH_BIN_INFO_INFO_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "options.h"
#include "stages.h"

struct info {
	struct plan_options options;
	struct env *env;
	struct alloc alloc; /* in a rank: its own node */
	struct stages stages;
	bool json;	       /* --json */
	int wanted_rank;       /* --rank; -1: this process's, or the first on this node */
	const char *plan_file; /* BERTH_PLAN_FILE if this process is a rank; else NULL */
	size_t node_index;     /* index of this node in the plan */
	size_t local_rank;     /* the rank whose environment is shown */
	int own_local_rank;    /* inside a rank: its own local rank */
	int own_rank;	       /* and its rank; else -1 */
	bool outside;	       /* this machine is not one of the job's nodes, so there is no plan */
	char dir[4096];	       /* inside a rank: its agent's directory */
	struct env *changes;   /* what that rank gets, with provenance */
	char *bound_to;	       /* inside a rank: the CPUs it may use now, "0-3" */
	json_t *claims;	       /* of other runs of the job here, see process/claims.h; or NULL */
};

/* Print sections of text. Return 0, or an error of show_environment. */
int info_print(const struct info *info, struct error *err);

#endif
