/* SPDX-License-Identifier: BSD-3-Clause */
/* What NVML adds (with a fake library), AMD's driver, and visible-device lists. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cpus-restricted has GPUs at 01:00.0, 02:00.0 and 81:00.0. */
static void load(const char *mode, const char *library, struct inventory *out)
{
	struct inventory_source source = {.topology_file = TOPO "/cpus-restricted.xml",
					  .nvml_library = library,
					  .no_network = true};
	struct error err = {0};

	if (mode)
		setenv("BERTH_FAKE_NVML", mode, 1);
	else
		unsetenv("BERTH_FAKE_NVML");
	if (inventory_discover(&source, out, &err) != 0)
		fail_msg("%s: %s", mode, err.text);
	unsetenv("BERTH_FAKE_NVML");
}

static void test_uuids_and_health(void **state)
{
	struct inventory inventory;

	load(NULL, FAKE_NVML, &inventory);
	assert_int_equal(inventory.gpu_count, 3);
	assert_string_equal(inventory.gpus[0].uuid, "GPU-000000f0-aaaa-bbbb-cccc-dddddddddddd");
	assert_string_equal(inventory.gpus[0].name, "NVIDIA H200");
	assert_int_equal(inventory.gpus[0].memory_bytes, 141LL << 30);
	assert_null(inventory.gpus[0].fault);
	assert_true(inventory.gpus[0].allowed);
	assert_non_null(strstr(inventory.gpus[1].fault, "row remapping"));
	/* On the bus but not in NVML: not available to this job. */
	assert_false(inventory.gpus[2].allowed);
	assert_null(inventory.gpus[2].uuid);
	inventory_free(&inventory);
}

static void test_mig(void **state)
{
	struct inventory inventory;

	load("mig", FAKE_NVML, &inventory);
	assert_int_equal(inventory.gpu_count, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(inventory.gpus[i].index, i);
	for (int i = 0; i < 2; i++) {
		const struct inventory_gpu *gpu = &inventory.gpus[i];

		assert_string_equal(gpu->pci, "0000:01:00.0");
		assert_int_equal(gpu->partition, i);
		assert_int_equal(gpu->memory_bytes, 18LL << 30);
		assert_string_equal(ids(gpu->cpus_os), "2-3,11");
		assert_true(gpu->allowed);
	}
	assert_string_equal(inventory.gpus[0].uuid, "MIG-00000010-1111-2222-3333-444444444444");
	assert_string_equal(inventory.gpus[1].uuid, "MIG-00000012-1111-2222-3333-444444444444");
	assert_string_equal(inventory.gpus[1].mig,
			    "MIG-GPU-000000f0-aaaa-bbbb-cccc-dddddddddddd/9/0");
	assert_int_equal(inventory.gpus[2].partition, -1);
	assert_string_equal(inventory.gpus[2].pci, "0000:02:00.0");
	inventory_free(&inventory);

	load("migless", FAKE_NVML, &inventory);
	assert_int_equal(inventory.gpu_count, 3);
	assert_non_null(strstr(inventory.gpus[0].fault, "no MIG device"));
	inventory_free(&inventory);
}

static void test_broken(void **state)
{
	struct inventory inventory;

	load("reset", FAKE_NVML, &inventory);
	assert_non_null(strstr(inventory.gpus[1].fault, "requires reset"));
	inventory_free(&inventory);

	load("lost", FAKE_NVML, &inventory);
	assert_non_null(strstr(inventory.gpus[1].fault, "GPU is lost"));
	assert_true(inventory.gpus[1].allowed);
	assert_null(inventory.gpus[2].fault);
	assert_false(inventory.gpus[2].allowed);
	inventory_free(&inventory);

	load("driver", FAKE_NVML, &inventory);
	assert_int_equal(inventory.gpu_count, 3);
	assert_true(inventory.gpus[2].allowed);
	assert_string_equal(inventory.notes[0], "cannot initialize NVML: Driver Not Loaded; check "
						"that the NVIDIA driver is loaded");
	inventory_free(&inventory);

	load(NULL, "libno-such-nvml.so", &inventory);
	assert_true(inventory.gpus[0].allowed);
	assert_string_equal(inventory.notes[0], "libno-such-nvml.so: not found; UUIDs, MIG and "
						"health of the GPUs are unknown");
	inventory_free(&inventory);

	/* A library that lacks NVML's functions. */
	load(NULL, "libc.so.6", &inventory);
	assert_true(inventory.gpus[0].allowed);
	assert_string_equal(inventory.notes[0], "libc.so.6: too old; UUIDs, MIG and health of the "
						"GPUs are unknown");
	inventory_free(&inventory);
}

static void test_container(void **state)
{
	struct inventory inventory;
	struct error err;

	load("one", FAKE_NVML, &inventory);
	assert_false(inventory.gpus[0].allowed);
	assert_true(inventory.gpus[1].allowed);
	assert_false(inventory.gpus[2].allowed);
	/* In this container, 0 is the only ordinal. */
	assert_int_equal(inventory_allow_gpus(&inventory, "CUDA_VISIBLE_DEVICES", "0", &err), 0);
	assert_true(inventory.gpus[1].allowed);
	assert_false(inventory.gpus[0].allowed);
	assert_int_equal(inventory_allow_gpus(&inventory, "CUDA_VISIBLE_DEVICES", "1", &err),
			 -ERR_DATA);
	inventory_free(&inventory);

	/* NVML has a GPU that hwloc does not show: it is inserted in PCI order. */
	load("nopci", FAKE_NVML, &inventory);
	assert_int_equal(inventory.gpu_count, 4);
	assert_string_equal(inventory.gpus[2].pci, "0000:77:00.0");
	assert_int_equal(inventory.gpus[2].vendor, 0x10de);
	assert_int_equal(inventory.gpus[2].device, 0x2335);
	assert_false(inventory.gpus[2].local_known);
	assert_true(inventory.gpus[2].allowed);
	inventory_free(&inventory);
}

static void put_node(const char *root, int node, const char *properties, const char *bank)
{
	char path[128];

	snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/properties", node);
	put(root, path, properties);
	snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/mem_banks/0/properties",
		 node);
	put(root, path, bank);
}

/* no-os-devices has AMD GPUs at 81:00.0, 82:00.0 and 83:00.0. */
static void test_kfd(void **state)
{
	struct inventory_source source = {.topology_file = TOPO "/no-os-devices.xml",
					  .no_network = true};
	const char *root = make_dir();
	const char *bank = "heap_type 1\nsize_in_bytes 68719476736\nflags 0\n";
	struct inventory inventory;
	struct error err = {0};

	source.sys_root = root;
	put_node(root, 0, "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\n", "heap_type 0\n");
	put_node(root, 2,
		 "simd_count 440\nvendor_id 4098\nlocation_id 33280\ndomain 0\n"
		 "unique_id 11913027438264218377\n",
		 bank); /* 82:00.0 */
	put_node(root, 9, "simd_count 304\nlocation_id 33536\ndomain 0\nunique_id 5\n", bank);
	/* 83:00.0 with partition 1 in the high bits; nodes are in the order of their numbers. */
	put_node(root, 10, "simd_count 304\nlocation_id 268468992\ndomain 0\nunique_id 5\n", bank);
	if (inventory_discover(&source, &inventory, &err) != 0)
		fail_msg("%s", err.text);
	assert_int_equal(inventory.gpu_count, 7);
	assert_string_equal(inventory.gpus[2].pci, "0000:81:00.0");
	assert_false(inventory.gpus[2].allowed); /* the driver does not show it */
	assert_true(inventory.gpus[3].allowed);
	assert_string_equal(inventory.gpus[3].uuid, "GPU-a553935651387309");
	assert_int_equal(inventory.gpus[3].memory_bytes, 68719476736);
	assert_int_equal(inventory.gpus[3].partition, -1);
	for (int i = 0; i < 2; i++) {
		assert_string_equal(inventory.gpus[4 + i].pci, "0000:83:00.0");
		assert_int_equal(inventory.gpus[4 + i].partition, i);
		assert_true(inventory.gpus[4 + i].allowed);
		assert_null(inventory.gpus[4 + i].uuid);
		assert_int_equal(inventory.gpus[4 + i].index, 4 + i);
	}
	assert_true(inventory.gpus[0].allowed); /* not an AMD GPU */
	inventory_free(&inventory);
	remove_tree(root);
}

#define G0 "GPU-11111111-0000-0000-0000-000000000000"
#define G1 "GPU-11112222-0000-0000-0000-000000000000"
#define M0 "MIG-33333333-0000-0000-0000-000000000000"
#define M1 "MIG-44444444-0000-0000-0000-000000000000"
#define P2 "GPU-55555555-0000-0000-0000-000000000000"

/* Two NVIDIA GPUs, two MIG devices of a third one, and an AMD GPU. */
static void make_gpus(struct inventory *inventory)
{
	static const char *const uuids[] = {G0, G1, M0, M1, "GPU-a0a0a0a0a0a0a0a0"};

	*inventory = (struct inventory){.gpu_count = 5, .gpus = calloc(5, sizeof *inventory->gpus)};
	for (int i = 0; i < 5; i++) {
		struct inventory_gpu *gpu = &inventory->gpus[i];

		gpu->index = i;
		gpu->vendor = i < 4 ? 0x10de : 0x1002;
		gpu->allowed = true;
		gpu->partition = i == 2 || i == 3 ? i - 2 : -1;
		snprintf(gpu->pci, sizeof gpu->pci, "0000:0%d:00.0", i == 3 ? 2 : i);
		gpu->uuid = strdup(uuids[i]);
	}
	inventory->gpus[2].mig = strdup("MIG-" P2 "/7/0");
	inventory->gpus[3].mig = strdup("MIG-" P2 "/8/0");
}

static void test_visible(void **state)
{
	static const struct {
		const char *name, *list;
		const char *allowed; /* one digit per GPU */
		const char *says;    /* part of the error, or NULL */
	} rows[] = {
		{"CUDA_VISIBLE_DEVICES", NULL, "11111", NULL},
		{"CUDA_VISIBLE_DEVICES", "", "00001", NULL},
		{"CUDA_VISIBLE_DEVICES", "all", "11111", NULL},
		{"CUDA_VISIBLE_DEVICES", "0", "10001", NULL},
		{"CUDA_VISIBLE_DEVICES", "1,0", "11001", NULL},
		{"CUDA_VISIBLE_DEVICES", "3,2,1,0", "11111", NULL},
		{"CUDA_VISIBLE_DEVICES", " 0, 1 \n", "11001", NULL},
		{"CUDA_VISIBLE_DEVICES", "0\\,1", "11001", NULL},
		{"CUDA_VISIBLE_DEVICES", "\"0,1\"", "11001", NULL},
		{"CUDA_VISIBLE_DEVICES", "1,-1,0", "01001", NULL},
		{"CUDA_VISIBLE_DEVICES", "-1", "00001", NULL},
		{"CUDA_VISIBLE_DEVICES", "NoDevFiles", "00001", NULL},
		{"CUDA_VISIBLE_DEVICES", "0,", "10001", NULL},
		{"CUDA_VISIBLE_DEVICES", G1 "," G0, "11001", NULL},
		{"CUDA_VISIBLE_DEVICES", "GPU-11112", "01001", NULL},
		{"CUDA_VISIBLE_DEVICES", M1, "00011", NULL},
		{"CUDA_VISIBLE_DEVICES", "MIG-3333", "00101", NULL},
		{"CUDA_VISIBLE_DEVICES", "MIG-" P2 "/8/0", "00011", NULL},
		{"CUDA_VISIBLE_DEVICES", P2, "00111", NULL},
		{"CUDA_VISIBLE_DEVICES", "GPU-5555", "00111", NULL},
		{"ROCR_VISIBLE_DEVICES", "0", "11111", NULL},
		{"ROCR_VISIBLE_DEVICES", "", "11110", NULL},
		{"HIP_VISIBLE_DEVICES", "GPU-a0a0a0a0a0a0a0a0", "11111", NULL},
		{"GPU_DEVICE_ORDINAL", "4,0", "10001", NULL},
		{"ZE_AFFINITY_MASK", "0,1", "11000", NULL}, /* no Intel GPU: all GPUs count */
		/* Invalid lists change nothing. */
		{"CUDA_VISIBLE_DEVICES", "4", "11111", "\"4\""},
		{"CUDA_VISIBLE_DEVICES", "0,7", "11111", "\"7\", which matches no GPU here"},
		{"CUDA_VISIBLE_DEVICES", "0,0", "11111", "twice"},
		{"CUDA_VISIBLE_DEVICES", "0," G0, "11111", "twice"},
		{"CUDA_VISIBLE_DEVICES", "0x1", "11111", "0x1"},
		{"CUDA_VISIBLE_DEVICES", "99999999999999999999", "11111", "999"},
		{"CUDA_VISIBLE_DEVICES", "GPU-1111", "11111", "a prefix of more than one"},
		{"CUDA_VISIBLE_DEVICES", "GPU-", "11111", "a prefix of more than one"},
		{"CUDA_VISIBLE_DEVICES", "MIG-", "11111", "a prefix of more than one"},
		{"CUDA_VISIBLE_DEVICES", "GPU-9", "11111", "another node"},
		{"CUDA_VISIBLE_DEVICES", "MIG-" P2 "/9/0", "11111", "/9/0"},
		{"CUDA_VISIBLE_DEVICES", "cuda:0", "11111", "cuda:0"},
		{"CUDA_VISIBLE_DEVICES", "+1", "11111", "+1"},
		{"CUDA_VISIBLE_DEVICES", "-2", "11111", "-2"},
		{"ROCR_VISIBLE_DEVICES", "1", "11111", "below 1"},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct inventory inventory;
		struct error err = {0};
		char seen[6] = "";

		make_gpus(&inventory);

		int rc = inventory_allow_gpus(&inventory, rows[i].name, rows[i].list, &err);

		for (int g = 0; g < 5; g++)
			seen[g] = inventory.gpus[g].allowed ? '1' : '0';
		if (strcmp(seen, rows[i].allowed) != 0 || rc != (rows[i].says ? -ERR_DATA : 0) ||
		    (rows[i].says &&
		     (!strstr(err.text, rows[i].says) || !strstr(err.text, rows[i].name))))
			fail_msg("%s=%s: %s, %d \"%s\"", rows[i].name, rows[i].list, seen, rc,
				 err.text);
		inventory_free(&inventory);
	}
}

/* Level Zero's tiles: "0.0,0.1" is device 0 once. */
static void test_tiles(void **state)
{
	struct inventory inventory;
	struct error err = {0};

	make_gpus(&inventory);
	for (int i = 0; i < 5; i++)
		inventory.gpus[i].vendor = 0x8086;
	assert_int_equal(inventory_allow_gpus(&inventory, "ZE_AFFINITY_MASK", "1.0,1.1,3", &err),
			 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(inventory.gpus[i].allowed, i == 1 || i == 3);
	inventory_free(&inventory);
}

/* Each vendor's list counts that vendor's GPUs: four of NVIDIA (make_gpus) and one of AMD. */
static void test_each_vendors_list(void **state)
{
	static const struct {
		const char *cuda, *rocr, *hip, *ze;
		int vendor; /* of all five; 0: as in make_gpus */
		const char *allowed, *says;
	} rows[] = {
		{.vendor = 0x1002, .allowed = "11111"},
		{.rocr = "0,2", .vendor = 0x1002, .allowed = "10100"},
		{.hip = "1", .vendor = 0x1002, .allowed = "01000"},
		{.rocr = "", .vendor = 0x1002, .allowed = "00000"},
		/* HIP counts among the GPUs that ROCR leaves: its 1 is GPU 4. */
		{.rocr = "2,4", .hip = "1", .vendor = 0x1002, .allowed = "00001"},
		{.rocr = "2,4",
		 .hip = "2",
		 .vendor = 0x1002,
		 .says = "HIP_VISIBLE_DEVICES contains \"2\""},
		{.rocr = "9", .vendor = 0x1002, .says = "ROCR_VISIBLE_DEVICES contains \"9\""},
		/* CUDA's list alone applies, since HIP reads it; next to ROCR's it is Slurm's copy.
		 */
		{.cuda = "3", .vendor = 0x1002, .allowed = "00010"},
		{.cuda = "2,3", .rocr = "2,3", .vendor = 0x1002, .allowed = "00110"},
		{.cuda = "3", .ze = "0.1,4", .vendor = 0x8086, .allowed = "10001"},
		/* Lists of vendors without a GPU here have no effect. */
		{.ze = "7", .vendor = 0x1002, .allowed = "11111"},
		{.cuda = "1",
		 .rocr = "7",
		 .hip = "7",
		 .ze = "7",
		 .vendor = 0x10de,
		 .allowed = "01000"},
		/* A node with GPUs of both vendors: each list applies to its own. */
		{.cuda = "1", .rocr = "", .allowed = "01000"},
		{.cuda = "0", .rocr = "0", .allowed = "10001"},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct inventory inventory;
		struct error err = {0};
		struct env *env = env_new();
		const char *const names[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
					     "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"};
		const char *const lists[] = {rows[i].cuda, rows[i].rocr, rows[i].hip, rows[i].ze};
		char seen[6] = "";

		make_gpus(&inventory);
		for (int g = 0; g < 5 && rows[i].vendor; g++)
			inventory.gpus[g].vendor = (uint16_t)rows[i].vendor;
		for (int n = 0; n < 4; n++)
			if (lists[n])
				assert_int_equal(
					env_set(env, names[n], lists[n], ENV_FROM_USER, NULL, &err),
					0);
		int rc = inventory_allow_visible_devices(&inventory, env, &err);

		for (int g = 0; g < 5; g++)
			seen[g] = inventory.gpus[g].allowed ? '1' : '0';
		if (rows[i].says ? rc != -ERR_DATA || !strstr(err.text, rows[i].says)
				 : rc || strcmp(seen, rows[i].allowed))
			fail_msg("row %zu: %s, %d \"%s\"", i, seen, rc, err.text);
		env_free(env);
		inventory_free(&inventory);
	}
}

static void test_too_long(void **state)
{
	struct inventory inventory = {0};
	struct error err = {0};
	char *list = calloc(1, 70001);

	memset(list, '0', 70000);
	assert_int_equal(inventory_allow_gpus(&inventory, "CUDA_VISIBLE_DEVICES", list, &err),
			 -ERR_DATA);
	free(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_uuids_and_health),
		cmocka_unit_test(test_mig),
		cmocka_unit_test(test_broken),
		cmocka_unit_test(test_kfd),
		cmocka_unit_test(test_container),
		cmocka_unit_test(test_visible),
		cmocka_unit_test(test_tiles),
		cmocka_unit_test(test_each_vendors_list),
		cmocka_unit_test(test_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
