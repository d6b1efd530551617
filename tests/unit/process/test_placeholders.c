/* SPDX-License-Identifier: BSD-3-Clause */
#include "../rows.h"

#include "process/placeholders.h"

static void fills_placeholders(void **state)
{
	static const char *const variables[] = {
		"BERTH_ROLE=my-server", "BERTH_NODE_RANK=2", "BERTH_GPUS=4",
		"BERTH_NODE_ADDR=10.9.0.3", "BERTH_REPLICA=1", "BERTH_REPLICAS=2",
		"BERTH_ROLE_MY_SERVER_ADDR=fd00::1", "BERTH_ROLE_MY_SERVER_PORT=29500",
		"BERTH_ROLE_MY_SERVER_PORTS=20480-20481", "BERTH_ROLE_MY_SERVER_NODES=n1,n2,n3",
		"BERTH_ROLE_A_ADDR=10.0.0.1",
		"BERTH_ROLE_A_URLS=http://10.0.0.1:1,http://10.0.0.2:1",
		"BERTH_ROLE_MY_SERVER_URLS=http://[fd00::1]:29500", "BERTH_ROLE_A_PORT=1",
		/* The third one has failed before the others knew it. */
		"BERTH_ROLE_D_REPLICAS=6", "BERTH_ROLE_D_0_ADDR=d0", "BERTH_ROLE_D_0_PORT=10",
		"BERTH_ROLE_D_0_URLS=http://d0:10,http://e0:10", "BERTH_ROLE_D_1_ADDR=d1",
		"BERTH_ROLE_D_1_PORT=11", "BERTH_ROLE_D_1_URLS=http://d1:11,http://e1:11",
		"BERTH_ROLE_D_3_ADDR=d3", "BERTH_ROLE_D_3_PORT=13",
		"BERTH_ROLE_D_3_URLS=http://d3:13,http://e3:13", "BERTH_ROLE_D_4_ADDR=d4",
		"BERTH_ROLE_D_4_PORT=14", "BERTH_ROLE_D_4_URLS=http://d4:14,http://e4:14",
		"BERTH_ROLE_D_5_ADDR=d5", "BERTH_ROLE_D_5_PORT=15",
		"BERTH_ROLE_D_5_URLS=http://d5:15,http://e5:15"};
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
		{"{d.0.addr}:{d.4.port} {d.my.addr}:{d.my.port}", "d0:14 d3:13"},
		{"{d.addrs} {d.my.addrs}", "d0,d1,d3,d4,d5 d3,d4,d5"},
		{"x={my-server.urls},{a.urls}", "x=http://[fd00::1]:29500,http://10.0.0.1:1"},
		{"x={d.my.urls:--url}",
		 "x=--url http://d3:13 --url http://d4:14 --url http://d5:15"},
		{"{{d.urls:--url}}", "{d.urls:--url}"},
		{"{url} {a.url}/v1 {d.1.url} {d.my.url}",
		 "http://[fd00::1]:29500 http://10.0.0.1:1/v1 http://d1:11 http://d3:13"},
		{"{a.node_urls} {d.4.node_urls}",
		 "http://10.0.0.1:1,http://10.0.0.2:1 http://d4:14,http://e4:14"},
		{"x={a.node_urls:-u|/v1}", "x=-u http://10.0.0.1:1/v1 -u http://10.0.0.2:1/v1"},
		{"{urls} {d.x.addr} {d.0.1.addr} {d.urls:x {d.addr:x}", NULL},
		{"", NULL},
	};
	static const char *const alone[] = {"{a.urls:--url}", "-", "{d.my.addrs:}", "{a.urls:|/v1}",
					    NULL};
	static const char *const words[] = {"--url", "http://10.0.0.1:1",   "-", "d3", "d4",
					    "d5",    "http://10.0.0.1:1/v1"};
	struct env *env = env_new();
	const char *argv[ROWS(rows) + 1] = {NULL};
	char **filled;

	assert_int_equal(env_set_texts(env, variables, ROWS(variables), NULL), 0);
	for (size_t i = 0; i < ROWS(rows); i++)
		argv[i] = rows[i][0];
	filled = placeholders_fill(argv, env);
	assert_non_null(filled);
	for (size_t i = 0; i < ROWS(rows); i++)
		assert_string_equal(filled[i], rows[i][1] ? rows[i][1] : rows[i][0]);
	assert_null(filled[ROWS(rows)]);
	free(filled);
	/* Each a word of its own. */
	filled = placeholders_fill(alone, env);
	assert_non_null(filled);
	for (size_t i = 0; i < ROWS(words); i++)
		assert_string_equal(filled[i], words[i]);
	assert_null(filled[ROWS(words)]);
	free(filled);
	env_free(env);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(fills_placeholders)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
