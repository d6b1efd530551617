/* SPDX-License-Identifier: BSD-3-Clause */
/* Slurm's task lists, and the port that ranks agree on without asking. The launchers' variables are
 * tested from outside (tests/cli/exec.bats). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "exec_place.h"

static void test_tasks(void **state)
{
	static const struct {
		const char *text;
		int node, tasks; /* tasks -1: must fail */
		const char *reason;
	} rows[] = {
		{"4", 0, 4, "one node"},
		{"2(x3),1", 0, 2, "first of a run"},
		{"2(x3),1", 2, 2, "last of a run"},
		{"2(x3),1", 3, 1, "after a run"},
		{"2(x3),1", 4, -1, "no such node"},
		{"0,5", 1, 5, "a node without tasks before"},
		{"", 0, -1, "empty"},
		{"x", 0, -1, "no number"},
		{"2(x", 0, -1, "cut"},
		{"2(x0)", 0, -1, "no times"},
		{"2(x3", 0, -1, "no closing bracket"},
		{"2 ,1", 1, -1, "a space"},
		{"-2", 0, -1, "a sign"},
		{"99999999999999999999", 0, -1, "more than anything"},
		{"1(x99999999999999999999)", 0, -1, "more nodes than anything"},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		int tasks = 12345;
		struct error err = {0};
		int rc = exec_place_tasks(rows[i].text, rows[i].node, &tasks, &err);

		if (rows[i].tasks < 0 ? rc != -ERR_DATA || tasks != 12345
				      : rc || tasks != rows[i].tasks)
			fail_msg("%s ('%s' node %d): %d, %d", rows[i].reason, rows[i].text,
				 rows[i].node, rc, tasks);
	}
}

static void test_port(void **state)
{
	struct exec_place place = {.job = "123.0"}, other = {.job = "124.0"}, none = {0};

	assert_int_equal(exec_place_port(&place, 1), exec_place_port(&place, 2));
	assert_int_not_equal(exec_place_port(&place, 1), exec_place_port(&other, 1));
	assert_int_not_equal(exec_place_port(&none, 1), exec_place_port(&none, 2));
	for (long salt = 0; salt < 1000; salt++)
		assert_in_range(exec_place_port(&none, salt), 10000, 29999);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tasks),
		cmocka_unit_test(test_port),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
