/* SPDX-License-Identifier: BSD-3-Clause */
/* The cores of one node while they are shared out. Shared by core_domains.c (from which packages)
 * and cores.c (which of them) only. */
#ifndef BERTH_PLAN_SHARE_H
#define BERTH_PLAN_SHARE_H

#include "plan/plan_internal.h"

enum near {
	NEAR_NOT,
	NEAR_NUMA, /* in the NUMA node of the rank's GPU */
	NEAR_GPU,  /* in the cpuset of the rank's GPU */
};

/* Ranks whose GPUs have the same cores near them. */
struct gpu_group {
	uint8_t *near;	/* [core_count], enum near */
	int first_core; /* the first core with NEAR_GPU; core_count: none */
	int near_count;
};

/* A core domain is one package, or several packages if the GPUs of one rank lie in them. */
struct share {
	const struct inventory *inventory;
	struct scratch *scratch; /* holds all arrays */
	int core_count, rank_count, domain_count;
	int *domain_of_package;
	int *domain_cores; /* [domain_count] */
	int *members;	   /* [domain_count]: number of ranks that take their cores there */

	struct gpu_group *gpu_groups;
	int gpu_group_count;
	int *gpu_group;	  /* [rank_count], -1: no GPU */
	int *home_domain; /* [rank_count]: domain of its GPUs; -1: none */
	int *domain;	  /* [rank_count]: domain whose cores it takes */
	/* [rank_count]: moved because its home domain is full. It gets one core, no more than it
	 * would have had there. */
	bool *capped;
	int *local_share; /* [rank_count]: fair share of the cores local to its GPU */
	int *quota, *taken;
	int *anchor; /* [rank_count]: the first core near its GPU, or the first it took; orders the
			ranks */
	bool *unreserved; /* [core_count]: no used GPU is nearest to the core's NUMA node */
	int *sorted;	  /* [rank_count], scratch */

	int *owner; /* [core_count] */
};

/* The domain of a core (its index in inventory.cores). */
int share_domain_of(const struct share *share, int core);
bool share_core_is_local(const struct inventory_core *core, const struct inventory_gpu *gpu);

/* core_domains.c: fill domain_of_package, domain_cores, gpu_groups, gpu_group, home_domain, domain,
 * capped and members. Return 0, or -1 if memory is out. */
int core_domains_choose(struct share *share, const struct gpu_choice *gpus);

#endif
