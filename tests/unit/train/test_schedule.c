/* SPDX-License-Identifier: BSD-3-Clause */
/* Learning rates as PyTorch's schedulers step them, and what is refused. */
#include "../rows.h"

#include <math.h>

#include "train/model/schedule.h"

struct schedule_vector {
	struct schedule schedule;
	double lr[36]; /* SCHEDULE_PER_EPOCH an epoch */
};
#include "schedules.h"

static void test_torch(void **state)
{
	for (size_t i = 0; i < ROWS(schedule_vectors); i++) {
		const struct schedule_vector *vector = &schedule_vectors[i];
		int64_t updates = vector->schedule.epochs * SCHEDULE_PER_EPOCH;

		assert_in_range(updates, 1, ROWS(vector->lr));
		for (int64_t s = 0; s < updates; s++) {
			double lr = schedule_lr(&vector->schedule, s / SCHEDULE_PER_EPOCH, s);

			if (fabs(lr - vector->lr[s]) > 1e-12 * vector->schedule.lr)
				fail_msg("vector %zu (%s), update %d: %.17g, PyTorch %.17g", i,
					 schedule_name(vector->schedule.kind), (int)s, lr,
					 vector->lr[s]);
		}
	}
}

static void test_names(void **state)
{
	for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
		enum schedule_kind parsed = SCHEDULE_KINDS;

		assert_int_equal(
			schedule_parse(schedule_name((enum schedule_kind)kind), &parsed, NULL), 0);
		assert_int_equal(parsed, kind);
	}
	enum schedule_kind kind = SCHEDULE_STEP;
	struct error err;

	assert_int_equal(schedule_parse("linear", &kind, &err), -ERR_USAGE);
	assert_non_null(strstr(err.text, "multistep"));
	assert_int_equal(kind, SCHEDULE_STEP);
}

static void test_milestones(void **state)
{
	static const char *const bad[] = {"",
					  "30,",
					  ",30",
					  "30,30",
					  "60,30",
					  "0",
					  "-1",
					  "3.5",
					  "1 , 2",
					  "x",
					  "1,,2",
					  " 1",
					  "1\n",
					  "1e3",
					  "99999999999999999999",
					  ("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,"
					   "22,23,24,25,26,27,28,29,30,31,32,33")};
	struct schedule schedule = {.milestone_count = 7};

	for (size_t i = 0; i < ROWS(bad); i++) {
		struct error err = {0};

		assert_int_equal(schedule_parse_milestones(bad[i], &schedule, &err), -ERR_USAGE);
		assert_non_null(strstr(err.text, "--milestones"));
		assert_int_equal(schedule.milestone_count, 7);
	}
	assert_int_equal(schedule_parse_milestones("30,60,80", &schedule, NULL), 0);
	assert_int_equal(schedule.milestone_count, 3);
	assert_int_equal(schedule.milestones[2], 80);
	assert_int_equal(schedule_parse_milestones("5", &schedule, NULL), 0);
	assert_int_equal(schedule.milestone_count, 1);
}

static void test_warmup(void **state)
{
	static const char *const bad[] = {"", "e", "-1", "5ee", "5 e", "1.5e", "5s", "e5", "1e3"};
	struct schedule schedule = {.warmup = 7};

	for (size_t i = 0; i < ROWS(bad); i++) {
		struct error err = {0};

		assert_int_equal(schedule_parse_warmup(bad[i], &schedule, &err), -ERR_USAGE);
		assert_non_null(strstr(err.text, "--warmup"));
		assert_int_equal(schedule.warmup, 7);
	}
	assert_int_equal(schedule_parse_warmup("5e", &schedule, NULL), 0);
	assert_int_equal(schedule.warmup_unit, WARMUP_EPOCHS);
	assert_int_equal(schedule.warmup, 5);
	assert_int_equal(schedule_parse_warmup("500", &schedule, NULL), 0);
	assert_int_equal(schedule.warmup_unit, WARMUP_STEPS);
	assert_int_equal(schedule_parse_warmup("0e", &schedule, NULL), 0);
	assert_int_equal(schedule.warmup_unit, WARMUP_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_torch),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_milestones),
		cmocka_unit_test(test_warmup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
