/* SPDX-License-Identifier: BSD-3-Clause */
/* GPUs, cores and NICs of the ranks of one node, each row on a machine made for one rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inventories.h"
#include "invariants.h"

/* ---- machines ---- */

/* 2 packages of 4 cores with 2 siblings, 2 GPUs each. */
static struct inventory two_by_two(void)
{
	struct inventory inventory = make_inventory("node", 2, 1, 4, 2);

	make_gpu(&inventory, "0000:01:00.0", 0);
	make_gpu(&inventory, "0000:02:00.0", 0);
	make_gpu(&inventory, "0000:81:00.0", 1);
	make_gpu(&inventory, "0000:82:00.0", 1);
	return inventory;
}

/* Both GPUs on package 0 of 2, 4 cores each. */
static struct inventory one_sided(void)
{
	struct inventory inventory = make_inventory("node", 2, 1, 4, 1);

	make_gpu(&inventory, "0000:01:00.0", 0);
	make_gpu(&inventory, "0000:02:00.0", 0);
	return inventory;
}

/* 1 package of 4 NUMA nodes of 4 cores; GPUs in PCI order on nodes 2 and 1. */
static struct inventory middle_nodes(void)
{
	struct inventory inventory = make_inventory("node", 1, 4, 4, 1);

	make_gpu(&inventory, "0000:01:00.0", 2);
	make_gpu(&inventory, "0000:41:00.0", 1);
	return inventory;
}

/* 1 package of 2 NUMA nodes of 4 cores; 2 GPUs on node 0, 1 on node 1. */
static struct inventory uneven(void)
{
	struct inventory inventory = make_inventory("node", 1, 2, 4, 1);

	make_gpu(&inventory, "0000:01:00.0", 0);
	make_gpu(&inventory, "0000:02:00.0", 0);
	make_gpu(&inventory, "0000:41:00.0", 1);
	return inventory;
}

/* 1 package of 3 NUMA nodes of 4 cores; 4 GPUs on node 0, 1 on node 1, none on node 2. */
static struct inventory crowded(void)
{
	struct inventory inventory = make_inventory("node", 1, 3, 4, 1);

	make_gpu(&inventory, "0000:01:00.0", 0);
	make_gpu(&inventory, "0000:02:00.0", 0);
	make_gpu(&inventory, "0000:03:00.0", 0);
	make_gpu(&inventory, "0000:04:00.0", 0);
	make_gpu(&inventory, "0000:41:00.0", 1);
	return inventory;
}

static struct inventory unknown_locality(void)
{
	struct inventory inventory = make_inventory("node", 2, 1, 4, 1);

	for (int g = 0; g < 4; g++) {
		char pci[20];

		snprintf(pci, sizeof pci, "0000:00:%02x.0", 0x16 + g);
		make_gpu(&inventory, pci, -1);
	}
	return inventory;
}

/* The cgroup allows no cores of package 1. */
static struct inventory half_allowed(void)
{
	struct inventory inventory = two_by_two();

	for (int c = 4; c < 8; c++) {
		idset_subtract(inventory.allowed_cpus_os, inventory.cores[c].cpus_os);
		for (int g = 2; g < 4; g++)
			idset_subtract(inventory.gpus[g].cpus_os, inventory.cores[c].cpus_os);
		idset_free(inventory.cores[c].cpus_os);
	}
	inventory.core_count = 4;
	return inventory;
}

/* NUMA nodes 0 and 1 allowed of 4 on 2 packages; GPUs on 3, 1, 2 (and 0's core count is 4). */
static struct inventory strangers(void)
{
	struct inventory inventory = make_inventory("node", 2, 2, 4, 1);

	make_gpu(&inventory, "0000:01:00.0", 3);
	make_gpu(&inventory, "0000:41:00.0", 1);
	make_gpu(&inventory, "0000:81:00.0", 2);
	for (int c = 8; c < 16; c++) {
		idset_subtract(inventory.allowed_cpus_os, inventory.cores[c].cpus_os);
		for (int g = 0; g < 3; g++)
			idset_subtract(inventory.gpus[g].cpus_os, inventory.cores[c].cpus_os);
		idset_free(inventory.cores[c].cpus_os);
	}
	inventory.core_count = 8;
	return inventory;
}

static struct inventory no_gpu(void)
{
	return make_inventory("node", 2, 1, 4, 2);
}

static struct inventory one_forbidden(void)
{
	struct inventory inventory = two_by_two();

	inventory.gpus[1].allowed = false;
	return inventory;
}

static struct inventory one_faulty(void)
{
	struct inventory inventory = two_by_two();

	inventory.gpus[0].fault = strdup("NVML: GPU is lost");
	return inventory;
}

static struct inventory none_allowed(void)
{
	struct inventory inventory = one_sided();

	inventory.gpus[0].allowed = inventory.gpus[1].allowed = false;
	return inventory;
}

/* GPU 0 is split into two MIG devices. */
static struct inventory mig(void)
{
	struct inventory inventory = make_inventory("node", 1, 1, 4, 1);
	struct inventory_gpu *gpu = make_gpu(&inventory, "0000:01:00.0", 0);

	gpu->partition = 0;
	gpu->uuid = strdup("MIG-a");
	gpu = make_gpu(&inventory, "0000:01:00.0", 0);
	gpu->partition = 1;
	gpu->uuid = strdup("MIG-b");
	return inventory;
}

/* In this cgroup, NVML shows only GPUs 2 and 3; the PCI tree shows all. */
static struct inventory cgroup(void)
{
	struct inventory inventory = two_by_two();

	inventory.gpus[0].allowed = inventory.gpus[1].allowed = false;
	inventory.gpus[2].uuid = strdup("GPU-c");
	inventory.gpus[3].uuid = strdup("GPU-d");
	return inventory;
}

static struct inventory amd(void)
{
	struct inventory inventory = one_sided();

	inventory.gpus[0].vendor = inventory.gpus[1].vendor = 0x1002;
	return inventory;
}

static struct inventory amd_hidden(void)
{
	struct inventory inventory = amd();

	inventory.gpus[0].allowed = false;
	inventory.gpus[1].uuid = strdup("GPU-b");
	return inventory;
}

static struct inventory nvidia_and_amd(void)
{
	struct inventory inventory = one_sided();

	inventory.gpus[0].vendor = 0x1002;
	return inventory;
}

/* ---- what a rank gets, as one line ---- */

static void show(const struct plan_node *node, char *text, size_t size)
{
	size_t used = 0;

	for (size_t r = 0; r < node->rank_count; r++) {
		const struct plan_rank *rank = &node->ranks[r];
		char *cpus = idset_format(rank->cpus_os);

		used += (size_t)snprintf(text + used, size - used, "%s", r ? " | " : "");
		for (size_t g = 0; g < rank->gpu_count; g++)
			used += (size_t)snprintf(text + used, size - used, "g%d@%d ",
						 rank->gpus[g].index, rank->gpus[g].ordinal);
		used += (size_t)snprintf(text + used, size - used, "%s", cpus);
		free(cpus);
	}

	char *left = idset_format(node->free_cpus_os);

	snprintf(text + used, size - used, " ; free %s ; list %s", left,
		 node->visible_devices ? node->visible_devices : "none");
	free(left);
}

struct row {
	struct inventory (*inventory)(void);
	int n;
	struct plan_request request;
	const char *expected, *reason;
};

static const struct row rows[] = {
	{two_by_two, 4,
	 .expected = "g0@0 0-1,8-9 | g1@1 2-3,10-11 | g2@2 4-5,12-13 | g3@3 6-7,14-15 ; free  ; "
		     "list 0,1,2,3",
	 .reason = "GPUs in PCI order; siblings stay together"},
	{two_by_two, 1, .expected = "g0@0 0-3,8-11 ; free 4-7,12-15 ; list 0,1,2,3",
	 .reason = "cores of a package without a used GPU stay free; unused GPUs come last in the "
		   "list"},
	{two_by_two, 2, .expected = "g0@0 0-3,8-11 | g2@1 4-7,12-15 ; free  ; list 0,2,1,3",
	 .reason = "fewer ranks than GPUs: spread over packages"},
	{two_by_two, 3,
	 .expected = "g0@0 0-1,8-9 | g1@1 2-3,10-11 | g2@2 4-7,12-15 ; free  ; list 0,1,2,3",
	 .reason = "two on one package, one on the other: ranks share the cores of their package"},
	{two_by_two, 2, .request = {.gpus_visible_own = true},
	 .expected = "g0@0 0-3,8-11 | g2@0 4-7,12-15 ; free  ; list none",
	 .reason = "each rank sees its own GPU as cuda:0"},
	{two_by_two, 2, .request = {.gpus_per_rank = 2},
	 .expected = "g0@0 g1@1 0-3,8-11 | g2@0 g3@1 4-7,12-15 ; free  ; list none",
	 .reason = "several GPUs per rank are neighbours, and imply --gpus-visible own"},
	{two_by_two, 1, .request = {.gpus_per_rank = 2},
	 .expected = "g0@0 g1@1 0-3,8-11 ; free 4-7,12-15 ; list none",
	 .reason = "one unit of neighbours"},
	{two_by_two, 1, .request = {.gpus_per_rank = 4},
	 .expected = "g0@0 g1@1 g2@2 g3@3 0-15 ; free  ; list none",
	 .reason = "GPUs on both packages: cores of both"},
	{two_by_two, 1, .request = {.per_node = true},
	 .expected = "g0@0 g1@1 g2@2 g3@3 0-15 ; free  ; list 0,1,2,3",
	 .reason = "one process per node gets everything, and its workers see all GPUs"},
	{two_by_two, 6,
	 .expected = "g0@0 0-1,8-9 | g0@0 2,10 | g1@0 3,11 | g2@0 4-5,12-13 | g2@0 6,14 | g3@0 "
		     "7,15 ; free  ; list none",
	 .reason = "more ranks than GPUs share them, and each rank sees only its own"},
	{two_by_two, 8,
	 .expected = "g0@0 0,8 | g0@0 1,9 | g1@0 2,10 | g1@0 3,11 | g2@0 4,12 | g2@0 5,13 | g3@0 "
		     "6,14 | g3@0 7,15 ; free  ; list none",
	 .reason = "one core each"},
	{one_sided, 2, .expected = "g0@0 0-1 | g1@1 2-3 ; free 4-7 ; list 0,1",
	 .reason = "the other package stays free"},
	{one_sided, 2, .request = {.all_cores = true},
	 .expected = "g0@0 0-1,4-5 | g1@1 2-3,6-7 ; free  ; list 0,1",
	 .reason = "--all-cores shares it out"},
	{one_sided, 6,
	 .expected = "g0@0 0 | g0@0 1 | g0@0 2 | g1@0 3 | g1@0 4 | g1@0 5 ; free 6-7 ; list none",
	 .reason = "ranks share no core while others are free: two ranks move to the other "
		   "package, and get no more cores than on their own"},
	{middle_nodes, 2, .expected = "g0@0 8-15 | g1@1 0-7 ; free  ; list 0,1",
	 .reason = "its own NUMA node, then neighbouring nodes to which no GPU is nearest"},
	{middle_nodes, 1, .expected = "g0@0 0-15 ; free  ; list 0,1",
	 .reason = "only an unused GPU is near to node 1"},
	{uneven, 3, .expected = "g0@0 0-1,7 | g1@1 2-3 | g2@2 4-6 ; free  ; list 0,1,2",
	 .reason =
		 "shares differ by at most one core, so a rank of node 0 gets one core of node 1"},
	{crowded, 5,
	 .expected = "g0@0 0,8-9 | g1@1 1,10 | g2@2 2,11 | g3@3 3,7 | g4@4 4-6 ; free  ; list "
		     "0,1,2,3,4",
	 .reason = "cores of node 2, to which no GPU is nearest, before those that node 1's GPU "
		   "leaves"},
	{unknown_locality, 4,
	 .expected = "g0@0 0-1 | g1@1 2-3 | g2@2 4-5 | g3@3 6-7 ; free  ; list 0,1,2,3",
	 .reason = "unknown locality: GPUs split between the packages"},
	{unknown_locality, 2, .expected = "g0@0 0-3 | g2@1 4-7 ; free  ; list 0,2,1,3",
	 .reason = "unknown locality: ranks are spread over the packages"},
	{half_allowed, 4,
	 .expected = "g0@0 0,8 | g1@1 1,9 | g2@2 2,10 | g3@3 3,11 ; free  ; list 0,1,2,3",
	 .reason = "ranks without a core on their own package move; then there is just one core "
		   "for each rank"},
	{strangers, 3, .expected = "g0@0 0-1 | g1@1 4-7 | g2@2 2-3 ; free  ; list 0,1,2",
	 .reason = "a rank on its own package keeps the cores local to its GPU"},
	{no_gpu, 1, .expected = "0-15 ; free  ; list none", .reason = "without GPUs: all cores"},
	{no_gpu, 2, .expected = "0-3,8-11 | 4-7,12-15 ; free  ; list none",
	 .reason = "one package each"},
	{no_gpu, 3, .expected = "0-1,8-9 | 2-3,10-11 | 4-7,12-15 ; free  ; list none",
	 .reason = "no rank gets cores of two packages"},
	{no_gpu, 8,
	 .expected = "0,8 | 1,9 | 2,10 | 3,11 | 4,12 | 5,13 | 6,14 | 7,15 ; free  ; list none",
	 .reason = "one core each"},
	{no_gpu, 10,
	 .expected = "0,8 | 0,8 | 1,9 | 2,10 | 3,11 | 4,12 | 4,12 | 5,13 | 6,14 | 7,15 ; free  ; "
		     "list none",
	 .reason = "more ranks than cores share them evenly"},
	{one_forbidden, 3,
	 .expected = "g0@0 0-3,8-11 | g2@1 4-5,12-13 | g3@2 6-7,14-15 ; free  ; list 0,2,3",
	 .reason = "a GPU that the scheduler did not grant is not used"},
	{one_faulty, 3,
	 .expected = "g1@0 0-3,8-11 | g2@1 4-5,12-13 | g3@2 6-7,14-15 ; free  ; list 1,2,3",
	 .reason = "a faulty GPU is not used"},
	{none_allowed, 2, .expected = "0-3 | 4-7 ; free  ; list none",
	 .reason = "no allowed GPU: as without GPUs"},
	{mig, 2, .expected = "g0@0 0-1 | g1@1 2-3 ; free  ; list MIG-a,MIG-b",
	 .reason = "ordinals cannot name MIG devices"},
	{cgroup, 2, .expected = "g2@0 4-5,12-13 | g3@1 6-7,14-15 ; free 0-3,8-11 ; list 0,1",
	 .reason = "CUDA counts the GPUs that the cgroup shows"},
	{amd, 2, .expected = "g0@0 0-1 | g1@1 2-3 ; free 4-7 ; list 0,1",
	 .reason = "ROCR_VISIBLE_DEVICES lists AMD's GPUs"},
	{amd_hidden, 1, .expected = "g1@0 0-3 ; free 4-7 ; list GPU-b",
	 .reason =
		 "ROCr does not count a GPU that the container hides, so its UUID names the other"},
	{nvidia_and_amd, 2, .expected = "g0@0 0-1 | g1@0 2-3 ; free 4-7 ; list 0",
	 .reason = "ordinals count the GPUs of one vendor"},
};

static void test_rows(void **state)
{
	int failures = 0;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct row *row = &rows[i];
		struct inventory inventory = row->inventory();
		struct plan_node node = {0};
		struct error err = {0};
		char text[1024] = "";
		int rc = plan_map_node(&inventory, &row->request, 0, row->n, &node, &err);

		if (rc)
			snprintf(text, sizeof text, "%s", err.text);
		else
			show(&node, text, sizeof text);
		if (strcmp(text, row->expected)) {
			fprintf(stderr, "row %zu, N=%d (%s):\n  expected %s\n  got      %s\n", i,
				row->n, row->reason, row->expected, text);
			failures++;
		}
		plan_node_free(&node);
		inventory_free(&inventory);
	}
	assert_int_equal(failures, 0);
}

static void test_refusals(void **state)
{
	static const struct {
		struct inventory (*inventory)(void);
		int n;
		struct plan_request request;
		const char *text;
	} bad[] = {
		{two_by_two, 0, .text = "0 ranks per node, expected 1 to 4096"},
		{two_by_two, -1, .text = "-1 ranks per node, expected 1 to 4096"},
		{two_by_two, 4097, .text = "4097 ranks per node, expected 1 to 4096"},
		{two_by_two, 1, .request = {.gpus_per_rank = 5},
		 .text = "1 rank with 5 GPUs per rank: the total is 5, but"},
		{two_by_two, 3, .request = {.gpus_per_rank = 2},
		 .text = "3 ranks with 2 GPUs per rank: the total is 6, but"},
		{no_gpu, 1, .request = {.gpus_per_rank = 1},
		 .text = "--gpus-per-rank 1: node has no usable GPU"},
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct inventory inventory = bad[i].inventory();
		struct plan_node node = {0};
		struct error err = {0};

		assert_int_equal(
			plan_map_node(&inventory, &bad[i].request, 0, bad[i].n, &node, &err),
			-ERR_USAGE);
		if (!strstr(err.text, bad[i].text))
			fail_msg("'%s' does not contain '%s'", err.text, bad[i].text);
		assert_null(node.ranks);
		inventory_free(&inventory);
	}
}

/* The rules that always hold, for every machine in this file and every N. */
static void test_every_n(void **state)
{
	int violations = 0;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct inventory inventory = rows[i].inventory();
		char label[16];

		snprintf(label, sizeof label, "row %zu", i);
		for (int n = 1; n <= 64; n++) {
			struct plan_request plain = {0}, all = {.all_cores = true};

			violations += invariants_plan(label, &inventory, &plain, n);
			violations += invariants_plan(label, &inventory, &all, n);
		}
		inventory_free(&inventory);
	}
	assert_int_equal(violations, 0);
}

/* ---- NICs ---- */

/* Two GPUs, and the row's NICs in PCI order: names, kind, path to each GPU, state. */
static void test_nics(void **state)
{
	struct nic {
		const char *net, *rdma;
		enum nic_kind kind;
		enum path_class path[2];
		enum nic_state state;
	};
	static const struct {
		struct nic nics[4];
		const char *expected, *reason;
	} table[] = {
		{{{"ib0", "mlx5_0", NIC_INFINIBAND, {PATH_PIX, PATH_SYS}, NIC_STATE_UP},
		  {"ib1", "mlx5_1", NIC_INFINIBAND, {PATH_SYS, PATH_PIX}, NIC_STATE_UP}},
		 "ib0 | ib1",
		 "the nearest NIC"},
		{{{"ib0", "mlx5_0", NIC_INFINIBAND, {PATH_NODE, PATH_NODE}, NIC_STATE_UP},
		  {"ib1", "mlx5_1", NIC_INFINIBAND, {PATH_NODE, PATH_NODE}, NIC_STATE_UP}},
		 "ib0 | ib1",
		 "equally near NICs are divided among the ranks"},
		{{{"ib0", "mlx5_0", NIC_INFINIBAND, {PATH_NODE, PATH_PKG}, NIC_STATE_UP},
		  {"ib1", "mlx5_1", NIC_INFINIBAND, {PATH_NODE, PATH_PKG}, NIC_STATE_UP},
		  {"ib2", "mlx5_2", NIC_INFINIBAND, {PATH_NODE, PATH_PKG}, NIC_STATE_UP}},
		 "ib0 | ib1 ib2",
		 "NICs that are equally near to each GPU are divided, even if the distances "
		 "differ"},
		{{{"ib0", "mlx5_0", NIC_INFINIBAND, {PATH_PHB, PATH_PHB}, NIC_STATE_UP}},
		 "ib0 | ib0",
		 "two ranks share one NIC"},
		{{{"ib0", "mlx5_0", NIC_INFINIBAND, {PATH_PIX, PATH_SYS}, NIC_STATE_DOWN},
		  {"ib1", "mlx5_1", NIC_INFINIBAND, {PATH_SYS, PATH_PIX}, NIC_STATE_UP}},
		 "ib1 ib0! | ib1",
		 "a port that is up first, then the nearer one that is down"},
		{{{"ib0", "mlx5_0", NIC_INFINIBAND, {PATH_SYS, PATH_SYS}, NIC_STATE_DOWN},
		  {"ib1", "mlx5_1", NIC_INFINIBAND, {PATH_PIX, PATH_PIX}, NIC_STATE_UP}},
		 "ib1 | ib1",
		 "a farther NIC that is down is not reported"},
		{{{"eth0", "mlx5_0", NIC_ROCE, {PATH_PIX, PATH_PIX}, NIC_STATE_UP},
		  {"eth1", "", NIC_ETHERNET, {PATH_PIX, PATH_PIX}, NIC_STATE_UP},
		  {"ib0", "mlx5_1", NIC_INFINIBAND, {PATH_SYS, PATH_SYS}, NIC_STATE_UP}},
		 "ib0 | ib0",
		 "another kind is never used if there is a fabric, however near it is"},
		{{{"eth1", "", NIC_ETHERNET, {PATH_PIX, PATH_PIX}, NIC_STATE_UP},
		  {"eth0", "mlx5_0", NIC_ROCE, {PATH_SYS, PATH_SYS}, NIC_STATE_UP}},
		 "eth0 | eth0",
		 "RDMA-capable Ethernet before plain"},
		{{{"eth1", "", NIC_ETHERNET, {PATH_SYS, PATH_SYS}, NIC_STATE_UNKNOWN}},
		 "eth1 | eth1",
		 "plain Ethernet if there is nothing else"},
		{{{"", "", NIC_OTHER_FABRIC, {PATH_PIX, PATH_PIX}, NIC_STATE_UNKNOWN},
		  {"eth1", "", NIC_ETHERNET, {PATH_SYS, PATH_SYS}, NIC_STATE_UP}},
		 "eth1 | eth1",
		 "a NIC without a driver has no name, so it cannot be used"},
		{{{"", "rdmap0", NIC_EFA, {PATH_PIX, PATH_SYS}, NIC_STATE_UNKNOWN},
		  {"", "rdmap1", NIC_EFA, {PATH_PIX, PATH_SYS}, NIC_STATE_UNKNOWN},
		  {"", "rdmap2", NIC_EFA, {PATH_SYS, PATH_PIX}, NIC_STATE_UNKNOWN},
		  {"ens1", "", NIC_ETHERNET, {PATH_PIX, PATH_PIX}, NIC_STATE_UP}},
		 "rdmap0 rdmap1 | rdmap2",
		 "EFA has no interface; ENA is not used next to it"},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct inventory inventory = one_sided();
		struct plan_node node = {0};
		struct plan_request request = {0};
		struct error err = {0};
		char text[256] = "";
		size_t used = 0;

		for (size_t n = 0; n < 4; n++) {
			const struct nic *nic = &table[i].nics[n];

			if (!nic->net)
				break;
			make_nic(&inventory, nic->net, nic->rdma, nic->kind, 0)->state = nic->state;
			set_path(&inventory, 0, n, nic->path[0]);
			set_path(&inventory, 1, n, nic->path[1]);
		}
		assert_int_equal(plan_map_node(&inventory, &request, 0, 2, &node, &err), 0);
		for (size_t r = 0; r < 2; r++) {
			used += (size_t)snprintf(text + used, sizeof text - used, r ? " |" : "");
			for (size_t n = 0; n < node.ranks[r].nic_count; n++) {
				const struct plan_nic *nic = &node.ranks[r].nics[n];

				used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s",
							 r || n ? " " : "",
							 *nic->net ? nic->net : nic->rdma,
							 nic->state == NIC_STATE_DOWN ? "!" : "");
			}
		}
		if (strcmp(text, table[i].expected))
			fail_msg("row %zu (%s): expected %s, got %s", i, table[i].reason,
				 table[i].expected, text);
		plan_node_free(&node);
		inventory_free(&inventory);
	}
}

static void test_nics_without_gpu(void **state)
{
	struct inventory inventory = no_gpu();
	struct plan_request request = {0};
	struct plan_node node = {0};
	struct error err = {0};

	make_nic(&inventory, "hsn0", "cxi0", NIC_SLINGSHOT, 0);
	make_nic(&inventory, "hsn1", "cxi1", NIC_SLINGSHOT, 1);
	make_nic(&inventory, "eth0", "", NIC_ETHERNET, 0);
	assert_int_equal(plan_map_node(&inventory, &request, 0, 2, &node, &err), 0);
	for (size_t r = 0; r < 2; r++) {
		assert_int_equal(node.ranks[r].nic_count, 1);
		assert_string_equal(node.ranks[r].nics[0].net, r ? "hsn1" : "hsn0");
		assert_int_equal(node.ranks[r].nics[0].path, PATH_NODE);
	}
	plan_node_free(&node);
	inventory_free(&inventory);
}

static bool warned(const struct plan_node *node, const char *text)
{
	for (size_t w = 0; w < node->warning_count; w++)
		if (strstr(node->warnings[w], text))
			return true;
	return false;
}

/* Eight cores, and a cgroup that allows less CPU time. */
static void test_cpu_limit(void **state)
{
	static const struct {
		int64_t limit;
		int ranks, threads;
		bool warned;
	} table[] = {
		{-1, 2, 4, false},   {8000, 2, 4, false}, {6000, 2, 3, false}, {3999, 2, 1, false},
		{2000, 2, 1, false}, {1999, 2, 1, true},  {1, 1, 1, true},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct inventory inventory = make_inventory("n1", 1, 1, 8, 1);
		struct plan_node node = {0};
		struct error err = {0};

		inventory.cpu_limit_millis = table[i].limit;
		assert_int_equal(plan_map_node(&inventory, &(struct plan_request){0}, 0,
					       table[i].ranks, &node, &err),
				 0);
		if (node.ranks[0].threads != table[i].threads ||
		    warned(&node, "CPUs of time") != table[i].warned)
			fail_msg("row %zu: %d threads", i, node.ranks[0].threads);
		plan_node_free(&node);
		inventory_free(&inventory);
	}
}

static void test_warnings(void **state)
{
	static const struct {
		struct inventory (*inventory)(void);
		int n;
		struct plan_request request;
		const char *text;
	} table[] = {
		{two_by_two, 9, .text = "more ranks (9) than cores (8)"},
		{two_by_two, 6, .text = "6 ranks share 4 GPUs"},
		{two_by_two, 6, .text = "each rank sees only its own GPU (--gpus-visible own)"},
		{two_by_two, 2, .request = {.gpus_per_rank = 2},
		 .text = "several GPUs per rank: each rank sees only its own"},
		{two_by_two, 1, .text = "CPUs 4-7,12-15 stay unused"},
		{one_faulty, 3, .text = "GPU 0 (0000:01:00.0) is not used: NVML: GPU is lost"},
		{none_allowed, 1, .text = "none of the node's GPUs can be used (it has 2)"},
		{half_allowed, 4, .text = "2 ranks got cores on another package"},
		{nvidia_and_amd, 2,
		 .text = "CUDA_VISIBLE_DEVICES applies only to one vendor's GPUs"},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct inventory inventory = table[i].inventory();
		struct plan_node node = {0};
		struct error err = {0};

		assert_int_equal(
			plan_map_node(&inventory, &table[i].request, 0, table[i].n, &node, &err),
			0);
		if (!warned(&node, table[i].text))
			fail_msg("row %zu: no warning contains '%s'", i, table[i].text);
		plan_node_free(&node);
		inventory_free(&inventory);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),	  cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_every_n),	  cmocka_unit_test(test_nics),
		cmocka_unit_test(test_warnings),  cmocka_unit_test(test_nics_without_gpu),
		cmocka_unit_test(test_cpu_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
