/* SPDX-License-Identifier: BSD-3-Clause */
/* The shape of the tree, collectives on their way up, output records, lists of strings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "overlay/messages.h"
#include "process/supervise.h"
#include "overlay/tree.h"

static void test_shape(void **state)
{
	static const struct {
		size_t count, fanout;
		long above;
		size_t first, end;
		const char *reason;
	} rows[] = {
		{1, 32, -1, 0, 1, "one node below the controller"},
		{32, 32, -1, 0, 32, "all below the controller"},
		{33, 32, -1, 0, 32, "one more than the fan-out"},
		{33, 32, 0, 32, 33, "the 33rd is below node 0"},
		{33, 32, 1, 33, 33, "no node below node 1"},
		{7, 2, -1, 0, 2, "fan-out 2"},
		{7, 2, 0, 2, 4, "its first inner node"},
		{7, 2, 1, 4, 6, "the next"},
		{7, 2, 2, 6, 7, "truncated at the end"},
		{7, 2, 6, 7, 7, "a leaf"},
		{5, 1, 3, 4, 5, "a chain"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		size_t first, end;

		tree_children(rows[i].above, rows[i].count, rows[i].fanout, &first, &end);
		if (first != rows[i].first || end != rows[i].end)
			fail_msg("%s: [%zu, %zu)", rows[i].reason, first, end);
	}
}

/* For all sizes: every node has one parent, which lists it as a child. */
static void test_every_node_is_reached_once(void **state)
{
	static const size_t fanouts[] = {1, 2, 3, 32};

	(void)state;
	for (size_t f = 0; f < sizeof fanouts / sizeof *fanouts; f++) {
		for (size_t count = 1; count < 140; count++) {
			size_t fanout = fanouts[f], seen = 0;

			for (long above = -1; above < (long)count; above++) {
				size_t first, end;

				tree_children(above, count, fanout, &first, &end);
				assert_true(end - first <= fanout);
				for (size_t n = first; n < end; n++, seen++)
					assert_int_equal(tree_parent(n, fanout), above);
			}
			assert_int_equal(seen, count);
		}
	}
}

static void test_gather(void **state)
{
	struct gathers below = {0}, above = {0};
	struct error err = {0};
	struct gather *g;
	void *joined;
	size_t size;

	(void)state;
	/* Nodes 2 and 5 are below node 1; node 0 contributes an empty entry. */
	g = gathers_get(&below, 9);
	assert_int_equal(gather_add(g, 5, "five", 4, NULL), 0);
	assert_int_equal(gather_add(g, 2, "two", 3, NULL), 0);
	assert_int_equal(gather_add(g, 1, "one", 3, NULL), 0);
	assert_ptr_equal(gathers_get(&below, 9), g);
	assert_null(gathers_find(&below, 8));
	struct gather *top = gathers_get(&above, 9);

	assert_int_equal(gather_merge(top, g->entries.data, g->entries.size, 6, &err), 0);
	assert_int_equal(top->nodes, 3);
	assert_int_equal(gather_add(top, 0, "", 0, NULL), 0);
	assert_int_equal(gather_join(top, 6, &joined, &size, &err), 0);
	assert_int_equal(size, 10);
	assert_memory_equal(joined, "onetwofive", 10);
	free(joined);
	/* Entries that are truncated, of an unknown node, or repeated. */
	for (size_t cut = 1; cut < g->entries.size; cut++) {
		size_t before = top->entries.size;
		int rc = gather_merge(top, g->entries.data, cut, 6, &err);

		assert_true(rc == -ERR_DATA || cut == 12 || cut == 23);
		if (rc)
			assert_int_equal(top->entries.size, before);
	}
	assert_int_equal(gather_merge(top, g->entries.data, g->entries.size, 5, &err), -ERR_DATA);
	assert_int_equal(gather_join(top, 6, &joined, &size, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "twice"));
	gathers_free(&below);
	gathers_free(&above);
	assert_int_equal(below.count, 0);
}

static void test_gathers_are_bounded(void **state)
{
	struct gathers gathers = {0};

	(void)state;
	for (uint64_t i = 0; i < GATHERS_MAX; i++)
		assert_non_null(gathers_get(&gathers, i));
	assert_null(gathers_get(&gathers, GATHERS_MAX));
	gathers_drop(&gathers, gathers_find(&gathers, 17));
	assert_non_null(gathers_get(&gathers, GATHERS_MAX));
	gathers_free(&gathers);
}

static void test_output_records(void **state)
{
	struct bytes bytes = {0};
	struct message_output in = {3, SUPERVISE_STDERR, true, "a\0b", 3}, out;
	struct error err = {0};

	(void)state;
	assert_int_equal(message_add_output(&bytes, &in), 0);
	in = (struct message_output){70000, SUPERVISE_STDOUT, false, "", 0};
	assert_int_equal(message_add_output(&bytes, &in), 0);
	const unsigned char *at = bytes.data;
	size_t left = bytes.size;

	assert_int_equal(message_next_output(&at, &left, &out, &err), 1);
	assert_int_equal(out.rank, 3);
	assert_int_equal(out.stream, SUPERVISE_STDERR);
	assert_true(out.newline);
	assert_int_equal(out.size, 3);
	assert_memory_equal(out.text, "a\0b", 3);
	assert_int_equal(message_next_output(&at, &left, &out, &err), 1);
	assert_int_equal(out.rank, 70000);
	assert_false(out.newline);
	assert_int_equal(message_next_output(&at, &left, &out, &err), 0);
	for (size_t cut = 1; cut < 13; cut++) {
		at = bytes.data;
		left = cut;
		assert_int_equal(message_next_output(&at, &left, &out, &err), -ERR_DATA);
	}
	bytes_free(&bytes);
}

static void test_strings(void **state)
{
	const char *in[] = {"", "\xff\xfe", "NAME=VALUE with = and \n"};
	struct bytes bytes = {0};
	const char **out;
	size_t count;
	struct error err = {0};

	(void)state;
	assert_int_equal(bytes_add_strings(&bytes, in, 3), 0);
	assert_int_equal(bytes_add_strings(&bytes, NULL, 0), 0);
	const unsigned char *at = bytes.data;
	size_t left = bytes.size;

	assert_int_equal(bytes_next_strings(&at, &left, &out, &count, &err), 0);
	assert_int_equal(count, 3);
	for (size_t i = 0; i < 3; i++)
		assert_string_equal(out[i], in[i]);
	assert_null(out[3]);
	free(out);
	assert_int_equal(bytes_next_strings(&at, &left, &out, &count, &err), 0);
	assert_int_equal(count, 0);
	assert_int_equal(left, 0);
	free(out);
	for (size_t cut = 0; cut < bytes.size - 4; cut++) {
		at = bytes.data;
		left = cut;
		assert_int_equal(bytes_next_strings(&at, &left, &out, &count, &err), -ERR_DATA);
	}
	bytes_put_u32(bytes.data, UINT32_MAX);
	at = bytes.data;
	left = bytes.size;
	assert_int_equal(bytes_next_strings(&at, &left, &out, &count, &err), -ERR_DATA);
	bytes_free(&bytes);
}

/* Appending and dropping in all proportions keeps the bytes in order. */
static void test_buffer(void **state)
{
	struct bytes bytes = {0};
	unsigned char in = 0, out = 0;
	unsigned seed = 1;

	(void)state;
	for (int i = 0; i < 20000; i++) {
		seed = seed * 1103515245u + 12345u;
		size_t add = (seed >> 16) % 300, drop = (seed >> 8) % 301;
		unsigned char *at = bytes_extend(&bytes, add);

		assert_true(at || !add);
		for (size_t k = 0; k < add; k++)
			at[k] = in++;
		drop = drop < bytes.size ? drop : bytes.size;
		for (size_t k = 0; k < drop; k++)
			assert_int_equal(bytes.data[k], out++);
		bytes_drop(&bytes, drop);
	}
	bytes_free(&bytes);
}

static void test_words(void **state)
{
	const char *const list[] = {"b c", "", NULL};
	struct words words = {0};
	char **argv = words_end(&words);

	assert_non_null(argv);
	assert_null(argv[0]);
	free(argv);
	words_add(&words, "a=%d", 1);
	words_add_list(&words, list);
	words_add_list(&words, NULL);
	argv = words_end(&words);
	assert_non_null(argv);
	assert_string_equal(argv[0], "a=1");
	assert_string_equal(argv[1], "b c");
	assert_string_equal(argv[2], "");
	assert_null(argv[3]);
	free(argv);
	words.failed = true;
	words_add(&words, "a");
	assert_null(words_end(&words));
	assert_int_equal(words.count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shape),
		cmocka_unit_test(test_every_node_is_reached_once),
		cmocka_unit_test(test_gather),
		cmocka_unit_test(test_gathers_are_bounded),
		cmocka_unit_test(test_output_records),
		cmocka_unit_test(test_strings),
		cmocka_unit_test(test_buffer),
		cmocka_unit_test(test_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
