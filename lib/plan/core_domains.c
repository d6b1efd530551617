/* SPDX-License-Identifier: BSD-3-Clause */
/* The package whose cores a rank takes: its GPU's, another one only where that has no core for it.
 * Without GPUs the ranks are dealt to the packages in proportion to their cores. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "plan/share.h"

int deal_package(const struct deal *deal, int core)
{
	int package = deal->machine->cores[core].package;

	return package >= 0 && package < (int)deal->machine->package_count ? package : 0;
}

int deal_unit_of(const struct deal *deal, int core)
{
	return deal->unit_of_package[deal_package(deal, core)];
}

/* ---- packages into units, ranks into groups ---- */

static void join(int *unit_of_package, size_t package_count, int a, int b)
{
	int from = unit_of_package[b], to = unit_of_package[a];

	for (size_t p = 0; p < package_count; p++)
		if (unit_of_package[p] == from)
			unit_of_package[p] = to;
}

static void number_units(struct deal *deal)
{
	size_t count = deal->machine->package_count;

	for (size_t p = 0; p < count; p++) {
		int root = deal->unit_of_package[p];

		if (root < 0)
			continue; /* numbered already, as ~number */
		for (size_t q = p; q < count; q++)
			if (deal->unit_of_package[q] == root)
				deal->unit_of_package[q] = ~deal->unit_count;
		deal->unit_count++;
	}
	for (size_t p = 0; p < count; p++)
		deal->unit_of_package[p] = ~deal->unit_of_package[p];
	for (int c = 0; c < deal->core_count; c++)
		deal->unit_cores[deal_unit_of(deal, c)]++;
}

bool deal_core_is_local(const struct machine_core *core, const struct machine_gpu *gpu)
{
	return idset_intersects(core->cpus_os, gpu->cpus_os);
}

/* A GPU of unknown locality is near to all of the package it is counted to. */
static void mark_near(const struct deal *deal, const struct gpu_choice *gpus, int gpu,
		      uint8_t *near)
{
	const struct machine_gpu *g = &deal->machine->gpus[gpu];

	for (int c = 0; c < deal->core_count; c++) {
		const struct machine_core *core = &deal->machine->cores[c];
		enum near level = NEAR_NOT;

		if (!g->local_known || g->package < 0)
			level = deal_package(deal, c) == gpus->package[gpu] ? NEAR_GPU : NEAR_NOT;
		else if (deal_core_is_local(core, g))
			level = NEAR_GPU;
		else if (core->numa_os >= 0 && idset_has(g->numa_os, core->numa_os))
			level = NEAR_NUMA;
		if (level > near[c])
			near[c] = level;
	}
}

static int make_group(struct deal *deal, const struct gpu_choice *gpus, int rank)
{
	const int *mine = gpus->of_rank + rank * gpus->per_rank;
	struct group group = {.first_core = deal->core_count};

	/* Ranks on the same GPUs follow each other. */
	if (rank && !memcmp(mine - gpus->per_rank, mine, (size_t)gpus->per_rank * sizeof *mine)) {
		deal->group[rank] = deal->group[rank - 1];
		return 0;
	}
	group.near = calloc((size_t)deal->core_count + 1, 1);
	if (!group.near)
		return -1;
	for (int k = 0; k < gpus->per_rank; k++)
		mark_near(deal, gpus, mine[k], group.near);
	for (int g = 0; g < deal->group_count; g++)
		if (!memcmp(deal->groups[g].near, group.near, (size_t)deal->core_count)) {
			free(group.near);
			deal->group[rank] = g;
			return 0;
		}
	for (int c = deal->core_count - 1; c >= 0; c--)
		if (group.near[c] == NEAR_GPU) {
			group.first_core = c;
			group.near_count++;
		}
	deal->groups[deal->group_count] = group;
	deal->group[rank] = deal->group_count++;
	return 0;
}

/* Homes of ranks with GPUs. */
static int place_by_gpu(struct deal *deal, const struct gpu_choice *gpus)
{
	size_t package_count = deal->machine->package_count;

	for (int r = 0; r < deal->rank_count; r++) {
		const int *mine = gpus->of_rank + r * gpus->per_rank;

		for (int k = 1; k < gpus->per_rank; k++)
			if (gpus->package[mine[0]] >= 0 && gpus->package[mine[k]] >= 0)
				join(deal->unit_of_package, package_count, gpus->package[mine[0]],
				     gpus->package[mine[k]]);
	}
	number_units(deal);
	for (int r = 0; r < deal->rank_count; r++) {
		int package = gpus->package[gpus->of_rank[r * gpus->per_rank]];

		if (package >= 0 && package < (int)package_count)
			deal->home[r] = deal->unit_of_package[package];
		if (make_group(deal, gpus, r) < 0)
			return -1;
	}
	return 0;
}

/* Without GPUs: fewer ranks than packages get several packages each, more ranks are dealt to the
 * packages in proportion to their cores. */
static void place_by_cores(struct deal *deal)
{
	int count = (int)deal->machine->package_count, ranks = deal->rank_count;

	for (int p = 0; ranks < count && p < count; p++)
		for (int q = p + 1; q < count; q++)
			if ((long)p * ranks / count == (long)q * ranks / count)
				join(deal->unit_of_package, (size_t)count, p, q);
	number_units(deal);

	int *given = calloc((size_t)deal->unit_count + 1, sizeof *given);

	for (int r = 0; given && r < ranks; r++) {
		int best = 0;

		for (int u = 1; u < deal->unit_count; u++)
			if ((long)(given[u] + 1) * deal->unit_cores[best] <
			    (long)(given[best] + 1) * deal->unit_cores[u])
				best = u;
		given[best]++;
	}
	for (int u = 0, r = 0; given && u < deal->unit_count; u++)
		for (int k = 0; k < given[u]; k++)
			deal->home[r++] = u;
	free(given);
}

/* ---- ranks that their own unit has no core for ---- */

/* The unit with the fewest ranks a core after one more, -1 when none has cores. */
static int least_loaded(const struct deal *deal)
{
	int best = -1;

	for (int u = 0; u < deal->unit_count; u++)
		if (deal->unit_cores[u] &&
		    (best < 0 || (long)(deal->members[u] + 1) * deal->unit_cores[best] <
					 (long)(deal->members[best] + 1) * deal->unit_cores[u]))
			best = u;
	return best;
}

static int most_loaded(const struct deal *deal)
{
	int worst = 0;

	for (int u = 1; u < deal->unit_count; u++)
		if ((long)deal->members[u] * deal->unit_cores[worst] >
		    (long)deal->members[worst] * deal->unit_cores[u])
			worst = u;
	return worst;
}

static void settle(struct deal *deal)
{
	for (int r = 0; r < deal->rank_count; r++) {
		deal->place[r] = deal->home[r];
		if (deal->home[r] >= 0 && deal->unit_cores[deal->home[r]])
			deal->members[deal->home[r]]++;
		else
			deal->place[r] = -1;
	}
	for (int r = 0; r < deal->rank_count; r++)
		if (deal->place[r] < 0) {
			deal->place[r] = least_loaded(deal);
			if (deal->place[r] >= 0)
				deal->members[deal->place[r]]++;
		}
	for (;;) {
		int from = most_loaded(deal), to = least_loaded(deal), last = -1;

		if (to < 0 || to == from || deal->members[from] <= deal->unit_cores[from] ||
		    (long)(deal->members[to] + 1) * deal->unit_cores[from] >=
			    (long)deal->members[from] * deal->unit_cores[to])
			return;
		for (int r = 0; r < deal->rank_count; r++)
			if (deal->place[r] == from)
				last = r;
		deal->place[last] = to;
		deal->modest[last] = true;
		deal->members[from]--;
		deal->members[to]++;
	}
}

int places_choose(struct deal *deal, const struct gpu_choice *gpus)
{
	int rc = 0;

	if (gpus->per_rank)
		rc = place_by_gpu(deal, gpus);
	else
		place_by_cores(deal);
	if (!rc)
		settle(deal);
	return rc;
}
