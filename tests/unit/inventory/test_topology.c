/* SPDX-License-Identifier: BSD-3-Clause */
/* Compares handwritten topologies with their golden files (BERTH_UPDATE_GOLDEN=1 writes them again:
 * review the difference before you commit it). Also tests invalid files and the running machine. */
#include "support.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const fixtures[] = {
	"many-os-devices",
	"partitions",
	"no-os-devices",
	"os-device-elsewhere",
	"nic-names",
	"pci-order-not-numa-order",
	"management-nics",
	"ports-down",
	"efa-and-ena",
	"nvlink-management",
	"nvlink-management-roce",
	"grace-hopper",
	"gb200",
	"aurora",
	"nic-without-pci",
	"pci-domains",
	"cpus-restricted",
	"siblings-offline",
	"numa-not-allowed",
	"empty-local-cpuset",
	"locality-machine",
	"no-cores",
	"numa-ids-with-holes",
	"hwloc-1-memory-nodes",
	"path-classes",
	"one-socket",
	"desktop",
	"no-gpu",
	"no-io",
	"gcd-on-cache",
};

static void check_golden(const char *name)
{
	char path[PATH_MAX];
	struct inventory inventory;

	load_fixture(name, &inventory);
	assert_false(inventory.this_system);
	assert_int_equal(inventory.address_count, 0);

	char *seen = describe(&inventory);

	snprintf(path, sizeof path, "%s/expected/%s.txt", TOPO, name);
	if (getenv("BERTH_UPDATE_GOLDEN"))
		write_text(path, seen, 0644);

	char *expected = read_text(path);

	if (strcmp(seen, expected) != 0)
		fail_msg("%s\nexpected:\n%sseen:\n%s", path, expected, seen);
	free(expected);
	free(seen);
	inventory_free(&inventory);
}

static void test_fixtures(void **state)
{
	for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++)
		check_golden(fixtures[i]);
}

/* Files that are not topologies: the error code, and part of the message. */
static void test_bad_files(void **state)
{
	static const struct {
		const char *text; /* NULL: the file is missing */
		int code;
		const char *says;
	} rows[] = {
		{NULL, ERR_INPUT, "No such file"},
		{"", ERR_DATA, "contains no <topology> element"},
		{"\n", ERR_DATA, "contains no <topology> element"},
		{"{\"json\": true}", ERR_DATA, "contains no <topology> element"},
		{"<system version=\"1\"><cpu numaid=\"0\"/></system>", ERR_DATA, "lstopo"},
		{"<topology version='3.0'></topology>", ERR_DATA, "version 3.0; expected 1 or 2"},
		{"<topology version='2.0'/>", ERR_DATA, "hwloc"},
		{"<topology version=\"2.0\"></topology>", ERR_DATA, "hwloc"},
		{"<topology version=\"2.0\"><object type=\"Machine\"", ERR_DATA, "hwloc"},
		{"<topology version=\"2.0\"><object type=\"Machine\" os_index=\"0\" "
		 "cpuset=\"0x0\" nodeset=\"0x0\"/></topology>",
		 ERR_DATA, "hwloc"},
	};
	char dir[PATH_MAX], path[PATH_MAX + 16];

	snprintf(dir, sizeof dir, "%s", make_dir());
	snprintf(path, sizeof path, "%s/t.xml", dir);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct inventory inventory = {.core_count = 77};
		struct error err = {0};
		struct inventory_source source = {.topology_file = path, .no_network = true};

		if (rows[i].text)
			put(dir, "t.xml", rows[i].text);

		int rc = inventory_discover(&source, &inventory, &err);

		if (rc != -rows[i].code || !strstr(err.text, rows[i].says) ||
		    !strstr(err.text, "t.xml") || inventory.core_count != 77)
			fail_msg("row %zu: %d \"%s\"", i, rc, err.text);
	}

	struct error err = {0};
	struct inventory_source source = {.topology_file = dir};
	struct inventory inventory;

	assert_int_equal(inventory_discover(&source, &inventory, &err), -ERR_INPUT);
	remove_tree(dir);
}

static void test_hwloc_3(void **state)
{
	struct inventory inventory;
	struct error err = {0};
	struct inventory_source source = {.topology_file = TOPO "/hwloc-3.xml"};

	assert_int_equal(inventory_discover(&source, &inventory, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "3.0"));
	assert_non_null(strstr(err.text, "v2"));
}

/* A file truncated at many positions never causes a crash, or output of hwloc on stderr. */
static void test_truncated(void **state)
{
	char *whole = read_text(TOPO "/partitions.xml");
	char dir[PATH_MAX], path[PATH_MAX + 16];
	size_t size = strlen(whole);
	FILE *caught = tmpfile();
	int kept = dup(STDERR_FILENO);

	snprintf(dir, sizeof dir, "%s", make_dir());
	snprintf(path, sizeof path, "%s/t.xml", dir);
	dup2(fileno(caught), STDERR_FILENO);
	for (size_t cut = 0; cut < size; cut += size / 97 + 1) {
		struct inventory_source source = {.topology_file = path, .no_network = true};
		struct inventory inventory;
		struct error err = {0};
		char *text = strndup(whole, cut);

		put(dir, "t.xml", text);
		free(text);
		if (inventory_discover(&source, &inventory, &err) == 0)
			inventory_free(&inventory);
		else
			assert_int_equal(err.code, ERR_DATA);
	}
	fflush(stderr);
	dup2(kept, STDERR_FILENO);
	close(kept);
	assert_int_equal(fseek(caught, 0, SEEK_END), 0);
	assert_int_equal(ftell(caught), 0);
	fclose(caught);
	remove_tree(dir);
	free(whole);
}

/* Files on which hwloc itself crashes: an object without complete_cpuset, or no PU at all. */
static void test_damaged(void **state)
{
	static const struct {
		const char *from, *to;
	} rows[] = {
		{"complete_cpuset=\"0x00000fc0\"", "complete_gpuset=\"0x00000fc0\""},
		{"type=\"PU\"", "type=\"XX\""},
		{"type=\"NUMANode\"", "type=\"NUMAXXXX\""},
	};
	char dir[PATH_MAX], path[PATH_MAX + 16];

	snprintf(dir, sizeof dir, "%s", make_dir());
	snprintf(path, sizeof path, "%s/t.xml", dir);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char *text = read_text(TOPO "/partitions.xml");
		struct inventory_source source = {.topology_file = path, .no_network = true};
		struct inventory inventory;
		struct error err = {0};
		int found = 0;

		assert_int_equal(strlen(rows[i].from), strlen(rows[i].to));
		for (char *at = text; (at = strstr(at, rows[i].from)); found++)
			memcpy(at, rows[i].to, strlen(rows[i].to));
		assert_true(found > 0);
		put(dir, "t.xml", text);
		free(text);
		if (inventory_discover(&source, &inventory, &err) != -ERR_DATA ||
		    !strstr(err.text, "t.xml: hwloc"))
			fail_msg("%s: %d \"%s\"", rows[i].to, err.code, err.text);
	}
	remove_tree(dir);
}

static size_t count_in_mask(const cpu_set_t *mask, const struct idset *set)
{
	size_t count = 0;

	for (int id = idset_next(set, -1); id >= 0; id = idset_next(set, id))
		count += id < CPU_SETSIZE && CPU_ISSET(id, mask);
	return count;
}

static void test_running_machine(void **state)
{
	struct inventory_source source = {0};
	struct inventory inventory;
	struct error err = {0};
	cpu_set_t before, after;
	char host[256] = "";

	gethostname(host, sizeof host - 1);
	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	if (inventory_discover(&source, &inventory, &err) != 0)
		fail_msg("%s", err.text);
	assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
	assert_true(CPU_EQUAL(&before, &after));
	assert_true(inventory.this_system);
	assert_string_equal(inventory.node, host);
	assert_string_equal(inventory.source, "this machine");
	assert_true(inventory.core_count > 0);
	/* Each CPU that this process may use is in exactly one core; the cores have no other CPUs.
	 */
	struct idset *seen = idset_new();
	for (size_t i = 0; i < inventory.core_count; i++) {
		assert_true(idset_count(inventory.cores[i].cpus_os) > 0);
		assert_false(idset_intersects(seen, inventory.cores[i].cpus_os));
		idset_unite(seen, inventory.cores[i].cpus_os);
	}
	assert_true(idset_equal(seen, inventory.allowed_cpus_os));
	assert_int_equal(count_in_mask(&before, seen), idset_count(seen));
	idset_free(seen);

	bool loopback = false;
	for (size_t i = 0; i < inventory.address_count; i++)
		loopback = loopback || inventory.addresses[i].type == IFACE_LOOPBACK;
	assert_true(loopback);
	inventory_free(&inventory);
}

/* If the scheduler binds this process, the job may use only those CPUs. */
static void test_affinity(void **state)
{
	struct inventory_source source = {.no_network = true, .nvml_library = ""};
	struct inventory inventory;
	cpu_set_t before, one;
	int cpu = 0;

	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	while (!CPU_ISSET(cpu, &before))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);

	int rc = inventory_discover(&source, &inventory, NULL);

	assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
	assert_int_equal(rc, 0);
	assert_int_equal(inventory.core_count, 1);
	assert_int_equal(idset_count(inventory.allowed_cpus_os), 1);
	assert_true(idset_has(inventory.allowed_cpus_os, cpu));
	inventory_free(&inventory);
}

/* hwloc variables in the environment do not replace the node's topology, and stay set. */
static void test_environment(void **state)
{
	struct inventory_source source = {.no_network = true, .nvml_library = ""};
	struct inventory plain, other;

	assert_int_equal(inventory_discover(&source, &plain, NULL), 0);
	setenv("HWLOC_XMLFILE", TOPO "/no-gpu.xml", 1);
	setenv("HWLOC_THISSYSTEM", "1", 1);
	assert_int_equal(inventory_discover(&source, &other, NULL), 0);
	assert_string_equal(getenv("HWLOC_XMLFILE"), TOPO "/no-gpu.xml");
	assert_string_equal(getenv("HWLOC_THISSYSTEM"), "1");
	unsetenv("HWLOC_XMLFILE");
	unsetenv("HWLOC_THISSYSTEM");
	assert_true(idset_equal(plain.allowed_cpus_os, other.allowed_cpus_os));
	assert_int_equal(plain.core_count, other.core_count);
	inventory_free(&other);
	setenv("HWLOC_SYNTHETIC", "pack:3 core:5 pu:2", 1);
	assert_int_equal(inventory_discover(&source, &other, NULL), 0);
	unsetenv("HWLOC_SYNTHETIC");
	assert_int_equal(plain.core_count, other.core_count);
	inventory_free(&other);
	inventory_free(&plain);
}

static void test_freeing(void **state)
{
	struct inventory inventory = {0};

	inventory_free(NULL);
	inventory_free(&inventory);
	inventory_free(&inventory);
	assert_string_equal(path_class_name(PATH_PIX), "PIX");
	assert_string_equal(path_class_name(PATH_UNKNOWN), "UNK");
	assert_string_equal(path_class_name((enum path_class)99), "UNK");
	assert_string_equal(nic_kind_name(NIC_INFINIBAND), "infiniband");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fixtures), cmocka_unit_test(test_bad_files),
		cmocka_unit_test(test_hwloc_3),	 cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_damaged),	 cmocka_unit_test(test_running_machine),
		cmocka_unit_test(test_affinity), cmocka_unit_test(test_environment),
		cmocka_unit_test(test_freeing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
