/* SPDX-License-Identifier: BSD-3-Clause */
/* The cores of one node while they are dealt out: between core_domains.c (which package's) and cores.c
 * (which of them), nobody else's. */
#ifndef BERTH_PLAN_SHARE_H
#define BERTH_PLAN_SHARE_H

#include "plan/plan_internal.h"

enum near {
	NEAR_NOT,
	NEAR_NUMA, /* in the GPU's NUMA node */
	NEAR_GPU,  /* in the GPU's cpuset */
};

/* Ranks whose GPUs see the same cores as near. */
struct group {
	uint8_t *near;	/* [core_count], enum near */
	int first_core; /* the first near one; core_count: none */
	int near_count;
};

/* A unit is a package, or several that a rank's GPUs lie in. */
struct deal {
	const struct machine *machine;
	int core_count, rank_count, unit_count;
	int *unit_of_package;
	int *unit_cores; /* [unit_count] */
	int *members;	 /* [unit_count], ranks that take their cores there */

	struct group *groups;
	int group_count;
	int *group;   /* [rank_count], -1: no GPU */
	int *home;    /* [rank_count], unit of its GPUs, -1: none */
	int *place;   /* [rank_count], unit whose cores it takes */
	bool *modest; /* [rank_count]: moved because its home is full; takes no more than there */
	int *share;   /* [rank_count], of the cores local to its GPU */
	int *quota, *have;
	int *anchor; /* [rank_count], where the rank stands among the cores */
	bool *pool;  /* [core_count], no used GPU is nearest to the core's NUMA node */
	int *sorted; /* [rank_count], scratch */

	int *owner; /* [core_count] */
};

/* Package and unit of a core (its place in machine.cores). */
int deal_package(const struct deal *deal, int core);
int deal_unit_of(const struct deal *deal, int core);
bool deal_core_is_local(const struct machine_core *core, const struct machine_gpu *gpu);

/* core_domains.c: fill units, groups, home, place, modest and members. 0, or -1 when memory is out. */
int places_choose(struct deal *deal, const struct gpu_choice *gpus);

#endif
