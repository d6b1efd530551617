/* SPDX-License-Identifier: BSD-3-Clause */
/* The first stages in order, on the machine where berth is called: environment, allocation,
 * inventory, plan. berth info shows their results. */
#ifndef BERTH_BIN_STAGES_H
#define BERTH_BIN_STAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "inventory/inventory.h"
#include "options.h"
#include "plan/plan.h"

/* Owned by the caller; zero-initialised before stages_load, freed by stages_free. */
struct stages {
	struct env *env;
	struct alloc alloc;
	struct inventory inventory; /* this machine, or BERTH_TOPOLOGY's */
	struct plan plan;
	bool assumed; /* the plan assumes that the allocation's other nodes are like this one */
	json_t *lint; /* array of strings: plan_lint's sentences */
};

/* Capture this process's environment, read the allocation, make this machine's inventory (or that
 * of BERTH_TOPOLOGY), and mark the GPUs that its visible-device lists allow. stages_plan makes the
 * plan. Return 0, or the failing stage's error; call stages_free in either case. */
int stages_load(const struct plan_options *options, struct stages *out, struct error *err);

/* Make the plan and look for suspicious variables. On the first node of a larger allocation the
 * inventories of the other nodes are unknown and assumed to be like this one's (assumed). Elsewhere
 * the plan covers this node only. */
int stages_plan(const struct plan_request *request, struct stages *stages, struct error *err);

/* The inventories of all nodes of alloc if they are like own: copies that borrow from own and
 * alloc. addresses: the others have own's addresses, too, because all are on this machine.
 * malloced; NULL when memory is out. */
struct inventory *stages_assume_alike(const struct inventory *own, const struct alloc *alloc,
				      bool addresses);

void stages_free(struct stages *stages);

#endif
