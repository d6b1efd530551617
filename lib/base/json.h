/* SPDX-License-Identifier: BSD-3-Clause */
/* jansson with berth's error messages, limits and cleanup. */
#ifndef BERTH_BASE_JSON_H
#define BERTH_BASE_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"

/* __attribute__((cleanup)) for a json_t *: drops one reference. */
void json_cleanup(json_t **json);
#define JSON_AUTO __attribute__((cleanup(json_cleanup))) json_t *

/* Parse one JSON object of at most limit bytes; duplicate keys are refused. err calls the source by
 * what. *out is a new reference. Return 0, or -ERR_DATA with line and column. */
int json_read(const char *what, const char *text, size_t size, size_t limit, json_t **out,
	      struct error *err);
int json_read_file(const char *path, size_t limit, json_t **out, struct error *err);

/* Read a member of an object by type. Return 0, or -ERR_DATA naming what, the key, the value found
 * and the type expected. Strings and containers are borrowed. */
int json_get_string(const char *what, const json_t *object, const char *key, const char **out,
		    struct error *err);
int json_get_int(const char *what, const json_t *object, const char *key, int64_t min, int64_t max,
		 int64_t *out, struct error *err);
int json_get_array(const char *what, const json_t *object, const char *key, json_t **out,
		   struct error *err);
int json_get_object(const char *what, const json_t *object, const char *key, json_t **out,
		    struct error *err);

/* The same for a value that is not a member of an object; key may be NULL, as in json_unexpected.
 */
int json_integer_in(const char *what, const char *key, const json_t *value, int64_t min,
		    int64_t max, int64_t *out, struct error *err);

/* Fill err with -ERR_DATA: "WHAT: "KEY" is VALUE; expected EXPECTED", shortened. key is NULL if
 * what names the value itself; value is NULL if the member is missing. */
int json_unexpected(const char *what, const char *key, const json_t *value, const char *expected,
		    struct error *err);

/* A JSON string, or null if text is NULL. Return a new reference, or NULL if memory is out. Bytes
 * that are not UTF-8 become U+FFFD. */
json_t *json_text(const char *text);
/* The same for each text of a list that NULL ends, as an array; NULL: an empty one. */
json_t *json_texts(const char *const *list);

/* Print to stream with two spaces of indentation and a final newline. Return 0 or -ERR_IO. */
struct _IO_FILE;
int json_print(const json_t *json, struct _IO_FILE *stream, struct error *err);

#endif
