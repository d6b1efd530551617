/* SPDX-License-Identifier: BSD-3-Clause */
/* The cores of one node while they are dealt out: between core_domains.c (which package's) and
 * cores.c (which of them), nobody else's. */
#ifndef BERTH_PLAN_SHARE_H
#define BERTH_PLAN_SHARE_H

#include "plan/plan_internal.h"

enum near {
	NEAR_NOT,
	NEAR_NUMA, /* in the GPU's NUMA node */
	NEAR_GPU,  /* in the GPU's cpuset */
};

/* Ranks whose GPUs see the same cores as near. */
struct gpu_group {
	uint8_t *near;	/* [core_count], enum near */
	int first_core; /* the first near one; core_count: none */
	int near_count;
};

/* A unit is a package, or several that a rank's GPUs lie in. */
struct share {
	const struct inventory *inventory;
	int core_count, rank_count, domain_count;
	int *domain_of_package;
	int *domain_cores; /* [domain_count] */
	int *members;	   /* [domain_count], ranks that take their cores there */

	struct gpu_group *gpu_groups;
	int gpu_group_count;
	int *gpu_group;	  /* [rank_count], -1: no GPU */
	int *home_domain; /* [rank_count], unit of its GPUs, -1: none */
	int *domain;	  /* [rank_count], unit whose cores it takes */
	bool *capped; /* [rank_count]: moved because its home is full; takes no more than there */
	int *local_share; /* [rank_count], of the cores local to its GPU */
	int *quota, *taken;
	int *anchor;	  /* [rank_count], where the rank stands among the cores */
	bool *unreserved; /* [core_count], no used GPU is nearest to the core's NUMA node */
	int *sorted;	  /* [rank_count], scratch */

	int *owner; /* [core_count] */
};

/* Package and unit of a core (its place in machine.cores). */
int share_package_of(const struct share *share, int core);
int share_domain_of(const struct share *share, int core);
bool share_core_is_local(const struct inventory_core *core, const struct inventory_gpu *gpu);

/* core_domains.c: fill units, groups, home, place, modest and members. 0, or -1 when memory is out.
 */
int core_domains_choose(struct share *share, const struct gpu_choice *gpus);

#endif
