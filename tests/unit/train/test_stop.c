/* SPDX-License-Identifier: BSD-3-Clause */
/* When a run stops because of the job's time limit; the test sets the clocks. */
#include "../../support/files.h"
#include "../rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "train/run/stop.h"

static int64_t monotonic_s, wall_s;

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
	*out = (struct timespec){.tv_sec = clock == CLOCK_MONOTONIC ? monotonic_s : wall_s};
	return 0;
}

/* At 0 s, 600 s are left. A step takes at most 1 s and a save 10 s, so the run must stop 20 s
 * before the end. */
static void ends(void **state)
{
	static const struct {
		int64_t after_s, set_s; /* how much the wall clock was set by */
		bool stops;
		const char *why;
	} rows[] = {
		{0, 0, false, "600 s are left"},
		{579, 0, false, "21 s are left, 20 are needed"},
		{580, 0, true, "20 s are left"},
		{700, 0, true, "the time limit has passed"},
		{1, 100000, false, "the clock was set ahead: 599 s are still left"},
		{579, 100000, false, "21 s are left"},
		{580, -100000, true, "the clock was set back: the end still comes"},
		{1, -2000000000, false, "a clock before 1970"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct stop stop;
		char text[200];

		monotonic_s = 5000;
		wall_s = 1700000000;
		stop_init(&stop, NULL, false, wall_s + 600, NULL);
		stop_record(&stop.step_s, 1);
		stop_record(&stop.save_s, 10);
		assert_true(stop_reserve(&stop) == 20);
		monotonic_s += rows[i].after_s;
		wall_s += rows[i].after_s + rows[i].set_s;
		if (stop_wanted(&stop, 0) != rows[i].stops)
			fail_msg("%s", rows[i].why);
		/* Work that starts now must end in time. */
		assert_int_equal(stop_wanted(&stop, 700), true);
		stop_text(&stop, STOP_TIME, text, sizeof text);
		if (rows[i].after_s == 580)
			assert_non_null(strstr(text, "reached in 20 s"));
	}
}

/* With an unknown end time the run never stops for it. */
static void without(void **state)
{
	struct stop stop;

	monotonic_s = 5000;
	wall_s = 1700000000;
	stop_init(&stop, "", false, 0, NULL);
	wall_s += 1000000000;
	monotonic_s += 1000000000;
	assert_false(stop_wanted(&stop, 1e9));
}

/* berth run writes the end time when the scheduler has answered. */
static void later(void **state)
{
	char path[] = "/tmp/berth-test-end-XXXXXX", text[40];
	int fd = mkstemp(path);
	struct stop stop;

	assert_true(fd >= 0);
	close(fd);
	monotonic_s = 5000;
	wall_s = 1700000000;
	stop_init(&stop, NULL, false, wall_s + 600, path);
	assert_false(stop_wanted(&stop, 500));
	write_text(path, "soon\n", 0644);
	monotonic_s += 1;
	assert_false(stop_wanted(&stop, 500));
	snprintf(text, sizeof text, "%lld\n", (long long)wall_s + 3600);
	write_text(path, text, 0644);
	monotonic_s += 1;
	assert_false(stop_wanted(&stop, 3000));
	snprintf(text, sizeof text, "%lld\n", (long long)wall_s + 60);
	write_text(path, text, 0644);
	assert_false(stop_wanted(&stop, 100)); /* it is read twice a second */
	monotonic_s += 1;
	assert_true(stop_wanted(&stop, 100));
	assert_int_equal(stop.cause, STOP_TIME);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends),
		cmocka_unit_test(without),
		cmocka_unit_test(later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
