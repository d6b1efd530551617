/* SPDX-License-Identifier: BSD-3-Clause */
/* The NICs of the ranks of one node: among the node's fabric, those nearest to the rank's GPU. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "plan/plan_internal.h"

static enum nic_class class_of_kind(const struct inventory_nic *nic)
{
	if (!*nic->net && !*nic->rdma)
		return NIC_CLASS_NONE; /* no program can address it */
	switch (nic->kind) {
	case NIC_ETHERNET:
		return NIC_CLASS_ETHERNET;
	case NIC_ROCE:
		return NIC_CLASS_ROCE;
	default:
		return NIC_CLASS_FABRIC;
	}
}

/* The management flag counts only if there is something better: a node with one NIC uses it. */
enum nic_class nic_best_class(const struct inventory *inventory, enum nic_kind *kind)
{
	enum nic_class best = NIC_CLASS_NONE;

	*kind = NIC_ETHERNET;
	for (int management = 0; management < 2 && !best; management++)
		for (size_t n = 0; n < inventory->nic_count; n++) {
			const struct inventory_nic *nic = &inventory->nics[n];
			enum nic_class class = class_of_kind(nic);

			if (nic->management != management || !class)
				continue;
			if (class > best || (class == best && nic->kind > *kind))
				*kind = nic->kind;
			if (class > best)
				best = class;
		}
	return best;
}

/* If a node has several kinds of fabric (none is known), the last in enum nic_kind's order serves
 * the job. */
enum nic_class nic_class(const struct inventory *inventory, size_t nic)
{
	const struct inventory_nic *me = &inventory->nics[nic];
	enum nic_kind kind;
	enum nic_class best = nic_best_class(inventory, &kind);

	if (class_of_kind(me) != best || me->kind != kind)
		return NIC_CLASS_NONE;
	if (me->management)
		for (size_t n = 0; n < inventory->nic_count; n++)
			if (class_of_kind(&inventory->nics[n]) && !inventory->nics[n].management)
				return NIC_CLASS_NONE;
	return best;
}

/* ---- distance ---- */

/* Without a GPU: the distance of a NIC to the rank's cores. */
static enum path_class path_to_cores(const struct inventory *inventory,
				     const struct inventory_nic *nic,
				     const struct core_choice *cores, int local_rank)
{
	enum path_class path = PATH_SYS;

	if (!idset_count(nic->cpus_os) && !idset_count(nic->numa_os))
		return PATH_UNKNOWN;
	for (size_t c = 0; c < inventory->core_count; c++) {
		const struct inventory_core *core = &inventory->cores[c];

		if (cores->owner[c] != local_rank && cores->shared_core[local_rank] != (int)c)
			continue;
		if (idset_intersects(core->cpus_os, nic->cpus_os) ||
		    (core->numa_os >= 0 && idset_has(nic->numa_os, core->numa_os)))
			return PATH_NODE;
		if (nic->package >= 0 && core->package == nic->package)
			path = PATH_PKG;
	}
	return path;
}

/* One consumer of NICs: a GPU in use, or a rank without GPUs. */
struct consumer {
	uint8_t *path;	 /* [nic_count] */
	bool *near_up;	 /* [nic_count]: the nearest among those that are not down */
	bool *near_down; /* [nic_count]: nearer still, but down */
};

static void find_nearest(const struct inventory *inventory, const bool *eligible,
			 struct consumer *consumer)
{
	int up = -1, any = -1;

	for (size_t n = 0; n < inventory->nic_count; n++) {
		if (!eligible[n])
			continue;
		if (any < 0 || consumer->path[n] < any)
			any = consumer->path[n];
		if (inventory->nics[n].state != NIC_STATE_DOWN &&
		    (up < 0 || consumer->path[n] < up))
			up = consumer->path[n];
	}
	for (size_t n = 0; n < inventory->nic_count; n++) {
		bool down = inventory->nics[n].state == NIC_STATE_DOWN;

		consumer->near_up[n] = eligible[n] && !down && consumer->path[n] == up;
		consumer->near_down[n] =
			eligible[n] && down && consumer->path[n] == any && (up < 0 || any < up);
	}
}

/* The share of consumer me in the NICs of its set: consumers with the same set divide it. */
static void divide(size_t nic_count, const struct consumer *consumers, size_t consumer_count,
		   size_t me, bool down, bool *assigned)
{
	const bool *set = down ? consumers[me].near_down : consumers[me].near_up;
	size_t size = 0, sharers = 0, place = 0, at = 0;

	for (size_t n = 0; n < nic_count; n++)
		size += set[n];
	for (size_t s = 0; s < consumer_count; s++) {
		const bool *other = down ? consumers[s].near_down : consumers[s].near_up;

		if (memcmp(other, set, nic_count * sizeof *set))
			continue;
		place += s < me;
		sharers++;
	}

	size_t first = place * size / sharers, end = (place + 1) * size / sharers;

	for (size_t n = 0; n < nic_count; n++)
		if (set[n]) {
			assigned[n] = at == first || (at > first && at < end);
			at++;
		}
}

static void find_nics(const struct inventory *inventory, const struct gpu_choice *gpus,
		      const struct core_choice *cores, size_t index, uint8_t *path)
{
	for (size_t n = 0; n < inventory->nic_count; n++) {
		if (!gpus->per_rank)
			path[n] = path_to_cores(inventory, &inventory->nics[n], cores, (int)index);
		else
			path[n] = inventory->path
					  ? inventory->path[index * inventory->nic_count + n]
					  : PATH_UNKNOWN;
	}
}

static int add_nic(const struct inventory *inventory, size_t n, uint8_t path,
		   struct plan_rank *rank)
{
	const struct inventory_nic *nic = &inventory->nics[n];
	struct plan_nic *out;

	for (size_t i = 0; i < rank->nic_count; i++) {
		out = &rank->nics[i];
		if (!strcmp(out->net, nic->net) && !strcmp(out->rdma, nic->rdma) &&
		    out->port == nic->port && !strcmp(out->pci, nic->pci))
			return 0; /* another GPU of the rank has it, too */
	}
	if (!rank->nics)
		rank->nics = calloc(inventory->nic_count, sizeof *rank->nics);
	if (!rank->nics)
		return -1;
	out = &rank->nics[rank->nic_count++];
	memcpy(out->net, nic->net, sizeof out->net);
	memcpy(out->rdma, nic->rdma, sizeof out->rdma);
	memcpy(out->pci, nic->pci, sizeof out->pci);
	out->port = nic->port;
	out->kind = nic->kind;
	out->path = (enum path_class)path;
	out->state = nic->state;
	return 0;
}

/* ---- all steps ---- */

/* List the consumers: the GPUs in use, in PCI order, or the ranks. of_gpu: [gpu_count], consumer or
 * -1. */
static size_t list_consumers(const struct inventory *inventory, const struct gpu_choice *gpus,
			     size_t rank_count, int *of_gpu)
{
	size_t count = 0;

	if (!gpus->per_rank)
		return rank_count;
	for (size_t g = 0; g < inventory->gpu_count; g++)
		of_gpu[g] = -1;
	for (size_t i = 0; i < rank_count * (size_t)gpus->per_rank; i++)
		of_gpu[gpus->of_rank[i]] = 0;
	for (size_t g = 0; g < inventory->gpu_count; g++)
		if (of_gpu[g] == 0)
			of_gpu[g] = (int)count++;
	return count;
}

static int assign(const struct inventory *inventory, const struct gpu_choice *gpus,
		  const struct consumer *consumers, size_t consumer_count, const int *of_gpu,
		  struct plan_rank *rank, bool *assigned)
{
	size_t places = gpus->per_rank ? (size_t)gpus->per_rank : 1;

	for (int down = 0; down < 2; down++)
		for (size_t k = 0; k < places; k++) {
			size_t me = (size_t)rank->local_rank;

			if (gpus->per_rank)
				me = (size_t)of_gpu[gpus->of_rank[me * places + k]];
			memset(assigned, 0, inventory->nic_count * sizeof *assigned);
			divide(inventory->nic_count, consumers, consumer_count, me, down, assigned);
			for (size_t n = 0; n < inventory->nic_count; n++)
				if (assigned[n] &&
				    add_nic(inventory, n, consumers[me].path[n], rank) < 0)
					return -1;
		}
	return 0;
}

int nics_choose(const struct inventory *inventory, const struct gpu_choice *gpus,
		const struct core_choice *cores, struct plan_node *node, struct scratch *scratch,
		struct error *err)
{
	size_t nics = inventory->nic_count, room = node->rank_count + inventory->gpu_count, count;
	struct consumer *consumers = scratch_array(scratch, room, sizeof *consumers);
	int *of_gpu = scratch_array(scratch, inventory->gpu_count, sizeof *of_gpu);
	bool *eligible = scratch_array(scratch, nics, sizeof *eligible);
	bool *assigned = scratch_array(scratch, nics, sizeof *assigned);
	bool *flags = scratch_array(scratch, room * 2, nics);
	uint8_t *paths = scratch_array(scratch, room, nics);

	if (scratch->failed)
		return error_memory(err, "the choice of NICs");
	for (size_t n = 0; n < nics; n++)
		eligible[n] = nic_class(inventory, n) != NIC_CLASS_NONE;
	count = list_consumers(inventory, gpus, node->rank_count, of_gpu);
	for (size_t i = 0, s = 0; s < count; i++) {
		if (gpus->per_rank && of_gpu[i] < 0)
			continue;
		consumers[s].path = paths + s * nics;
		consumers[s].near_up = flags + 2 * s * nics;
		consumers[s].near_down = flags + (2 * s + 1) * nics;
		find_nics(inventory, gpus, cores, i, consumers[s].path);
		find_nearest(inventory, eligible, &consumers[s]);
		s++;
	}
	for (size_t r = 0; nics && r < node->rank_count; r++)
		if (assign(inventory, gpus, consumers, count, of_gpu, &node->ranks[r], assigned) <
		    0)
			return error_memory(err, "the choice of NICs");
	return 0;
}
