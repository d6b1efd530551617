/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/number.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

int number_int64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
		 struct error *err)
{
	const char *p = text + (min < 0 && *text == '-');
	bool fits = *p != '\0';

	for (const char *q = p; *q; q++)
		fits = fits && is_digit(*q);
	if (fits) {
		errno = 0;
		long long value = strtoll(text, NULL, 10);

		if (!errno && value >= min && value <= max) {
			*out = value;
			return 0;
		}
	}
	return error_set(err, ERR_DATA,
			 "%s is \"%.100s\": expected a whole number from %" PRId64 " to %" PRId64,
			 name, text, min, max);
}

int number_int(const char *name, const char *text, int min, int max, int *out, struct error *err)
{
	int64_t value = 0;
	int rc = number_int64(name, text, min, max, &value, err);

	if (!rc)
		*out = (int)value;
	return rc;
}

/* Scan digits with at most one dot and, if allowed, an exponent. Return the position after it, or
 * NULL. */
static const char *scan_decimal(const char *p, bool exponent)
{
	bool digits = false;

	for (; is_digit(*p); p++)
		digits = true;
	if (*p == '.')
		for (p++; is_digit(*p); p++)
			digits = true;
	if (!digits)
		return NULL;
	if (exponent && (*p == 'e' || *p == 'E')) {
		p++;
		if (*p == '+' || *p == '-')
			p++;
		if (!is_digit(*p))
			return NULL;
		while (is_digit(*p))
			p++;
	}
	return p;
}

/* strtod with the C locale's dot, whatever the program's locale is. */
static double decimal(const char *text)
{
	static locale_t c_locale; /* created once and never freed */

	if (!__atomic_load_n(&c_locale, __ATOMIC_ACQUIRE)) {
		locale_t made = newlocale(LC_ALL_MASK, "C", (locale_t)0), none = (locale_t)0;

		if (made && !__atomic_compare_exchange_n(&c_locale, &none, made, false,
							 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			freelocale(made);
	}
	return c_locale ? strtod_l(text, NULL, c_locale) : strtod(text, NULL);
}

int number_double(const char *name, const char *text, double min, double max, double *out,
		  struct error *err)
{
	const char *end = scan_decimal(text + (*text == '-'), true);

	if (end && !*end) {
		double value = decimal(text);

		if (isfinite(value) && value >= min && value <= max) {
			*out = value;
			return 0;
		}
	}
	return error_set(err, ERR_DATA, "%s is \"%.100s\": expected a number from %g to %g", name,
			 text, min, max);
}

int number_duration_ms(const char *name, const char *text, int64_t *out_ms, struct error *err)
{
	static const struct {
		const char *unit;
		double ms;
	} units[] = {{"", 1e3}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
	const char *end = scan_decimal(text, false);

	for (size_t i = 0; end && i < sizeof units / sizeof *units; i++) {
		if (strcmp(end, units[i].unit))
			continue;
		double ms = decimal(text) * units[i].ms;

		if (!(ms <= 1e15)) /* 30,000 years: sums of durations stay in range */
			break;
		*out_ms = (int64_t)(ms + 0.5);
		return 0;
	}
	return error_set(err, ERR_DATA,
			 "%s is \"%.100s\": expected a duration such as 90, 90s, 10m, 2h or 1d",
			 name, text);
}
