/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables that map the members of a struct to the members of a JSON document. One table both writes
 * the document, in the table's order, and reads it back with every limit checked.
 *
 * A table is an array of struct json_field; an entry without a type ends it:
 *
 *   static const struct json_field gpu_fields[] = {
 *           {"pci", &json_as_chars, JSON_MEMBER(struct plan_gpu, pci)},
 *           {"index", &json_as_number, JSON_MEMBER(struct plan_gpu, index), .max = 1023},
 *           {"uuid", &json_as_text, JSON_MEMBER(struct plan_gpu, uuid), JSON_NULLABLE},
 *           {0}};
 *
 * A room adds a kind of value with a struct json_type of its own. */
#ifndef BERTH_BASE_JSON_FIELDS_H
#define BERTH_BASE_JSON_FIELDS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct json_field;

/* How one kind of value is written and read. owner is the struct that the table describes; the
 * value lies at field->offset of it. */
struct json_type {
	/* A new reference: json_null() for a value that is unknown, NULL when memory is out. */
	json_t *(*write)(const struct json_field *field, const void *owner);
	/* json is NULL if the member is missing. what names the object in errors. The owner was
	 * zeroed before; after a failure it can be freed like a complete one. 0, -ERR_DATA or
	 * -ERR_UNAVAILABLE. */
	int (*read)(const struct json_field *field, const json_t *json, void *owner,
		    const char *what, struct error *err);
};

/* What stands for an unknown value: NULL, "" in an array of char, a number below min. Without
 * flags the value is written as it is, and reading requires it. */
enum json_unknown {
	JSON_READ_MISSING = 1,
	JSON_READ_NULL = 2,
	JSON_OPTIONAL = 4 | JSON_READ_MISSING, /* written: left out; also an empty text */
	JSON_NULLABLE = 8 | JSON_READ_NULL,    /* written: null */
};

struct json_field {
	const char *name;
	const struct json_type *type;
	size_t offset, size; /* JSON_MEMBER; a list's size is that of one entry */
	enum json_unknown unknown;
	int64_t min; /* numbers; an unknown one is read as min - 1 */
	int64_t max; /* numbers, names: the largest value; texts: bytes; lists: entries (0: any) */
	size_t second_offset; /* of another member: lists: the size_t that counts the entries */
	const struct json_type *entry;	  /* lists: the type of each entry */
	int64_t entry_max;		  /* lists of texts: bytes of each (0: any) */
	const struct json_field *members; /* objects, rows, lists of these: their table */
	const char
		*called; /* objects, entries of lists: their name in errors; NULL: by their place */
	const char *(*name_of)(int); /* names: the word for each value from 0 to max */
	const char *constant;
};
#define JSON_MEMBER(owner, member)                                                                 \
	.offset = offsetof(owner, member), .size = sizeof(((owner *)0)->member)
#define JSON_LIST(owner, list, count)                                                              \
	.offset = offsetof(owner, list), .size = sizeof(*((owner *)0)->list),                      \
	.second_offset = offsetof(owner, count)

static inline void *json_member(const struct json_field *field, const void *owner)
{
	return (char *)owner + field->offset;
}

static inline void *json_second_member(const struct json_field *field, const void *owner)
{
	return (char *)owner + field->second_offset;
}

extern const struct json_type
	json_as_number,		    /* int, unsigned (max over INT_MAX), or an integer of 64 bits */
	json_as_bool, json_as_text, /* char *, malloced */
	json_as_borrowed,	    /* const char *: once read, it lives as long as the document */
	json_as_chars,		    /* char [size] */
	json_as_name,		    /* an enum by name_of */
	json_as_constant,	    /* no member of the struct: always this text */
	json_as_object,		    /* an embedded struct */
	/* json_t *, by itself: writing consumes its reference; once read, it is borrowed from the
	 * document */
	json_as_array, json_as_any_object,
	json_as_row,  /* the same as an array of the members' values, in the table's order */
	json_as_list; /* JSON_LIST: a malloced array, never NULL once read */

/* The object of a table's members. A new reference; NULL when memory is out. */
json_t *json_fields_write(const struct json_field *fields, const void *owner);
/* Fill the zeroed *owner from an object; members that the table lacks are ignored. what names the
 * object in errors. After a failure the caller frees *owner like a complete one. -ERR_DATA names
 * the member, what stands there and what was expected. */
int json_fields_read(const struct json_field *fields, const json_t *object, void *owner,
		     const char *what, struct error *err);

#endif
