/* SPDX-License-Identifier: BSD-3-Clause */
#include "invariants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check {
	const char *label;
	const struct inventory *inventory;
	const struct plan_request *request;
	const struct plan_node *node;
	int violations;
};

static void violation(struct check *c, int rank, const char *text)
{
	fprintf(stderr, "%s: N=%zu rank %d: %s\n", c->label, c->node->rank_count, rank, text);
	c->violations++;
}

static bool usable(const struct inventory_gpu *gpu)
{
	return gpu->allowed && !gpu->fault;
}

int rank_package(const struct inventory *inventory, const struct plan_rank *rank)
{
	const struct inventory_gpu *gpu;

	if (!rank->gpu_count)
		return -1;
	gpu = &inventory->gpus[rank->gpus[0].index];
	return gpu->local_known ? gpu->package : -1;
}

/* Bit p: the CPUs include a core of package p. */
static unsigned long packages_of(const struct inventory *inventory, const struct idset *cpus)
{
	unsigned long packages = 0;

	for (size_t i = 0; i < inventory->core_count; i++)
		if (idset_intersects(inventory->cores[i].cpus_os, cpus))
			packages |= 1ul << inventory->cores[i].package;
	return packages;
}

bool cpus_local(const struct inventory *inventory, const struct inventory_gpu *gpu,
		const struct idset *cpus)
{
	unsigned long packages = packages_of(inventory, cpus);

	if (!gpu->local_known || gpu->package < 0)
		return packages && !(packages & (packages - 1));
	return idset_intersects(gpu->cpus_os, cpus) && packages == 1ul << gpu->package;
}

static void check_shape(struct check *c)
{
	for (size_t r = 0; r < c->node->rank_count; r++) {
		const struct plan_rank *rank = &c->node->ranks[r];

		if (rank->local_rank != (int)r)
			violation(c, (int)r, "local ranks do not count up");
		if (!rank->why || !*rank->why)
			violation(c, (int)r, "no reason");
		if (rank->threads < 1)
			violation(c, (int)r, "no thread");
		if (c->inventory->core_count && !idset_count(rank->cpus_os))
			violation(c, (int)r, "no CPU");
		if (!idset_contains(c->inventory->allowed_cpus_os, rank->cpus_os))
			violation(c, (int)r, "a CPU that is not allowed");
	}
}

static void check_cores(struct check *c)
{
	for (size_t i = 0; i < c->inventory->core_count; i++) {
		const struct idset *core = c->inventory->cores[i].cpus_os;
		int owners = idset_intersects(c->node->free_cpus_os, core);

		for (size_t r = 0; r < c->node->rank_count; r++) {
			const struct plan_rank *rank = &c->node->ranks[r];

			if (!idset_intersects(rank->cpus_os, core))
				continue;
			if (!idset_contains(rank->cpus_os, core))
				violation(c, (int)r, "part of a core: SMT siblings are torn apart");
			if (owners++ && c->node->rank_count <= c->inventory->core_count)
				violation(c, (int)r, "a core twice");
		}
		if (!owners)
			violation(c, -1, "a core that is neither dealt nor reported free");
	}
}

static void check_gpus(struct check *c)
{
	const struct inventory *inventory = c->inventory;
	int least = INT32_MAX, most = 0;
	size_t count = 0;

	for (size_t g = 0; g < inventory->gpu_count; g++) {
		int users = 0;

		for (size_t r = 0; r < c->node->rank_count; r++)
			for (size_t k = 0; k < c->node->ranks[r].gpu_count; k++)
				users += c->node->ranks[r].gpus[k].index == (int)g;
		if (!usable(&inventory->gpus[g])) {
			if (users)
				violation(c, -1, "a GPU that may not be used");
			continue;
		}
		least = users < least ? users : least;
		most = users > most ? users : most;
		count++;
	}
	if (count && most > 1 && least == 0)
		violation(c, -1, "a GPU unused while another is shared");
	if (count && most - least > 1)
		violation(c, -1, "GPUs are shared unevenly");
	for (size_t r = 0; count && r < c->node->rank_count; r++)
		if (!c->node->ranks[r].gpu_count)
			violation(c, (int)r, "no GPU, although there are usable ones");
}

/* Does the package have enough allowed cores for the ranks whose GPUs are on it? */
static bool roomy(const struct check *c, int package)
{
	size_t cores = 0, ranks = 0;

	for (size_t i = 0; i < c->inventory->core_count; i++)
		cores += c->inventory->cores[i].package == package;
	for (size_t r = 0; r < c->node->rank_count; r++)
		ranks += rank_package(c->inventory, &c->node->ranks[r]) == package;
	return cores >= ranks;
}

/* Does a rank from another package take cores of this one? Ranks without an allowed core on their
 * own package do; shares are equal only on packages without such ranks. */
static bool visited(const struct check *c, int package)
{
	for (size_t r = 0; r < c->node->rank_count; r++) {
		const struct plan_rank *rank = &c->node->ranks[r];
		int home = rank_package(c->inventory, rank);

		if (home >= 0 && home != package &&
		    (packages_of(c->inventory, rank->cpus_os) & 1ul << package))
			return true;
	}
	return false;
}

static void check_places(struct check *c)
{
	if (c->request->all_cores || c->request->gpus_per_rank > 1)
		return;
	for (size_t p = 0; p < c->inventory->package_count; p++) {
		int least = INT32_MAX, most = 0;

		for (size_t r = 0; r < c->node->rank_count; r++) {
			const struct plan_rank *rank = &c->node->ranks[r];

			if (rank_package(c->inventory, rank) != (int)p)
				continue;
			least = rank->threads < least ? rank->threads : least;
			most = rank->threads > most ? rank->threads : most;
			if (roomy(c, (int)p) &&
			    packages_of(c->inventory, rank->cpus_os) != 1ul << p)
				violation(c, (int)r, "cores of another package than its GPU's");
		}
		if (most && most - least > 1 && !visited(c, (int)p))
			violation(c, -1, "shares on a package differ by more than one core");
	}
}

/* 3: fabric, 2: RDMA-capable Ethernet, 1: Ethernet, 0: has no name. */
static int grade(enum nic_kind kind, const char *net, const char *rdma)
{
	if (!*net && !*rdma)
		return 0;
	return kind == NIC_ETHERNET ? 1 : kind == NIC_ROCE ? 2 : 3;
}

static void check_nics(struct check *c)
{
	const struct inventory *inventory = c->inventory;
	int best = 0;

	for (size_t n = 0; n < inventory->nic_count; n++) {
		const struct inventory_nic *nic = &inventory->nics[n];
		int its = grade(nic->kind, nic->net, nic->rdma);

		if (!nic->management && its > best)
			best = its;
	}
	for (size_t r = 0; r < c->node->rank_count; r++) {
		const struct plan_rank *rank = &c->node->ranks[r];

		if (best && !rank->nic_count)
			violation(c, (int)r, "no NIC though there are some");
		for (size_t n = 0; n < rank->nic_count; n++) {
			const struct plan_nic *nic = &rank->nics[n];

			if (grade(nic->kind, nic->net, nic->rdma) < best)
				violation(c, (int)r, "a management NIC beside a fabric NIC");
			if (n && nic->state == NIC_STATE_UP &&
			    rank->nics[n - 1].state == NIC_STATE_DOWN)
				violation(c, (int)r, "a port that is down before one that is up");
		}
	}
}

static bool all_nvidia(const struct inventory *inventory)
{
	for (size_t g = 0; g < inventory->gpu_count; g++)
		if (inventory->gpus[g].vendor != 0x10de)
			return false;
	return true;
}

static void check_visible(struct check *c)
{
	if (c->node->rank_count < 2)
		return;
	for (size_t r = 0; r < c->node->rank_count; r++) {
		const struct plan_rank *rank = &c->node->ranks[r];

		if (!c->node->visible_devices)
			continue;
		for (size_t k = 0; k < rank->gpu_count; k++)
			if (rank->gpus[k].ordinal < 0)
				violation(c, (int)r, "no ordinal in CUDA_VISIBLE_DEVICES");
		if (rank->gpu_count == 1 && all_nvidia(c->inventory) &&
		    rank->gpus[0].ordinal != (int)r)
			violation(c, (int)r, "cuda:LOCAL_RANK is not its GPU");
	}
}

static void check_warnings(struct check *c)
{
	bool told = false;

	for (size_t w = 0; w < c->node->warning_count; w++)
		told |= strstr(c->node->warnings[w], "than cores") != NULL;
	if (told != (c->node->rank_count > c->inventory->core_count))
		violation(c, -1, "more ranks than cores, and the warnings do not agree");
}

int invariants_check(const char *label, const struct inventory *inventory,
		     const struct plan_request *request, const struct plan_node *node)
{
	struct check c = {label, inventory, request, node, 0};

	check_shape(&c);
	check_cores(&c);
	check_gpus(&c);
	check_places(&c);
	check_nics(&c);
	check_visible(&c);
	check_warnings(&c);
	return c.violations;
}

int invariants_plan(const char *label, const struct inventory *inventory,
		    const struct plan_request *request, int n)
{
	struct plan_node node = {0}, again = {0};
	struct error err = {0};
	json_t *first, *second;
	int violations;

	if (plan_map_node(inventory, request, 0, n, &node, &err)) {
		fprintf(stderr, "%s: N=%d: no plan: %s\n", label, n, err.text);
		return 1;
	}
	violations = invariants_check(label, inventory, request, &node);
	if (plan_map_node(inventory, request, 0, n, &again, &err))
		violations++;
	first = plan_node_to_json(&node);
	second = plan_node_to_json(&again);
	if (!first || !json_equal(first, second)) {
		fprintf(stderr, "%s: N=%d: planned twice, two plans\n", label, n);
		violations++;
	}
	json_decref(first);
	json_decref(second);
	plan_node_free(&node);
	plan_node_free(&again);
	return violations;
}
