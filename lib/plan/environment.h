/* SPDX-License-Identifier: BSD-3-Clause */
/* What environment.c and environment_network.c share; nobody else includes this. */
#ifndef BERTH_PLAN_ENVIRONMENT_H
#define BERTH_PLAN_ENVIRONMENT_H

#include "plan/plan.h"

/* What is being made: the inputs, and the changes so far. rc keeps the first failure, so that
 * the sections below read as lists. */
struct environment_builder {
	const struct plan *plan;
	const struct plan_node *node;
	const struct plan_rank *rank;
	const struct inventory *inventory;
	const struct plan_request *request;
	const struct env *env;
	size_t node_index;
	struct env *out;
	struct error *err;
	int rc;
};

/* Set unless the user, or a site, has: theirs stays and is listed with what berth would do. */
void environment_put_from(struct environment_builder *m, enum env_from from, const char *name,
			  const char *value, const char *why);
/* The same of berth's own. */
void environment_put(struct environment_builder *m, const char *name, const char *value,
		     const char *why);

/* ---- environment_network.c ---- */

bool environment_one_node(const struct environment_builder *m);
/* The interface of the chosen subnet, under each library's name for it; the rank's NICs for UCX. */
void environment_add_interfaces(struct environment_builder *m);
/* The fabric's ports without the management NICs, and its profile (fabric.c). */
void environment_add_fabric(struct environment_builder *m);

#endif
