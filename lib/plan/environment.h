/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by environment.c and environment_network.c; no other file includes this. */
#ifndef BERTH_PLAN_ENVIRONMENT_H
#define BERTH_PLAN_ENVIRONMENT_H

#include "plan/plan.h"

/* The inputs and the changes so far. rc keeps the first failure, so that the functions below read
 * as lists. */
struct environment_builder {
	const struct plan *plan;
	const struct plan_node *node;
	const struct plan_rank *rank;
	const struct inventory *inventory;
	const struct plan_request *request;
	const struct env *env;
	struct env *out;
	struct error *err;
	int rc;
};

/* Set a variable unless the user or a site set it. Their value stays, and the result records what
 * berth would have set. */
void environment_put_from(struct environment_builder *m, enum env_from from, const char *name,
			  const char *value, const char *why);
/* The same, with provenance ENV_FROM_BERTH. */
void environment_put(struct environment_builder *m, const char *name, const char *value,
		     const char *why);

/* ---- environment_network.c ---- */

bool environment_one_node(const struct environment_builder *m);
/* Name the interface of the chosen subnet in each library's variable, and the rank's NICs for
 * UCX. */
void environment_add_interfaces(struct environment_builder *m);
/* Add the fabric's ports without the management NICs, and the fabric's profile (fabric.c). */
void environment_add_fabric(struct environment_builder *m);

#endif
