/* SPDX-License-Identifier: BSD-3-Clause */
/* What other runs of the job use, see process/claims.h. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "plan/plan_internal.h"

#define CPU_NAME "cpu %d"

bool gpu_claimed(const struct inventory_gpu *gpu)
{
	return gpu->allowed && !gpu->fault && gpu->claimed_by;
}

bool gpu_usable(const struct inventory_gpu *gpu)
{
	return gpu->allowed && !gpu->fault && !gpu->claimed_by;
}

/* GPUs without a UUID go by their number, which partitions of one PCI function do not share. */
static void name_gpu(const char *uuid, const char *pci, int index, char *out, size_t size)
{
	if (uuid)
		snprintf(out, size, "%s", uuid);
	else
		snprintf(out, size, "%s/%d", pci, index);
}

static int set_by(char **claimed_by, const char *by)
{
	if (!*claimed_by)
		*claimed_by = strncmp(by, "role ", 5)
				      ? text_format("other runs of this job (%s)", by)
				      : strdup(by);
	return *claimed_by ? 0 : -1;
}

static void set_free(char **claimed_by)
{
	free(*claimed_by);
	*claimed_by = NULL;
}

/* Mark what the name of a claim means here, if anything. */
static int mark(struct inventory *inventory, const char *name, const char *by)
{
	int cpu = -1, rc = 0;

	if (sscanf(name, CPU_NAME, &cpu) == 1)
		for (size_t c = 0; c < inventory->core_count; c++)
			if (idset_has(inventory->cores[c].cpus_os, cpu))
				rc |= set_by(&inventory->cores[c].claimed_by, by);
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		struct inventory_gpu *gpu = &inventory->gpus[g];
		char own[96];

		name_gpu(gpu->uuid, gpu->pci, gpu->index, own, sizeof own);
		if (!strcmp(own, name))
			rc |= set_by(&gpu->claimed_by, by);
	}
	return rc;
}

int plan_apply_claims(struct inventory *inventory, const json_t *claims, struct error *err)
{
	const json_t *claim, *use;
	size_t i, j;

	for (size_t g = 0; g < inventory->gpu_count; g++)
		set_free(&inventory->gpus[g].claimed_by);
	for (size_t c = 0; c < inventory->core_count; c++)
		set_free(&inventory->cores[c].claimed_by);
	json_array_foreach(claims, i, claim)
	{
		const char *by = json_string_value(json_object_get(claim, "by"));

		json_array_foreach(json_object_get(claim, "uses"), j, use)
		{
			const char *name = json_string_value(use);

			if (name && mark(inventory, name, by ? by : "?"))
				return error_memory(err, "claims");
		}
	}
	return 0;
}

json_t *plan_claim(const struct plan_node *node)
{
	json_t *uses = json_array();
	struct idset *shown = idset_new(); /* GPUs, or without them CPUs */
	char *list;
	bool gpus = false;

	for (size_t r = 0; uses && shown && r < node->rank_count; r++) {
		const struct plan_rank *rank = &node->ranks[r];
		int cpu = -1;

		for (size_t g = 0; g < rank->gpu_count; g++) {
			char name[96];

			name_gpu(rank->gpus[g].uuid, rank->gpus[g].pci, rank->gpus[g].index, name,
				 sizeof name);
			json_array_append_new(uses, json_string(name));
			idset_add(shown, rank->gpus[g].index);
			gpus = true;
		}
		while (!rank->gpu_count && (cpu = idset_next(rank->cpus_os, cpu)) >= 0) {
			json_array_append_new(uses, json_sprintf(CPU_NAME, cpu));
			idset_add(shown, cpu);
		}
	}
	list = shown ? idset_format(shown) : NULL;
	idset_free(shown);
	if (!list) {
		json_decref(uses);
		return NULL;
	}

	json_t *claim = json_pack("{s:o, s:o}", "uses", uses, "what",
				  json_sprintf("%s %s", gpus ? "GPU" : "CPU", list));

	free(list);
	return claim;
}
