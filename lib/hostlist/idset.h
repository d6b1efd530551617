/* SPDX-License-Identifier: BSD-3-Clause */
/* Sets of small numbers (CPUs, NUMA nodes, ranks): "0-3,8,64-67". */
#ifndef BERTH_HOSTLIST_IDSET_H
#define BERTH_HOSTLIST_IDSET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* The largest id. A larger one in a text is an error, so that no text can ask for
 * unbounded memory. */
#define IDSET_MAX 65535

struct idset; /* opaque; grows as ids are added */

/* All functions take NULL sets as empty sets where const. Those that return a new set
 * return NULL when memory is out; the caller frees with idset_free. */
struct idset *idset_new(void);
struct idset *idset_copy(const struct idset *set);
void idset_free(struct idset *set);

/* Strict: "" is the empty set; ranges ascend; an id twice, a space, a sign, a trailing
 * comma and ids over IDSET_MAX are errors (-ERR_DATA; err shows the text and the place). */
int idset_parse(const char *text, struct idset **out, struct error *err);
/* The canonical text: ascending, ranges joined. malloced; NULL when memory is out. */
char *idset_format(const struct idset *set);

/* 0, or -1 with nothing changed: id out of [0, IDSET_MAX] or memory out. */
int idset_add(struct idset *set, int id);
int idset_add_range(struct idset *set, int first, int last);
void idset_remove(struct idset *set, int id);
void idset_clear(struct idset *set);

bool idset_has(const struct idset *set, int id);
size_t idset_count(const struct idset *set);
/* The smallest id > after (after = -1 for the first), or -1. */
int idset_next(const struct idset *set, int after);

bool idset_equal(const struct idset *a, const struct idset *b);
bool idset_intersects(const struct idset *a, const struct idset *b);
/* Is every id of part in whole? The empty set is in every set. */
bool idset_contains(const struct idset *whole, const struct idset *part);

/* In place: a |= b, a &= b, a &= ~b. unite: 0, or -1 when memory is out. */
int idset_unite(struct idset *a, const struct idset *b);
void idset_intersect(struct idset *a, const struct idset *b);
void idset_subtract(struct idset *a, const struct idset *b);

#endif
