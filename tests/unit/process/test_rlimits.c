/* SPDX-License-Identifier: BSD-3-Clause */
/* The limits that ranks get: equal to berth run's as far as the hard ones allow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "process/rlimits.h"

static struct rlimit get(int which)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(which, &limit), 0);
	return limit;
}

static void set(int which, rlim_t soft, rlim_t hard)
{
	assert_int_equal(setrlimit(which, &(struct rlimit){soft, hard}), 0);
}

static void test_json_round_trip(void **state)
{
	struct limits limits, again, unknown = {0};
	mode_t before = umask(027);
	json_t *json;

	limits_read(&limits);
	assert_int_equal(umask(before), 027); /* reading changes nothing */
	assert_int_equal(limits.umask, 027);
	limits.soft[RLIMIT_NOFILE] = 333;
	limits.soft[RLIMIT_STACK] = RLIM_INFINITY;
	json = limits_to_json(&limits);
	limits_from_json(json, &again);
	assert_true(again.known);
	assert_int_equal(again.umask, 027);
	assert_memory_equal(again.soft, limits.soft, sizeof limits.soft);
	json_decref(json);
	assert_null(limits_to_json(&unknown));
}

static void test_other_json_is_not_known(void **state)
{
	static const char *const texts[] = {
		"null",
		"{}",
		"[]",
		"{\"umask\": 18}",
		"{\"umask\": 18, \"soft\": [1, 2]}",
		"{\"umask\": \"18\", \"soft\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}",
		"{\"umask\": 18, \"soft\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,\"1\"]}"};

	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		json_t *json = json_loads(texts[i], JSON_DECODE_ANY, NULL);
		struct limits limits;

		assert_non_null(json);
		limits_from_json(json, &limits);
		assert_false(limits.known);
		json_decref(json);
	}
}

/* Limits are those of the process, so each case has its own. */
static void in_child(void (*body)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid) {
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void lower_and_raise(void)
{
	struct limits limits;
	char text[300];

	set(RLIMIT_NOFILE, 100, 200);
	set(RLIMIT_CORE, 0, 1 << 20);
	set(RLIMIT_MEMLOCK, 65536, 65536);
	limits_read(&limits);
	limits.soft[RLIMIT_NOFILE] = 150;
	limits.soft[RLIMIT_CORE] = RLIM_INFINITY;
	limits.soft[RLIMIT_MEMLOCK] = 4096;
	limits_apply(&limits);
	if (get(RLIMIT_NOFILE).rlim_cur != 150 || get(RLIMIT_NOFILE).rlim_max != 200)
		_exit(1);
	if (get(RLIMIT_CORE).rlim_cur != 1 << 20)
		_exit(2);
	if (get(RLIMIT_MEMLOCK).rlim_cur != 65536)
		_exit(3);
	limits_lacking(&limits, text, sizeof text);
	if (strcmp(text, "core file size: 1048576 of unlimited"))
		_exit(4);
	limits.soft[RLIMIT_NOFILE] = 300;
	limits_lacking(&limits, text, sizeof text);
	if (strcmp(text, "core file size: 1048576 of unlimited, open files: 200 of 300"))
		_exit(5);
	limits.known = false;
	limits_apply(&limits);
	limits_lacking(&limits, text, sizeof text);
	if (text[0] || get(RLIMIT_NOFILE).rlim_cur != 150)
		_exit(6);
}

static void test_apply_and_lacking(void **state)
{
	in_child(lower_and_raise);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json_round_trip),
		cmocka_unit_test(test_other_json_is_not_known),
		cmocka_unit_test(test_apply_and_lacking),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
