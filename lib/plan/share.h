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
struct core_domain {
	int cores;
	int members; /* ranks that take their cores here */
};

struct rank_share {
	int gpu_group;	 /* -1: no GPU */
	int home_domain; /* domain of its GPUs; -1: none */
	int domain;	 /* domain whose cores it takes */
	/* Moved because its home domain is full. It gets one core, no more than it would have had
	 * there. */
	bool capped;
	int local_share; /* fair share of the cores local to its GPU */
	int quota, taken;
	int anchor; /* the first core near its GPU, or the first it took; orders the ranks */
};

struct share {
	const struct inventory *inventory;
	struct scratch *scratch; /* holds all arrays */
	int core_count, rank_count, domain_count, gpu_group_count;
	int *domain_of_package;
	struct core_domain *domains;
	struct gpu_group *gpu_groups;
	struct rank_share *ranks;
	int *sorted;	  /* [rank_count]: the members of a domain by anchor */
	bool *unreserved; /* [core_count]: no used GPU is nearest to the core's NUMA node */
	int *owner;	  /* [core_count]: as in struct core_choice */
};

/* The domain of a core (its index in inventory.cores). */
int share_domain_of(const struct share *share, int core);
bool share_core_is_local(const struct inventory_core *core, const struct inventory_gpu *gpu);

/* core_domains.c: fill domain_of_package, domains, gpu_groups, and of ranks gpu_group, home_domain,
 * domain and capped. Return 0, or -1 if memory is out. */
int core_domains_choose(struct share *share, const struct gpu_choice *gpus);

#endif
