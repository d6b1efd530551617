/* SPDX-License-Identifier: BSD-3-Clause */
/* A read may fail halfway. The members read until then are valid, and the others are as before
 * (zeros), so the owner frees the struct as usual. */
#include "base/json_fields.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"

/* A written null stands for the unknown value: the flags that are not for reading. */
static bool writes_unknown(const struct json_field *field)
{
	return field->unknown & ~(JSON_READ_MISSING | JSON_READ_NULL);
}

/* ---- numbers, truth values ---- */

static json_t *number_write(const struct json_field *field, const void *owner)
{
	const void *value = json_member(field, owner);
	/* A max above INT_MAX marks a member that is unsigned. */
	int64_t number = field->size == sizeof(int64_t) ? *(const int64_t *)value
			 : field->max > INT_MAX		? (int64_t) * (const unsigned *)value
							: *(const int *)value;

	return writes_unknown(field) && number < field->min ? json_null() : json_integer(number);
}

static void number_store(const struct json_field *field, int64_t number, void *owner)
{
	if (field->size == sizeof(int64_t))
		*(int64_t *)json_member(field, owner) = number;
	else
		*(int *)json_member(field, owner) = (int)number;
}

static int number_read(const struct json_field *field, const json_t *json, void *owner,
		       const char *what, struct error *err)
{
	int64_t number;
	int rc = json_integer_in(what, field->name, json, field->min, field->max, &number, err);

	if (!rc)
		number_store(field, number, owner);
	return rc;
}

const struct json_type json_as_number = {number_write, number_read};

static json_t *bool_write(const struct json_field *field, const void *owner)
{
	return json_boolean(*(const bool *)json_member(field, owner));
}

static int bool_read(const struct json_field *field, const json_t *json, void *owner,
		     const char *what, struct error *err)
{
	if (!json_is_boolean(json))
		return json_unexpected(what, field->name, json, "true or false", err);
	*(bool *)json_member(field, owner) = json_is_true(json);
	return 0;
}

const struct json_type json_as_bool = {bool_write, bool_read};

/* ---- texts ---- */

/* The string's bytes, borrowed; NULL after -ERR_DATA. */
static const char *text_of(const struct json_field *field, const json_t *json, int64_t max,
			   const char *what, struct error *err)
{
	char expected[64] = "a string";

	if (json_is_string(json) && (!max || json_string_length(json) <= (size_t)max))
		return json_string_value(json);
	if (json_is_string(json))
		snprintf(expected, sizeof expected, "at most %" PRId64 " bytes", max);
	json_unexpected(what, field->name, json, expected, err);
	return NULL;
}

static json_t *text_write(const struct json_field *field, const void *owner)
{
	const char *text = *(char *const *)json_member(field, owner);

	return json_text(text && !*text && field->unknown == JSON_OPTIONAL ? NULL : text);
}

static int text_read(const struct json_field *field, const json_t *json, void *owner,
		     const char *what, struct error *err)
{
	const char *text = text_of(field, json, field->max, what, err);
	char *copy = text ? strdup(text) : NULL;

	if (!text)
		return -ERR_DATA;
	*(char **)json_member(field, owner) = copy;
	return copy ? 0 : error_memory(err, what);
}

const struct json_type json_as_text = {text_write, text_read};

static int borrowed_read(const struct json_field *field, const json_t *json, void *owner,
			 const char *what, struct error *err)
{
	const char **text = json_member(field, owner);

	*text = text_of(field, json, field->max, what, err);
	return *text ? 0 : -ERR_DATA;
}

const struct json_type json_as_borrowed = {text_write, borrowed_read};

static json_t *chars_write(const struct json_field *field, const void *owner)
{
	const char *text = json_member(field, owner);

	return json_text(!*text && writes_unknown(field) ? NULL : text);
}

static int chars_read(const struct json_field *field, const json_t *json, void *owner,
		      const char *what, struct error *err)
{
	const char *text = text_of(field, json, (int64_t)field->size - 1, what, err);

	if (text)
		memcpy(json_member(field, owner), text, strlen(text) + 1);
	return text ? 0 : -ERR_DATA;
}

const struct json_type json_as_chars = {chars_write, chars_read};

/* ---- JSON values as they are ---- */

static json_t *value_write(const struct json_field *field, const void *owner)
{
	json_t *value = *(json_t *const *)json_member(field, owner);

	return value ? value : json_null();
}

static int array_read(const struct json_field *field, const json_t *json, void *owner,
		      const char *what, struct error *err)
{
	*(const json_t **)json_member(field, owner) = json;
	return json_is_array(json) ? 0 : json_unexpected(what, field->name, json, "an array", err);
}

const struct json_type json_as_array = {value_write, array_read};

static int any_object_read(const struct json_field *field, const json_t *json, void *owner,
			   const char *what, struct error *err)
{
	*(const json_t **)json_member(field, owner) = json;
	return json_is_object(json) ? 0
				    : json_unexpected(what, field->name, json, "an object", err);
}

const struct json_type json_as_any_object = {value_write, any_object_read};

/* ---- words of a fixed choice ---- */

static json_t *name_write(const struct json_field *field, const void *owner)
{
	return json_string(field->name_of(*(const int *)json_member(field, owner)));
}

static int name_read(const struct json_field *field, const json_t *json, void *owner,
		     const char *what, struct error *err)
{
	char expected[256] = "";

	for (int value = 0; value <= field->max; value++) {
		const char *name = field->name_of(value);

		if (json_is_string(json) && !strcmp(json_string_value(json), name)) {
			*(int *)json_member(field, owner) = value;
			return 0;
		}
		text_append(expected, sizeof expected, value ? ", \"%s\"" : "one of \"%s\"", name);
	}
	return json_unexpected(what, field->name, json, expected, err);
}

const struct json_type json_as_name = {name_write, name_read};

static json_t *constant_write(const struct json_field *field, const void *owner)
{
	return json_string(field->constant);
}

static int constant_read(const struct json_field *field, const json_t *json, void *owner,
			 const char *what, struct error *err)
{
	char expected[96];

	if (json_is_string(json) && !strcmp(json_string_value(json), field->constant))
		return 0;
	snprintf(expected, sizeof expected, "\"%s\"; it may come from another version of berth",
		 field->constant);
	return json_unexpected(what, field->name, json, expected, err);
}

const struct json_type json_as_constant = {constant_write, constant_read};

/* ---- structs ---- */

static int member_read(const struct json_field *field, const json_t *json, void *owner,
		       const char *what, struct error *err)
{
	if ((!json && field->unknown & JSON_READ_MISSING) ||
	    (json_is_null(json) && field->unknown & JSON_READ_NULL)) {
		/* All others are zeros, which the owner is already. */
		if (field->type == &json_as_number)
			number_store(field, field->min - 1, owner);
		return 0;
	}
	return field->type->read(field, json, owner, what, err);
}

json_t *json_fields_write(const struct json_field *fields, const void *owner)
{
	JSON_AUTO object = json_object();

	for (; fields->type; fields++) {
		json_t *value = fields->type->write(fields, owner);

		if (json_is_null(value) && fields->unknown == JSON_OPTIONAL)
			continue;
		if (json_object_set_new(object, fields->name, value))
			return NULL;
	}
	return json_incref(object);
}

int json_fields_read(const struct json_field *fields, const json_t *object, void *owner,
		     const char *what, struct error *err)
{
	int rc = 0;

	for (; !rc && fields->type; fields++)
		rc = member_read(fields, json_object_get(object, fields->name), owner, what, err);
	return rc;
}

static json_t *object_write(const struct json_field *field, const void *owner)
{
	return json_fields_write(field->members, json_member(field, owner));
}

static int object_read(const struct json_field *field, const json_t *json, void *owner,
		       const char *what, struct error *err)
{
	if (!json_is_object(json))
		return json_unexpected(what, field->name, json, "an object", err);
	return json_fields_read(field->members, json, json_member(field, owner),
				field->called ? field->called : what, err);
}

const struct json_type json_as_object = {object_write, object_read};

static json_t *row_write(const struct json_field *field, const void *owner)
{
	JSON_AUTO row = json_array();

	for (const struct json_field *member = field->members; member->type; member++)
		if (json_array_append_new(row,
					  member->type->write(member, json_member(field, owner))))
			return NULL;
	return json_incref(row);
}

static int row_read(const struct json_field *field, const json_t *json, void *owner,
		    const char *what, struct error *err)
{
	size_t count = 0;
	int rc = 0;

	while (field->members[count].type)
		count++;
	if (!json_is_array(json) || json_array_size(json) != count) {
		char expected[48];

		snprintf(expected, sizeof expected, "an array of %zu values", count);
		return json_unexpected(what, NULL, json, expected, err);
	}
	for (size_t i = 0; !rc && i < count; i++)
		rc = member_read(&field->members[i], json_array_get(json, i),
				 json_member(field, owner), what, err);
	return rc;
}

const struct json_type json_as_row = {row_write, row_read};

/* ---- lists ---- */

/* A field whose owner is one entry. */
static struct json_field entry_of(const struct json_field *list)
{
	return (struct json_field){.type = list->entry,
				   .size = list->size,
				   .members = list->members,
				   .max = list->entry_max};
}

static json_t *list_write(const struct json_field *field, const void *owner)
{
	const struct json_field entry = entry_of(field);
	size_t count = *(const size_t *)json_second_member(field, owner);
	const char *at = *(char **)json_member(field, owner);
	JSON_AUTO list = json_array();

	for (; count; count--, at += entry.size)
		if (json_array_append_new(list, entry.type->write(&entry, at)))
			return NULL;
	return json_incref(list);
}

static int list_read(const struct json_field *field, const json_t *json, void *owner,
		     const char *what, struct error *err)
{
	const struct json_field entry = entry_of(field);
	size_t size = json_array_size(json), *count = json_second_member(field, owner);
	int rc = 0;

	if (!json_is_array(json))
		return json_unexpected(what, field->name, json, "an array", err);
	if (field->max && size > (size_t)field->max)
		return error_set(err, ERR_DATA,
				 "%s: \"%s\" has %zu entries, expected at most %" PRId64, what,
				 field->name, size, field->max);

	/* One more, because calloc may return NULL for an empty array. */
	char *entries = calloc(size + 1, entry.size);

	*(char **)json_member(field, owner) = entries;
	if (!entries)
		return error_memory(err, what);
	for (size_t i = 0; !rc && i < size; i++) {
		char place[160];

		snprintf(place, sizeof place, "%s, entry %zu of \"%s\"",
			 field->called ? field->called : what, i, field->name);
		*count = i + 1; /* what a failure leaves in the entry is freed with the others */
		rc = entry.type->read(&entry, json_array_get(json, i), entries + i * entry.size,
				      place, err);
	}
	return rc;
}

const struct json_type json_as_list = {list_write, list_read};
