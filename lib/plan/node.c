/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of one node: GPUs first, then cores near them, then NICs near those. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "plan/plan_internal.h"

/* The list that all ranks of a node see: their GPUs in rank order, then the unused ones. */
static char *visible_list(const struct inventory *inventory, const struct gpu_choice *choice,
			  int rank_count, struct scratch *scratch)
{
	size_t of_ranks = (size_t)rank_count * (size_t)choice->per_rank;
	size_t unused = choice->used_only ? 0 : choice->usable_count;
	size_t room = choice->usable_count * 96 + 1;
	bool *listed = scratch_array(scratch, inventory->gpu_count, sizeof *listed);
	char *text = listed ? calloc(room, 1) : NULL;

	for (size_t i = 0; text && i < of_ranks + unused; i++) {
		int gpu = i < of_ranks ? choice->of_rank[i] : choice->usable[i - of_ranks];
		char token[96];

		if (listed[gpu] || !gpus_list_name(inventory, (size_t)gpu, token, sizeof token))
			continue;
		listed[gpu] = true;
		text_append(text, room, "%s%s", *text ? "," : "", token);
	}
	return text;
}

static int fill_gpus(const struct inventory *inventory, const struct gpu_choice *choice,
		     struct plan_rank *rank)
{
	size_t per_rank = (size_t)choice->per_rank;
	const int *mine = choice->of_rank + (size_t)rank->local_rank * per_rank;

	rank->gpus = calloc(per_rank + 1, sizeof *rank->gpus);
	if (!rank->gpus)
		return -1;
	for (size_t k = 0; k < per_rank; k++) {
		const struct inventory_gpu *gpu = &inventory->gpus[mine[k]];
		/* A list names GPUs of one vendor: ordinals count GPUs of the same vendor. */
		const int *from = choice->own ? mine : choice->of_rank;
		int ordinal = 0;

		for (const int *g = from; g < mine + k; g++)
			ordinal += inventory->gpus[*g].vendor == gpu->vendor;
		rank->gpus[k].index = gpu->index;
		rank->gpus[k].ordinal = ordinal;
		memcpy(rank->gpus[k].pci, gpu->pci, sizeof gpu->pci);
		rank->gpu_count = k + 1;
		rank->gpus[k].uuid = gpu->uuid ? strdup(gpu->uuid) : NULL;
		if (gpu->uuid && !rank->gpus[k].uuid)
			return -1;
	}
	return 0;
}

static int fill_cores(const struct inventory *inventory, const struct core_choice *choice,
		      int rank_count, struct plan_rank *rank)
{
	rank->cpus_os = idset_new();
	rank->numa_os = idset_new();
	if (!rank->cpus_os || !rank->numa_os)
		return -1;
	for (size_t c = 0; c < inventory->core_count; c++) {
		const struct inventory_core *core = &inventory->cores[c];

		if (choice->owner[c] != rank->local_rank &&
		    choice->shared_core[rank->local_rank] != (int)c)
			continue;
		rank->threads++;
		if (idset_unite(rank->cpus_os, core->cpus_os) < 0 ||
		    (core->numa_os >= 0 && idset_add(rank->numa_os, core->numa_os) < 0))
			return -1;
	}
	/* More threads would use up the cgroup's CPU time and stop together until its next period.
	 */
	if (inventory->cpu_limit_millis >= 0) {
		int64_t granted = inventory->cpu_limit_millis / 1000 / rank_count;

		if (granted < rank->threads)
			rank->threads = granted > 1 ? (int)granted : 1;
	}
	return 0;
}

static int fill_free(const struct inventory *inventory, const struct core_choice *choice,
		     struct plan_node *node)
{
	node->free_cpus_os = idset_new();
	for (size_t c = 0; node->free_cpus_os && c < inventory->core_count; c++) {
		bool taken = choice->owner[c] != CORE_FREE;

		for (size_t r = 0; !taken && choice->shared_count && r < node->rank_count; r++)
			taken = choice->shared_core[r] == (int)c;
		if (!taken && idset_unite(node->free_cpus_os, inventory->cores[c].cpus_os) < 0)
			return -1;
	}
	return node->free_cpus_os ? 0 : -1;
}

static int fill_node(const struct inventory *inventory, const struct gpu_choice *gpus,
		     const struct core_choice *cores, int first_rank, int rank_count,
		     struct scratch *scratch, struct plan_node *node, struct error *err)
{
	node->node = strdup(inventory->node ? inventory->node : "");
	node->ranks = calloc((size_t)rank_count, sizeof *node->ranks);
	if (!node->node || !node->ranks)
		return error_memory(err, "a node's plan");
	node->rank_count = (size_t)rank_count;
	for (int r = 0; r < rank_count; r++) {
		struct plan_rank *rank = &node->ranks[r];

		rank->rank = first_rank + r;
		rank->local_rank = r;
		if (fill_gpus(inventory, gpus, rank) < 0 ||
		    fill_cores(inventory, cores, rank_count, rank) < 0)
			return error_memory(err, "a node's plan");
	}
	if (fill_free(inventory, cores, node) < 0)
		return error_memory(err, "a node's plan");
	if (!gpus->own && gpus->usable_count) {
		node->visible_devices = visible_list(inventory, gpus, rank_count, scratch);
		if (!node->visible_devices)
			return error_memory(err, "a node's plan");
		if (!*node->visible_devices) {
			free(node->visible_devices);
			node->visible_devices = NULL;
		}
	}
	return nics_choose(inventory, gpus, cores, node, scratch, err);
}

int plan_map_node(const struct inventory *inventory, const struct plan_request *request,
		  int first_rank, int rank_count, struct plan_node *out, struct error *err)
{
	struct gpu_choice gpus = {0};
	struct core_choice cores = {0};
	struct plan_node node = {0};
	struct scratch scratch = {0};
	int rc;

	if (rank_count < 1 || rank_count > PLAN_MAX_RANKS_PER_NODE)
		return error_set(err, ERR_USAGE, "%d ranks per node, expected 1 to %d", rank_count,
				 PLAN_MAX_RANKS_PER_NODE);
	rc = gpus_choose(inventory, request, rank_count, &scratch, &gpus, err);
	if (!rc)
		rc = cores_choose(inventory, request, &gpus, rank_count, &scratch, &cores, err);
	if (!rc)
		rc = fill_node(inventory, &gpus, &cores, first_rank, rank_count, &scratch, &node,
			       err);
	if (!rc)
		rc = plan_explain_node(inventory, &gpus, &cores, &node, err);
	/* gpus and cores lie in it, so not before. */
	scratch_free(&scratch);
	if (rc) {
		plan_node_free(&node);
		return rc;
	}
	*out = node;
	return 0;
}

void plan_node_free(struct plan_node *node)
{
	if (!node)
		return;
	for (size_t r = 0; r < node->rank_count; r++) {
		struct plan_rank *rank = &node->ranks[r];

		for (size_t g = 0; g < rank->gpu_count; g++)
			free(rank->gpus[g].uuid);
		free(rank->gpus);
		free(rank->nics);
		idset_free(rank->cpus_os);
		idset_free(rank->numa_os);
		free(rank->why);
	}
	free(node->ranks);
	free(node->node);
	free(node->visible_devices);
	text_list_free(node->warnings, node->warning_count);
	idset_free(node->free_cpus_os);
	memset(node, 0, sizeof *node);
}
