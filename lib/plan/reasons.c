/* SPDX-License-Identifier: BSD-3-Clause */
/* The reasons for each rank's resources, as sentences. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "plan/plan_internal.h"

struct sentence {
	char text[512];
};

#define append(sentence, ...) text_append((sentence)->text, sizeof(sentence)->text, __VA_ARGS__)

static const char *plural(int count)
{
	return count == 1 ? "" : "s";
}

/* ---- one rank ---- */

static void append_gpus(struct sentence *sentence, const struct inventory *inventory,
			const struct gpu_choice *gpus, int rank_count, const struct plan_rank *rank)
{
	size_t used = (size_t)rank_count * rank->gpu_count;
	const char *by = NULL;
	int claimed = 0;

	if (!rank->gpu_count) {
		append(sentence, "no GPU");
	} else if (gpus->shared) {
		int sharers = 0;

		for (int r = 0; r < rank_count; r++)
			sharers += gpus->of_rank[r] == gpus->of_rank[rank->local_rank];
		if (sharers > 1)
			append(sentence, "GPU shared with %d other rank%s", sharers - 1,
			       plural(sharers - 1));
		else
			append(sentence, "GPU of its own");
	} else if (used == gpus->usable_count) {
		/* All GPUs are in use, so there was nothing to choose. */
		append(sentence, rank->gpu_count == 1 ? "GPU in PCI order" : "GPUs in PCI order");
	} else {
		append(sentence,
		       rank->gpu_count == 1
			       ? "GPU chosen to spread ranks over packages, NUMA nodes and NICs"
			       : "neighbouring GPUs, ranks spread over packages");
	}
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		if (!gpu_claimed(&inventory->gpus[g]))
			continue;
		claimed++;
		by = by ? by : inventory->gpus[g].claimed_by;
	}
	if (claimed)
		append(sentence, "; %d other%s used by %s", claimed, claimed == 1 ? " is" : "s are",
		       by);
}

/* How many of a rank's cores lie in its GPUs' cpusets or NUMA nodes, and how many could. */
static void count_cores(const struct inventory *inventory, const struct gpu_choice *gpus,
			const struct core_choice *cores, const struct plan_rank *rank, int *near,
			int *all)
{
	const int *mine = gpus->of_rank + (size_t)rank->local_rank * rank->gpu_count;

	*near = *all = 0;
	for (size_t c = 0; c < inventory->core_count; c++) {
		const struct inventory_core *core = &inventory->cores[c];
		bool is_near = false;

		if (cores->owner[c] != rank->local_rank)
			continue;
		for (size_t k = 0; k < rank->gpu_count; k++) {
			const struct inventory_gpu *gpu = &inventory->gpus[mine[k]];

			is_near |= idset_intersects(core->cpus_os, gpu->cpus_os) ||
				   (core->numa_os >= 0 && idset_has(gpu->numa_os, core->numa_os));
		}
		*near += is_near;
		++*all;
	}
}

static void append_cores(struct sentence *sentence, const struct inventory *inventory,
			 const struct gpu_choice *gpus, const struct core_choice *cores,
			 const struct plan_rank *rank)
{
	const int *mine = gpus->of_rank + (size_t)rank->local_rank * rank->gpu_count;
	int near, all;
	bool known = true;

	if (cores->shared_core[rank->local_rank] >= 0) {
		append(sentence, "; shares a core: more ranks than cores");
		return;
	}
	for (size_t k = 0; k < rank->gpu_count; k++)
		known = known && inventory->gpus[mine[k]].local_known;
	count_cores(inventory, gpus, cores, rank, &near, &all);
	if (!rank->gpu_count)
		append(sentence, "; an equal share of the cores");
	else if (cores->away[rank->local_rank])
		append(sentence,
		       "; cores on another package, because its GPU's package has none left");
	else if (!known)
		append(sentence, "; the locality of its GPU is unknown");
	else if (near == all)
		append(sentence, "; all cores local to it");
	else if (near)
		append(sentence, "; %d of %d cores local to it, the rest on its package", near,
		       all);
	else
		append(sentence, "; cores on its package, none local to it");
}

static const char *path_description(enum path_class path)
{
	switch (path) {
	case PATH_PIX:
		return "on its PCI switch";
	case PATH_PXB:
		return "a few PCI bridges away";
	case PATH_PHB:
		return "on its host bridge";
	case PATH_NODE:
		return "on its NUMA node";
	case PATH_PKG:
		return "on its package";
	case PATH_SYS:
		return "on another package";
	case PATH_UNKNOWN:
		break;
	}
	return "at an unknown distance";
}

static const char *nic_name(const struct plan_nic *nic)
{
	return *nic->rdma ? nic->rdma : nic->net;
}

static void append_nics(struct sentence *sentence, const struct plan_rank *rank)
{
	int up = 0;

	for (size_t n = 0; n < rank->nic_count; n++)
		up += rank->nics[n].state != NIC_STATE_DOWN;
	if (up)
		append(sentence, "; NIC%s %s", plural(up), path_description(rank->nics[0].path));
	for (size_t n = 0; n < rank->nic_count; n++) {
		const struct plan_nic *nic = &rank->nics[n];

		if (nic->state == NIC_STATE_DOWN)
			append(sentence, up ? "; %s is nearer but down" : "; %s is down",
			       nic_name(nic));
	}
}

/* ---- the node ---- */

static void warn_gpus(const struct inventory *inventory, const struct gpu_choice *gpus,
		      const struct plan_node *node, struct warnings *warnings)
{
	const struct plan_gpu_vendor *vendor = plan_gpu_vendor(inventory);
	bool other_vendor = false;

	for (size_t i = 0; i < inventory->note_count; i++)
		warn(warnings, "%s", inventory->notes[i]);
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		const struct inventory_gpu *gpu = &inventory->gpus[g];

		if (gpu->fault && gpu->allowed)
			warn(warnings, "GPU %d (%s) is not used: %s", gpu->index, gpu->pci,
			     gpu->fault);
	}
	if (inventory->gpu_count && !gpus->usable_count && !gpus->none)
		warn(warnings, "none of the node's GPUs can be used (it has %zu)",
		     inventory->gpu_count);
	if (gpus->shared)
		warn(warnings,
		     "%zu ranks share %zu GPU%s: each rank sees only its own GPU (--gpus-visible "
		     "own), and NCCL rejects two ranks on one GPU",
		     node->rank_count, gpus->usable_count, plural((int)gpus->usable_count));
	else if (gpus->own_implied)
		warn(warnings,
		     "several GPUs per rank: each rank sees only its own (--gpus-visible own)");
	for (size_t i = 0; i < gpus->usable_count; i++)
		other_vendor |= inventory->gpus[gpus->usable[i]].vendor != vendor->id;
	if (other_vendor)
		warn(warnings,
		     "%s applies only to one vendor's GPUs: the plan assigns other vendors' GPUs "
		     "too, "
		     "but the program must select them itself",
		     vendor->list);
}

static int warn_cores(const struct inventory *inventory, const struct core_choice *cores,
		      const struct plan_node *node, struct warnings *warnings)
{
	int away = 0;
	char *left = idset_format(node->free_cpus_os);

	for (size_t r = 0; r < node->rank_count; r++)
		away += cores->away[r];
	if (!left)
		return -1;
	if (cores->shared_count)
		warn(warnings, "more ranks (%zu) than cores (%zu): %d ranks share cores",
		     node->rank_count, inventory->core_count, cores->shared_count);
	if (inventory->cpu_limit_millis >= 0 &&
	    (uint64_t)inventory->cpu_limit_millis < node->rank_count * 1000)
		warn(warnings,
		     "the cgroup allows %.3g CPUs of time for %zu rank%s, so the kernel will pause "
		     "them again and again: request more CPUs, or start fewer ranks",
		     (double)inventory->cpu_limit_millis / 1000, node->rank_count,
		     plural((int)node->rank_count));
	if (away)
		warn(warnings,
		     "%d rank%s got cores on another package than the GPU's, which has no allowed "
		     "core left",
		     away, plural(away));
	if (*left)
		warn(warnings,
		     "CPUs %s stay unused: no rank's GPU is on their package (--all-cores assigns "
		     "them too)",
		     left);
	free(left);
	return 0;
}

/* "mlx5_0, the nearest NIC of local ranks 0-1, is down", once per NIC. */
static int warn_nic(const struct plan_node *node, const char *name, struct warnings *warnings)
{
	struct idset *ranks = idset_new();
	char *text;

	for (size_t r = 0; ranks && r < node->rank_count; r++)
		for (size_t n = 0; n < node->ranks[r].nic_count; n++)
			if (node->ranks[r].nics[n].state == NIC_STATE_DOWN &&
			    !strcmp(nic_name(&node->ranks[r].nics[n]), name))
				idset_add(ranks, (int)r);
	text = ranks ? idset_format(ranks) : NULL;
	if (text)
		warn(warnings, "%s, the nearest NIC of local rank%s %s, is down", name,
		     plural((int)idset_count(ranks)), text);
	free(text);
	idset_free(ranks);
	return text ? 0 : -1;
}

static int warn_nics(const struct inventory *inventory, const struct plan_node *node,
		     struct warnings *warnings)
{
	for (size_t m = 0; m < inventory->nic_count; m++) {
		const struct inventory_nic *nic = &inventory->nics[m];
		const char *name = *nic->rdma ? nic->rdma : nic->net;
		bool used = false;

		for (size_t r = 0; r < node->rank_count && nic->state == NIC_STATE_DOWN; r++)
			for (size_t n = 0; n < node->ranks[r].nic_count; n++)
				used |= !strcmp(nic_name(&node->ranks[r].nics[n]), name) &&
					node->ranks[r].nics[n].port == nic->port;
		if (used && warn_nic(node, name, warnings) < 0)
			return -1;
	}
	return 0;
}

int plan_explain_node(const struct inventory *inventory, const struct gpu_choice *gpus,
		      const struct core_choice *cores, struct plan_node *node, struct error *err)
{
	struct warnings warnings = {
		.list = &node->warnings, .count = &node->warning_count, .err = err};

	for (size_t r = 0; r < node->rank_count; r++) {
		struct sentence sentence = {""};

		append_gpus(&sentence, inventory, gpus, (int)node->rank_count, &node->ranks[r]);
		append_cores(&sentence, inventory, gpus, cores, &node->ranks[r]);
		append_nics(&sentence, &node->ranks[r]);
		node->ranks[r].why = strdup(sentence.text);
		if (!node->ranks[r].why)
			return error_memory(err, "a node's plan");
	}
	warn_gpus(inventory, gpus, node, &warnings);
	if (warn_cores(inventory, cores, node, &warnings) < 0 ||
	    warn_nics(inventory, node, &warnings) < 0)
		return error_memory(err, "a node's plan");
	return warnings.rc;
}
