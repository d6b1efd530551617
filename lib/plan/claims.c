/* SPDX-License-Identifier: BSD-3-Clause */
/* What other runs of the job use, see process/claims.h. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "plan/plan_internal.h"

/* GPUs without a UUID go by their number, which partitions of one PCI function do not share. */
static void name_gpu(const char *uuid, const char *pci, int index, char *out, size_t size)
{
	if (uuid)
		snprintf(out, size, "%s", uuid);
	else
		snprintf(out, size, "%s/%d", pci, index);
}

static int claim_gpu(struct inventory *inventory, const char *name, const char *by)
{
	for (size_t g = 0; name && g < inventory->gpu_count; g++) {
		struct inventory_gpu *gpu = &inventory->gpus[g];
		char own[96];

		name_gpu(gpu->uuid, gpu->pci, gpu->index, own, sizeof own);
		if (gpu->claimed_by || strcmp(own, name))
			continue;
		gpu->claimed_by = strdup(by);
		return gpu->claimed_by ? 0 : -1;
	}
	return 0;
}

int plan_apply_claims(struct inventory *inventory, const json_t *claims, struct error *err)
{
	const json_t *claim, *gpu;
	size_t i, j;

	for (size_t g = 0; g < inventory->gpu_count; g++) {
		free(inventory->gpus[g].claimed_by);
		inventory->gpus[g].claimed_by = NULL;
	}
	json_array_foreach(claims, i, claim)
	{
		const char *by = json_string_value(json_object_get(claim, "by"));

		json_array_foreach(json_object_get(claim, "gpus"), j, gpu)
		{
			if (claim_gpu(inventory, json_string_value(gpu), by ? by : "?"))
				return error_memory(err, "claims");
		}
	}
	return 0;
}

json_t *plan_claim(const struct plan_node *node)
{
	struct idset *cpus = idset_new();
	json_t *gpus = json_array(), *claim = NULL;
	char *text;

	for (size_t r = 0; r < node->rank_count; r++) {
		const struct plan_rank *rank = &node->ranks[r];

		if (cpus)
			idset_unite(cpus, rank->cpus_os);
		for (size_t g = 0; g < rank->gpu_count; g++) {
			char name[96];

			name_gpu(rank->gpus[g].uuid, rank->gpus[g].pci, rank->gpus[g].index, name,
				 sizeof name);
			json_array_append_new(gpus, json_string(name));
		}
	}
	text = cpus ? idset_format(cpus) : NULL;
	if (text)
		claim = json_pack("{s:o, s:s}", "gpus", gpus, "cpus", text);
	else
		json_decref(gpus);
	free(text);
	idset_free(cpus);
	return claim;
}

/* How many of a node's GPUs the job may use, and how many of those no other run uses. */
static int count_free(const struct inventory *inventory, int *all, const char **by)
{
	int count = 0;

	*all = 0;
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		const struct inventory_gpu *gpu = &inventory->gpus[g];

		*all += gpu->allowed && !gpu->fault;
		count += gpu_usable(gpu);
		if (gpu_claimed(gpu) && !*by)
			*by = gpu->claimed_by;
	}
	return count;
}

bool plan_is_taken(const struct inventory *inventory)
{
	const char *by = NULL;
	int all, left = count_free(inventory, &all, &by);

	return all && !left;
}

bool plan_fits(const struct alloc *alloc, const struct inventory *inventories, size_t count,
	       const struct plan_request *request, char *why, size_t size)
{
	int *counts = calloc(count, sizeof *counts), all_sum = 0, left_sum = 0;
	size_t used = 0;
	const char *by = NULL;
	bool fits = true;

	/* What cannot be met at all is plan_make's to explain. */
	if (!counts || plan_rank_counts(alloc, inventories, count, request, counts, NULL)) {
		free(counts);
		return true;
	}
	for (size_t n = 0; n < count; n++) {
		int per_rank = request->gpus_per_rank > 1 ? request->gpus_per_rank : 1;
		int all, left = count_free(&inventories[n], &all, &by);

		if (all && request->per_node)
			fits &= left == all;
		else if (all)
			fits &= counts[n] * per_rank <= left;
		used += counts[n] > 0;
		all_sum += all;
		left_sum += left;
	}
	/* Ranks on several nodes meet at the first one, whose addresses the others have tried. */
	fits = !by || (fits && (counts[0] || used == 1));
	if (by)
		snprintf(why, size, "%d of %d GPUs are used by other runs of this job (%s)",
			 all_sum - left_sum, all_sum, by);
	else
		*why = 0;
	free(counts);
	return fits;
}
