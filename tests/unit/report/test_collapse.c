/* SPDX-License-Identifier: BSD-3-Clause */
/* Identical lines of several ranks become one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report/collapse.h"

struct seen {
	char text[4096];
	size_t lines, bytes;
};

static void print(void *context, const char *ranks, int rank, bool is_err, const char *text,
		  size_t size, bool newline)
{
	struct seen *seen = context;
	size_t used = strlen(seen->text);

	snprintf(seen->text + used, sizeof seen->text - used, "%s%d[%s]%.*s%s", is_err ? "E" : "",
		 rank, ranks, (int)size, text, newline ? ";" : "+");
	seen->lines++;
	seen->bytes += size;
}

/* A row is a list of "RANK TIME TEXT"; "!" before TEXT means stderr, "+" a piece. */
static void rows(void **state)
{
	static const struct {
		const char *name;
		int ranks;
		const char *lines[10];
		int64_t end_ms;
		const char *expected;
	} list[] = {
		{"all ranks: at once", 3, {"0 0 a", "1 0 a", "2 0 a"}, 0, "0[0-2]a;"},
		{"one is missing: after the time", 3, {"2 0 a", "0 0 a"}, 0, ""},
		{"one is missing: after the time", 3, {"2 0 a", "0 0 a"}, COLLAPSE_MS, "0[0,2]a;"},
		{"the odd one stands out",
		 3,
		 {"0 0 a", "1 0 b", "2 0 a", "1 1 a"},
		 COLLAPSE_MS,
		 "1[1]b;0[0-2]a;"},
		{"many places between two lines",
		 2,
		 {"0 0 a", "0 0 b", "1 0 a", "1 0 c", "1 0 d", "0 0 e", "1 0 b", "1 0 e"},
		 INT64_MAX,
		 "0[0-1]a;1[1]c;1[1]d;0[0-1]b;0[0-1]e;"},
		{"a rank's lines stay in order",
		 2,
		 {"0 0 a", "0 0 b", "1 0 b", "1 0 a"},
		 INT64_MAX,
		 "0[0]a;0[0-1]b;1[1]a;"},
		{"the same line twice",
		 2,
		 {"0 0 a", "0 0 a", "1 0 a", "1 0 a"},
		 0,
		 "0[0-1]a;0[0-1]a;"},
		{"too late", 2, {"0 0 a", "1 900 a"}, INT64_MAX, "0[0]a;1[1]a;"},
		{"in time", 2, {"0 0 a", "1 899 a"}, INT64_MAX, "0[0-1]a;"},
		{"stdout and stderr differ", 2, {"0 0 a", "1 0 !a"}, INT64_MAX, "E1[1]a;0[0]a;"},
		{"a piece does not wait, nor does its rest",
		 2,
		 {"0 0 x", "0 0 +a", "1 0 c", "0 0 b", "1 0 d", "0 0 d"},
		 INT64_MAX,
		 "0[0]x;0[0]a+0[0]b;1[1]c;0[0-1]d;"},
		{"a piece on stderr does not keep stdout from waiting",
		 2,
		 {"0 0 x", "1 0 x", "0 0 y", "1 0 z", "0 0 !+a", "0 0 d", "1 0 d", "1 1 y"},
		 INT64_MAX,
		 "0[0-1]x;1[1]z;0[0]y;E0[0]a+0[0-1]d;1[1]y;"},
		{"a rank that is not one of the job's",
		 2,
		 {"0 0 a", "7 0 a"},
		 INT64_MAX,
		 "7[7]a;0[0]a;"},
		{"empty lines", 2, {"0 0 ", "1 0 "}, 0, "0[0-1];"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		struct collapse *collapse;
		struct seen seen = {0};

		assert_int_equal(collapse_new(list[i].ranks, print, &seen, &collapse, NULL), 0);
		for (const char *const *line = list[i].lines; *line; line++) {
			int rank, used;
			long long ms;

			assert_int_equal(sscanf(*line, "%d %lld%n", &rank, &ms, &used), 2);
			const char *text = *line + used + 1;
			bool is_err = *text == '!', piece = text[is_err] == '+';

			text += is_err + piece;
			collapse_tick(collapse, ms);
			collapse_line(collapse, rank, is_err, text, strlen(text), !piece, ms);
		}
		int64_t due = collapse_tick(collapse, list[i].end_ms);

		if (strcmp(seen.text, list[i].expected) || (list[i].end_ms == INT64_MAX && due))
			fail_msg("%s: %s, not %s; due %lld", list[i].name, seen.text,
				 list[i].expected, (long long)due);
		collapse_free(collapse);
	}
}

static void a_thousand_ranks(void **state)
{
	struct collapse *collapse;
	struct seen seen = {0};
	char text[32];

	(void)state;
	assert_int_equal(collapse_new(1024, print, &seen, &collapse, NULL), 0);
	for (int rank = 0; rank < 1024; rank++)
		for (int line = 0; line < 200; line++)
			collapse_line(collapse, rank, false, text,
				      (size_t)snprintf(text, sizeof text, "step %d", line), true,
				      rank / 2);
	assert_int_equal(seen.lines, 200);
	assert_int_equal(collapse_tick(collapse, 512), 0);
	assert_non_null(strstr(seen.text, "0[0-1023]step 199;"));
	/* The odd one, far behind the others: only its own line is printed apart. */
	memset(&seen, 0, sizeof seen);
	for (int rank = 1023; rank >= 0; rank--)
		for (int line = 0; line < 200; line++) {
			if (rank == 517 && line == 3)
				collapse_line(collapse, rank, true, "no such file", 12, true, 520);
			collapse_line(collapse, rank, false, text,
				      (size_t)snprintf(text, sizeof text, "step %d", line), true,
				      520);
		}
	collapse_tick(collapse, 520 + COLLAPSE_MS);
	assert_int_equal(seen.lines, 201);
	assert_non_null(strstr(seen.text, "0[0-1023]step 2;E517[517]no such file;"));
	/* A long list is cut. */
	memset(&seen, 0, sizeof seen);
	for (int rank = 0; rank < 1024; rank += 2)
		collapse_line(collapse, rank, false, "even", 4, true, 600);
	collapse_tick(collapse, INT64_MAX);
	assert_string_equal(seen.text, "0[0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40"
				       ",... (512 ranks)]even;");
	collapse_free(collapse);
}

/* Inserted between the same two lines again and again: there is always a place. */
static void places(void **state)
{
	struct collapse *collapse;
	struct seen seen = {0};
	char text[32];

	(void)state;
	assert_int_equal(collapse_new(300, print, &seen, &collapse, NULL), 0);
	collapse_line(collapse, 0, false, "first", 5, true, 0);
	collapse_line(collapse, 0, false, "last", 4, true, 0);
	for (int rank = 1; rank < 300; rank++) {
		collapse_line(collapse, rank, false, "first", 5, true, 0);
		collapse_line(collapse, rank, false, text,
			      (size_t)snprintf(text, sizeof text, "of %d", rank), true, 0);
	}
	for (int rank = 1; rank < 300; rank++)
		collapse_line(collapse, rank, false, "last", 4, true, 0);
	collapse_tick(collapse, INT64_MAX);
	assert_int_equal(seen.lines, 2 + 299);
	collapse_free(collapse);
}

/* Lines that never match: nothing is lost, and memory is bounded. */
static void different_lines(void **state)
{
	struct collapse *collapse;
	struct seen seen = {0};
	char *text = calloc(1, 65536);
	size_t bytes = 0;

	(void)state;
	assert_int_equal(collapse_new(1024, print, &seen, &collapse, NULL), 0);
	for (int i = 0; i < 20000; i++) {
		size_t size = (size_t)snprintf(text, 65536, "%d", i);

		size = i % 20 ? size : 65536;
		collapse_line(collapse, i % 1024, false, text, size, true, 0);
		bytes += size;
		assert_true(bytes - seen.bytes <= COLLAPSE_BYTES);
	}
	assert_true(bytes - seen.bytes > COLLAPSE_BYTES / 2); /* the bound was reached */
	collapse_tick(collapse, INT64_MAX);
	assert_int_equal(seen.lines, 20000);
	assert_int_equal(seen.bytes, bytes);
	collapse_free(collapse);
	free(text);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows),
		cmocka_unit_test(a_thousand_ranks),
		cmocka_unit_test(places),
		cmocka_unit_test(different_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
