/* SPDX-License-Identifier: BSD-3-Clause */
/* What must hold of every plan of one node, whatever the machine. */
#ifndef BERTH_TESTS_PLAN_INVARIANTS_H
#define BERTH_TESTS_PLAN_INVARIANTS_H

#include "plan/plan.h"

/* Print each violation with label, N and rank; returns how many there are. */
int invariants_check(const char *label, const struct inventory *inventory,
		     const struct plan_request *request, const struct plan_node *node);

/* Plan n ranks and check; a failing plan counts as one violation. */
int invariants_plan(const char *label, const struct inventory *inventory,
		    const struct plan_request *request, int n);

/* The package that the rank's first GPU is in, -1 without GPU or where that is unknown. */
int rank_package(const struct inventory *inventory, const struct plan_rank *rank);

/* Do these CPUs hold some of the GPU's own, and none of another package than the GPU's? Where
 * its locality is not recorded: none of more than one package. */
bool cpus_local(const struct inventory *inventory, const struct inventory_gpu *gpu,
		const struct idset *cpus);

#endif
