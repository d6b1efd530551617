/* SPDX-License-Identifier: BSD-3-Clause */
#include "../rows.h"

#include "process/placeholders.h"

static void fills_placeholders(void **state)
{
	static const char *const pairs[] = {"BERTH_ROLE",
					    "my-server",
					    "BERTH_ROLE_MY_SERVER_ADDR",
					    "fd00::1",
					    "BERTH_ROLE_MY_SERVER_PORT",
					    "29500",
					    "BERTH_ROLE_MY_SERVER_PORTS",
					    "20480-20481",
					    "BERTH_ROLE_MY_SERVER_NODES",
					    "n1,n2,n3",
					    "BERTH_NODE_RANK",
					    "2",
					    "BERTH_GPUS",
					    "4",
					    "BERTH_NODE_ADDR",
					    "10.9.0.3",
					    "BERTH_ROLE_A_ADDR",
					    "10.0.0.1",
					    "BERTH_ROLE_A_PORT",
					    "1"};
	static const char *const rows[][2] = {
		{"--port={port} {ports}", "--port=29500 20480-20481"},
		{"{addr}{nodes}{node_rank}{gpus} {node_addr}", "fd00::1324 10.9.0.3"},
		{"http://{a.addr}:{a.port}/x", "http://10.0.0.1:1/x"},
		{"{my-server.addr}{my-server.nodes}", "fd00::13"},
		{"{a.ports}.", "."}, /* the command line's check refuses it */
		{"{{port}} {{port} {{a.addr}}", "{port} {port} {a.addr}"},
		{"{\"a\": {\"b\": {port}}}", "{\"a\": {\"b\": 29500}}"},
		{"{} {{}} {{ x }} { port } {Port} {a.gpus} {a.node_addr} {.port} {port", NULL},
		{"{a.b.port} {prt} {{{ ${port:-1} {a .port}", NULL},
		{"", NULL},
	};
	struct env *env = env_new();
	const char *argv[ROWS(rows) + 1] = {NULL};
	char **filled;

	for (size_t i = 0; i < ROWS(pairs); i += 2)
		assert_int_equal(env_set(env, pairs[i], pairs[i + 1], ENV_FROM_USER, NULL, NULL),
				 0);
	for (size_t i = 0; i < ROWS(rows); i++)
		argv[i] = rows[i][0];
	filled = placeholders_fill(argv, env);
	assert_non_null(filled);
	for (size_t i = 0; i < ROWS(rows); i++)
		assert_string_equal(filled[i], rows[i][1] ? rows[i][1] : rows[i][0]);
	assert_null(filled[ROWS(rows)]);
	free(filled);
	env_free(env);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(fills_placeholders)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
