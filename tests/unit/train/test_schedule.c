/* SPDX-License-Identifier: BSD-3-Clause */
/* Learning rates compared with PyTorch's schedulers, and refused options. */
#include "../../support/vectors.h"
#include "../rows.h"

#include <math.h>

#include "train/model/schedule.h"

/* The first fields of a row; FIRST_LR is the number of the next one. */
#define FIRST_LR 9
static struct schedule schedule_of(const struct vector_row *row)
{
	struct schedule schedule = {
		.lr = vector_real(row, 1),
		.epochs = vector_int(row, 2),
		.step_size = vector_int(row, 3),
		.gamma = vector_real(row, 4),
		.warmup_start = vector_real(row, 7),
	};

	assert_int_equal(schedule_parse(vector_text(row, 0), &schedule.kind, NULL), 0);
	assert_int_equal(schedule_parse_milestones(vector_text(row, 5), &schedule, NULL), 0);
	assert_int_equal(schedule_parse_warmup(vector_text(row, 6), &schedule, NULL), 0);
	return schedule;
}

static void test_torch(void **state)
{
	struct vector_table table = vectors_read("schedules.txt", "schedule");

	for (size_t i = 0; i < table.count; i++) {
		const struct vector_row *row = &table.rows[i];
		struct schedule schedule = schedule_of(row);
		int64_t per_epoch = vector_int(row, 8), updates = schedule.epochs * per_epoch;

		assert_in_range(updates, 1, row->count);
		assert_int_equal(updates, row->count - FIRST_LR);
		for (int64_t s = 0; s < updates; s++) {
			double lr = schedule_lr(&schedule, s / per_epoch, s);
			double expected = vector_real(row, FIRST_LR + (int)s);

			if (fabs(lr - expected) > 1e-12 * schedule.lr)
				fail_msg("vector %zu (%s), update %d: %.17g, PyTorch %.17g", i,
					 schedule_name(schedule.kind), (int)s, lr, expected);
		}
	}
	vectors_free(&table);
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
