/* SPDX-License-Identifier: BSD-3-Clause */
#include "../rows.h"

#include "hostlist/idset.h"

struct row {
	const char *text;
	const char *canonical; /* NULL: must fail */
	size_t count;
	const char *why;
};

static const struct row rows[] = {
	{"", "", 0, "the empty set"},
	{"0", "0", 1, "one id"},
	{"0-3", "0-3", 4, "a range"},
	{"3-3", .why = "a range of one id must be written as 3"},
	{"0,1,2,3", "0-3", 4, "neighbours are joined"},
	{"0-3,4-7", "0-7", 8, "ranges that touch are joined"},
	{"8,64-67,128", "8,64-67,128", 6, "ids in several words"},
	{"65535", "65535", 1, "the largest id"},
	{"63-64", "63-64", 2, "across the edge of a word"},
	{"65536", .why = "larger than the largest id"},
	{"0-65536", .why = "a range beyond the largest id"},
	{"99999999999999999999", .why = "larger than any integer"},
	{"3-0", .why = "a descending range"},
	{"01,2", .why = "a leading zero"},
	{"1,1", .why = "a duplicate id"},
	{"0-4,2", .why = "an id that a range repeats"},
	{"1,", .why = "a trailing comma"},
	{",1", .why = "a leading comma"},
	{"1,,2", .why = "an empty entry"},
	{"1-", .why = "no upper end"},
	{"-1", .why = "no lower end"},
	{"1-2-3", .why = "two dashes"},
	{" 1", .why = "a blank before"},
	{"1 ", .why = "a blank after"},
	{"1, 2", .why = "a blank between"},
	{"+1", .why = "a sign"},
	{"0x10", .why = "hexadecimal"},
	{"[0-3]", .why = "brackets"},
	{"a", .why = "not a number"},
};

static void parses(void **state)
{
	(void)state;
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct idset *set = NULL;
		struct error err = {0};
		int rc = idset_parse(rows[i].text, &set, &err);

		if (!rows[i].canonical) {
			if (rc != -ERR_DATA || set || !*err.text)
				fail_msg("'%s' (%s): code %d, '%s'", rows[i].text, rows[i].why, rc,
					 err.text);
			continue;
		}
		if (rc)
			fail_msg("'%s' (%s): %s", rows[i].text, rows[i].why, err.text);
		char *text = idset_format(set);

		assert_string_equal(text, rows[i].canonical);
		assert_int_equal(idset_count(set), rows[i].count);
		free(text);
		idset_free(set);
	}
}

static struct idset *make(const char *text)
{
	struct idset *set = NULL;

	assert_int_equal(idset_parse(text, &set, NULL), 0);
	return set;
}

static void check(const struct idset *set, const char *expected)
{
	char *text = idset_format(set);

	assert_string_equal(text, expected);
	free(text);
}

static void combines(void **state)
{
	(void)state;
	static const struct {
		const char *a, *b, *unite, *subtract;
		bool intersects, contains;
	} table[] = {
		{"0-3", "2-5", "0-5", "0-1", true, false},
		{"0-3", "", "0-3", "0-3", false, true},
		{"", "7", "7", "", false, false},
		{"0-200", "64-127", "0-200", "0-63,128-200", true, true},
		{"1", "1000", "1,1000", "1", false, false},
		{"1000", "1", "1,1000", "1000", false, false},
	};

	for (size_t i = 0; i < ROWS(table); i++) {
		struct idset *a = make(table[i].a), *b = make(table[i].b);
		struct idset *u = idset_copy(a), *s = idset_copy(a);

		assert_int_equal(idset_unite(u, b), 0);
		idset_subtract(s, b);
		check(u, table[i].unite);
		check(s, table[i].subtract);
		assert_int_equal(idset_intersects(a, b), table[i].intersects);
		assert_int_equal(idset_contains(a, b), table[i].contains);
		assert_true(idset_contains(u, a) && idset_contains(u, b));
		assert_true(idset_equal(a, a) && !idset_equal(a, b));
		idset_free(a), idset_free(b), idset_free(u), idset_free(s);
	}
}

static void changes(void **state)
{
	(void)state;
	struct idset *set = idset_new();

	assert_int_equal(idset_add(set, -1), -1);
	assert_int_equal(idset_add(set, IDSET_MAX + 1), -1);
	assert_int_equal(idset_add_range(set, 5, 4), -1);
	assert_int_equal(idset_add_range(set, 5, 500), 0);
	idset_remove(set, 6);
	idset_remove(set, 60000);
	check(set, "5,7-500");
	assert_int_equal(idset_next(set, -1), 5);
	assert_int_equal(idset_next(set, 5), 7);
	assert_int_equal(idset_next(set, 500), -1);
	assert_true(idset_has(set, 500) && !idset_has(set, 501) && !idset_has(set, -1));
	idset_free(set);
	/* Functions with a const set accept NULL as an empty set. */
	assert_int_equal(idset_count(NULL), 0);
	assert_int_equal(idset_next(NULL, -1), -1);
	assert_true(idset_contains(NULL, NULL));
	idset_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parses),
		cmocka_unit_test(combines),
		cmocka_unit_test(changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
