/* SPDX-License-Identifier: BSD-3-Clause */
/* Which way of computing a layer is taken, by a pretended clock; and the file that keeps the choices:
 * what is damaged, foreign or of another form counts as not there. No GPU and no toolkit is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../rows.h"
#include "train/device/cuda/tuning/candidates.h"
#include "train/device/cuda/tuning/tuning_cache.h"

#define WAYS 5

/* time: NAN: it cannot be built; negative: it fails when it runs. */
struct row {
	const char *why;
	int count;
	double times[WAYS];
	bool wrong[WAYS];
	int taken;
};

static const struct row rows[] = {
	{"the first alone", 1, {3}, {0}, 0},
	{"the fastest", 4, {3, 2, 1, 2}, {0}, 2},
	{"the first is the fastest", 3, {1, 2, 3}, {0}, 0},
	{"of equal ones the first", 3, {3, 1, 1}, {0}, 1},
	{"hardly faster is not worth it", 2, {1, 0.99}, {0}, 0},
	{"what cannot be built is passed over", 4, {3, NAN, 2, NAN}, {0}, 2},
	{"what fails when it runs, too", 4, {3, -1, -1, 2.5}, {0}, 3},
	{"a clock that is none", 3, {3, INFINITY, 2}, {0}, 2},
	{"what is wrong, too, however fast", 4, {3, 0.1, 0.2, 2}, {0, true, true, false}, 3},
	{"all wrong: the first", 3, {3, 1, 2}, {0, true, true}, 0},
	{"the first cannot be had: none", 3, {NAN, 1, 2}, {0}, -1},
	{"the first fails: none", 3, {-1, 1, 2}, {0}, -1},
	{"none at all", 0, {0}, {0}, -1},
};

struct pretence {
	const struct row *row;
	bool built[WAYS];
};

static bool build(void *context, int way)
{
	struct pretence *pretence = context;

	assert_false(pretence->built[way]);
	return pretence->built[way] = !isnan(pretence->row->times[way]);
}

static double time_ms(void *context, int way)
{
	struct pretence *pretence = context;

	assert_true(pretence->built[way]);
	return pretence->row->times[way];
}

static bool right(void *context, int way)
{
	struct pretence *pretence = context;

	assert_true(way > 0 && pretence->built[way]);
	return !pretence->row->wrong[way];
}

static void drop(void *context, int way)
{
	struct pretence *pretence = context;

	assert_true(way > 0 && pretence->built[way]);
	pretence->built[way] = false;
}

static void ways(void **state)
{
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct pretence pretence = {.row = &rows[i]};
		const struct choose_ways all = {&pretence, rows[i].count, CHOOSE_GAIN, build,
						time_ms,   right,	  drop};
		double best[2] = {-7, -7};
		int taken = choose_way(&all, best);

		if (taken != rows[i].taken)
			fail_msg("%s: way %d, expected %d", rows[i].why, taken, rows[i].taken);
		if (taken >= 0 && (best[0] != rows[i].times[taken] ||
				   best[1] != rows[i].times[0]))
			fail_msg("%s: %g ms of %g", rows[i].why, best[0], best[1]);
		for (int way = 1; way < WAYS; way++)
			if (pretence.built[way] != (way == taken))
				fail_msg("%s: way %d was %s", rows[i].why, way,
					 way == taken ? "dropped" : "not dropped");
	}
}

/* Where something else is to be gained the first way's time is no bound. */
static void slower(void **state)
{
	static const struct row row = {.count = 3, .times = {1, 3, 2}};
	struct pretence pretence = {.row = &row};
	struct choose_ways all = {&pretence, row.count, HUGE_VAL, build, time_ms, right, drop};
	double times[2];

	assert_int_equal(choose_way(&all, times), 2);
	assert_true(times[0] == 2 && times[1] == 1);
	pretence = (struct pretence){.row = &row};
	all.gain = CHOOSE_GAIN;
	assert_int_equal(choose_way(&all, times), 0);
}

/* ---- the file ---- */

static const int one[CHOICE_NUMBERS] = {1, 2, 3, 4, 5, 6, -1, 8, 9, 10,
					  11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
static const int two[CHOICE_NUMBERS] = {7};

static void keep(void **state)
{
	char folder[] = "/tmp/berth-choices-XXXXXX", path[64];
	int numbers[CHOICE_NUMBERS];
	struct stat status;

	assert_non_null(mkdtemp(folder));
	/* A folder that is not there yet is made. */
	snprintf(path, sizeof path, "%s/a/b", folder);

	struct choices *mine = choices_open_file(path);

	assert_non_null(mine);
	choices_save(mine); /* nothing new: nothing is written */
	assert_int_not_equal(stat(path, &status), 0);
	choices_add(mine, "conv f16 a", one);

	/* Another process that began as empty, and is done first: nothing of it is lost. */
	struct choices *theirs = choices_open_file(path);

	assert_non_null(theirs);
	choices_add(theirs, "conv f16 b", two);
	choices_save(theirs);
	choices_save(mine);
	choices_free(theirs);
	choices_free(mine);
	/* What could not be taken any more is found anew, and replaced. */
	mine = choices_open_file(path);
	choices_add(mine, "conv f16 a", two);
	choices_save(mine);
	choices_add(mine, "conv f16 a", one);
	choices_save(mine);
	choices_free(mine);
	mine = choices_open_file(path);
	assert_true(choices_find(mine, "conv f16 a", numbers));
	assert_memory_equal(numbers, one, sizeof one);
	assert_true(choices_find(mine, "conv f16 b", numbers));
	assert_memory_equal(numbers, two, sizeof two);
	/* Another shape, type or rule is another key. */
	assert_false(choices_find(mine, "conv bf16 a", numbers));
	assert_false(choices_find(mine, "conv f16", numbers));
	choices_free(mine);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof path, "%s/a", folder);
	rmdir(path);
	rmdir(folder);
}

static void damaged(void **state)
{
	static const struct {
		const char *text, *why;
		bool found;
	} files[] = {
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20\n", "as it is written", true},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20", "without its end", true},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14\n", "an older form", false},
		{"k 1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20\n", "no tab", false},
		{"k\t1 2 3 4 x 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20\n", "no number", false},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 99999999999999999999\n", "too large a number", false},
		{"k\t1 2 3 4 5 6 -2 8 9 10 11 12 13 14 15 16 17 18 19 20\n", "a number that none is", false},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 21\n", "one more", false},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20z\n", "something behind", false},
		{"\x7f" "ELF\x02\x01\x01\n\t\t\nk", "another file", false},
		{"\n\n\t\nj\t1\nk\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20\n", "behind damaged lines", true},
		{"", "nothing", false},
	};
	char path[] = "/tmp/berth-choices-XXXXXX";
	int fd = mkstemp(path), numbers[CHOICE_NUMBERS];

	assert_true(fd >= 0);
	for (size_t i = 0; i < ROWS(files); i++) {
		size_t size = strlen(files[i].text);

		assert_int_equal(ftruncate(fd, 0), 0);
		assert_int_equal(pwrite(fd, files[i].text, size, 0), (ssize_t)size);

		struct choices *choices = choices_open_file(path);

		assert_non_null(choices);
		if (choices_find(choices, "k", numbers) != files[i].found)
			fail_msg("%s: %s", files[i].why, files[i].found ? "not found" : "found");
		if (files[i].found)
			assert_memory_equal(numbers, one, sizeof one);
		choices_free(choices);
	}
	close(fd);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ways), cmocka_unit_test(slower),
		cmocka_unit_test(keep),
		cmocka_unit_test(damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
