/* SPDX-License-Identifier: BSD-3-Clause */
/* The judges: answers of three nodes and the results expected for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "inventories.h"
#include "check/check_internal.h"

#define NODES 3

static const char *const names[NODES] = {"n1", "n2", "n3"};

struct fixture {
	struct check check;
	struct check_request request;
	struct launch_options launch;
	struct check_node nodes[NODES];
	struct inventory inventories[NODES];
	struct alloc_node alloc_nodes[NODES];
	struct alloc alloc;
};

/* eth0 for management and hsn0, each with an address. */
static void begin(struct fixture *f)
{
	memset(f, 0, sizeof *f);
	for (int i = 0; i < NODES; i++) {
		char text[64];
		struct inventory_nic *nic;

		f->inventories[i] = make_inventory(names[i], 1, 1, 4, 1);
		make_gpu(&f->inventories[i], "0000:01:00.0", 0);
		nic = make_nic(&f->inventories[i], "eth0", "", NIC_ETHERNET, 0);
		nic->speed_mbps = 1000;
		nic->management = true;
		nic = make_nic(&f->inventories[i], "hsn0", "cxi0", NIC_SLINGSHOT, 0);
		nic->speed_mbps = 200000;
		snprintf(text, sizeof text, "10.1.0.1%d/24", i + 1);
		make_address(&f->inventories[i], "eth0", text);
		snprintf(text, sizeof text, "10.9.0.1%d/24", i + 1);
		make_address(&f->inventories[i], "hsn0", text);
		f->alloc_nodes[i] = (struct alloc_node){f->inventories[i].node, 1, 1};
		f->nodes[i] = (struct check_node){.name = names[i],
						  .answers = json_object(),
						  .results = json_array(),
						  .listening = true};
	}
	f->alloc = (struct alloc){
		.job_id = (char *)(uintptr_t) "7", .node_count = NODES, .nodes = f->alloc_nodes};
	f->launch.alloc = &f->alloc;
	f->launch.env = env_new();
	f->request.launch = &f->launch;
	f->check = (struct check){
		.request = &f->request,
		.count = NODES,
		.nodes = f->nodes,
		.inventories = f->inventories,
	};
}

static void end(struct fixture *f)
{
	if (f->check.planned)
		plan_free(&f->check.plan);
	env_free((struct env *)f->launch.env);
	for (int i = 0; i < NODES; i++) {
		json_decref(f->nodes[i].answers);
		json_decref(f->nodes[i].results);
		inventory_free(&f->inventories[i]);
	}
}

static void answer(struct fixture *f, size_t node, const char *probe, const char *text)
{
	json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);

	if (!json)
		fail_msg("no JSON: %s", text);
	json_object_set_new(f->nodes[node].answers, probe, json);
}

/* A full matrix in which every outcome is "ok" except [from][to][address]. */
static void matrix(struct fixture *f)
{
	for (size_t i = 0; i < NODES; i++) {
		json_t *rows = json_array();

		for (size_t j = 0; j < NODES; j++) {
			json_t *row = json_array();

			for (size_t a = 0; a < f->inventories[j].address_count; a++)
				json_array_append_new(row, json_string(i == j ? "self" : "ok"));
			json_array_append_new(rows, row);
		}
		json_object_set_new(f->nodes[i].answers, "reach?",
				    json_pack("{s:o}", "rows", rows));
	}
}

static void word(struct fixture *f, size_t from, size_t to, size_t address, const char *text)
{
	json_t *rows = json_object_get(json_object_get(f->nodes[from].answers, "reach?"), "rows");

	json_array_set_new(json_array_get(rows, to), address, json_string(text));
}

static const json_t *result(const struct fixture *f, size_t node, const char *probe)
{
	json_t *entry;
	size_t i;

	json_array_foreach(f->nodes[node].results, i,
			   entry) if (!strcmp(check_text(entry, "name"), probe)) return entry;
	return NULL;
}

static int reported(const struct fixture *f, size_t node, const char *probe)
{
	json_t *entry;
	int times = 0;
	size_t i;

	json_array_foreach(f->nodes[node].results, i, entry) times +=
		!strcmp(check_text(entry, "name"), probe);
	return times;
}

/* said NULL: any text is fine. */
static void expect(const struct fixture *f, size_t node, const char *probe, const char *verdict,
		   const char *said)
{
	const json_t *entry = result(f, node, probe);

	if (!entry)
		fail_msg("%s: nothing about %s", names[node], probe);
	if (strcmp(check_text(entry, "result"), verdict) ||
	    (said && !strstr(check_text(entry, "seen"), said)))
		fail_msg("%s, %s: %s: %s; expected %s: %s", names[node], probe,
			 check_text(entry, "result"), check_text(entry, "seen"), verdict,
			 said ? said : "anything");
	/* Every fault has a fix. */
	if (!strcmp(verdict, "fault"))
		assert_true(*check_text(entry, "fix"));
}

/* ---- answers of one node ---- */

static void test_one_node(void **state)
{
	static const struct {
		const char *probe, *text;
		const char *verdict, *said;
	} table[] = {
		{"memlock", "{\"soft\":-1,\"hard\":-1}", "ok", "unlimited"},
		{"memlock", "{\"soft\":65536,\"hard\":65536}", "ok", "64 KiB"}, /* Slingshot */
		{"shm", "{\"free\":8589934592,\"size\":9e9,\"writable\":true,\"left\":0}", "ok",
		 "8 GiB"},
		{"shm", "{\"free\":1048576,\"size\":67108864,\"writable\":true,\"left\":0}",
		 "fault", "1 MiB free of 64 MiB"},
		{"shm", "{\"free\":629145600,\"size\":629145600,\"writable\":true,\"left\":0}",
		 "ok", "too little for data loaders"},
		{"shm", "{\"free\":8589934592,\"size\":8589934592,\"writable\":false}", "fault",
		 "is not writable"},
		{"shm", "{\"error\":\"No such file or directory\"}", "fault", "No such file"},
		{"plugin", "{\"found\":\"libnccl-net-ofi.so\"}", "ok", "libnccl-net-ofi.so"},
		{"plugin", "{\"problem\":\"not there\"}", "fault", "many times slower"},
		{"gpus", "{\"gpus\":[]}", "ok", "1 of 1"},
		{"gpus",
		 "{\"gpus\":[{\"pci\":\"00000000:01:00.0\",\"processes\":[\"pid 8\"],\"ecc\":0}]}",
		 "fault", "in use by pid 8"},
		{"gpus", "{\"gpus\":[{\"pci\":\"0000:01:00.0\",\"processes\":[],\"ecc\":3}]}",
		 "fault", "uncorrected memory errors since the driver was loaded: 3"},
		{"gpus",
		 "{\"gpus\":[{\"pci\":\"0000:01:00.0\",\"processes\":[],\"ecc\":0,\"pending\":true}"
		 "]}",
		 "ok", "next reset"},
		{"gpus", "{\"gpus\":[{\"pci\":\"0000:02:00.0\",\"processes\":[\"pid 8\"]}]}", "ok",
		 "not in use, no errors"}, /* not a GPU of this job */
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct fixture f;

		begin(&f);
		answer(&f, 1, table[i].probe, table[i].text);
		for (const struct check_probe *const *probe = check_probes; *probe; probe++)
			if (!strcmp((*probe)->name, table[i].probe))
				check_judge(&f.check, *probe);
		expect(&f, 1, table[i].probe, table[i].verdict, table[i].said);
		end(&f);
	}
}

/* The scheduler grants GPUs, but none is visible. */
static void test_gpus_unseen(void **state)
{
	for (int granted = 0; granted < 2; granted++) {
		struct fixture f;

		begin(&f);
		for (int i = 0; i < NODES; i++) {
			f.inventories[i].gpu_count = 0;
			f.alloc_nodes[i].gpus = granted;
		}
		check_judge(&f.check, &probe_gpus);
		expect(&f, 1, "gpus", granted ? "fault" : "skipped",
		       granted ? "GPUs granted here: 1, but none is visible"
			       : "no GPU on this node");
		for (int i = 0; i < NODES; i++)
			f.inventories[i].gpu_count = 1; /* end frees it */
		end(&f);
	}
}

/* Verbs register memory. */
static void test_memlock_with_verbs(void **state)
{
	struct fixture f;

	begin(&f);
	f.inventories[0].nics[1].kind = NIC_INFINIBAND;
	f.inventories[1].nics[1].kind = NIC_ROCE;
	f.inventories[2].nics[1].kind = NIC_INFINIBAND;
	f.inventories[2].nics[1].state = NIC_STATE_DOWN;
	answer(&f, 0, "memlock", "{\"soft\":65536,\"hard\":65536}");
	answer(&f, 1, "memlock", "{\"soft\":65536,\"hard\":-1}");
	answer(&f, 2, "memlock", "{\"soft\":65536,\"hard\":-1}");
	check_judge(&f.check, &probe_memlock);
	expect(&f, 0, "memlock", "fault", "at most 64 KiB");
	expect(&f, 1, "memlock", "fault", "hard limit: unlimited");
	expect(&f, 2, "memlock", "ok", NULL);
	end(&f);
}

/* ---- comparisons ---- */

static void test_versions(void **state)
{
	struct fixture f;

	begin(&f);
	answer(&f, 0, "versions",
	       "{\"berth\":\"1\",\"architecture\":\"x86_64\",\"NCCL\":\"2.26.2\"}");
	answer(&f, 1, "versions",
	       "{\"berth\":\"1\",\"architecture\":\"x86_64\",\"NCCL\":\"2.28.9\"}");
	answer(&f, 2, "versions",
	       "{\"berth\":\"1\",\"architecture\":\"x86_64\",\"NCCL\":\"2.28.9\"}");
	check_judge(&f.check, &probe_versions);
	expect(&f, 0, "versions", "fault", "NCCL: 2.26.2 here, 2.28.9 on other nodes");
	expect(&f, 1, "versions", "ok", "berth 1, x86_64, NCCL 2.28.9");
	end(&f);
	begin(&f);
	answer(&f, 0, "versions", "{\"berth\":\"1\",\"cuDNN\":\"9.1.0\"}");
	answer(&f, 1, "versions", "{\"berth\":\"1\",\"cuDNN\":\"9.1.0\"}");
	answer(&f, 2, "versions", "{\"berth\":\"1\"}");
	check_judge(&f.check, &probe_versions);
	expect(&f, 2, "versions", "fault", "cuDNN: none here, 9.1.0 on other nodes");
	end(&f);
}

/* A line of NCCL's file counts where berth leaves NCCL its own choice. */
static void test_files(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	check_make_plan(&f.check, 29500);
	answer(&f, 0, "variables",
	       "{\"conf\":[{\"file\":\"/etc/"
	       "nccl.conf\",\"name\":\"NCCL_SOCKET_IFNAME\",\"value\":\"eth0\"}]}");
	answer(&f, 1, "variables",
	       "{\"conf\":[{\"file\":\"/etc/"
	       "nccl.conf\",\"name\":\"NCCL_NET\",\"value\":\"Socket\"}]}");
	check_judge(&f.check, &probe_variables);
	assert_null(result(&f, 0, "variables")); /* berth sets that one */
	expect(&f, 1, "variables", "ok", "/etc/nccl.conf sets NCCL_NET=Socket, which NCCL uses");
	assert_true(json_is_true(json_object_get(result(&f, 1, "variables"), "note")));
	end(&f);
}

static void test_clock(void **state)
{
	static const struct {
		int64_t off_us, error_us;
		int left;
		const char *verdict, *said;
	} table[] = {
		{300000, 1000, 0, "ok", NULL},
		{-990000, 1000, 0, "ok", NULL},
		{1500000, 1000, 0, "fault", "1.500 s ahead of"},
		{-90000000, 1000, 0, "fault", "90.000 s behind"},
		{1500000, 900000, 0, "ok", NULL}, /* measured too roughly to blame it */
		{0, 0, 5, "ok", "did not report its time"},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct fixture f;

		begin(&f);
		f.nodes[2].clock_offset_us = table[i].off_us;
		f.nodes[2].clock_error_us = table[i].error_us;
		f.nodes[2].clock_exchanges_left = table[i].left;
		check_judge(&f.check, &probe_clock);
		expect(&f, 2, "clock", table[i].verdict, table[i].said);
		end(&f);
	}
}

static void test_names(void **state)
{
	struct fixture f;

	begin(&f);
	answer(&f, 0, "names",
	       "{\"own\":\"n1\",\"self\":[\"10.1.0.11\"],"
	       "\"nodes\":[[\"10.1.0.11\"],[\"10.1.0.12\"],[\"10.1.0.13\"]]}");
	answer(&f, 1, "names",
	       "{\"own\":\"n2\",\"self\":[\"127.0.1.1\"],"
	       "\"nodes\":[[\"10.1.0.11\"],[\"127.0.1.1\"],null]}");
	answer(&f, 2, "names",
	       "{\"own\":\"n3\",\"self\":[\"10.1.0.13\"],"
	       "\"nodes\":[[\"10.1.0.12\"],[\"10.1.0.13\"],[\"10.1.0.13\"]]}");
	check_judge(&f.check, &probe_names);
	expect(&f, 0, "names", "ok", "all nodes' names resolve");
	expect(&f, 1, "names", "ok", "n3 does not resolve here");
	expect(&f, 2, "names", "fault", "n1 resolves to 10.1.0.12, which is an address of n2");
	assert_int_equal(reported(&f, 2, "names"), 2);
	end(&f);
	for (int banned = 0; banned < 2; banned++) {
		begin(&f);
		if (banned)
			assert_int_equal(env_set((struct env *)f.launch.env, INVENTORY_BANNED,
						 "eth1", ENV_FROM_SITE, NULL, NULL),
					 0);
		/* A wildcard in DNS, a stale entry, and a name whose first address is right. */
		answer(&f, 0, "names",
		       "{\"own\":\"n1\",\"self\":[\"127.0.1.1\"],"
		       "\"nodes\":[[\"127.0.1.1\"],[\"192.0.2.1\"],[\"192.0.2.1\"]]}");
		answer(&f, 1, "names",
		       "{\"own\":\"n2\",\"self\":[\"10.1.0.12\"],"
		       "\"nodes\":[[\"10.1.0.11\"],[\"10.1.0.12\"],[\"fd00::99\"]]}");
		answer(&f, 2, "names",
		       "{\"own\":\"n3\",\"self\":[\"10.1.0.13\"],"
		       "\"nodes\":[[\"10.9.0.11\"],[\"10.1.0.12\"],"
		       "[\"10.1.0.13\",\"192.0.2.1\"]]}");
		check_judge(&f.check, &probe_names);
		expect(&f, 0, "names", banned ? "ok" : "fault",
		       banned ? "its own name, n1, is 127.0.1.1"
			      : "n2 resolves to 192.0.2.1, which no node of this job has");
		assert_int_equal(reported(&f, 0, "names"), banned ? 1 : 2);
		expect(&f, 1, "names", banned ? "ok" : "fault",
		       banned ? "all nodes' names resolve"
			      : "n3 resolves to fd00::99, which no node of this job has");
		expect(&f, 2, "names", "ok", "all nodes' names resolve");
		end(&f);
	}
	begin(&f);
	answer(&f, 1, "names",
	       "{\"own\":\"n2\",\"self\":[\"10.1.0.12\"],\"nodes\":[[\"10.1.0.11\"]]}");
	check_judge(&f.check, &probe_names);
	expect(&f, 1, "names", "ok", "slow here: 1 of 3");
	end(&f);
}

static void test_checkpoint(void **state)
{
	struct fixture f;

	begin(&f);
	f.request.checkpoint = "/ckpt";
	answer(&f, 0, "checkpoint", "{\"free\":5368709120,\"inodes\":true}");
	answer(&f, 1, "checkpoint", "{\"free\":5368709120,\"inodes\":true}");
	answer(&f, 0, "checkpoint?", "{\"unseen\":[1,2]}");
	answer(&f, 1, "checkpoint?", "{\"unseen\":[2]}");
	answer(&f, 2, "checkpoint", "{\"error\":\"cannot create a file in it: Read-only\"}");
	check_judge(&f.check, &probe_checkpoint);
	expect(&f, 0, "checkpoint", "fault", "files written on n2 are not visible here");
	/* n3 wrote none: that its file is not seen is not the folder's doing. */
	expect(&f, 1, "checkpoint", "ok", "5 GiB free");
	expect(&f, 2, "checkpoint", "fault", "Read-only");
	end(&f);
}

/* ---- the network ---- */

static void judge_network(struct fixture *f)
{
	check_make_plan(&f->check, 29500);
	check_judge(&f->check, &probe_network);
	check_judge(&f->check, &probe_reach);
}

static void test_network_well(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	judge_network(&f);
	for (size_t i = 0; i < NODES; i++) {
		expect(&f, i, "network", "ok", "hsn0 10.9.0.1");
		expect(&f, i, "reach", "ok", NULL);
	}
	assert_true(probe_ring_possible(&f.check));
	assert_string_equal(f.check.plan.network.address, "10.9.0.11");
	end(&f);
}

static void test_down(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	f.inventories[1].addresses[1].up = false;
	word(&f, 0, 1, 1, "-");
	word(&f, 2, 1, 1, "-");
	word(&f, 1, 0, 1, "unreachable");
	word(&f, 1, 2, 1, "unreachable");
	judge_network(&f);
	assert_string_equal(f.check.plan.network.address, "10.1.0.11");
	expect(&f, 1, "network", "fault", "hsn0 is down here");
	expect(&f, 0, "network", "ok", "eth0");
	expect(&f, 1, "reach", "ok", NULL); /* reported already */
	end(&f);
}

static void test_twins(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	f.inventories[1].addresses[1] = f.inventories[2].addresses[1];
	word(&f, 1, 2, 1, "refused"); /* by itself */
	word(&f, 2, 1, 1, "refused");
	word(&f, 2, 0, 1, "timeout"); /* the answers go to n2 */
	judge_network(&f);
	for (size_t i = 0; i < NODES; i++)
		expect(&f, i, "reach", "ok", NULL);
	expect(&f, 1, "network", "fault", "10.9.0.13, and so has n3");
	expect(&f, 2, "network", "fault", "10.9.0.13, and so has n2");
	end(&f);
}

/* A node that no other node reaches is reported once, at that node; a single pair is reported at
 * the node that connects. */
static void test_silence(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	word(&f, 0, 2, 1, "timeout");
	word(&f, 1, 2, 1, "timeout");
	judge_network(&f);
	expect(&f, 2, "reach", "fault", "its hsn0 10.9.0.13 does not answer");
	expect(&f, 0, "reach", "ok", NULL);
	expect(&f, 1, "reach", "ok", NULL);
	assert_false(probe_ring_possible(&f.check));
	end(&f);
	begin(&f);
	matrix(&f);
	word(&f, 1, 2, 1, "refused");
	judge_network(&f);
	expect(&f, 1, "reach", "fault", "hsn0 10.9.0.13 of n3 refuses connections");
	expect(&f, 2, "reach", "ok", NULL);
	end(&f);
	/* Nothing gets through to or from it: reported once. */
	begin(&f);
	matrix(&f);
	for (size_t i = 0; i < 2; i++) {
		word(&f, i, 2, 1, "host-unreachable");
		word(&f, 2, i, 1, "host-unreachable");
	}
	judge_network(&f);
	expect(&f, 2, "reach", "fault",
	       "its hsn0 10.9.0.13 does not answer: no host on this network");
	assert_int_equal(reported(&f, 2, "reach"), 1);
	expect(&f, 0, "reach", "ok", NULL);
	end(&f);
	/* The management network is closed to all, but no node needs it. */
	begin(&f);
	matrix(&f);
	for (size_t i = 0; i < NODES; i++)
		for (size_t j = 0; j < NODES; j++)
			if (i != j)
				word(&f, i, j, 0, "timeout");
	judge_network(&f);
	for (size_t i = 0; i < NODES; i++)
		expect(&f, i, "reach", "ok", NULL);
	end(&f);
}

static void test_nothing_in_common(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	for (size_t a = 0; a < 2; a++) {
		word(&f, 1, 0, a, "timeout");
		word(&f, 2, 0, a, "ok");
	}
	judge_network(&f);
	assert_false(f.check.planned);
	expect(&f, 0, "network", "fault", "only 2 of 3 nodes can reach it");
	expect(&f, 1, "reach", "fault", "of n1 does not answer");
	check_judge(&f.check, &probe_ring);
	expect(&f, 1, "ring", "skipped", NULL);
	end(&f);
}

static void ring(struct fixture *f, size_t node, int megabytes, int counted, int ms,
		 const char *problem)
{
	json_object_set_new(f->nodes[node].answers, "ring?",
			    json_pack("{s:s?, s:i, s:i, s:i, s:i}", "problem", problem, "sent",
				      megabytes << 20, "counted", counted, "received",
				      megabytes << 20, "ms", ms));
}

static void test_ring(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	check_make_plan(&f.check, 29500);
	ring(&f, 0, 1024, 1100 << 20, 400, NULL);
	ring(&f, 1, 1024, 1100 << 20, 420, NULL);
	ring(&f, 2, 1024, 100 << 20, 410, NULL);
	check_judge(&f.check, &probe_ring);
	expect(&f, 0, "ring", "ok", "from n3");
	expect(&f, 1, "ring", "ok", "from n1");
	expect(&f, 2, "ring", "fault", "1024 MiB were sent, but hsn0 counted 100 MiB");
	end(&f);
	begin(&f);
	matrix(&f);
	check_make_plan(&f.check, 29500);
	ring(&f, 0, 1024, -1, 400, NULL);
	ring(&f, 1, 20, -1, 400, NULL);
	ring(&f, 2, 1024, -1, 400, "the sum of 256 KiB is wrong, first at element 7");
	assert_false(
		probe_ring_should_repeat(&f.check)); /* it broke: another round will not fix that */
	check_judge(&f.check, &probe_ring);
	expect(&f, 1, "ring", "fault", "receives from n1 at");
	expect(&f, 2, "ring", "fault", "element 7");
	end(&f);
}

/* One slow round is not a fault: the best round counts. */
static void test_ring_again(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	check_make_plan(&f.check, 29500);
	for (size_t i = 0; i < NODES; i++)
		ring(&f, i, i == 1 ? 20 : 1024, -1, 400, NULL);
	assert_true(probe_ring_should_repeat(&f.check));
	for (size_t i = 0; i < NODES; i++) {
		assert_null(check_answer(&f.check, i, "ring?"));
		ring(&f, i, i == 2 ? 20 : 1000, -1, 400, NULL);
	}
	assert_false(probe_ring_should_repeat(&f.check));
	check_judge(&f.check, &probe_ring);
	for (size_t i = 0; i < NODES; i++)
		expect(&f, i, "ring", "ok", NULL);
	end(&f);
}

/* Set what a node's kernel knows about its link to the next node. */
static void link_use(struct fixture *f, size_t node, int megabytes, int ms)
{
	json_t *answer = json_object_get(f->nodes[node].answers, "ring?");

	json_object_set_new(answer, "acked", json_integer((json_int_t)megabytes << 20));
	json_object_set_new(answer, "link_us", json_integer((json_int_t)ms * 1000));
}

/* The time in which a node waited for a core does not count against its two links, and a link is
 * slow however long its nodes waited. */
static void test_ring_busy(void **state)
{
	struct fixture f;

	begin(&f);
	matrix(&f);
	check_make_plan(&f.check, 29500);
	for (size_t i = 0; i < NODES; i++) {
		ring(&f, i, i == 0 ? 1024 : 100, -1, 400, NULL);
		link_use(&f, i, i == 2 ? 1024 : 100, i == 2 ? 400 : 50);
	}
	assert_false(probe_ring_should_repeat(&f.check));
	check_judge(&f.check, &probe_ring);
	for (size_t i = 0; i < NODES; i++)
		expect(&f, i, "ring", "ok", NULL);
	link_use(&f, 1, 100, 390);
	assert_true(probe_ring_should_repeat(&f.check));
	end(&f);
	begin(&f);
	matrix(&f);
	check_make_plan(&f.check, 29500);
	for (size_t i = 0; i < NODES; i++) {
		ring(&f, i, 100, -1, 400, NULL);
		link_use(&f, i, 100, i == 1 ? 390 : 50);
	}
	check_judge(&f.check, &probe_ring);
	expect(&f, 0, "ring", "ok", NULL);
	expect(&f, 1, "ring", "ok", NULL);
	expect(&f, 2, "ring", "fault", "receives from n2 at 2151 Mb/s");
	end(&f);
}

static void test_missing(void **state)
{
	struct fixture f;
	json_t *json;

	begin(&f);
	matrix(&f);
	f.nodes[2].missing = true;
	json_object_del(f.nodes[2].answers, "reach?");
	check_add(&f.check, 2, "agent", CHECK_FAULT, "look", "no agent");
	for (const struct check_probe *const *probe = check_probes; *probe; probe++)
		check_judge(&f.check, *probe);
	/* Only its absence is reported. */
	assert_int_equal(json_array_size(f.nodes[2].results), 1);
	expect(&f, 0, "reach", "ok", NULL);
	expect(&f, 0, "ring", "skipped", NULL);
	json = check_to_json(&f.check);
	assert_true(check_faults(json) >= 1);
	assert_true(json_is_null(json_array_get(json_object_get(json, "reach"), 2)));
	json_decref(json);
	end(&f);
}

/* Of many nodes, each tries a sample, and a node that none of its sample reaches is named. */
static void test_many(void **state)
{
	enum { MANY = 200, SILENT = 150 };
	static struct check_node nodes[MANY];
	static struct inventory inventories[MANY];
	static int tried[MANY];
	struct fixture f;

	begin(&f);
	f.check.count = MANY;
	f.check.nodes = nodes;
	f.check.inventories = inventories;
	for (int i = 0; i < MANY; i++) {
		char text[64];

		inventories[i] = make_inventory("n", 1, 1, 4, 1);
		make_nic(&inventories[i], "hsn0", "cxi0", NIC_SLINGSHOT, 0);
		snprintf(text, sizeof text, "10.9.0.%d/16", i + 1);
		make_address(&inventories[i], "hsn0", text);
		nodes[i] = (struct check_node){"n", json_object(), json_array(), .listening = true};
	}
	for (size_t i = 0; i < MANY; i++) {
		json_t *question = probe_reach_question(&f.check, i), *rows = json_array(), *entry;
		size_t e;

		assert_in_range(json_array_size(json_object_get(question, "nodes")), 50, 67);
		for (int j = 0; j < MANY; j++)
			json_array_append_new(rows, json_null());
		json_array_foreach(json_object_get(question, "nodes"), e, entry)
		{
			size_t j = (size_t)json_integer_value(json_object_get(entry, "node"));

			tried[j]++;
			json_array_set_new(rows, j,
					   json_pack("[s]", j == i	  ? "self"
							    : j == SILENT ? "timeout"
									  : "ok"));
		}
		json_decref(question);
		json_object_set_new(nodes[i].answers, "reach?", json_pack("{s:o}", "rows", rows));
	}
	check_judge(&f.check, &probe_reach);
	f.check.nodes = f.nodes; /* those that end() frees */
	for (size_t i = 0; i < MANY; i++) {
		const json_t *found = json_array_get(nodes[i].results, 0);

		assert_int_equal(json_array_size(nodes[i].results), 1);
		assert_string_equal(check_text(found, "result"), i == SILENT ? "fault" : "ok");
		assert_non_null(strstr(check_text(found, "seen"),
				       i == SILENT ? "does not answer" : "and a sample of"));
		assert_in_range(tried[i], 50, MANY);
		json_decref(nodes[i].answers);
		json_decref(nodes[i].results);
		inventory_free(&inventories[i]);
	}
	assert_int_equal(tried[0], MANY);
	end(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_node),
		cmocka_unit_test(test_gpus_unseen),
		cmocka_unit_test(test_memlock_with_verbs),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_clock),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_checkpoint),
		cmocka_unit_test(test_network_well),
		cmocka_unit_test(test_down),
		cmocka_unit_test(test_twins),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_nothing_in_common),
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_ring_again),
		cmocka_unit_test(test_ring_busy),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
