/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *err, int code, const char *format, ...)
{
	if (err) {
		/* Arguments may point into err->text, so format into another buffer first. */
		char text[sizeof err->text];
		va_list ap;

		va_start(ap, format);
		vsnprintf(text, sizeof text, format, ap);
		va_end(ap);
		err->code = code;
		memcpy(err->text, text, sizeof text);
	}
	return -code;
}

int error_prefix(struct error *err, const char *format, ...)
{
	if (!err || !err->code)
		return -ERR_INTERNAL;

	char text[sizeof err->text];
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof text)
		snprintf(text + n, sizeof text - (size_t)n, ": %.*s", (int)sizeof err->text - 1,
			 err->text);
	memcpy(err->text, text, sizeof text);
	return -err->code;
}

int error_memory(struct error *err, const char *what)
{
	return error_set(err, ERR_UNAVAILABLE, "out of memory for %s", what);
}
