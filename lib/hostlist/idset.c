/* SPDX-License-Identifier: BSD-3-Clause */
#include "hostlist/idset.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "base/json_fields.h"

#define CHUNK_BITS 64

/* The CPUs of most nodes fit into this. An inventory has a set for each core, and the controller of
 * a large job holds 10,000 inventories. */
#define SMALL_CHUNKS 4

/* A bitmap; chunks beyond count are implicit zeros. */
struct idset {
	uint64_t *chunks; /* points to small, or malloced */
	size_t count;
	uint64_t small[SMALL_CHUNKS];
};

struct idset *idset_new(void)
{
	return calloc(1, sizeof(struct idset));
}

void idset_free(struct idset *set)
{
	if (!set)
		return;
	if (set->chunks != set->small)
		free(set->chunks);
	free(set);
}

struct idset *idset_copy(const struct idset *set)
{
	struct idset *copy = idset_new();

	if (copy && idset_unite(copy, set)) {
		idset_free(copy);
		copy = NULL;
	}
	return copy;
}

static uint64_t chunk_at(const struct idset *set, size_t index)
{
	return set && index < set->count ? set->chunks[index] : 0;
}

static size_t chunk_count(const struct idset *set)
{
	return set ? set->count : 0;
}

static int grow(struct idset *set, size_t count)
{
	if (count <= set->count)
		return 0;
	uint64_t *chunks = set->small;

	if (count > SMALL_CHUNKS) {
		chunks = realloc(set->chunks == set->small ? NULL : set->chunks,
				 count * sizeof *chunks);
		if (chunks && set->chunks == set->small)
			memcpy(chunks, set->small, set->count * sizeof *chunks);
	}
	if (!chunks)
		return -1;
	memset(chunks + set->count, 0, (count - set->count) * sizeof *chunks);
	set->chunks = chunks;
	set->count = count;
	return 0;
}

int idset_add(struct idset *set, int id)
{
	return idset_add_range(set, id, id);
}

int idset_add_range(struct idset *set, int first, int last)
{
	if (first < 0 || last > IDSET_MAX || first > last)
		return -1;
	if (grow(set, (size_t)last / CHUNK_BITS + 1))
		return -1;
	for (int id = first; id <= last; id++)
		set->chunks[id / CHUNK_BITS] |= UINT64_C(1) << (id % CHUNK_BITS);
	return 0;
}

void idset_remove(struct idset *set, int id)
{
	if (idset_has(set, id))
		set->chunks[id / CHUNK_BITS] &= ~(UINT64_C(1) << (id % CHUNK_BITS));
}

bool idset_has(const struct idset *set, int id)
{
	if (id < 0)
		return false;
	return chunk_at(set, (size_t)id / CHUNK_BITS) >> (id % CHUNK_BITS) & 1;
}

size_t idset_count(const struct idset *set)
{
	size_t count = 0;

	for (size_t i = 0; i < chunk_count(set); i++)
		count += (size_t)__builtin_popcountll(set->chunks[i]);
	return count;
}

int idset_next(const struct idset *set, int after)
{
	if (after >= IDSET_MAX)
		return -1;
	size_t id = after < 0 ? 0 : (size_t)after + 1;
	size_t index = id / CHUNK_BITS;
	uint64_t chunk = chunk_at(set, index) >> (id % CHUNK_BITS) << (id % CHUNK_BITS);

	while (!chunk) {
		if (++index >= chunk_count(set))
			return -1;
		chunk = set->chunks[index];
	}
	return (int)(index * CHUNK_BITS) + __builtin_ctzll(chunk);
}

bool idset_equal(const struct idset *a, const struct idset *b)
{
	return idset_contains(a, b) && idset_contains(b, a);
}

bool idset_intersects(const struct idset *a, const struct idset *b)
{
	for (size_t i = 0; i < chunk_count(a); i++)
		if (a->chunks[i] & chunk_at(b, i))
			return true;
	return false;
}

bool idset_contains(const struct idset *whole, const struct idset *part)
{
	for (size_t i = 0; i < chunk_count(part); i++)
		if (part->chunks[i] & ~chunk_at(whole, i))
			return false;
	return true;
}

int idset_unite(struct idset *a, const struct idset *b)
{
	if (grow(a, chunk_count(b)))
		return -1;
	for (size_t i = 0; i < chunk_count(b); i++)
		a->chunks[i] |= b->chunks[i];
	return 0;
}

void idset_subtract(struct idset *a, const struct idset *b)
{
	for (size_t i = 0; i < a->count; i++)
		a->chunks[i] &= ~chunk_at(b, i);
}

/* Report what is wrong and where: the text around the position, so that a long list stays
 * readable. */
static int bad(const char *text, const char *at, const char *what, struct error *err)
{
	size_t position = (size_t)(at - text);
	size_t from = position > 20 ? position - 20 : 0;

	return error_set(err, ERR_DATA,
			 "id set \"%s%.60s\": %s at byte %zu; expected ids and ascending ranges as "
			 "in \"0-3,8\", each id once and at most %d",
			 from ? "..." : "", text + from, what, position + 1, IDSET_MAX);
}

/* Read one id at *p: digits without a leading zero. Return NULL, or what is wrong with it. */
static const char *read_id(const char **p, int *out)
{
	int id = 0;

	if (**p < '0' || **p > '9')
		return **p ? "missing digit" : "unexpected end";
	if (**p == '0' && (*p)[1] >= '0' && (*p)[1] <= '9')
		return "a leading zero";
	for (; **p >= '0' && **p <= '9'; (*p)++) {
		id = id * 10 + (**p - '0');
		if (id > IDSET_MAX)
			return "an id that is too large";
	}
	*out = id;
	return NULL;
}

static int parse_range(struct idset *set, const char *text, const char **p, struct error *err)
{
	const char *start = *p;
	int first, last;
	const char *what = read_id(p, &first);

	if (what)
		return bad(text, *p, what, err);
	last = first;
	if (**p == '-') {
		(*p)++;
		what = read_id(p, &last);
		if (what)
			return bad(text, *p, what, err);
		if (last <= first)
			return bad(text, start, "a range that does not ascend", err);
	}
	int next = idset_next(set, first - 1);

	if (next >= 0 && next <= last)
		return bad(text, start, "a duplicate id", err);
	if (idset_add_range(set, first, last))
		return error_memory(err, "an id set");
	return 0;
}

int idset_parse(const char *text, struct idset **out, struct error *err)
{
	struct idset *set = idset_new();
	const char *p = text;
	int rc = 0;

	if (!set)
		return error_memory(err, "an id set");
	while (*p || p != text) {
		rc = parse_range(set, text, &p, err);
		if (rc || !*p)
			break;
		if (*p != ',') {
			rc = bad(text, p, "unexpected character", err);
			break;
		}
		p++;
	}
	if (rc) {
		idset_free(set);
		return rc;
	}
	*out = set;
	return 0;
}

char *idset_format(const struct idset *set)
{
	struct words words = {0};

	for (int id = idset_next(set, -1); id >= 0; id = idset_next(set, id)) {
		int last = id;

		while (idset_has(set, last + 1))
			last++;
		words_add(&words, last > id ? "%d-%d" : "%d", id, last);
		id = last;
	}
	return words_join(&words, ',');
}

static json_t *set_to_json(const struct json_field *field, const void *owner)
{
	char *text = idset_format(*(struct idset **)json_member(field, owner));
	json_t *json = text ? json_string(text) : NULL;

	free(text);
	return json;
}

static int set_from_json(const struct json_field *field, const json_t *json, void *owner,
			 const char *what, struct error *err)
{
	struct idset **set = json_member(field, owner);
	char expected[48];
	int rc;

	if (!json_is_string(json))
		return json_unexpected(what, field->name, json, "a string", err);
	rc = idset_parse(json_string_value(json), set, err);
	if (rc)
		return rc == -ERR_DATA ? error_prefix(err, "%s: \"%s\"", what, field->name) : rc;
	if (!field->max || idset_next(*set, (int)field->max) < 0)
		return 0;
	snprintf(expected, sizeof expected, "ids up to %d", (int)field->max);
	return json_unexpected(what, field->name, json, expected, err);
}

const struct json_type idset_as_json = {set_to_json, set_from_json};
