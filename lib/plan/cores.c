/* SPDX-License-Identifier: BSD-3-Clause */
/* The cores of the ranks of one node.
 *
 * A core domain is a package, or several packages joined because one rank's GPUs lie in them. The
 * ranks of a domain share its cores. Each has a quota, equal to within one core, and takes cores
 * until it is met, from near to far:
 *   1. cores of its GPU's own cpuset, divided between the ranks with the same cpuset,
 *   2. the rest of its GPU's NUMA node,
 *   3. NUMA nodes of the domain to which no used GPU is nearest,
 *   4. whatever is left in the domain.
 * A rank moves to another domain only if its own has no core for it (core_domains.c). */
#include "plan/plan.h"

#include <string.h>

#include "plan/share.h"

/* ---- quotas ---- */

/* Each rank's fair share of the cores that are local to its GPU. */
static void make_local_shares(struct share *share)
{
	for (int g = 0; g < share->gpu_group_count; g++) {
		int sharers = 0;

		for (int r = 0; r < share->rank_count; r++)
			sharers += share->ranks[r].gpu_group == g;
		for (int r = 0; r < share->rank_count; r++)
			if (share->ranks[r].gpu_group == g)
				share->ranks[r].local_share =
					share->gpu_groups[g].near_count / sharers;
	}
}

static bool lacks_quota(const struct rank_share *rank, int domain)
{
	return rank->domain == domain && !rank->quota;
}

static int set_quota(struct rank_share *rank, int quota, int *cores, int *ranks)
{
	rank->quota = quota;
	*cores -= quota;
	*ranks -= 1;
	return 1;
}

/* If ranks moved in because their own package offers nothing (a cpuset without it), the domain's
 * own ranks keep the cores local to their GPUs. The condition is that a core remains for everybody
 * else. */
static void protect_local(struct share *share, int domain, int *cores, int *ranks)
{
	int migrants = 0, claims = 0, others = 0;

	for (int r = 0; r < share->rank_count; r++) {
		const struct rank_share *rank = &share->ranks[r];
		int local_share = rank->home_domain == domain ? rank->local_share : 0;

		if (!lacks_quota(rank, domain))
			continue;
		migrants += rank->home_domain != domain;
		claims += local_share;
		others += local_share == 0;
	}
	if (!migrants || claims + others > *cores)
		return;
	for (int changed = 1; changed;) {
		changed = 0;
		for (int r = 0; r < share->rank_count; r++) {
			struct rank_share *rank = &share->ranks[r];

			if (lacks_quota(rank, domain) && rank->home_domain == domain && *ranks &&
			    rank->local_share > *cores / *ranks)
				changed |= set_quota(rank, rank->local_share, cores, ranks);
		}
	}
}

static void make_quotas(struct share *share, int domain)
{
	int cores = share->domains[domain].cores, ranks = share->domains[domain].members;

	for (int r = 0; r < share->rank_count; r++)
		if (share->ranks[r].domain == domain && share->ranks[r].capped)
			set_quota(&share->ranks[r], 1, &cores, &ranks);
	protect_local(share, domain, &cores, &ranks);
	if (!ranks)
		return;

	int base = cores / ranks, extra = cores % ranks;

	/* The remaining cores go first to ranks that have them near their GPU. */
	for (int r = 0; r < share->rank_count && extra; r++)
		if (lacks_quota(&share->ranks[r], domain) && share->ranks[r].local_share > base) {
			share->ranks[r].quota = base + 1;
			extra--;
		}
	for (int r = 0; r < share->rank_count; r++)
		if (lacks_quota(&share->ranks[r], domain))
			share->ranks[r].quota = base + (extra-- > 0);
}

/* ---- sharing out ---- */

static void assign_core(struct share *share, int core, int r)
{
	struct rank_share *rank = &share->ranks[r];

	if (!rank->taken++ && rank->anchor >= share->core_count)
		rank->anchor = core;
	share->owner[core] = r;
}

static int wanted(const struct rank_share *rank)
{
	return rank->quota - rank->taken;
}

/* Share out a group's free cores at that level to its ranks in the domain: contiguous, equal
 * shares. */
static void hand_out_group(struct share *share, int domain, int gpu_group, enum near level)
{
	const uint8_t *near = share->gpu_groups[gpu_group].near;
	int available = 0, waiting = 0, c = 0;

	for (int i = 0; i < share->core_count; i++)
		available += share->owner[i] < 0 && near[i] == level &&
			     share_domain_of(share, i) == domain;
	for (int r = 0; r < share->rank_count; r++)
		waiting += share->ranks[r].gpu_group == gpu_group &&
			   share->ranks[r].domain == domain && wanted(&share->ranks[r]) > 0;
	for (int r = 0; r < share->rank_count && available; r++) {
		const struct rank_share *rank = &share->ranks[r];

		if (rank->gpu_group != gpu_group || rank->domain != domain || wanted(rank) <= 0)
			continue;
		int want = (available + waiting - 1) / waiting;

		if (want > wanted(rank))
			want = wanted(rank);
		for (; want && c < share->core_count; c++)
			if (share->owner[c] < 0 && near[c] == level &&
			    share_domain_of(share, c) == domain) {
				assign_core(share, c, r);
				want--;
				available--;
			}
		waiting--;
	}
}

/* Groups with few near cores come first: a GPU that is local to one NUMA node chooses before one
 * that is local to the whole package. */
static void hand_out_near(struct share *share, int domain, enum near level)
{
	for (int size = 0, next; size >= 0; size = next) {
		next = -1;
		for (int g = 0; g < share->gpu_group_count; g++) {
			int count = share->gpu_groups[g].near_count;

			if (count == size)
				hand_out_group(share, domain, g, level);
			else if (count > size && (next < 0 || count < next))
				next = count;
		}
	}
}

/* qsort passes no context. Ranks are few and mostly in order, so an insertion sort will do. */
static int sort_members(struct share *share, int domain)
{
	int count = 0;

	for (int r = 0; r < share->rank_count; r++) {
		if (share->ranks[r].domain != domain)
			continue;
		int at = count++;

		for (; at && share->ranks[share->sorted[at - 1]].anchor > share->ranks[r].anchor;
		     at--)
			share->sorted[at] = share->sorted[at - 1];
		share->sorted[at] = r;
	}
	return count;
}

/* Share out free cores of the domain, in contiguous runs, to ranks in the order of their
 * anchors. */
static void hand_out_rest(struct share *share, int domain, bool unreserved_only)
{
	int count = sort_members(share, domain), c = 0;

	for (int i = 0; i < count; i++) {
		int r = share->sorted[i];

		for (; wanted(&share->ranks[r]) > 0 && c < share->core_count; c++)
			if (share->owner[c] < 0 && share_domain_of(share, c) == domain &&
			    (!unreserved_only || share->unreserved[c]))
				assign_core(share, c, r);
	}
}

/* More ranks than cores: assign cores evenly to ranks in the order of their GPUs' cores. */
static void share_cores(struct share *share, int domain, struct core_choice *out)
{
	int count = sort_members(share, domain), at = 0, before = -1;

	for (int c = 0; c < share->core_count; c++) {
		if (share_domain_of(share, c) != domain)
			continue;
		for (; at < count && (long)at * share->domains[domain].cores / count == before + 1;
		     at++)
			out->shared_core[share->sorted[at]] = c;
		before++;
	}
	out->shared_count += count;
}

/* --all-cores: cores that would stay free go to the ranks with the fewest, in order. */
static void hand_out_free(struct share *share)
{
	int free_count = 0, c = 0;

	for (int i = 0; i < share->core_count; i++)
		free_count += share->owner[i] < 0;
	for (; free_count; free_count--) {
		int least = 0;

		for (int r = 1; r < share->rank_count; r++)
			if (share->ranks[r].quota < share->ranks[least].quota)
				least = r;
		share->ranks[least].quota++;
	}
	for (int r = 0; r < share->rank_count; r++)
		for (; wanted(&share->ranks[r]) > 0 && c < share->core_count; c++)
			if (share->owner[c] < 0)
				assign_core(share, c, r);
}

static void mark_unreserved(struct share *share, const struct gpu_choice *gpus)
{
	memset(share->unreserved, true, (size_t)share->core_count * sizeof *share->unreserved);
	for (int i = 0; i < share->rank_count * gpus->per_rank; i++) {
		const struct inventory_gpu *gpu = &share->inventory->gpus[gpus->of_rank[i]];

		for (int c = 0; gpu->local_known && c < share->core_count; c++) {
			const struct inventory_core *core = &share->inventory->cores[c];

			if ((core->numa_os >= 0 && idset_has(gpu->numa_os, core->numa_os)) ||
			    share_core_is_local(core, gpu))
				share->unreserved[c] = false;
		}
	}
}

static void hand_out_domain(struct share *share, int domain, struct core_choice *out)
{
	if (!share->domains[domain].members)
		return;
	if (share->domains[domain].members > share->domains[domain].cores) {
		share_cores(share, domain, out);
		return;
	}
	make_quotas(share, domain);
	hand_out_near(share, domain, NEAR_GPU);
	hand_out_near(share, domain, NEAR_NUMA);
	hand_out_rest(share, domain, true);
	hand_out_rest(share, domain, false);
}

/* ---- part of a node ---- */

/* The cores of the ranks of a run that leaves the rest of the node to others: those that each
 * rank's GPUs have if every GPU has a rank of its own. */
static int choose_near_gpus(const struct inventory *inventory, const struct plan_request *request,
			    const struct gpu_choice *gpus, int rank_count, struct scratch *scratch,
			    struct core_choice *out, struct error *err)
{
	int *all = scratch_array(scratch, inventory->gpu_count, sizeof *all), count = 0;
	int *rank_of = scratch_array(scratch, inventory->gpu_count + 1, sizeof *rank_of);
	struct gpu_choice each = *gpus;
	struct plan_request alone = *request;
	struct core_choice choice;
	int rc;

	if (scratch->failed)
		return error_memory(err, "the choice of cores");
	for (int g = 0; g < (int)inventory->gpu_count; g++) {
		if (!gpu_usable(&inventory->gpus[g]) && !gpu_claimed(&inventory->gpus[g]))
			continue;
		rank_of[count] = CORE_LEFT;
		for (int i = 0; i < rank_count * gpus->per_rank; i++)
			if (gpus->of_rank[i] == g)
				rank_of[count] = i / gpus->per_rank;
		all[count++] = g;
	}
	alone.part = false;
	each.per_rank = 1;
	each.of_rank = all;
	rc = cores_choose(inventory, &alone, &each, count, scratch, &choice, err);
	if (rc)
		return rc;
	for (size_t c = 0; c < inventory->core_count; c++)
		out->owner[c] = choice.owner[c] < 0 ? CORE_LEFT : rank_of[choice.owner[c]];
	for (int u = count - 1; u >= 0; u--) {
		if (rank_of[u] < 0)
			continue;
		out->shared_core[rank_of[u]] = choice.shared_core[u];
		out->away[rank_of[u]] = choice.away[u];
		out->shared_count += choice.shared_core[u] >= 0;
	}
	return 0;
}

/* Without GPUs: the first free cores. Return false if there are too few. */
static bool choose_free(const struct inventory *inventory, int per_rank, int rank_count,
			struct core_choice *out)
{
	int given = 0;

	for (size_t c = 0; c < inventory->core_count; c++) {
		out->owner[c] = CORE_LEFT;
		if (!inventory->cores[c].claimed_by && given < rank_count * per_rank)
			out->owner[c] = given++ / per_rank;
	}
	return given == rank_count * per_rank;
}

/* ---- all steps ---- */

static int alloc_share(struct share *share, struct core_choice *out)
{
	size_t packages = share->inventory->package_count + 1, ranks = (size_t)share->rank_count;
	size_t cores = (size_t)share->core_count + 1;
	struct scratch *scratch = share->scratch;

	share->domain_of_package = scratch_array(scratch, packages, sizeof(int));
	share->domains = scratch_array(scratch, packages, sizeof *share->domains);
	share->gpu_groups = scratch_array(scratch, ranks, sizeof *share->gpu_groups);
	share->ranks = scratch_array(scratch, ranks, sizeof *share->ranks);
	share->sorted = scratch_array(scratch, ranks, sizeof(int));
	share->unreserved = scratch_array(scratch, cores, sizeof(bool));
	out->owner = scratch_array(scratch, cores, sizeof(int));
	out->shared_core = scratch_array(scratch, ranks, sizeof(int));
	out->away = scratch_array(scratch, ranks, sizeof(bool));
	share->owner = out->owner;
	if (scratch->failed)
		return -1;
	for (size_t p = 0; p < share->inventory->package_count; p++)
		share->domain_of_package[p] = (int)p;
	for (size_t c = 0; c < cores; c++)
		out->owner[c] = CORE_FREE;
	for (size_t r = 0; r < ranks; r++) {
		share->ranks[r] = (struct rank_share){.gpu_group = -1,
						      .home_domain = -1,
						      .domain = -1,
						      .anchor = share->core_count};
		out->shared_core[r] = -1;
	}
	return 0;
}

int cores_choose(const struct inventory *inventory, const struct plan_request *request,
		 const struct gpu_choice *gpus, int rank_count, struct scratch *scratch,
		 struct core_choice *out, struct error *err)
{
	struct core_choice choice = {0};
	struct share share = {.inventory = inventory,
			      .scratch = scratch,
			      .core_count = (int)inventory->core_count,
			      .rank_count = rank_count};

	if (alloc_share(&share, &choice) < 0)
		return error_memory(err, "the choice of cores");
	if (request->part && gpus->per_rank && !gpus->shared) {
		*out = choice;
		return choose_near_gpus(inventory, request, gpus, rank_count, scratch, out, err);
	}
	if (request->cores_per_rank &&
	    choose_free(inventory, request->cores_per_rank, rank_count, &choice)) {
		*out = choice;
		return 0;
	}
	for (int c = 0; c < share.core_count; c++)
		choice.owner[c] = CORE_FREE;
	if (core_domains_choose(&share, gpus) < 0)
		return error_memory(err, "the choice of cores");
	for (struct rank_share *rank = share.ranks; rank < share.ranks + rank_count; rank++)
		if (rank->gpu_group >= 0)
			rank->anchor = share.gpu_groups[rank->gpu_group].first_core;
	make_local_shares(&share);
	mark_unreserved(&share, gpus);
	for (int u = 0; u < share.domain_count; u++)
		hand_out_domain(&share, u, &choice);
	if (request->all_cores && !choice.shared_count)
		hand_out_free(&share);
	for (int r = 0; r < rank_count; r++)
		choice.away[r] =
			gpus->per_rank && share.ranks[r].domain != share.ranks[r].home_domain;
	*out = choice;
	return 0;
}
