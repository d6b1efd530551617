/* SPDX-License-Identifier: BSD-3-Clause */
/* Which candidate for a layer is chosen, with a simulated clock; and the file that caches the
 * choices, whose damaged, foreign or differently formatted entries are ignored. Needs neither a GPU
 * nor a toolkit. */
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

#define CONV_ENGINES 5

/* time: NAN if the candidate cannot be built, negative if it fails when it runs. */
struct row {
	const char *why;
	int count;
	double times[CONV_ENGINES];
	bool wrong[CONV_ENGINES];
	int taken;
};

static const struct row rows[] = {
	{"only the first", 1, {3}, .taken = 0},
	{"the fastest is chosen", 4, {3, 2, 1, 2}, .taken = 2},
	{"the first is the fastest", 3, {1, 2, 3}, .taken = 0},
	{"the first among equal ones", 3, {3, 1, 1}, .taken = 1},
	{"slightly faster is not enough", 2, {1, 0.99}, .taken = 0},
	{"a candidate that cannot be built is skipped", 4, {3, NAN, 2, NAN}, .taken = 2},
	{"so is one that fails when it runs", 4, {3, -1, -1, 2.5}, .taken = 3},
	{"measured times that make no sense", 3, {3, INFINITY, 2}, .taken = 2},
	{"a wrong result is never chosen, however fast",
	 4,
	 {3, 0.1, 0.2, 2},
	 .wrong = {0, true, true, false},
	 .taken = 3},
	{"all others are wrong: the first", 3, {3, 1, 2}, .wrong = {0, true, true}, .taken = 0},
	{"the first cannot be built: none", 3, {NAN, 1, 2}, .taken = -1},
	{"the first fails: none", 3, {-1, 1, 2}, .taken = -1},
	{"no candidates", .taken = -1},
};

struct pretence {
	const struct row *row;
	bool built[CONV_ENGINES];
};

static bool build(void *context, int candidate)
{
	struct pretence *pretence = context;

	assert_false(pretence->built[candidate]);
	return pretence->built[candidate] = !isnan(pretence->row->times[candidate]);
}

static double time_ms(void *context, int candidate)
{
	struct pretence *pretence = context;

	assert_true(pretence->built[candidate]);
	return pretence->row->times[candidate];
}

static bool is_correct(void *context, int candidate)
{
	struct pretence *pretence = context;

	assert_true(candidate > 0 && pretence->built[candidate]);
	return !pretence->row->wrong[candidate];
}

static void drop(void *context, int candidate)
{
	struct pretence *pretence = context;

	assert_true(candidate > 0 && pretence->built[candidate]);
	pretence->built[candidate] = false;
}

static void candidates(void **state)
{
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct pretence pretence = {.row = &rows[i]};
		const struct candidate_list all = {
			&pretence, rows[i].count, CANDIDATE_GAIN, build, time_ms, is_correct, drop};
		double best[2] = {-7, -7};
		int taken = choose_candidate(&all, best);

		if (taken != rows[i].taken)
			fail_msg("%s: candidate %d, expected %d", rows[i].why, taken,
				 rows[i].taken);
		if (taken >= 0 && (best[0] != rows[i].times[taken] || best[1] != rows[i].times[0]))
			fail_msg("%s: %g ms of %g", rows[i].why, best[0], best[1]);
		for (int candidate = 1; candidate < CONV_ENGINES; candidate++)
			if (pretence.built[candidate] != (candidate == taken))
				fail_msg("%s: candidate %d was %s", rows[i].why, candidate,
					 candidate == taken ? "dropped" : "not dropped");
	}
}

/* Without a limit on the gain, a slower candidate may replace the first one. */
static void slower(void **state)
{
	static const struct row row = {.count = 3, .times = {1, 3, 2}};
	struct pretence pretence = {.row = &row};
	struct candidate_list all = {&pretence, row.count,  HUGE_VAL, build,
				     time_ms,	is_correct, drop};
	double times[2];

	assert_int_equal(choose_candidate(&all, times), 2);
	assert_true(times[0] == 2 && times[1] == 1);
	pretence = (struct pretence){.row = &row};
	all.gain = CANDIDATE_GAIN;
	assert_int_equal(choose_candidate(&all, times), 0);
}

/* ---- the file ---- */

static const int one[TUNING_CACHE_NUMBERS] = {1,  2,  3,  4,  5,  6,  -1, 8,  9,  10,
					      11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
static const int two[TUNING_CACHE_NUMBERS] = {7};

static void keep(void **state)
{
	char directory[] = "/tmp/berth-choices-XXXXXX", path[64];
	int numbers[TUNING_CACHE_NUMBERS];
	struct stat status;

	assert_non_null(mkdtemp(directory));
	/* A missing directory is created. */
	snprintf(path, sizeof path, "%s/a/b", directory);

	struct tuning_cache *mine = tuning_cache_open_file(path);

	assert_non_null(mine);
	tuning_cache_save(mine); /* without new entries nothing is written */
	assert_int_not_equal(stat(path, &status), 0);
	tuning_cache_add(mine, "conv f16 a", one);

	/* Another process started with an empty cache and writes first: its entries are kept. */
	struct tuning_cache *theirs = tuning_cache_open_file(path);

	assert_non_null(theirs);
	tuning_cache_add(theirs, "conv f16 b", two);
	tuning_cache_save(theirs);
	tuning_cache_save(mine);
	tuning_cache_free(theirs);
	tuning_cache_free(mine);
	/* A choice that is no longer available is searched for again and replaced. */
	mine = tuning_cache_open_file(path);
	tuning_cache_add(mine, "conv f16 a", two);
	tuning_cache_save(mine);
	tuning_cache_add(mine, "conv f16 a", one);
	tuning_cache_save(mine);
	tuning_cache_free(mine);
	mine = tuning_cache_open_file(path);
	assert_true(tuning_cache_find(mine, "conv f16 a", numbers));
	assert_memory_equal(numbers, one, sizeof one);
	assert_true(tuning_cache_find(mine, "conv f16 b", numbers));
	assert_memory_equal(numbers, two, sizeof two);
	/* Another rank takes what this process has found, in place of its own, and keeps it in
	 * memory. */
	struct tuning_cache *taker = tuning_cache_open_file(NULL);
	char *text;

	assert_non_null(taker);
	tuning_cache_add(taker, "conv f16 a", two);
	tuning_cache_free(mine);
	mine = tuning_cache_open_file(path);
	assert_true(tuning_cache_find(mine, "conv f16 a", numbers));
	text = tuning_cache_text(mine);
	assert_non_null(text);
	tuning_cache_take(taker, text);
	free(text);
	assert_true(tuning_cache_find(taker, "conv f16 a", numbers));
	assert_memory_equal(numbers, one, sizeof one);
	assert_false(tuning_cache_find(taker, "conv f16 b", numbers));
	/* After two starts that ended while it was measured, nothing is. */
	assert_null(tuning_cache_given_up(taker));
	numbers[TUNING_CACHE_ATTEMPTS] = TUNING_CACHE_ATTEMPTS_MAX;
	tuning_cache_add(taker, "conv f16 c", numbers);
	assert_string_equal(tuning_cache_given_up(taker), "");
	tuning_cache_free(taker);
	/* Different shapes, types and rules have different keys. */
	assert_false(tuning_cache_find(mine, "conv bf16 a", numbers));
	assert_false(tuning_cache_find(mine, "conv f16", numbers));
	tuning_cache_free(mine);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof path, "%s/a", directory);
	rmdir(path);
	rmdir(directory);
}

static void damaged(void **state)
{
	static const struct {
		const char *text, *why;
		bool found;
	} files[] = {
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 0\n", "as berth writes it",
		 true},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 0",
		 "without the final newline", true},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20\n", "an older format",
		 false},
		{"k 1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 0\n", "no tab", false},
		{"k\t1 2 3 4 x 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 0\n", "no nonce", false},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 99999999999999999999\n",
		 "a number that is too large", false},
		{"k\t1 2 3 4 5 6 -2 8 9 10 11 12 13 14 15 16 17 18 19 20 0\n",
		 "a number out of range", false},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 0 1\n",
		 "one number too many", false},
		{"k\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 0z\n",
		 "trailing characters", false},
		{"\x7f"
		 "ELF\x02\x01\x01\n\t\t\nk",
		 "a foreign file", false},
		{"\n\n\t\nj\t1\nk\t1 2 3 4 5 6 -1 8 9 10 11 12 13 14 15 16 17 18 19 20 0\n",
		 "after damaged lines", true},
		{"", "nothing", false},
	};
	char path[] = "/tmp/berth-choices-XXXXXX";
	int fd = mkstemp(path), numbers[TUNING_CACHE_NUMBERS];

	assert_true(fd >= 0);
	for (size_t i = 0; i < ROWS(files); i++) {
		size_t size = strlen(files[i].text);

		assert_int_equal(ftruncate(fd, 0), 0);
		assert_int_equal(pwrite(fd, files[i].text, size, 0), (ssize_t)size);

		struct tuning_cache *tuned = tuning_cache_open_file(path);

		assert_non_null(tuned);
		if (tuning_cache_find(tuned, "k", numbers) != files[i].found)
			fail_msg("%s: %s", files[i].why, files[i].found ? "not found" : "found");
		if (files[i].found)
			assert_memory_equal(numbers, one, sizeof one);
		tuning_cache_free(tuned);
	}
	close(fd);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(candidates),
		cmocka_unit_test(slower),
		cmocka_unit_test(keep),
		cmocka_unit_test(damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
