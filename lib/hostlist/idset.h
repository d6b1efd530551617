/* SPDX-License-Identifier: BSD-3-Clause */
/* Sets of small numbers (CPUs, NUMA nodes, ranks): "0-3,8,64-67". */
#ifndef BERTH_HOSTLIST_IDSET_H
#define BERTH_HOSTLIST_IDSET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* The largest id. Parsing refuses larger ones, so that no text can request unbounded memory. */
#define IDSET_MAX 65535

struct json_type;
struct idset; /* opaque; grows as ids are added */

/* Functions accept NULL as an empty set wherever the parameter is const. Functions that return a
 * new set return NULL if memory is out; the caller frees it with idset_free. */
struct idset *idset_new(void);
struct idset *idset_copy(const struct idset *set);
void idset_free(struct idset *set);

/* Parse strictly. "" is the empty set, and ranges ascend. A repeated id, a space, a sign, a
 * trailing comma and an id over IDSET_MAX are errors: -ERR_DATA, and err shows the text and the
 * position. */
int idset_parse(const char *text, struct idset **out, struct error *err);
/* The canonical text: ascending, with ranges joined. malloced; NULL if memory is out. */
char *idset_format(const struct idset *set);
/* A struct idset * in a table of base/json_fields.h, as that text; max is the largest id (0:
 * IDSET_MAX). */
extern const struct json_type idset_as_json;

/* Return 0, or -1 with the set unchanged if the id is outside [0, IDSET_MAX] or memory is out. */
int idset_add(struct idset *set, int id);
int idset_add_range(struct idset *set, int first, int last);
void idset_remove(struct idset *set, int id);

bool idset_has(const struct idset *set, int id);
size_t idset_count(const struct idset *set);
/* The smallest id > after (after = -1 for the first), or -1. */
int idset_next(const struct idset *set, int after);

bool idset_equal(const struct idset *a, const struct idset *b);
bool idset_intersects(const struct idset *a, const struct idset *b);
/* Is every id of part in whole? The empty set is in every set. */
bool idset_contains(const struct idset *whole, const struct idset *part);

/* In place: a |= b, a &= ~b. idset_unite returns 0, or -1 if memory is out. */
int idset_unite(struct idset *a, const struct idset *b);
void idset_subtract(struct idset *a, const struct idset *b);

#endif
