/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file.h"

void json_cleanup(json_t **json)
{
	json_decref(*json);
	*json = NULL;
}

int json_read(const char *what, const char *text, size_t size, size_t limit, json_t **out,
	      struct error *err)
{
	json_error_t where;

	if (size > limit)
		return error_set(err, ERR_DATA, "%s: %zu bytes of JSON exceed the limit of %zu",
				 what, size, limit);
	json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);

	if (!json)
		return error_set(err, ERR_DATA, "%s is not JSON: line %d, column %d: %s", what,
				 where.line, where.column, where.text);
	if (!json_is_object(json)) {
		json_decref(json);
		return error_set(err, ERR_DATA, "%s: expected a JSON object {...}", what);
	}
	*out = json;
	return 0;
}

int json_read_file(const char *path, size_t limit, json_t **out, struct error *err)
{
	char *text = NULL;
	size_t size;
	int rc = file_read_input(path, limit, FILE_INPUT_MS, &text, &size, err);

	if (!rc)
		rc = json_read(path, text, size, limit, out, err);
	free(text);
	return rc;
}

int json_unexpected(const char *what, const char *key, const json_t *value, const char *expected,
		    struct error *err)
{
	static const char *const kinds[] = {"an object", "an array", "a string", "an integer",
					    "a real",	 "true",     "false",	 "null"};
	char text[80];

	if (json_is_integer(value))
		snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	else if (json_is_string(value))
		snprintf(text, sizeof text, "\"%.60s\"", json_string_value(value));
	else
		snprintf(text, sizeof text, "%s", value ? kinds[json_typeof(value)] : "missing");
	if (!key)
		return error_set(err, ERR_DATA, "%s is %s; expected %s", what, text, expected);
	return error_set(err, ERR_DATA, "%s: \"%s\" is %s; expected %s", what, key, text, expected);
}

int json_get_string(const char *what, const json_t *object, const char *key, const char **out,
		    struct error *err)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_string(value))
		return json_unexpected(what, key, value, "a string", err);
	*out = json_string_value(value);
	return 0;
}

int json_integer_in(const char *what, const char *key, const json_t *value, int64_t min,
		    int64_t max, int64_t *out, struct error *err)
{
	json_int_t number = json_integer_value(value);
	char expected[96];

	if (json_is_integer(value) && number >= min && number <= max) {
		*out = number;
		return 0;
	}
	snprintf(expected, sizeof expected, "a whole number from %" PRId64 " to %" PRId64, min,
		 max);
	return json_unexpected(what, key, value, expected, err);
}

int json_get_int(const char *what, const json_t *object, const char *key, int64_t min, int64_t max,
		 int64_t *out, struct error *err)
{
	return json_integer_in(what, key, json_object_get(object, key), min, max, out, err);
}

int json_get_array(const char *what, const json_t *object, const char *key, json_t **out,
		   struct error *err)
{
	json_t *value = json_object_get(object, key);

	if (!json_is_array(value))
		return json_unexpected(what, key, value, "an array", err);
	*out = value;
	return 0;
}

int json_get_object(const char *what, const json_t *object, const char *key, json_t **out,
		    struct error *err)
{
	json_t *value = json_object_get(object, key);

	if (!json_is_object(value))
		return json_unexpected(what, key, value, "an object", err);
	*out = value;
	return 0;
}

json_t *json_text(const char *text)
{
	if (!text)
		return json_null();
	json_t *json = json_string(text);

	if (json)
		return json;

	size_t size = strlen(text);
	char *clean = size < SIZE_MAX / 4 ? malloc(3 * size + 1) : NULL, *q = clean;

	if (!clean)
		return NULL;
	for (const char *p = text; *p;) {
		size_t length = text_utf8_length(p);

		if (length) {
			memcpy(q, p, length);
			p += length;
			q += length;
		} else {
			memcpy(q, "\xef\xbf\xbd", 3); /* U+FFFD */
			p++;
			q += 3;
		}
	}
	json = json_stringn(clean, (size_t)(q - clean));
	free(clean);
	return json;
}

json_t *json_texts(const char *const *list)
{
	json_t *out = json_array();

	for (; list && *list; list++)
		json_array_append_new(out, json_text(*list));
	return out;
}

int json_print(const json_t *json, FILE *stream, struct error *err)
{
	if (json_dumpf(json, stream, JSON_INDENT(2) | JSON_ENCODE_ANY) || fputc('\n', stream) < 0 ||
	    fflush(stream))
		return error_set(err, ERR_IO, "cannot write JSON: %m");
	return 0;
}
