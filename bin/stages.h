/* SPDX-License-Identifier: BSD-3-Clause */
/* The values of the first stages as this machine knows them: environment, allocation, launcher,
 * inventory, plan. berth info and dry runs show them through show.h, and as JSON through
 * stages_to_json. */
#ifndef BERTH_BIN_STAGES_H
#define BERTH_BIN_STAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "inventory/inventory.h"
#include "launch/launcher.h"
#include "plan/plan.h"
#include "table.h"

struct stages {
	/* Borrowed; set by stages_open. */
	const struct env *env;
	const struct alloc *alloc;
	const struct launcher *launcher; /* how berth run starts agents; NULL: none, as in a rank */
	struct plan_request request;
	struct paint paint;
	bool verbose; /* text: show the launcher's command line in full */
	/* This machine's index in alloc; -1: none of its nodes, or unknown. */
	int this_node;
	char *launcher_line;	       /* the command line that starts agents; NULL in a rank */
	struct inventory inventory;    /* this machine's, or BERTH_TOPOLOGY's */
	struct inventory *inventories; /* of the plan's nodes: copies that borrow from it */
	struct plan plan;	       /* node_count 0: none was made */
	bool assumed;		       /* the plan assumes that other nodes are like this one */
	char not_known[500];	       /* why there may be no plan, and how to see one */
	json_t *warnings;	       /* array of strings without repeats */
};

/* Capture this process's environment with the settings of the site and the user, and read the
 * allocation. The caller frees both, on success and failure. */
int stages_read(const struct alloc_request *request, struct env **env, struct alloc *alloc,
		struct error *err);

/* Begin with what needs no inventory. launch is borrowed; its launcher may be NULL. Return 0 or
 * -ERR_UNAVAILABLE. After any of these functions call stages_free, on success and failure. */
int stages_open(struct stages *out, const struct launch_options *launch,
		const struct plan_request *request, struct error *err);

/* Examine this machine, and mark the GPUs that its visible-device lists allow. */
int stages_discover(struct stages *stages, struct error *err);

/* Make the plan on a node of alloc. The inventories of other nodes are unknown: the first node
 * assumes that all are like itself, and another node plans for itself only. */
int stages_plan(struct stages *stages, struct error *err);

/* What a rank of the plan gets; see plan_environment. The caller frees *out. */
int stages_environment(const struct stages *stages, size_t node, size_t local_rank,
		       const struct env *env, struct env **out, struct error *err);

/* Add a warning, unless it is in the list or NULL. If memory is out, it is lost. */
void stages_warn(json_t *warnings, const char *text);
/* Add the plan's warnings, and those about suspicious variables in env (NULL: none). */
int stages_collect_warnings(struct stages *stages, const struct env *env, struct error *err);

/* The inventories of all nodes of alloc if they are like own: copies that borrow from own and
 * alloc. addresses: the others have own's addresses, too, because all are on this machine.
 * malloced; NULL when memory is out. */
struct inventory *stages_assume_alike(const struct inventory *own, const struct alloc *alloc,
				      bool addresses);

/* What berth.info/1 and berth.dryrun/1 have in common, and more, a new reference that is taken. A
 * new reference; NULL if memory is out or more is NULL. */
json_t *stages_to_json(const struct stages *stages, const char *schema, json_t *more);

void stages_free(struct stages *stages);

#endif
