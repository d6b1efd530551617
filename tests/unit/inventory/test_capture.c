/* SPDX-License-Identifier: BSD-3-Clause */
/* Captures of real machines, which are not in the repository: the directory BERTH_TEST_TOPO has
 * hwloc XML files, devices.tsv (one GPU or NIC per line) and best.tsv (the nearest NICs of each
 * GPU). */
#include "support.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 16
#define ROWS 1024

struct row {
	const char *cell[COLUMNS];
};

struct table {
	struct row names, rows[ROWS];
	size_t count;
	char *text; /* the cells point into this text */
};

static const char *dir;
static struct table devices, best;

static void split(char *line, struct row *row)
{
	for (int i = 0; i < COLUMNS; i++)
		row->cell[i] = line ? strsep(&line, "\t") : "";
}

static void read_table(const char *name, struct table *table)
{
	char path[PATH_MAX], *next;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	next = table->text = read_text(path);
	split(strsep(&next, "\n"), &table->names);
	while (table->count < ROWS && next && *next)
		split(strsep(&next, "\n"), &table->rows[table->count++]);
	assert_true(table->count > 50);
}

static const char *cell(const struct table *table, const struct row *row, const char *name)
{
	for (int i = 0; i < COLUMNS; i++)
		if (strcmp(table->names.cell[i], name) == 0)
			return row->cell[i];
	fail_msg("no column %s", name);
	return "";
}

static struct idset *set_of(const char *text)
{
	struct idset *set = NULL;
	struct error err = {0};

	if (idset_parse(strcmp(text, "-") == 0 ? "" : text, &set, &err) != 0)
		fail_msg("%s", err.text);
	return set;
}

static void check_set(const char *where, const struct idset *seen, const char *expected,
		      const struct idset *among)
{
	struct idset *set = set_of(expected), *others = idset_copy(set);

	idset_subtract(others, among ? among : set);
	idset_subtract(set, others);
	if (!idset_equal(seen, set))
		fail_msg("%s: %s, expected %s", where, ids(seen), ids(set));
	idset_free(others);
	idset_free(set);
}

static bool name_in(const char *name, const char *list)
{
	size_t length = strlen(name);

	for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length]))
			return true;
	return false;
}

/* Each GPU of the file occurs once, in PCI order; partitions are adjacent. */
static void check_gpus(const char *file, const struct inventory *inventory)
{
	size_t at = 0;

	for (size_t r = 0; r < devices.count; r++) {
		const struct row *row = &devices.rows[r];
		char where[512], id[16], class[8];

		if (strcmp(cell(&devices, row, "file"), file) != 0 ||
		    strcmp(cell(&devices, row, "kind"), "gpu") != 0)
			continue;
		if (at >= inventory->gpu_count)
			fail_msg("%s: only %zu GPUs", file, inventory->gpu_count);

		const struct inventory_gpu *gpu = &inventory->gpus[at];

		snprintf(where, sizeof where, "%s %s", file, cell(&devices, row, "pci"));
		if (strcmp(gpu->pci, cell(&devices, row, "pci")) != 0)
			fail_msg("%s: GPU %zu is %s", where, at, gpu->pci);
		snprintf(id, sizeof id, "%04x:%04x", gpu->vendor, gpu->device);
		snprintf(class, sizeof class, "%04x", gpu->pci_class);
		assert_string_equal(id, cell(&devices, row, "id"));
		assert_string_equal(class, cell(&devices, row, "class"));
		check_set(where, gpu->numa_os, cell(&devices, row, "numa"), NULL);
		check_set(where, gpu->cpus_os, cell(&devices, row, "pus"),
			  inventory->allowed_cpus_os);

		/* As many partitions as there are rsmi devices on the function. */
		int partitions = 0;
		for (const char *os = cell(&devices, row, "os_devs"); (os = strstr(os, "rsmi"));
		     os++)
			partitions++;
		for (int p = 0; p < (partitions > 1 ? partitions : 1); p++, at++) {
			assert_true(at < inventory->gpu_count);
			assert_string_equal(inventory->gpus[at].pci, cell(&devices, row, "pci"));
			assert_int_equal(inventory->gpus[at].partition, partitions > 1 ? p : -1);

			char *names = strdup(inventory->gpus[at].os_devices), *rest = names;

			for (char *name; *names && (name = strsep(&rest, ","));)
				if (!name_in(name, cell(&devices, row, "os_devs")))
					fail_msg("%s: it has no %s", where, name);
			free(names);
		}
	}
	if (at != inventory->gpu_count)
		fail_msg("%s: %zu GPUs, expected %zu", file, inventory->gpu_count, at);
}

static const char *kind_in_table(const struct inventory_nic *nic)
{
	switch (nic->kind) {
	case NIC_INFINIBAND:
		return "ib";
	case NIC_SLINGSHOT:
		return "slingshot";
	case NIC_EFA:
		return "efa";
	case NIC_ROCE:
		return "roce";
	case NIC_OTHER_FABRIC:
		return "extoll";
	default:
		return nic->pci_class == 0x0280 ? "wifi" : "eth";
	}
}

static void check_nics(const char *file, const struct inventory *inventory)
{
	static const char *const states[] = {"-", "down", "up"};
	size_t at = 0;

	for (size_t r = 0; r < devices.count; r++) {
		const struct row *row = &devices.rows[r];
		char where[512];

		if (strcmp(cell(&devices, row, "file"), file) != 0 ||
		    strcmp(cell(&devices, row, "kind"), "nic") != 0)
			continue;
		if (at >= inventory->nic_count)
			fail_msg("%s: only %zu NICs", file, inventory->nic_count);

		const struct inventory_nic *nic = &inventory->nics[at++];
		const char *names = cell(&devices, row, "os_devs");

		snprintf(where, sizeof where, "%s NIC %s", file, names);
		assert_string_equal(nic->pci[0] ? nic->pci : "-", cell(&devices, row, "pci"));
		if ((nic->net[0] && !name_in(nic->net, names)) ||
		    (nic->rdma[0] && !name_in(nic->rdma, names)))
			fail_msg("%s: seen %s %s", where, nic->net, nic->rdma);
		if (strcmp(kind_in_table(nic), cell(&devices, row, "nic_kind")) != 0)
			fail_msg("%s: kind %s", where, nic_kind_name(nic->kind));
		if (strcmp(states[nic->state + 1], cell(&devices, row, "port_state")) != 0)
			fail_msg("%s: state %d", where, nic->state);
		check_set(where, nic->numa_os, cell(&devices, row, "numa"), NULL);
		check_set(where, nic->cpus_os, cell(&devices, row, "pus"),
			  inventory->allowed_cpus_os);
	}
	if (at != inventory->nic_count)
		fail_msg("%s: %zu NICs, expected %zu", file, inventory->nic_count, at);
}

/* "mlx5_0/ib0,mlx5_1/ib1": the NICs nearest to GPU g, without management NICs, in best.tsv's
 * format. */
static enum path_class nearest(const struct inventory *inventory, size_t g, bool not_down,
			       char *out, size_t size)
{
	enum path_class least = PATH_UNKNOWN;

	for (int pass = 0; pass < 2; pass++) {
		out[0] = '\0';
		for (size_t n = 0; n < inventory->nic_count; n++) {
			const struct inventory_nic *nic = &inventory->nics[n];
			enum path_class path = inventory->path[g * inventory->nic_count + n];

			if (nic->management || (not_down && nic->state == NIC_STATE_DOWN))
				continue;
			if (pass == 0 && path < least)
				least = path;
			if (pass == 1 && path == least)
				snprintf(out + strlen(out), size - strlen(out), "%s%s%s%s",
					 *out ? "," : "", nic->rdma,
					 nic->rdma[0] && nic->net[0] ? "/" : "", nic->net);
		}
	}
	if (!*out)
		snprintf(out, size, "-");
	return least;
}

static void check_best(const char *file, const struct inventory *inventory)
{
	size_t g = 0;

	for (size_t r = 0; r < best.count; r++) {
		const struct row *row = &best.rows[r];
		char names[1024];

		if (strcmp(cell(&best, row, "file"), file) != 0)
			continue;
		while (g < inventory->gpu_count && inventory->gpus[g].partition > 0)
			g++;
		assert_true(g < inventory->gpu_count);
		assert_string_equal(inventory->gpus[g].pci, cell(&best, row, "pci"));

		enum path_class path = nearest(inventory, g, false, names, sizeof names);

		if (strcmp(names, cell(&best, row, "best_nics")) != 0 ||
		    (strcmp(names, "-") != 0 &&
		     strcmp(path_class_name(path), cell(&best, row, "path")) != 0))
			fail_msg("%s GPU %zu: %s %s, expected %s %s", file, g,
				 path_class_name(path), names, cell(&best, row, "path"),
				 cell(&best, row, "best_nics"));
		path = nearest(inventory, g, true, names, sizeof names);
		/* UNK in the table: it derived packages from empty cpusets; berth knows more. */
		if (strcmp(names, cell(&best, row, "best_active_nics")) != 0 ||
		    (strcmp(names, "-") != 0 &&
		     strcmp(cell(&best, row, "path_active"), "UNK") != 0 &&
		     strcmp(path_class_name(path), cell(&best, row, "path_active")) != 0))
			fail_msg("%s GPU %zu, ports up: %s %s", file, g, path_class_name(path),
				 names);
		g++;
	}
}

static void check_file(const char *file)
{
	char path[PATH_MAX];
	struct inventory inventory, again;
	struct error err = {0};
	struct inventory_source source = {.topology_file = path, .no_network = true};

	snprintf(path, sizeof path, "%s/%s", dir, file);
	if (inventory_discover(&source, &inventory, &err) != 0)
		fail_msg("%s", err.text);
	assert_true(inventory.core_count > 0);
	check_gpus(file, &inventory);
	check_nics(file, &inventory);
	check_best(file, &inventory);

	json_t *json = inventory_to_json(&inventory);

	if (inventory_from_json(json, &again, &err) != 0)
		fail_msg("%s: %s", file, err.text);

	char *one = describe(&inventory), *two = describe(&again);

	assert_string_equal(one, two);
	free(one);
	free(two);
	json_decref(json);
	inventory_free(&inventory);
	inventory_free(&again);
}

static void test_captures(void **state)
{
	static const char *const without_devices[] = {"gh200-noio.xml"};
	size_t files = 0;

	for (size_t r = 0; r < devices.count; r++) {
		const char *file = cell(&devices, &devices.rows[r], "file");

		if (r && strcmp(file, cell(&devices, &devices.rows[r - 1], "file")) == 0)
			continue;
		check_file(file);
		files++;
	}
	for (size_t i = 0; i < sizeof without_devices / sizeof *without_devices; i++)
		check_file(without_devices[i]);
	print_message("%zu captures agree\n", files);
	assert_true(files >= 30);
}

static void test_refused(void **state)
{
	char path[PATH_MAX];
	struct inventory inventory;
	struct error err = {0};
	struct inventory_source source = {.topology_file = path};

	snprintf(path, sizeof path, "%s/dgx2-v3.xml", dir);
	assert_int_equal(inventory_discover(&source, &inventory, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "version 3.0"));
	snprintf(path, sizeof path, "%s/nccl-p4d.xml", dir);
	assert_int_equal(inventory_discover(&source, &inventory, &err), -ERR_DATA);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_captures),
					   cmocka_unit_test(test_refused)};

	dir = getenv("BERTH_TEST_TOPO");
	if (!dir || !*dir) {
		printf("skipped: BERTH_TEST_TOPO is not set (a folder of captured topologies)\n");
		return 77;
	}
	read_table("devices.tsv", &devices);
	read_table("best.tsv", &best);

	int rc = cmocka_run_group_tests(tests, NULL, NULL);

	free(devices.text);
	free(best.text);
	return rc;
}
