/* SPDX-License-Identifier: BSD-3-Clause */
/* The inventory as JSON: lossless in both directions, small, and invalid JSON is refused. */
#include "support.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void there_and_back(const struct inventory *inventory)
{
	struct inventory again;
	struct error err = {0};
	json_t *json = inventory_to_json(inventory);

	assert_non_null(json);

	/* Convert to text and back, as messages do. */
	char *text = json_dumps(json, JSON_COMPACT);
	json_t *parsed = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

	if (inventory_from_json(parsed, &again, &err) != 0)
		fail_msg("%s\n%s", err.text, text);

	char *one = describe(inventory), *two = describe(&again);

	assert_string_equal(one, two);
	assert_string_equal(inventory->source, again.source);
	assert_int_equal(inventory->this_system, again.this_system);
	assert_int_equal(inventory->memory_limit_bytes, again.memory_limit_bytes);
	assert_int_equal(inventory->cpu_limit_millis, again.cpu_limit_millis);
	assert_int_equal(inventory->node_core_count, again.node_core_count);
	free(one);
	free(two);
	free(text);
	json_decref(json);
	json_decref(parsed);
	inventory_free(&again);
}

static void test_fixtures(void **state)
{
	static const char *const names[] = {
		"many-os-devices", "partitions",	 "cpus-restricted", "numa-not-allowed",
		"no-cores",	   "empty-local-cpuset", "path-classes",    "nic-names",
		"no-io",	   "numa-ids-with-holes"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct inventory inventory;

		load_fixture(names[i], &inventory);
		there_and_back(&inventory);
		inventory_free(&inventory);
	}
}

/* Values that no XML has: addresses, faults, notes, a memory limit, text that is not UTF-8. */
static void test_everything(void **state)
{
	struct inventory inventory;

	load_fixture("path-classes", &inventory);
	inventory.this_system = true;
	inventory.memory_limit_bytes = 1LL << 40;
	inventory.cpu_limit_millis = 1500;
	inventory.gpus[0].fault = strdup("lost \"it\"\n");
	inventory.gpus[0].uuid = strdup("GPU-1");
	inventory.gpus[0].mig = strdup("MIG-GPU-1/7/0");
	inventory.gpus[0].allowed = false;
	inventory.gpus[0].memory_bytes = 141LL << 30;
	inventory.addresses = calloc(2, sizeof *inventory.addresses);
	inventory.address_count = 2;
	inventory.addresses[0] = (struct inventory_address){.iface = "ib0",
							    .family = AF_INET,
							    .bytes = {10, 0, 255, 1},
							    .prefix = 20,
							    .up = true,
							    .use = USE_NODE_NAME,
							    .speed_mbps = 200000,
							    .nic = 3,
							    .kind = NIC_INFINIBAND};
	inventory.addresses[1] = (struct inventory_address){.iface = "docker0",
							    .family = AF_INET6,
							    .bytes = {0xfe, 0x80, [15] = 1},
							    .prefix = 64,
							    .scope = 7,
							    .type = IFACE_VIRTUAL,
							    .link_local = true,
							    .speed_mbps = -1,
							    .nic = -1};
	there_and_back(&inventory);
	inventory_free(&inventory);
}

/* The inventory of a large node takes a few KiB, since the controller holds 1,000 of them. */
static void test_small(void **state)
{
	struct inventory inventory = {.package_count = 2, .memory_limit_bytes = -1};

	inventory.node = strdup("n");
	inventory.source = strdup("this machine");
	inventory.allowed_cpus_os = idset_new();
	idset_add_range(inventory.allowed_cpus_os, 0, 511);
	inventory.core_count = 256;
	inventory.cores = calloc(256, sizeof *inventory.cores);
	for (int i = 0; i < 256; i++) {
		inventory.cores[i].core_logical = i;
		inventory.cores[i].package = i / 128;
		inventory.cores[i].numa_os = i / 32;
		inventory.cores[i].cpus_os = idset_new();
		idset_add(inventory.cores[i].cpus_os, i);
		idset_add(inventory.cores[i].cpus_os, i + 256);
	}
	there_and_back(&inventory);

	json_t *json = inventory_to_json(&inventory);
	char *text = json_dumps(json, JSON_COMPACT);

	assert_true(strlen(text) < 600);
	free(text);
	json_decref(json);
	inventory_free(&inventory);
}

/* A valid inventory, in which one member is replaced, or removed if value is NULL. */
static const char *const good =
	"{\"format\":\"berth.card/1\",\"node\":\"n\",\"this_system\":true,\"source\":\"s\","
	"\"packages\":2,\"allowed\":\"0-7\",\"memory_limit\":null,"
	"\"cores\":[[0,0,\"0\",4,1],[1,1,\"4\",4,1]],\"numas\":[[0,0,\"0-3\",1]],"
	"\"gpus\":[{\"pci\":\"0000:01:00.0\",\"id\":\"10de:2335\",\"class\":\"0302\",\"numa\":"
	"\"0\","
	"\"cpus\":\"0-3\",\"package\":0,\"known\":true,\"allowed\":true}],"
	"\"nics\":[{\"net\":\"ib0\",\"rdma\":\"mlx5_0\",\"port\":1,\"pci\":\"0000:02:00.0\","
	"\"id\":\"15b3:101b\",\"class\":\"0207\",\"kind\":\"infiniband\",\"state\":1,\"speed\":-1,"
	"\"numa\":\"0\",\"cpus\":\"0-3\",\"package\":0,\"management\":false}],"
	"\"paths\":[\"2\"],\"addresses\":[[\"ib0\",\"10.0.0.1\",8,0,0,true,-1,0,\"infiniband\","
	"\"none\"]],"
	"\"notes\":[]}";

static void test_bad(void **state)
{
	static const struct {
		const char *key, *value;
		const char *says;
	} rows[] = {
		{"format", "\"berth.card/2\"", "berth.card/2"},
		{"format", "7", "format"},
		{"node", NULL, "node"},
		{"node", "null", "node"},
		{"this_system", "1", "this_system"},
		{"packages", "0", "packages"},
		{"packages", "-1", "packages"},
		{"packages", "1e9", "packages"},
		{"packages", "99999999999999999", "packages"},
		{"packages", "1", "cores"}, /* one core is on package 1 */
		{"allowed", "\"0-99999\"", ""},
		{"allowed", "\"3-1\"", ""},
		{"allowed", "\"20000\"", "expected ids up to 16383"},
		{"memory_limit", "-5", "memory_limit"},
		{"memory_limit", "\"x\"", "memory_limit"},
		{"cpu_limit", "-1", "cpu_limit"},
		{"cpu_limit", "1.5", "cpu_limit"},
		{"cores", "{}", "cores"},
		{"cores", "[[0,0,\"0\",9000,1]]", "cores"},
		{"cores", "[[0,0,\"0\",0,1]]", "cores"},
		{"cores", "[[0,0,\"0\",-3,1]]", "cores"},
		{"cores", "[[0,0,\"0\",2,16000],[0,0,\"0\",2,16383]]", "two cores"},
		{"cores", "[[0,0,\"9\",3,16000]]", "exceeds 16383"},
		{"cores", "[[0,0,\"\",1,1]]", "at least one CPU"},
		{"cores", "[[0,0,\"0\",2,0]]", "cores"},
		{"cores", "[[0,0,\"0\",2]]", "cores"},
		{"cores", "[[0,0,\"0\",2,1,1]]", "cores"},
		{"cores", "[[0,-2,\"0\",2,1]]", "cores"},
		{"cores", "[[0,0,0,2,1]]", "cores"},
		{"numas", "[[0,0,\"0\"]]", "numas"},
		{"numas", "[[-1,0,\"0\",1]]", "numas"},
		{"numas", "[[0,2,\"0\",1]]", "numas"},
		{"numas", "[[0,0,\"0\",-1]]", "numas"},
		{"gpus", "[7]", ""},
		{"gpus", "[{}]", "pci"},
		{"gpus", "null", "gpus"},
		{"nics", "[{}]", "net"},
		{"nics", "[]", "addresses"}, /* an address refers to NIC 0; paths are ignored */
		{"paths", "[]", "paths"},
		{"paths", "[\"7\"]", "paths"},
		{"paths", "[\"22\"]", "paths"},
		{"paths", "[2]", "paths"},
		{"paths", "[\"2\",\"2\"]", "paths"},
		{"addresses", "[[\"ib0\",\"10.0.0\",8,0,0,true,-1,0,\"infiniband\",\"none\"]]",
		 "addresses"},
		{"addresses", "[[\"ib0\",\"10.0.0.1\",33,0,0,true,-1,0,\"infiniband\",\"none\"]]",
		 "addresses"},
		{"addresses", "[[\"ib0\",\"::1\",129,0,0,true,-1,0,\"infiniband\",\"none\"]]",
		 "addresses"},
		{"addresses", "[[\"ib0\",\"10.0.0.1\",8,0,3,true,-1,0,\"infiniband\",\"none\"]]",
		 "addresses"},
		{"addresses", "[[\"ib0\",\"10.0.0.1\",8,0,0,true,-1,1,\"infiniband\",\"none\"]]",
		 "addresses"},
		{"addresses", "[[\"ib0\",\"10.0.0.1\",8,0,0,true,-1,0,\"infiniband\",1]]", "use"},
		{"addresses", "[[\"ib0\",\"10.0.0.1\",8,0,0,true,-1,0,\"ib\",\"none\"]]",
		 "addresses"},
		{"addresses",
		 "[[\"a-name-of-an-interface\",\"10.0.0.1\",8,0,0,true,-1,0,\"infiniband\","
		 "\"none\"]]",
		 "addresses"},
		{"notes", "[1]", "notes"},
		{"notes", NULL, "notes"},
	};
	static const struct {
		const char *in, *key, *value;
		const char *says;
	} members[] = {
		{"gpus", "pci", "\"0000:01:00.0-and-more\"", "pci"},
		{"gpus", "id", "\"10de\"", "id"},
		{"gpus", "id", "\"10DE:2335\"", "id"},
		{"gpus", "class", "\"03\"", "class"},
		{"gpus", "numa", "\"x\"", ""},
		{"gpus", "package", "2", "package"},
		{"gpus", "package", "-2", "package"},
		{"gpus", "known", "0", "known"},
		{"gpus", "partition", "-1", "partition"},
		{"gpus", "memory", "-1", "memory"},
		{"gpus", "uuid", "5", "uuid"},
		{"nics", "net", "\"0123456789abcdef\"", "net"},
		{"nics", "port", "0", "port"},
		{"nics", "port", "256", "port"},
		{"nics", "kind", "\"\"", "kind"},
		{"nics", "state", "2", "state"},
		{"nics", "speed", "-2", "speed"},
		{"nics", "management", "null", "management"},
	};

	json_t *json = json_loads(good, 0, NULL);
	struct inventory inventory;
	struct error err = {0};

	assert_int_equal(inventory_from_json(json, &inventory, &err), 0);
	inventory_free(&inventory);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		json_t *bad = json_deep_copy(json);

		if (rows[i].value)
			json_object_set_new(bad, rows[i].key,
					    json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
		else
			json_object_del(bad, rows[i].key);
		err.code = 0;
		inventory.core_count = 77;

		int rc = inventory_from_json(bad, &inventory, &err);

		if (rc != -ERR_DATA || !strstr(err.text, rows[i].says) ||
		    inventory.core_count != 77)
			fail_msg("%s = %s: %d \"%s\"", rows[i].key, rows[i].value, rc, err.text);
		json_decref(bad);
	}
	for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
		json_t *bad = json_deep_copy(json);

		json_object_set_new(json_array_get(json_object_get(bad, members[i].in), 0),
				    members[i].key,
				    json_loads(members[i].value, JSON_DECODE_ANY, NULL));

		int rc = inventory_from_json(bad, &inventory, &err);

		if (rc != -ERR_DATA || !strstr(err.text, members[i].says))
			fail_msg("%s %s = %s: %d \"%s\"", members[i].in, members[i].key,
				 members[i].value, rc, err.text);
		json_decref(bad);
	}
	json_decref(json);
	json = json_array();
	assert_int_equal(inventory_from_json(json, &inventory, &err), -ERR_DATA);
	json_decref(json);
	assert_int_equal(inventory_from_json(NULL, &inventory, &err), -ERR_DATA);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fixtures), cmocka_unit_test(test_everything),
		cmocka_unit_test(test_small), cmocka_unit_test(test_bad)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
