/* SPDX-License-Identifier: BSD-3-Clause */
/* Cores of the ranks of one node.
 *
 * Packages are dealt out one by one (a rank whose GPUs lie in several packages joins them into
 * one "unit"). In a unit every rank has a quota, equal to within one core, and takes cores until
 * it is met, from near to far:
 *   1. cores of its GPU's own cpuset, divided between the ranks that have the same cpuset,
 *   2. the rest of its GPU's NUMA node,
 *   3. NUMA nodes of the unit that no used GPU is nearest to,
 *   4. whatever is left in the unit.
 * Ranks move to another unit only when theirs has no core for them (core_domains.c). */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "plan/share.h"
/* ---- quotas ---- */

/* Each rank's fair share of the cores that are local to its GPU. */
static void make_shares(struct deal *deal)
{
	for (int g = 0; g < deal->group_count; g++) {
		int sharers = 0;

		for (int r = 0; r < deal->rank_count; r++)
			sharers += deal->group[r] == g;
		for (int r = 0; r < deal->rank_count; r++)
			if (deal->group[r] == g)
				deal->share[r] = deal->groups[g].near_count / sharers;
	}
}

static int set_quota(struct deal *deal, int rank, int quota, int *cores, int *ranks)
{
	deal->quota[rank] = quota;
	*cores -= quota;
	*ranks -= 1;
	return 1;
}

/* Where ranks move in because their own package offers nothing (a cpuset without it), those who
 * are at home keep the cores local to their GPUs, if that leaves a core for everybody else. */
static void protect_local(struct deal *deal, int unit, int *cores, int *ranks)
{
	int strangers = 0, claims = 0, others = 0;

	for (int r = 0; r < deal->rank_count; r++) {
		if (deal->place[r] != unit || deal->quota[r])
			continue;
		int share = deal->home[r] == unit ? deal->share[r] : 0;

		strangers += deal->home[r] != unit;
		claims += share;
		others += share == 0;
	}
	if (!strangers || claims + others > *cores)
		return;
	for (int again = 1; again;) {
		again = 0;
		for (int r = 0; r < deal->rank_count; r++) {
			if (deal->place[r] != unit || deal->quota[r] || deal->home[r] != unit)
				continue;
			if (*ranks && deal->share[r] > *cores / *ranks)
				again |= set_quota(deal, r, deal->share[r], cores, ranks);
		}
	}
}

static void make_quotas(struct deal *deal, int unit)
{
	int cores = deal->unit_cores[unit], ranks = deal->members[unit];

	for (int r = 0; r < deal->rank_count; r++)
		if (deal->place[r] == unit && deal->modest[r])
			set_quota(deal, r, 1, &cores, &ranks);
	protect_local(deal, unit, &cores, &ranks);
	if (!ranks)
		return;

	int base = cores / ranks, extra = cores % ranks;

	/* The odd cores go first to ranks that have them next to their GPU. */
	for (int r = 0; r < deal->rank_count && extra; r++)
		if (deal->place[r] == unit && !deal->quota[r] && deal->share[r] > base) {
			deal->quota[r] = base + 1;
			extra--;
		}
	for (int r = 0; r < deal->rank_count; r++)
		if (deal->place[r] == unit && !deal->quota[r])
			deal->quota[r] = base + (extra-- > 0);
}

/* ---- dealing ---- */

static void take(struct deal *deal, int core, int rank)
{
	if (!deal->have[rank]++ && deal->anchor[rank] >= deal->core_count)
		deal->anchor[rank] = core;
	deal->owner[core] = rank;
}

/* Deal a group's free cores at level to its ranks in the unit: contiguous, equal shares. */
static void deal_group(struct deal *deal, int unit, int group, enum near level)
{
	const uint8_t *near = deal->groups[group].near;
	int available = 0, waiting = 0, c = 0;

	for (int i = 0; i < deal->core_count; i++)
		available +=
			deal->owner[i] < 0 && near[i] == level && deal_unit_of(deal, i) == unit;
	for (int r = 0; r < deal->rank_count; r++)
		waiting += deal->group[r] == group && deal->place[r] == unit &&
			   deal->have[r] < deal->quota[r];
	for (int r = 0; r < deal->rank_count && available; r++) {
		if (deal->group[r] != group || deal->place[r] != unit ||
		    deal->have[r] >= deal->quota[r])
			continue;
		int want = (available + waiting - 1) / waiting;

		if (want > deal->quota[r] - deal->have[r])
			want = deal->quota[r] - deal->have[r];
		for (; want && c < deal->core_count; c++)
			if (deal->owner[c] < 0 && near[c] == level &&
			    deal_unit_of(deal, c) == unit) {
				take(deal, c, r);
				want--;
				available--;
			}
		waiting--;
	}
}

/* Groups with few near cores first: a GPU that is local to one NUMA node chooses before one that
 * is local to the whole package. */
static void deal_near(struct deal *deal, int unit, enum near level)
{
	for (int size = 0, next; size >= 0; size = next) {
		next = -1;
		for (int g = 0; g < deal->group_count; g++) {
			int count = deal->groups[g].near_count;

			if (count == size)
				deal_group(deal, unit, g, level);
			else if (count > size && (next < 0 || count < next))
				next = count;
		}
	}
}

/* qsort has no context: ranks are few and mostly in order, so an insertion sort does. */
static int sort_members(struct deal *deal, int unit)
{
	int count = 0;

	for (int r = 0; r < deal->rank_count; r++) {
		if (deal->place[r] != unit)
			continue;
		int at = count++;

		for (; at && deal->anchor[deal->sorted[at - 1]] > deal->anchor[r]; at--)
			deal->sorted[at] = deal->sorted[at - 1];
		deal->sorted[at] = r;
	}
	return count;
}

/* Deal free cores of the unit, in contiguous runs, to ranks in the order of their anchors. */
static void deal_rest(struct deal *deal, int unit, bool pool_only)
{
	int count = sort_members(deal, unit), c = 0;

	for (int i = 0; i < count; i++) {
		int r = deal->sorted[i];

		for (; deal->have[r] < deal->quota[r] && c < deal->core_count; c++)
			if (deal->owner[c] < 0 && deal_unit_of(deal, c) == unit &&
			    (!pool_only || deal->pool[c]))
				take(deal, c, r);
	}
}

/* More ranks than cores: ranks in the order of their GPUs' cores, evenly. */
static void share_cores(struct deal *deal, int unit, struct core_choice *out)
{
	int count = sort_members(deal, unit), at = 0, before = -1;

	for (int c = 0; c < deal->core_count; c++) {
		if (deal_unit_of(deal, c) != unit)
			continue;
		for (; at < count && (long)at * deal->unit_cores[unit] / count == before + 1; at++)
			out->shared_core[deal->sorted[at]] = c;
		before++;
	}
	out->shared_count += count;
}

/* --all-cores: cores that would stay free go to the ranks with the fewest, in order. */
static void deal_free(struct deal *deal)
{
	int free_count = 0, c = 0;

	for (int i = 0; i < deal->core_count; i++)
		free_count += deal->owner[i] < 0;
	for (; free_count; free_count--) {
		int least = 0;

		for (int r = 1; r < deal->rank_count; r++)
			if (deal->quota[r] < deal->quota[least])
				least = r;
		deal->quota[least]++;
	}
	for (int r = 0; r < deal->rank_count; r++)
		for (; deal->have[r] < deal->quota[r] && c < deal->core_count; c++)
			if (deal->owner[c] < 0)
				take(deal, c, r);
}

static void mark_pool(struct deal *deal, const struct gpu_choice *gpus)
{
	memset(deal->pool, true, (size_t)deal->core_count * sizeof *deal->pool);
	for (int i = 0; i < deal->rank_count * gpus->per_rank; i++) {
		const struct machine_gpu *gpu = &deal->machine->gpus[gpus->of_rank[i]];

		for (int c = 0; gpu->local_known && c < deal->core_count; c++) {
			const struct machine_core *core = &deal->machine->cores[c];

			if ((core->numa_os >= 0 && idset_has(gpu->numa_os, core->numa_os)) ||
			    deal_core_is_local(core, gpu))
				deal->pool[c] = false;
		}
	}
}

static void deal_unit(struct deal *deal, int unit, struct core_choice *out)
{
	if (!deal->members[unit])
		return;
	if (deal->members[unit] > deal->unit_cores[unit]) {
		share_cores(deal, unit, out);
		return;
	}
	make_quotas(deal, unit);
	deal_near(deal, unit, NEAR_GPU);
	deal_near(deal, unit, NEAR_NUMA);
	deal_rest(deal, unit, true);
	deal_rest(deal, unit, false);
}

/* ---- the whole ---- */

static void deal_free_memory(struct deal *deal)
{
	for (int g = 0; g < deal->group_count; g++)
		free(deal->groups[g].near);
	free(deal->groups);
	free(deal->unit_of_package);
	free(deal->unit_cores);
	free(deal->members);
	free(deal->group);
	free(deal->home);
	free(deal->place);
	free(deal->modest);
	free(deal->share);
	free(deal->quota);
	free(deal->have);
	free(deal->anchor);
	free(deal->pool);
	free(deal->sorted);
}

static int deal_alloc(struct deal *deal, struct core_choice *out)
{
	size_t packages = deal->machine->package_count + 1, ranks = (size_t)deal->rank_count;
	size_t cores = (size_t)deal->core_count + 1;

	deal->unit_of_package = calloc(packages, sizeof(int));
	deal->unit_cores = calloc(packages, sizeof(int));
	deal->members = calloc(packages, sizeof(int));
	deal->groups = calloc(ranks, sizeof *deal->groups);
	deal->group = calloc(ranks, sizeof(int));
	deal->home = calloc(ranks, sizeof(int));
	deal->place = calloc(ranks, sizeof(int));
	deal->modest = calloc(ranks, sizeof(bool));
	deal->share = calloc(ranks, sizeof(int));
	deal->quota = calloc(ranks, sizeof(int));
	deal->have = calloc(ranks, sizeof(int));
	deal->anchor = calloc(ranks, sizeof(int));
	deal->sorted = calloc(ranks, sizeof(int));
	deal->pool = calloc(cores, sizeof(bool));
	out->owner = calloc(cores, sizeof(int));
	out->shared_core = calloc(ranks, sizeof(int));
	out->away = calloc(ranks, sizeof(bool));
	deal->owner = out->owner;
	if (!deal->unit_of_package || !deal->unit_cores || !deal->members || !deal->groups ||
	    !deal->group || !deal->home || !deal->place || !deal->modest || !deal->share ||
	    !deal->quota || !deal->have || !deal->anchor || !deal->sorted || !deal->pool ||
	    !out->owner || !out->shared_core || !out->away)
		return -1;
	for (size_t p = 0; p < deal->machine->package_count; p++)
		deal->unit_of_package[p] = (int)p;
	for (size_t c = 0; c < cores; c++)
		out->owner[c] = -1;
	for (size_t r = 0; r < ranks; r++) {
		deal->group[r] = deal->home[r] = deal->place[r] = out->shared_core[r] = -1;
		deal->anchor[r] = deal->core_count;
	}
	return 0;
}

int cores_choose(const struct machine *machine, const struct plan_request *request,
		 const struct gpu_choice *gpus, int rank_count, struct core_choice *out,
		 struct error *err)
{
	struct core_choice choice = {0};
	struct deal deal = {.machine = machine,
			    .core_count = (int)machine->core_count,
			    .rank_count = rank_count};

	if (deal_alloc(&deal, &choice) < 0)
		goto memory;
	if (places_choose(&deal, gpus) < 0)
		goto memory;
	for (int r = 0; r < rank_count; r++)
		if (deal.group[r] >= 0)
			deal.anchor[r] = deal.groups[deal.group[r]].first_core;
	make_shares(&deal);
	mark_pool(&deal, gpus);
	for (int u = 0; u < deal.unit_count; u++)
		deal_unit(&deal, u, &choice);
	if (request->all_cores && !choice.shared_count)
		deal_free(&deal);
	for (int r = 0; r < rank_count; r++)
		choice.away[r] = gpus->per_rank && deal.place[r] != deal.home[r];
	deal_free_memory(&deal);
	*out = choice;
	return 0;
memory:
	deal_free_memory(&deal);
	core_choice_free(&choice);
	return error_memory(err, "the choice of cores");
}

void core_choice_free(struct core_choice *choice)
{
	free(choice->owner);
	free(choice->shared_core);
	free(choice->away);
	memset(choice, 0, sizeof *choice);
}
