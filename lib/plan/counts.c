/* SPDX-License-Identifier: BSD-3-Clause */
/* How many ranks each node gets, and whether what other runs leave is enough for them. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "plan/plan_internal.h"

struct room room_of(const struct alloc_node *node, const struct inventory *inventory,
		    const struct plan_request *request)
{
	struct room room = {.per_rank = request->gpus_per_rank > 1 ? request->gpus_per_rank : 1};
	int cores = (int)inventory->core_count;

	for (size_t g = 0; g < inventory->gpu_count && !request->no_gpus; g++) {
		const struct inventory_gpu *gpu = &inventory->gpus[g];

		room.all += gpu->allowed && !gpu->fault;
		room.left += gpu_usable(gpu);
		if (gpu_claimed(gpu) && !room.by)
			room.by = gpu->claimed_by;
	}
	/* Runs that leave a part of the node claim cores, but only on nodes without GPUs. */
	room.cores = !room.all && request->part && cores;
	if (!room.cores)
		return room;
	room.all = cores;
	room.per_rank = node->slots > cores ? 1 : cores / (node->slots > 1 ? node->slots : 1);
	for (int c = 0; c < cores; c++) {
		const char *by = inventory->cores[c].claimed_by;

		room.left += !by;
		room.by = room.by ? room.by : by;
	}
	return room;
}

/* Does the node have something for the job, but other runs leave too little for a rank? */
static bool room_is_taken(const struct room *room)
{
	return room->left < room->all && room->left < room->per_rank;
}

int usable_gpus(const struct inventory *inventory)
{
	int count = 0;

	for (size_t g = 0; g < inventory->gpu_count; g++)
		count += gpu_usable(&inventory->gpus[g]);
	return count;
}

static int at_least_one(int count)
{
	return count > 0 ? count : 1;
}

/* The default number of ranks on a node: one per GPU (or per K GPUs); without GPUs one per slot, at
 * most one per core. */
static int capacity(const struct alloc_node *node, const struct inventory *inventory,
		    const struct plan_request *request)
{
	struct room room = room_of(node, inventory, request);
	int cores = (int)inventory->core_count;
	int slots = at_least_one(node->slots < cores || !cores ? node->slots : cores);
	int left = room.left / room.per_rank;

	/* Nothing left: there are no GPUs, or the ranks will share what other runs use. */
	return !room.left || (room.cores && left > slots) ? slots : left;
}

struct remainder {
	size_t node;
	long rest;
};

static int compare_remainders(const void *a, const void *b)
{
	const struct remainder *x = a, *y = b;

	if (x->rest != y->rest)
		return x->rest > y->rest ? -1 : 1;
	return x->node < y->node ? -1 : 1;
}

/* Share out ranks to the nodes in proportion to their capacity. The rest goes to the largest
 * remainders, then to the first nodes. No node exceeds its capacity while another has room. counts
 * holds the capacities before and the ranks after. */
static int share_proportionally(int ranks, size_t count, int *counts)
{
	struct remainder *odd = calloc(count, sizeof *odd);
	long total = 0, given = 0;

	if (!odd)
		return -1;
	for (size_t n = 0; n < count; n++)
		total += counts[n];
	for (size_t n = 0; n < count; n++) {
		long exact = (long)ranks * counts[n];

		counts[n] = (int)(exact / total);
		odd[n].node = n;
		odd[n].rest = exact % total;
		given += counts[n];
	}
	qsort(odd, count, sizeof *odd, compare_remainders);
	for (size_t i = 0; given < ranks; i++, given++)
		counts[odd[i % count].node]++;
	free(odd);
	return 0;
}

static int spread_per_node(size_t count, const struct plan_request *request, int *counts,
			   struct error *err)
{
	int per_node = request->ranks_per_node, left = request->ranks;

	if (request->ranks && (long)request->ranks > (long)per_node * (long)count)
		return error_set(err, ERR_USAGE,
				 "%d ranks do not fit on %zu node%s with --ranks-per-node %d",
				 request->ranks, count, count == 1 ? "" : "s", per_node);
	for (size_t n = 0; n < count; n++) {
		counts[n] = request->ranks && left < per_node ? left : per_node;
		left -= counts[n];
	}
	return 0;
}

static int check_counts(const int *counts, size_t count, struct error *err)
{
	long total = 0;

	for (size_t n = 0; n < count; n++) {
		if (counts[n] > PLAN_MAX_RANKS_PER_NODE)
			return error_set(err, ERR_USAGE,
					 "%d ranks on one node, expected at most %d", counts[n],
					 PLAN_MAX_RANKS_PER_NODE);
		total += counts[n];
	}
	if (total > INT32_MAX || total < 1)
		return error_set(err, ERR_USAGE, "%ld ranks in total, expected 1 to %d", total,
				 INT32_MAX);
	return 0;
}

int plan_rank_counts(const struct alloc *alloc, const struct inventory *inventories, size_t count,
		     const struct plan_request *request, int *counts, struct error *err)
{
	size_t all = count, free_nodes = 0;

	if (!count || alloc->node_count != count)
		return error_set(err, ERR_INTERNAL, "%zu inventories for %zu nodes", count,
				 alloc->node_count);
	if (request->spares >= count)
		return error_set(
			err, ERR_USAGE,
			"--spares %zu leaves no node for the ranks (nodes in the job: %zu)",
			request->spares, count);
	count -= request->spares;
	for (size_t n = count; n < all; n++)
		counts[n] = 0;
	if (request->ranks < 0 || request->ranks_per_node < 0 || request->gpus_per_rank < 0)
		return error_set(err, ERR_USAGE, "the number of ranks or GPUs is negative");
	if (request->per_node && request->ranks % (int)count)
		return error_set(err, ERR_USAGE,
				 "--per-node starts one process on each of %zu nodes, but %d ranks "
				 "do not divide evenly among them",
				 count, request->ranks);
	if (request->per_node) {
		for (size_t n = 0; n < count; n++)
			counts[n] = 1;
		return 0;
	}
	if (request->ranks_per_node) {
		int rc = spread_per_node(count, request, counts, err);

		return rc ? rc : check_counts(counts, count, err);
	}
	for (size_t n = 0; n < count; n++) {
		struct room room = room_of(&alloc->nodes[n], &inventories[n], request);

		counts[n] = !room_is_taken(&room);
		free_nodes += (size_t)counts[n];
	}
	for (size_t n = 0; n < count; n++)
		/* A node that other runs have taken gets ranks only if all nodes are taken. */
		counts[n] = free_nodes && !counts[n]
				    ? 0
				    : at_least_one(
					      capacity(&alloc->nodes[n], &inventories[n], request));
	if (request->ranks && share_proportionally(request->ranks, count, counts) < 0)
		return error_memory(err, "the nodes' ranks");
	return check_counts(counts, count, err);
}

struct plan_fit plan_fit(const struct alloc *alloc, const struct inventory *inventories,
			 size_t count, const struct plan_request *request)
{
	struct plan_fit fit = {.fits = true};
	bool whole = !request->rest && (request->per_node || (request->part && !request->ranks &&
							      !request->ranks_per_node));
	int *counts = calloc(count, sizeof *counts), all = 0, left = 0, need = 0;
	const char *by = NULL, *unit = "GPU";
	size_t used = 0;

	/* What cannot be met at all is plan_make's to explain. */
	if (!counts || plan_rank_counts(alloc, inventories, count, request, counts, NULL)) {
		free(counts);
		return fit;
	}
	for (size_t n = 0; n < count; n++) {
		struct room room = room_of(&alloc->nodes[n], &inventories[n], request);
		int uses = whole ? room.all : counts[n] * room.per_rank;

		/* More ranks than GPUs share them, also if they are alone. */
		uses = uses < room.all ? uses : room.all;
		fit.fits &= uses <= room.left;
		need += uses;
		used += counts[n] > 0;
		all += room.all;
		left += room.left;
		by = by ? by : room.by;
		unit = room.cores ? "core" : unit;
		fit.cores |= room.cores;
	}
	/* Ranks on several nodes meet at the first one, whose addresses the others have tried. */
	/* Without other runs there is nothing to wait for. */
	fit.fits = !by || (fit.fits && (counts[0] || used == 1));
	if (by)
		snprintf(fit.why, sizeof fit.why, "%d of %d %ss are used by %s", all - left, all,
			 unit, by);
	snprintf(fit.need, sizeof fit.need, "%d %s%s", need, unit, need == 1 ? "" : "s");
	free(counts);
	return fit;
}

int plan_refuse_sharing(const struct plan_fit *fit, struct error *err)
{
	return fit->fits || fit->cores
		       ? 0
		       : error_set(err, ERR_USAGE,
				   "%s, and roles share no GPUs: give one fewer with -n or "
				   "--gpus-per-rank; with --gpus-per-rank 0 it uses none",
				   fit->why);
}
