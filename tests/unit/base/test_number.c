/* SPDX-License-Identifier: BSD-3-Clause */
#include "../rows.h"

#include <locale.h>
#include <stdbool.h>

#include "base/number.h"

static void whole(void **state)
{
	static const struct {
		const char *text;
		int64_t min, max, expected;
		int rc;
		const char *why;
	} rows[] = {
		{"0", 0, 9, 0, 0, "zero"},
		{"7", 0, 9, 7, 0, "a digit"},
		{"007", 0, 9, 7, 0, "leading zeros are decimal, not octal"},
		{"-5", -9, 9, -5, 0, "negative where that is allowed"},
		{"9223372036854775807", 0, INT64_MAX, INT64_MAX, 0, "the largest"},
		{"-9223372036854775808", INT64_MIN, 0, INT64_MIN, 0, "the smallest"},
		{"9223372036854775808", 0, INT64_MAX, 0, -ERR_DATA, "one more than 64 bits hold"},
		{"99999999999999999999999", 0, INT64_MAX, 0, -ERR_DATA, "far more"},
		{"10", 0, 9, 0, -ERR_DATA, "over the range"},
		{"0", 1, 9, 0, -ERR_DATA, "under the range"},
		{"-5", 0, 9, 0, -ERR_DATA, "negative where that is not allowed"},
		{"-0", 0, 9, 0, -ERR_DATA, "a sign where none is allowed"},
		{"", 0, 9, 0, -ERR_DATA, "nothing"},
		{"-", -9, 9, 0, -ERR_DATA, "a sign alone"},
		{"--5", -9, 9, 0, -ERR_DATA, "two signs"},
		{"+5", -9, 9, 0, -ERR_DATA, "a plus"},
		{" 5", 0, 9, 0, -ERR_DATA, "a blank before"},
		{"5 ", 0, 9, 0, -ERR_DATA, "a blank after"},
		{"5\n", 0, 9, 0, -ERR_DATA, "a newline"},
		{"5x", 0, 9, 0, -ERR_DATA, "a letter after"},
		{"0x5", 0, 9, 0, -ERR_DATA, "hexadecimal"},
		{"1e0", 0, 9, 0, -ERR_DATA, "an exponent"},
		{"5.0", 0, 9, 0, -ERR_DATA, "a fraction"},
		{"\xd9\xa5", 0, 9, 0, -ERR_DATA, "another script's digit"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		int64_t value = 424242;
		int rc = number_int64("--n", rows[i].text, rows[i].min, rows[i].max, &value, &err);

		if (rc != rows[i].rc || value != (rc ? 424242 : rows[i].expected))
			fail_msg("'%s' (%s): %d, %lld", rows[i].text, rows[i].why, rc,
				 (long long)value);
		if (rc && !strstr(err.text, "--n"))
			fail_msg("'%s': '%s' does not say what", rows[i].text, err.text);
	}
	int small = 3;

	assert_int_equal(number_int("n", "4294967297", 0, 2147483647, &small, NULL), -ERR_DATA);
	assert_int_equal(small, 3);
	assert_int_equal(number_int("n", "2147483647", 0, 2147483647, &small, NULL), 0);
	assert_int_equal(small, 2147483647);
}

static void check_reals(void)
{
	static const struct {
		const char *text;
		double min, max, expected;
		int rc;
		const char *why;
	} rows[] = {
		{"0.1", 0, 1, 0.1, 0, "a fraction"},
		{"1e-3", 0, 1, 1e-3, 0, "an exponent"},
		{"1E+2", 0, 100, 100, 0, "a capital, a sign"},
		{".5", 0, 1, 0.5, 0, "no digit before the dot"},
		{"1.", 0, 1, 1, 0, "no digit after the dot"},
		{"-2.5", -9, 9, -2.5, 0, "negative"},
		{"1e-400", 0, 1, 0, 0, "too small to tell from zero"},
		{"-0.1", 0, 1, 0, -ERR_DATA, "under the range"},
		{"1e400", 0, 1e308, 0, -ERR_DATA, "infinite"},
		{"inf", 0, 1e308, 0, -ERR_DATA, "infinite by name"},
		{"nan", 0, 1, 0, -ERR_DATA, "no number by name"},
		{"0x1p-3", 0, 1, 0, -ERR_DATA, "hexadecimal"},
		{"0,1", 0, 1, 0, -ERR_DATA, "a comma, whatever the locale"},
		{".", 0, 1, 0, -ERR_DATA, "a dot alone"},
		{"1e", 0, 9, 0, -ERR_DATA, "an exponent without digits"},
		{"1e+", 0, 9, 0, -ERR_DATA, "an exponent's sign alone"},
		{"", 0, 1, 0, -ERR_DATA, "nothing"},
		{" 1", 0, 1, 0, -ERR_DATA, "a blank"},
		{"1 ", 0, 1, 0, -ERR_DATA, "a blank"},
		{"1.2.3", 0, 9, 0, -ERR_DATA, "two dots"},
		{"+1", 0, 9, 0, -ERR_DATA, "a plus"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		double value = 42;
		int rc =
			number_double("--lr", rows[i].text, rows[i].min, rows[i].max, &value, NULL);

		if (rc != rows[i].rc || value != (rc ? 42 : rows[i].expected))
			fail_msg("'%s' (%s): %d, %g", rows[i].text, rows[i].why, rc, value);
	}
}

static void reals(void **state)
{
	check_reals();
	/* A locale with a decimal comma changes nothing (tested if such a locale is installed). */
	if (setlocale(LC_ALL, "de_DE.UTF-8") || setlocale(LC_ALL, "fr_FR.UTF-8"))
		check_reals();
	setlocale(LC_ALL, "C");
}

static void durations(void **state)
{
	static const struct {
		const char *text;
		int64_t expected_ms; /* -1: must fail */
	} rows[] = {
		{"90", 90000},
		{"90s", 90000},
		{"8.5s", 8500},
		{"10m", 600000},
		{"2h", 7200000},
		{"1d", 86400000},
		{"0", 0},
		{"0.0004", 0},
		{"0.0006", 1},
		{"100000d", 8640000000000},
		{"", -1},
		{"s", -1},
		{"-1s", -1},
		{"1w", -1},
		{"1ms", -1},
		{"1 s", -1},
		{"1h30m", -1},
		{"1e3", -1},
		{"inf", -1},
		{"1S", -1},
		{"99999999999999999999d", -1},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		int64_t ms = 42;
		int rc = number_duration_ms("--grace", rows[i].text, &ms, NULL);
		bool fails = rows[i].expected_ms < 0;

		if (rc != (fails ? -ERR_DATA : 0) || ms != (fails ? 42 : rows[i].expected_ms))
			fail_msg("'%s': %d, %lld", rows[i].text, rc, (long long)ms);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole),
		cmocka_unit_test(reals),
		cmocka_unit_test(durations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
