/* SPDX-License-Identifier: BSD-3-Clause */
/* Compares the plans of the handwritten topologies with tests/golden/plan, and checks the rules
 * that always hold for 1 to 64 ranks on each. BERTH_UPDATE_GOLDEN=1 writes the golden files again:
 * review the difference. */
#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "invariants.h"

static int load(const char *name, struct inventory *out, struct error *err)
{
	char path[PATH_MAX];
	struct inventory_source source = {.topology_file = path, .no_network = true};

	snprintf(path, sizeof path, FIXTURES "/%s.xml", name);
	return inventory_discover(&source, out, err);
}

/* "rank 0: GPU 0 0000:01:00.0@0, 4 cores 0-3, NUMA 0, NICs mlx5_0/ib0 PIX: reason" */
static void print_rank(FILE *out, const struct plan_rank *rank)
{
	char *cpus = idset_format(rank->cpus_os), *numa = idset_format(rank->numa_os);

	fprintf(out, "rank %d: GPU", rank->local_rank);
	for (size_t g = 0; g < rank->gpu_count; g++)
		fprintf(out, " %d %s@%d", rank->gpus[g].index, rank->gpus[g].pci,
			rank->gpus[g].ordinal);
	fprintf(out, "%s, %d cores %s, NUMA %s, NICs", rank->gpu_count ? "" : " none",
		rank->threads, cpus, *numa ? numa : "none");
	for (size_t n = 0; n < rank->nic_count; n++) {
		const struct plan_nic *nic = &rank->nics[n];

		fprintf(out, " %s/%s:%d %s%s", nic->rdma, nic->net, nic->port,
			path_class_name(nic->path), nic->state == NIC_STATE_DOWN ? " down" : "");
	}
	fprintf(out, "%s: %s\n", rank->nic_count ? "" : " none", rank->why);
	free(cpus);
	free(numa);
}

static void print_plan(FILE *out, const struct inventory *inventory, int n, int gpus_per_rank)
{
	struct plan_request request = {.gpus_per_rank = gpus_per_rank};
	struct plan_node node = {0};
	struct error err = {0};

	fprintf(out, "== -n %d%s\n", n, gpus_per_rank ? " --gpus-per-rank 2" : "");
	if (plan_map_node(inventory, &request, 0, n, &node, &err)) {
		fprintf(out, "refused: %s\n", err.text);
		return;
	}
	for (size_t r = 0; r < node.rank_count; r++)
		print_rank(out, &node.ranks[r]);
	fprintf(out, "%s %s\n", plan_gpu_vendor(inventory)->list,
		node.visible_devices ? node.visible_devices : "not set for the node");
	for (size_t w = 0; w < node.warning_count; w++)
		fprintf(out, "! %s\n", node.warnings[w]);
	plan_node_free(&node);
}

/* 1 rank, one per GPU, two per GPU, one per pair of GPUs. */
static char *describe(const struct inventory *inventory)
{
	int gpus = (int)inventory->gpu_count;
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	assert_non_null(out);
	print_plan(out, inventory, 1, 0);
	if (gpus > 1)
		print_plan(out, inventory, gpus, 0);
	print_plan(out, inventory, gpus ? 2 * gpus : 2, 0);
	if (gpus > 1)
		print_plan(out, inventory, gpus / 2, 2);
	fclose(out);
	return text;
}

static int compare(const char *name, const char *text)
{
	char path[PATH_MAX], *golden = NULL;
	struct error err = {0};
	size_t size;
	int different;

	snprintf(path, sizeof path, GOLDEN "/%s.txt", name);
	if (getenv("BERTH_UPDATE_GOLDEN")) {
		if (file_make_dirs(GOLDEN, &err) ||
		    file_write_atomic(path, text, strlen(text), 0644, &err))
			fail_msg("%s", err.text);
		return 0;
	}
	if (file_read(path, 1 << 20, &golden, &size, &err)) {
		fprintf(stderr, "%s: %s; BERTH_UPDATE_GOLDEN=1 writes it\n", name, err.text);
		return 1;
	}
	different = strcmp(golden, text) != 0;
	if (different)
		fprintf(stderr, "%s: the plan differs from %s; it is now:\n%s", name, path, text);
	free(golden);
	return different;
}

static int check_fixture(const char *name)
{
	struct inventory inventory = {0};
	struct error err = {0};
	int violations = 0;
	char *text;

	if (load(name, &inventory, &err)) {
		/* hwloc-3 must be refused; any other refusal is a violation. */
		if (!strcmp(name, "hwloc-3") && err.code == ERR_DATA)
			return 0;
		fprintf(stderr, "%s: %s\n", name, err.text);
		return 1;
	}
	text = describe(&inventory);
	violations += compare(name, text);
	free(text);
	for (int n = 1; n <= 64; n++) {
		struct plan_request plain = {0}, all = {.all_cores = true};
		struct plan_request pairs = {.gpus_per_rank = 2};

		violations += invariants_plan(name, &inventory, &plain, n);
		violations += invariants_plan(name, &inventory, &all, n);
		if (2 * n <= (int)inventory.gpu_count)
			violations += invariants_plan(name, &inventory, &pairs, n);
	}
	inventory_free(&inventory);
	return violations;
}

static void test_fixtures(void **state)
{
	DIR *dir = opendir(FIXTURES);
	int violations = 0, seen = 0;

	assert_non_null(dir);
	for (struct dirent *entry; (entry = readdir(dir));) {
		size_t length = strlen(entry->d_name);
		char name[NAME_MAX + 1];

		if (length < 5 || strcmp(entry->d_name + length - 4, ".xml"))
			continue;
		snprintf(name, sizeof name, "%.*s", (int)length - 4, entry->d_name);
		violations += check_fixture(name);
		seen++;
	}
	closedir(dir);
	assert_true(seen > 0);
	assert_int_equal(violations, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_fixtures)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
