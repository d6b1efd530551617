/* SPDX-License-Identifier: BSD-3-Clause */
/* What follows a stop signal: signal, source and the scheduler's limit; then how the ranks ended.
 * When the controller looks at the time limit. */
#include "controller/stop.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_times(void **state)
{
	static const int stops[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
	static const int others[] = {SIGUSR1, SIGUSR2};
	static const struct {
		bool by_scheduler;
		int64_t wait, grace, kill, report;
	} table[] = {
		/* only berth kills */
		{false, 0, 30000, 30000, -1},
		{false, 30000, 3000, 3000,
		 -1}, /* a user's kill inside a job: no scheduler's follows */
		/* the scheduler does, sooner or later than --stop-grace */
		{true, 30000, 3000, -1, 26000},
		{true, 10000, 30000, -1, 6000},
		{true, 8000, 30000, -1, 4000},
		{true, 2000, 30000, -1, 1000},
		{true, 600000, 30000, -1, 596000},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		for (size_t s = 0; s < sizeof stops / sizeof *stops; s++) {
			struct stop_times got = stop_times(stops[s], table[i].by_scheduler,
							   table[i].wait, table[i].grace);

			if (got.kill_ms != table[i].kill || got.report_ms != table[i].report)
				fail_msg("row %zu, signal %d: kill %lld, report %lld", i, stops[s],
					 (long long)got.kill_ms, (long long)got.report_ms);
		}
		for (size_t s = 0; s < sizeof others / sizeof *others; s++) {
			struct stop_times got = stop_times(others[s], table[i].by_scheduler,
							   table[i].wait, table[i].grace);

			assert_true(got.kill_ms == -1 && got.report_ms == -1);
		}
	}
}

/* Each behaviour of a rank with each of another one. */
static void test_codes(void **state)
{
	static const struct {
		const char *what;
		int code, signal;
		bool by_berth;
	} ends[] = {
		{"saved", 75, 0, false},
		{"was done", 0, 0, false},
		{"exited with 143", 143, 0, false},
		{"raised", 1, 0, false},
		{"died of the signal", 143, SIGTERM, false},
		{"died of KeyboardInterrupt", 130, SIGINT, false},
		{"lost its peer", 141, SIGPIPE, false},
		{"ignored it", 137, SIGKILL, true},
		{"crashed", 139, SIGSEGV, false},
		{"called abort", 134, SIGABRT, false},
	};

	for (size_t a = 0; a < sizeof ends / sizeof *ends; a++)
		for (size_t b = 0; b < sizeof ends / sizeof *ends; b++) {
			const size_t both[] = {a, b};
			struct stop_ends sum = {0};
			int expected = 143;

			for (size_t i = 0; i < 2; i++) {
				size_t at = both[i];
				bool crash = !ends[at].by_berth &&
					     stop_is_crash(ends[at].signal, SIGTERM);

				assert_int_equal(crash, at >= 8);
				sum.crash = !sum.crash && crash ? ends[at].code : sum.crash;
				sum.saved += at == 0;
				sum.done += at == 1;
				sum.others += at > 1;
			}
			if (a >= 8 || b >= 8)
				expected = ends[a >= 8 ? a : b].code;
			else if (a < 2 && b < 2)
				expected = a == 1 && b == 1 ? 0 : 75;
			if (stop_code(SIGTERM, &sum) != expected)
				fail_msg("one rank %s, the other %s: code %d", ends[a].what,
					 ends[b].what, stop_code(SIGTERM, &sum));
		}
	assert_int_equal(stop_code(SIGINT, &(struct stop_ends){.others = 1}), 130);
	assert_int_equal(stop_code(SIGHUP, &(struct stop_ends){.saved = 3, .others = 1}), 129);
}

/* After a warning nothing is due, or the loop would spin. */
static void test_time_due(void **state)
{
	static const struct {
		int64_t warn_ms, recheck_ms, due;
	} rows[] = {{0, 0, 0}, {5000, 0, 5000}, {5000, 6000, 6000}, {0, 6000, 0}};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_int_equal(stop_warning_due(rows[i].warn_ms, rows[i].recheck_ms),
				 rows[i].due);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_times),
		cmocka_unit_test(test_codes),
		cmocka_unit_test(test_time_due),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
