/* SPDX-License-Identifier: BSD-3-Clause */
/* Rules that every plan of one node must follow, on any machine. */
#ifndef BERTH_TESTS_PLAN_INVARIANTS_H
#define BERTH_TESTS_PLAN_INVARIANTS_H

#include "plan/plan.h"

/* Print each violation with label, N and rank. Return the number of violations. */
int invariants_check(const char *label, const struct inventory *inventory,
		     const struct plan_request *request, const struct plan_node *node);

/* Plan n ranks and check; a failing plan counts as one violation. */
int invariants_plan(const char *label, const struct inventory *inventory,
		    const struct plan_request *request, int n);

/* The package of the rank's first GPU; -1 without a GPU, or if the package is unknown. */
int rank_package(const struct inventory *inventory, const struct plan_rank *rank);

/* Are some of these CPUs local to the GPU, and are all of them on its package? If the GPU's
 * locality is unknown: are they all on one package? */
bool cpus_local(const struct inventory *inventory, const struct inventory_gpu *gpu,
		const struct idset *cpus);

#endif
