/* SPDX-License-Identifier: BSD-3-Clause */
/* What environment.c and environment_network.c share; nobody else includes this. */
#ifndef BERTH_PLAN_ENVIRONMENT_H
#define BERTH_PLAN_ENVIRONMENT_H

#include "plan/plan.h"

/* What is being made: the inputs, and the changes so far. rc keeps the first failure, so that
 * the sections below read as lists. */
struct making {
	const struct plan *plan;
	const struct plan_node *node;
	const struct plan_rank *rank;
	const struct machine *card;
	const struct plan_request *request;
	const struct env *env;
	size_t node_index;
	struct env *out;
	struct error *err;
	int rc;
};

/* Set unless the user, or a site, has: theirs stays and is listed with what berth would do. */
void environ_put_from(struct making *m, enum env_from from, const char *name, const char *value,
		      const char *why);
/* The same of berth's own. */
void environ_put(struct making *m, const char *name, const char *value, const char *why);

/* ---- environment_network.c ---- */

bool environ_one_node(const struct making *m);
/* The interface of the chosen subnet, under each library's name for it; the rank's NICs for UCX. */
void environ_add_interfaces(struct making *m);
/* The fabric's ports without the management NICs, and its profile (fabric.c). */
void environ_add_fabric(struct making *m);

#endif
