/* SPDX-License-Identifier: BSD-3-Clause */
/* Which nodes the next attempt uses, and the ranks' heartbeat files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/attempts.h"
#include "process/heartbeat.h"

static void make_alloc(struct alloc *alloc, size_t count)
{
	*alloc = (struct alloc){.node_count = count, .this_node = 0};
	alloc->nodes = calloc(count, sizeof *alloc->nodes);
	for (size_t i = 0; i < count; i++)
		if (asprintf(&alloc->nodes[i].name, "n%zu", i) < 0)
			abort();
}

static void free_alloc(struct alloc *alloc)
{
	for (size_t i = 0; i < alloc->node_count; i++)
		free(alloc->nodes[i].name);
	free(alloc->nodes);
}

static void drop_note(void *context, enum log_level level, const char *text)
{
	(void)context;
	(void)level;
	(void)text;
}

static const struct job_sink sink = {.note = drop_note};

/* "0 3 2 | 4": nodes with ranks, then spares; as the next attempt's allocation has them. */
static void describe(const struct node_pool *node_pool, char *out)
{
	struct alloc alloc;

	assert_int_equal(node_pool_alloc(node_pool, &alloc, NULL), 0);
	for (size_t i = 0; i < alloc.node_count; i++)
		out += sprintf(out, "%s%s%s", i ? " " : "",
			       i == node_pool->active_count ? "| " : "", alloc.nodes[i].name + 1);
	free(alloc.nodes);
}

static void test_pool(void **state)
{
	/* Each word an attempt's end: "L02" lost those in these places, "F1" a failure began there.
	 */
	static const struct {
		size_t nodes, spares, least;
		const char *ends, *expected, *excluded_nodes, *reason;
	} rows[] = {
		{3, .ends = "F1", .expected = "0 1 2", .excluded_nodes = "",
		 .reason = "one failure does not exclude a node"},
		{3, .ends = "F1 F1", .expected = "0 1 2", .excluded_nodes = "",
		 .reason = "two, but every node is needed"},
		{3, .spares = 1, .ends = "F1 F1", .expected = "0 2", .excluded_nodes = "1",
		 .reason = "two failures: the spare replaces it"},
		{4, .spares = 1, .ends = "F1 F2 F1", .expected = "0 3 2", .excluded_nodes = "1",
		 .reason = "the index is kept: the others keep their ranks"},
		{4, .spares = 1, .ends = "L0", .expected = "3 1 2", .excluded_nodes = "0",
		 .reason = "lost: replaced at once, even the first node"},
		{4, .spares = 1, .least = 2, .ends = "L01", .expected = "3 2",
		 .excluded_nodes = "01",
		 .reason = "two lost at once: one replaced, one node fewer"},
		{4, .spares = 1, .least = 2, .ends = "L012", .expected = "3 2",
		 .excluded_nodes = "01", .reason = "three lost: the third is required"},
		{4, .spares = 2, .ends = "L2 L0", .expected = "3 1", .excluded_nodes = "20",
		 .reason = "the spare itself was lost before"},
		{4, .spares = 2, .ends = "L23 L0", .expected = "0 1", .excluded_nodes = "32",
		 .reason = "all spares lost, none for the node"},
		{4, .least = 2, .ends = "L3 L0", .expected = "1 2", .excluded_nodes = "30",
		 .reason = "smaller and smaller"},
		{4, .least = 2, .ends = "L3 L0 L1", .expected = "1 2", .excluded_nodes = "30",
		 .reason = "and no further"},
		{4, .spares = 1, .least = 1, .ends = "F0 L0 F0 F0", .expected = "1 2",
		 .excluded_nodes = "03", .reason = "a spare may fail twice as well"},
	};

	(void)state;
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
		const struct attempts_policy policy = {
			.max_restarts = 9, .spares = rows[r].spares, .min_nodes = rows[r].least};
		char got[64], out[32] = "", *ends = strdup(rows[r].ends), *save = NULL;
		struct alloc alloc;
		struct node_pool node_pool;

		make_alloc(&alloc, rows[r].nodes);
		assert_int_equal(node_pool_new(&alloc, &policy, &node_pool, NULL), 0);
		for (char *end = strtok_r(ends, " ", &save); end;
		     end = strtok_r(NULL, " ", &save)) {
			bool lost[8] = {0};
			struct job_result result = {.cause.node_index = end[1] - '0', .lost = lost};

			for (const char *at = end + 1; *end == 'L' && *at; at++)
				lost[*at - '0'] = true;
			node_pool_update(&node_pool, &result, &sink);
		}
		describe(&node_pool, got);
		for (size_t i = 0; i < json_array_size(node_pool.excluded_nodes); i++)
			strcat(out, json_string_value(json_object_get(
					    json_array_get(node_pool.excluded_nodes, i), "node")) +
					    1);
		if (strcmp(got, rows[r].expected) || strcmp(out, rows[r].excluded_nodes))
			fail_msg("%s: '%s' without '%s', expected '%s' without '%s'",
				 rows[r].reason, got, out, rows[r].expected,
				 rows[r].excluded_nodes);
		node_pool_free(&node_pool);
		free_alloc(&alloc);
		free(ends);
	}
}

static void test_this_node(void **state)
{
	const struct attempts_policy policy = {.max_restarts = 1, .min_nodes = 1};
	bool lost[3] = {true, false, false};
	struct job_result result = {.cause.node_index = 0, .lost = lost};
	struct alloc alloc, next;
	struct node_pool node_pool;

	(void)state;
	make_alloc(&alloc, 3);
	alloc.this_node = 1;
	assert_int_equal(node_pool_new(&alloc, &policy, &node_pool, NULL), 0);
	assert_int_equal(node_pool_update(&node_pool, &result, &sink), 1);
	assert_int_equal(node_pool_alloc(&node_pool, &next, NULL), 0);
	assert_int_equal(next.this_node, 0);
	free(next.nodes);
	node_pool_free(&node_pool);
	free_alloc(&alloc);
}

static void test_check(void **state)
{
	static const struct {
		struct attempts_policy policy;
		size_t nodes;
		int expected;
		const char *reason;
	} rows[] = {
		{{0}, 1, 0, "nothing asked"},
		{{.max_restarts = 1}, 1, 0, "one node"},
		{{.max_restarts = 1, .spares = 1, .min_nodes = 1}, 2, 0, "one and a spare"},
		{{.max_restarts = 1, .spares = 1, .min_nodes = 2},
		 2,
		 -ERR_USAGE,
		 "a spare counts not"},
		{{.max_restarts = 1, .spares = 2}, 2, -ERR_USAGE, "all spare"},
		{{.max_restarts = 1, .spares = 9}, 2, -ERR_USAGE, "more than all"},
		{{.max_restarts = 1, .min_nodes = 3}, 2, -ERR_USAGE, "more than there are"},
		{{.spares = 1}, 2, -ERR_USAGE, "nothing is started again"},
		{{.min_nodes = 1}, 2, -ERR_USAGE, "nor here"},
	};

	(void)state;
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
		struct error err = {0};
		struct alloc alloc;
		int rc;

		make_alloc(&alloc, rows[r].nodes);
		rc = attempts_check(&rows[r].policy, &alloc, &err);
		if (rc != rows[r].expected)
			fail_msg("%s: %d, expected %d", rows[r].reason, rc, rows[r].expected);
		free_alloc(&alloc);
	}
}

static void test_parse(void **state)
{
	static const struct {
		const char *text;
		double steps;
		const char *status_text;
	} rows[] = {
		{"12", 12, ""},
		{"12\n", 12, ""},
		{"0", 0, ""},
		{"12.5 step 1212, waits\nmore", 12.5, "step 1212, waits"},
		{"7\tepoch 3   \n", 7, "epoch 3"},
		{"1e3 x", 1000, "x"},
		{"", -1, ""},
		{"\n", -1, ""},
		{"epoch 3", -1, "epoch 3"},
		{"-1 x", -1, "-1 x"},
		{"nan", -1, "nan"},
		{"inf 1", -1, "inf 1"},
		{"0x10", -1, "0x10"},
		{"1e99", -1, "1e99"},
		{"12a", -1, "12a"},
		{"1 \033[2J", 1, "?[2J"},
		{"99999999999999999999999999999999999999 x", -1,
		 "99999999999999999999999999999999999999 x"},
	};
	char status_text[HEARTBEAT_STATUS_BYTES], text[400];

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		double steps = heartbeat_parse(rows[i].text, status_text);

		if (steps != rows[i].steps || strcmp(status_text, rows[i].status_text))
			fail_msg("'%s': %g '%s'", rows[i].text, steps, status_text);
	}
	memset(text, 'x', sizeof text);
	memcpy(text, "3 ", 2);
	text[sizeof text - 1] = '\0';
	assert_true(heartbeat_parse(text, status_text) == 3);
	assert_int_equal(strlen(status_text), HEARTBEAT_STATUS_BYTES - 1);
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	usleep(20000); /* the file system's clock may be this coarse */
}

static void test_look(void **state)
{
	char dir[] = "/tmp/berth-test-XXXXXX", path[64];
	struct heartbeat heartbeat = {.steps = -1};

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/heartbeat", dir);
	assert_false(heartbeat_poll(path, &heartbeat));
	write_file(path, "");
	assert_true(heartbeat_poll(path, &heartbeat));
	assert_true(heartbeat.steps == 0); /* it exists, but no step was made yet */
	assert_false(heartbeat_poll(path, &heartbeat));
	write_file(path, ""); /* a touch */
	assert_true(heartbeat_poll(path, &heartbeat));
	assert_true(heartbeat.steps == 1);
	write_file(path, "5 epoch 1\n");
	assert_true(heartbeat_poll(path, &heartbeat));
	assert_true(heartbeat.steps == 5);
	assert_string_equal(heartbeat.status_text, "epoch 1");
	write_file(path, ""); /* being written */
	assert_true(heartbeat_poll(path, &heartbeat));
	assert_true(heartbeat.steps == 5);
	write_file(path, "6");
	assert_true(heartbeat_poll(path, &heartbeat));
	assert_true(heartbeat.steps == 6);
	unlink(path);
	assert_false(heartbeat_poll(path, &heartbeat));
	assert_true(heartbeat.steps == 6);
	/* Neither through a link nor into a directory. */
	assert_int_equal(symlink("/etc/hostname", path), 0);
	assert_false(heartbeat_poll(path, &heartbeat));
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pool),  cmocka_unit_test(test_this_node),
		cmocka_unit_test(test_check), cmocka_unit_test(test_parse),
		cmocka_unit_test(test_look),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
