/* SPDX-License-Identifier: BSD-3-Clause */
/* From which package a rank takes its cores: its GPU's, and another only if that has no core for
 * it. Without GPUs, ranks are shared out to the packages in proportion to their cores. */
#include "plan/plan.h"

#include <string.h>

#include "plan/share.h"

static int package_of(const struct share *share, int core)
{
	int package = share->inventory->cores[core].package;

	return package >= 0 && package < (int)share->inventory->package_count ? package : 0;
}

int share_domain_of(const struct share *share, int core)
{
	return share->domain_of_package[package_of(share, core)];
}

/* ---- packages into core domains, ranks into groups ---- */

static void merge_domains(int *domain_of_package, size_t package_count, int a, int b)
{
	int from = domain_of_package[b], to = domain_of_package[a];

	for (size_t p = 0; p < package_count; p++)
		if (domain_of_package[p] == from)
			domain_of_package[p] = to;
}

static void number_domains(struct share *share)
{
	size_t count = share->inventory->package_count;

	for (size_t p = 0; p < count; p++) {
		int root = share->domain_of_package[p];

		if (root < 0)
			continue; /* already numbered, as ~number */
		for (size_t q = p; q < count; q++)
			if (share->domain_of_package[q] == root)
				share->domain_of_package[q] = ~share->domain_count;
		share->domain_count++;
	}
	for (size_t p = 0; p < count; p++)
		share->domain_of_package[p] = ~share->domain_of_package[p];
	for (int c = 0; c < share->core_count; c++)
		share->domains[share_domain_of(share, c)].cores++;
}

bool share_core_is_local(const struct inventory_core *core, const struct inventory_gpu *gpu)
{
	return idset_intersects(core->cpus_os, gpu->cpus_os);
}

/* A GPU of unknown locality is near to all of the package it is assigned to. */
static void mark_near(const struct share *share, const struct gpu_choice *gpus, int gpu,
		      uint8_t *near)
{
	const struct inventory_gpu *g = &share->inventory->gpus[gpu];

	for (int c = 0; c < share->core_count; c++) {
		const struct inventory_core *core = &share->inventory->cores[c];
		enum near level = NEAR_NOT;

		if (!g->local_known || g->package < 0)
			level = package_of(share, c) == gpus->package[gpu] ? NEAR_GPU : NEAR_NOT;
		else if (share_core_is_local(core, g))
			level = NEAR_GPU;
		else if (core->numa_os >= 0 && idset_has(g->numa_os, core->numa_os))
			level = NEAR_NUMA;
		if (level > near[c])
			near[c] = level;
	}
}

static int make_gpu_group(struct share *share, const struct gpu_choice *gpus, int rank)
{
	const int *gpus_of_rank = gpus->of_rank + rank * gpus->per_rank;
	struct gpu_group *next = &share->gpu_groups[share->gpu_group_count];

	/* Ranks on the same GPUs are adjacent. */
	if (rank && !memcmp(gpus_of_rank - gpus->per_rank, gpus_of_rank,
			    (size_t)gpus->per_rank * sizeof *gpus_of_rank)) {
		share->ranks[rank].gpu_group = share->ranks[rank - 1].gpu_group;
		return 0;
	}
	if (!next->near)
		next->near = scratch_array(share->scratch, (size_t)share->core_count, 1);
	if (!next->near)
		return -1;
	memset(next->near, NEAR_NOT, (size_t)share->core_count);
	for (int k = 0; k < gpus->per_rank; k++)
		mark_near(share, gpus, gpus_of_rank[k], next->near);
	for (int g = 0; g < share->gpu_group_count; g++)
		if (!memcmp(share->gpu_groups[g].near, next->near, (size_t)share->core_count)) {
			share->ranks[rank].gpu_group = g;
			return 0;
		}
	next->first_core = share->core_count;
	for (int c = share->core_count - 1; c >= 0; c--)
		if (next->near[c] == NEAR_GPU) {
			next->first_core = c;
			next->near_count++;
		}
	share->ranks[rank].gpu_group = share->gpu_group_count++;
	return 0;
}

/* Set the home domains of ranks with GPUs. */
static int set_homes_by_gpu(struct share *share, const struct gpu_choice *gpus)
{
	size_t package_count = share->inventory->package_count;

	for (int r = 0; r < share->rank_count; r++) {
		const int *gpus_of_rank = gpus->of_rank + r * gpus->per_rank;

		for (int k = 1; k < gpus->per_rank; k++)
			if (gpus->package[gpus_of_rank[0]] >= 0 &&
			    gpus->package[gpus_of_rank[k]] >= 0)
				merge_domains(share->domain_of_package, package_count,
					      gpus->package[gpus_of_rank[0]],
					      gpus->package[gpus_of_rank[k]]);
	}
	number_domains(share);
	for (int r = 0; r < share->rank_count; r++) {
		int package = gpus->package[gpus->of_rank[r * gpus->per_rank]];

		if (package >= 0 && package < (int)package_count)
			share->ranks[r].home_domain = share->domain_of_package[package];
		if (make_gpu_group(share, gpus, r) < 0)
			return -1;
	}
	return 0;
}

/* Without GPUs: if there are fewer ranks than packages, each gets several packages. More ranks are
 * shared out to the packages in proportion to their cores. */
static int set_homes_by_cores(struct share *share)
{
	int count = (int)share->inventory->package_count, ranks = share->rank_count;

	for (int p = 0; ranks < count && p < count; p++)
		for (int q = p + 1; q < count; q++)
			if ((long)p * ranks / count == (long)q * ranks / count)
				merge_domains(share->domain_of_package, (size_t)count, p, q);
	number_domains(share);

	int *assigned =
		scratch_array(share->scratch, (size_t)share->domain_count, sizeof *assigned);

	if (!assigned)
		return -1;
	for (int r = 0; r < ranks; r++) {
		int best = 0;

		for (int u = 1; u < share->domain_count; u++)
			if ((long)(assigned[u] + 1) * share->domains[best].cores <
			    (long)(assigned[best] + 1) * share->domains[u].cores)
				best = u;
		assigned[best]++;
	}
	for (int u = 0, r = 0; u < share->domain_count; u++)
		for (int k = 0; k < assigned[u]; k++)
			share->ranks[r++].home_domain = u;
	return 0;
}

/* ---- ranks whose home domain has no core for them ---- */

/* Ranks per core of a with more members, compared to b's, without a division. */
static bool is_fuller(const struct core_domain *a, int more, const struct core_domain *b,
		      int more_b)
{
	return (long)(a->members + more) * b->cores > (long)(b->members + more_b) * a->cores;
}

/* The domain with the fewest ranks per core after adding one; -1 if none has cores. */
static int least_loaded(const struct share *share)
{
	int best = -1;

	for (int u = 0; u < share->domain_count; u++)
		if (share->domains[u].cores &&
		    (best < 0 || is_fuller(&share->domains[best], 1, &share->domains[u], 1)))
			best = u;
	return best;
}

static int most_loaded(const struct share *share)
{
	int worst = 0;

	for (int u = 1; u < share->domain_count; u++)
		if (is_fuller(&share->domains[u], 0, &share->domains[worst], 0))
			worst = u;
	return worst;
}

static void assign_domains(struct share *share)
{
	for (int r = 0; r < share->rank_count; r++) {
		int home = share->ranks[r].home_domain;

		if (home < 0 || !share->domains[home].cores)
			continue;
		share->ranks[r].domain = home;
		share->domains[home].members++;
	}
	for (int r = 0; r < share->rank_count; r++)
		if (share->ranks[r].domain < 0) {
			int to = least_loaded(share);

			share->ranks[r].domain = to;
			if (to >= 0)
				share->domains[to].members++;
		}
	for (;;) {
		int from = most_loaded(share), to = least_loaded(share), last = -1;

		if (to < 0 || to == from ||
		    share->domains[from].members <= share->domains[from].cores ||
		    !is_fuller(&share->domains[from], 0, &share->domains[to], 1))
			return;
		for (int r = 0; r < share->rank_count; r++)
			if (share->ranks[r].domain == from)
				last = r;
		share->ranks[last].domain = to;
		share->ranks[last].capped = true;
		share->domains[from].members--;
		share->domains[to].members++;
	}
}

int core_domains_choose(struct share *share, const struct gpu_choice *gpus)
{
	int rc = gpus->per_rank ? set_homes_by_gpu(share, gpus) : set_homes_by_cores(share);

	if (!rc)
		assign_domains(share);
	return rc;
}
