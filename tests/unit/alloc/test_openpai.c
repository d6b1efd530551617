/* SPDX-License-Identifier: BSD-3-Clause */
/* OpenPAI's variables (from its documentation, not captured), and --nnodes by hand. */
#include "../../support/capture.h"
#include "../rows.h"

#include "alloc/alloc.h"
#include "base/json.h"

#define TWO                                                                                        \
	"PAI_JOB_NAME=j PAI_CURRENT_TASK_ROLE_NAME=worker PAI_TASK_ROLE_TASK_COUNT_worker=2 "      \
	"PAI_HOST_IP_worker_0=10.0.0.1 PAI_HOST_IP_worker_1=10.0.0.2 "

static struct env *variables(const char *text)
{
	struct env *env = capture_env(NULL);

	capture_change(env, text, " ");
	return env;
}

static void good(void **state)
{
	static const struct {
		const char *text, *rendezvous;
		size_t nodes;
		int this_node, gpus;
	} rows[] = {
		{TWO "PAI_TASK_INDEX=1 PAI_PORT_LIST_worker_0_berth=4711", "10.0.0.1:4711", 2, 1,
		 -1},
		{TWO "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=0 PAI_worker_0_berth_PORT=4711",
		 "10.0.0.1:4711", 2, 0, -1},
		{TWO "PAI_TASK_INDEX=0 PAI_worker_0_http_PORT=80 PAI_worker_0_berth_PORT=4711",
		 "10.0.0.1:4711", 2, 0, -1},
		{TWO
		 "PAI_TASK_INDEX=0 PAI_PORT_LIST_worker_0_ssh=22 PAI_PORT_LIST_worker_0_http=80,81",
		 "10.0.0.1:80", 2, 0, -1},
		{TWO "PAI_TASK_INDEX=0 PAI_worker_0_berth_PORT=1 PAI_RESOURCE_worker=4,8,100,10",
		 "10.0.0.1:1", 2, 0, 4},
		{"PAI_CURRENT_TASK_ROLE_NAME=w PAI_CURRENT_TASK_ROLE_TASK_COUNT=1 PAI_TASK_INDEX=0 "
		 "PAI_HOST_IP_w_0=fd00::1",
		 NULL, 1, 0, -1},
		{"PAI_CURRENT_TASK_ROLE_NAME=w PAI_CURRENT_TASK_ROLE_TASK_COUNT=2 PAI_TASK_INDEX=0 "
		 "PAI_HOST_IP_w_0=fd00::1 PAI_HOST_IP_w_1=fd00::2 PAI_w_0_b_PORT=5",
		 "[fd00::1]:5", 2, 0, -1},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = variables(rows[i].text);
		struct alloc alloc = {0};
		struct error err = {0};

		if (alloc_read(env, NULL, &alloc, &err))
			fail_msg("row %zu: %s", i, err.text);
		assert_int_equal(alloc.source, ALLOC_FROM_OPENPAI);
		assert_int_equal(alloc.node_count, rows[i].nodes);
		assert_int_equal(alloc.this_node, rows[i].this_node);
		assert_int_equal(alloc.nodes[0].gpus, rows[i].gpus);
		if (rows[i].rendezvous)
			assert_string_equal(alloc.rendezvous, rows[i].rendezvous);
		else
			assert_null(alloc.rendezvous);
		JSON_AUTO json = alloc_to_json(&alloc);
		assert_int_equal(json_array_size(json_object_get(json, "nodes")), rows[i].nodes);
		alloc_free(&alloc);
		env_free(env);
	}
}

static void bad(void **state)
{
	static const struct {
		const char *text, *seen;
	} rows[] = {
		{TWO "PAI_TASK_INDEX=2 PAI_worker_0_berth_PORT=1", "PAI_TASK_INDEX"},
		{TWO "PAI_TASK_INDEX=-1 PAI_worker_0_berth_PORT=1", "PAI_TASK_INDEX"},
		{TWO "PAI_TASK_INDEX=0", "ports: {berth: 1}"},
		{TWO "PAI_TASK_INDEX=0 PAI_worker_0_ssh_PORT=22", "ports: {berth: 1}"},
		{TWO "PAI_TASK_INDEX=0 PAI_worker_0_berth_PORT=65536", "PAI_worker_0_berth_PORT"},
		{TWO "PAI_TASK_INDEX=0 PAI_worker_0_berth_PORT=1 PAI_RESOURCE_worker=many",
		 "PAI_RESOURCE_worker"},
		{"PAI_CURRENT_TASK_ROLE_NAME=w PAI_TASK_INDEX=0", "PAI_TASK_ROLE_TASK_COUNT_w"},
		{"PAI_CURRENT_TASK_ROLE_NAME=w PAI_TASK_INDEX=0 PAI_TASK_ROLE_TASK_COUNT_w=many",
		 "PAI_TASK_ROLE_TASK_COUNT_w"},
		{"PAI_CURRENT_TASK_ROLE_NAME=w PAI_TASK_INDEX=0 PAI_TASK_ROLE_TASK_COUNT_w=1",
		 "PAI_HOST_IP_w_0"},
		{"PAI_CURRENT_TASK_ROLE_NAME=w PAI_TASK_INDEX=0 PAI_TASK_ROLE_TASK_COUNT_w=1 "
		 "PAI_HOST_IP_w_0=-o",
		 "PAI_HOST_IP_w_0"},
		{"PAI_CURRENT_TASK_ROLE_NAME=a/b PAI_TASK_INDEX=0", "PAI_CURRENT_TASK_ROLE_NAME"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = variables(rows[i].text);
		struct alloc alloc = {0};
		struct error err = {0};
		int rc = alloc_read(env, NULL, &alloc, &err);

		if (rc != -ERR_DATA || !strstr(err.text, rows[i].seen))
			fail_msg("row %zu: %d, '%s'; expected '%s'", i, rc, err.text, rows[i].seen);
		assert_null(alloc.nodes);
		env_free(env);
	}
}

static void by_hand(void **state)
{
	static const struct {
		int nnodes, rank;
		const char *rendezvous, *hosts, *seen; /* seen NULL: no error */
		const char *job;
	} rows[] = {
		{2, 0, "n1:4711", .job = "hand-n1-4711-2"},
		{2, 1, "[fd00::1]:4711", .job = "hand-fd00::1-4711-2"},
		{1, 0, "10.0.0.1:1", .job = "hand-10.0.0.1-1-1"},
		{2, 2, "n1:4711", .seen = "expected 0 to 1"},
		{2, -1, "n1:4711", .seen = "also needs --node-rank and --rdzv-endpoint"},
		{2, 0, .seen = "also needs --node-rank and --rdzv-endpoint"},
		{2, 0, "n1", .seen = "expected HOST:PORT"},
		{2, 0, ":4711", .seen = "expected HOST:PORT"},
		{2, 0, "fd00::1:4711", .seen = "IPv6"},
		{2, 0, "n1:0", .seen = "from 1 to 65535"},
		{2, 0, "n1:http", .seen = "from 1 to 65535"},
		{2, 0, "-oX:22", .seen = "expected HOST:PORT"},
		{2, 0, "n1:4711", .hosts = "n1,n2", .seen = "Give only one of them"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct env *env = env_new();
		struct alloc_request request = {.nnodes = rows[i].nnodes,
						.node_rank = rows[i].rank,
						.rendezvous = rows[i].rendezvous,
						.hosts = rows[i].hosts};
		struct alloc alloc = {0};
		struct error err = {0};
		int rc = alloc_read(env, &request, &alloc, &err);

		if (!rc != !rows[i].seen || (rc && !strstr(err.text, rows[i].seen)))
			fail_msg("row %zu: %d, '%s'", i, rc, err.text);
		if (!rc) {
			assert_int_equal(alloc.node_count, rows[i].nnodes);
			assert_int_equal(alloc.this_node, rows[i].rank);
			assert_string_equal(alloc.rendezvous, rows[i].rendezvous);
			assert_string_equal(alloc.job_id, rows[i].job);
		}
		alloc_free(&alloc);
		env_free(env);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(good), cmocka_unit_test(bad),
					   cmocka_unit_test(by_hand)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
