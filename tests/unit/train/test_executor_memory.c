/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory plan: rows worked out by hand, and random items. No two items that are live at once
 * may overlap. */
#include "../rows.h"

#include <stdbool.h>
#include <time.h>

#include "train/executor/memory_plan.h"

struct row {
	const char *why;
	size_t alignment;
	int count;
	struct memory_item items[8]; /* size, first, last; offset as expected */
	size_t total;
};

static const struct row rows[] = {
	{"nothing", 64, 0, {{0}}, 0},
	{"one", 64, 1, {{100, 3, 3, 0}}, 100},
	{"items that follow one another share memory", 1, 2, {{10, 0, 1, 0}, {20, 2, 3, 0}}, 20},
	{"the last reader of one item writes the other", 1, 2, {{10, 0, 2, 20}, {20, 2, 3, 0}}, 30},
	{"one lives within the other's lifetime", 1, 2, {{10, 4, 4, 20}, {20, 0, 9, 0}}, 30},
	{"offsets are aligned, the end is not", 64, 2, {{10, 0, 1, 0}, {10, 1, 2, 64}}, 74},
	{"a chain needs two items at a time",
	 1,
	 5,
	 {{8, 0, 1, 0}, {8, 1, 2, 8}, {8, 2, 3, 0}, {8, 3, 4, 8}, {8, 4, 5, 0}},
	 16},
	{"the gap between two items is used",
	 1,
	 4,
	 {{30, 0, 9, 0}, {20, 0, 4, 30}, {10, 0, 9, 50}, {5, 5, 9, 30}},
	 60},
	{"an item that does not fit the gap goes behind",
	 1,
	 4,
	 {{30, 0, 9, 0}, {20, 0, 4, 30}, {19, 0, 9, 50}, {18, 3, 9, 69}},
	 87},
	{"items of size 0", 64, 3, {{0, 0, 9, 0}, {7, 0, 9, 0}, {0, 0, 9, 0}}, 7},
	{"equal items in their order", 1, 3, {{4, 0, 9, 0}, {4, 0, 9, 4}, {4, 0, 9, 8}}, 12},
};

static void by_hand(void **state)
{
	for (size_t r = 0; r < ROWS(rows); r++) {
		struct memory_item items[8];
		struct error err = {0};
		size_t total = 1;

		memcpy(items, rows[r].items, sizeof items);
		for (int i = 0; i < rows[r].count; i++)
			items[i].offset = 12345;
		assert_int_equal(
			memory_plan(items, (size_t)rows[r].count, rows[r].alignment, &total, &err),
			0);
		for (int i = 0; i < rows[r].count; i++)
			if (items[i].offset != rows[r].items[i].offset)
				fail_msg("%s: item %d is at %zu, expected %zu", rows[r].why, i,
					 items[i].offset, rows[r].items[i].offset);
		if (total != rows[r].total)
			fail_msg("%s: %zu bytes, expected %zu", rows[r].why, total, rows[r].total);
	}
}

static void too_large(void **state)
{
	const struct memory_item bad[][2] = {
		{{SIZE_MAX, 0, 1, 0}, {1, 2, 3, 0}},
		{{SIZE_MAX / 2 - 63, 0, 1, 0}, {1, 2, 3, 0}},
		{{SIZE_MAX / 3, 0, 1, 0}, {SIZE_MAX / 3, 0, 1, 0}},
	};

	for (size_t r = 0; r < ROWS(bad); r++) {
		struct memory_item items[2];
		struct error err = {0};
		size_t total = 77;

		memcpy(items, bad[r], sizeof items);
		assert_int_equal(memory_plan(items, 2, 64, &total, &err), -ERR_UNAVAILABLE);
		assert_int_equal(total, 77);
		assert_true(err.text[0]);
	}
}

static uint64_t random_state;

static size_t below(size_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (size_t)((random_state >> 11) % n);
}

static bool at_once(const struct memory_item *a, const struct memory_item *b)
{
	return a->first <= b->last && b->first <= a->last;
}

static void check(const struct memory_item *items, size_t count, size_t alignment, size_t total)
{
	size_t end = 0, least = 0;

	for (size_t i = 0; i < count; i++) {
		const struct memory_item *a = &items[i];

		if (a->offset % alignment)
			fail_msg("item %zu is at %zu, not a multiple of %zu", i, a->offset,
				 alignment);
		if (a->offset + a->size_bytes > end)
			end = a->offset + a->size_bytes;
		for (size_t k = 0; k < i; k++) {
			const struct memory_item *b = &items[k];

			if (at_once(a, b) && a->size_bytes && b->size_bytes &&
			    a->offset < b->offset + b->size_bytes &&
			    b->offset < a->offset + a->size_bytes)
				fail_msg("items %zu and %zu are live at once and overlap", k, i);
		}
		/* No plan can be smaller than the items that are live at one time. */
		size_t live = 0;

		for (size_t k = 0; k < count; k++)
			if (items[k].first <= a->first && a->first <= items[k].last)
				live += items[k].size_bytes;
		least = live > least ? live : least;
	}
	if (total != end)
		fail_msg("%zu bytes for items that end at %zu", total, end);
	if (total < least)
		fail_msg("%zu bytes for items of %zu that are live at once", total, least);
}

static void at_random(void **state)
{
	const char *seed = getenv("BERTH_TEST_SEED");

	random_state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
	printf("BERTH_TEST_SEED=%llu\n", (unsigned long long)random_state);
	random_state = random_state * 2654435761u + 88172645463325252u;
	for (int run = 0; run < 400; run++) {
		size_t count = below(120), alignment = (size_t)1 << below(8), total, again;
		int length = 1 + (int)below(60);
		struct memory_item *items = calloc(count + 1, sizeof *items);
		struct memory_item *copy = calloc(count + 1, sizeof *copy);
		struct error err = {0};

		for (size_t i = 0; i < count; i++) {
			int first = (int)below((size_t)length), last = (int)below((size_t)length);

			items[i] = (struct memory_item){
				.size_bytes = below(run % 3 ? 5000 : 4) * (run % 2 ? 1 : 64),
				.first = first < last ? first : last,
				.last = first < last ? last : first,
			};
		}
		memcpy(copy, items, count * sizeof *items);
		assert_int_equal(memory_plan(items, count, alignment, &total, &err), 0);
		check(items, count, alignment, total);
		assert_int_equal(memory_plan(copy, count, alignment, &again, &err), 0);
		assert_int_equal(total, again);
		if (count)
			assert_memory_equal(items, copy, count * sizeof *items);
		free(items);
		free(copy);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_hand),
		cmocka_unit_test(too_large),
		cmocka_unit_test(at_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
