/* SPDX-License-Identifier: BSD-3-Clause */
/* Node files have one host per line, and repeats are slots. Host files name a host once, followed
 * by its slots. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/file.h"
#include "base/number.h"
#include "hostlist/hostlist.h"

/* Names seen so far, by hash: node files repeat names thousands of times, in any order. */
struct table {
	size_t *places; /* host index + 1, 0 empty; size is a power of two */
	size_t size;
	size_t *lines; /* [hosts], for a host file: the line of each host; NULL: a node file */
};

static const char blanks[] = " \t\r\v\f";

/* FNV-1a from a start value specific to this process, so that no file can be written to make its
 * names collide. */
static size_t hash_name(const char *name, size_t size)
{
	const void *random = (const void *)getauxval(AT_RANDOM); /* 16 bytes from the kernel */
	uint64_t h = UINT64_C(0xcbf29ce484222325), start = 0;

	if (random)
		memcpy(&start, random, sizeof start);
	h ^= start;
	for (size_t i = 0; i < size; i++)
		h = (h ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
	return (size_t)(h ^ h >> 32);
}

static size_t *slot_of(const struct table *table, const struct hosts *hosts, const char *name,
		       size_t size)
{
	for (size_t i = hash_name(name, size);; i++) {
		size_t *place = &table->places[i & (table->size - 1)];

		if (!*place)
			return place;
		const char *seen = hosts->names[*place - 1];

		if (!strncmp(seen, name, size) && !seen[size])
			return place;
	}
}

static int grow(struct table *table, struct hosts *hosts, struct error *err)
{
	size_t size = table->size ? table->size * 4 : 64;
	size_t *places = calloc(size, sizeof *places);
	char **names = realloc(hosts->names, size / 2 * sizeof *names);

	if (names)
		hosts->names = names;
	int *slots = realloc(hosts->slots, size / 2 * sizeof *slots);

	if (slots)
		hosts->slots = slots;
	size_t *lines = table->lines ? realloc(table->lines, size / 2 * sizeof *lines) : NULL;

	if (lines)
		table->lines = lines;
	if (!places || !names || !slots || (table->lines && !lines)) {
		free(places);
		return error_memory(err, "the node file");
	}
	free(table->places);
	table->places = places;
	table->size = size;
	for (size_t i = 0; i < hosts->count; i++)
		*slot_of(table, hosts, hosts->names[i], strlen(hosts->names[i])) = i + 1;
	return 0;
}

/* Count a host. slots: for a host file, which names a host once; 0: none given. */
static int count_host(struct table *table, struct hosts *hosts, const char *name, size_t size,
		      size_t number, int slots, struct error *err)
{
	if (hosts->count >= table->size / 2) {
		int rc = grow(table, hosts, err);

		if (rc)
			return rc;
	}
	size_t *place = slot_of(table, hosts, name, size);

	if (*place && table->lines)
		return error_set(
			err, ERR_DATA,
			"host '%.*s' is already listed on line %zu. List each host once, followed "
			"by slots=N for N ranks (a scheduler's node file needs no --hostfile).",
			(int)size, name, table->lines[*place - 1]);
	if (*place) {
		hosts->slots[*place - 1]++;
		return 0;
	}
	if (hosts->count == HOSTLIST_MAX_HOSTS)
		return error_set(err, ERR_DATA, "more than %d hosts", HOSTLIST_MAX_HOSTS);
	hosts->names[hosts->count] = strndup(name, size);
	if (!hosts->names[hosts->count])
		return error_memory(err, "the node file");
	if (table->lines)
		table->lines[hosts->count] = number;
	hosts->slots[hosts->count++] = slots;
	*place = hosts->count;
	return 0;
}

/* Parse "NAME slots=4": the name's size, and the slots. Return 0 or -ERR_DATA. */
static int read_slots(const char *line, size_t *size, int *slots, struct error *err)
{
	static const char what[] = "slots=";
	size_t name = 0, at;
	char digits[12];

	while (name < *size && !memchr(blanks, line[name], sizeof blanks - 1))
		name++;
	for (at = name; at < *size && memchr(blanks, line[at], sizeof blanks - 1);)
		at++;
	if (at == *size)
		return 0;
	if (*size - at < sizeof what || *size - at - (sizeof what - 1) >= sizeof digits ||
	    strncmp(line + at, what, sizeof what - 1))
		goto bad;
	snprintf(digits, sizeof digits, "%.*s", (int)(*size - at - (sizeof what - 1)),
		 line + at + sizeof what - 1);
	if (number_int("slots", digits, 1, HOSTFILE_MAX_SLOTS, slots, NULL))
		goto bad;
	*size = name;
	return 0;
bad:
	return error_set(err, ERR_DATA,
			 "'%.*s' after a host; expected nothing or slots=N, with N from 1 to %d",
			 (int)(*size - at < 60 ? *size - at : 60), line + at, HOSTFILE_MAX_SLOTS);
}

int hostlist_check_name(const char *name, size_t size, struct error *err)
{
	if (!size)
		return error_set(err, ERR_DATA, "the name is empty");
	if (size > HOSTLIST_MAX_NAME)
		return error_set(err, ERR_DATA, "the name has %zu bytes; expected at most %d", size,
				 HOSTLIST_MAX_NAME);
	for (size_t i = 0; i < size; i++)
		if ((name[i] == '-' && !i) || !name[i] ||
		    !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@%-",
			    name[i]))
			return error_set(err, ERR_DATA,
					 "'%.*s': character %zu is not allowed in a host name; "
					 "expected one name of letters, digits and ._:@%%-",
					 (int)(size < 60 ? size : 60), name, i + 1);
	return 0;
}

static int read_line(struct table *table, struct hosts *hosts, const char *line, size_t size,
		     size_t number, struct error *err)
{
	const char *comment = memchr(line, '#', size);
	int slots = table->lines ? 0 : 1, rc = 0;

	if (comment)
		size = (size_t)(comment - line);
	while (size && memchr(blanks, *line, sizeof blanks - 1))
		line++, size--;
	while (size && memchr(blanks, line[size - 1], sizeof blanks - 1))
		size--;
	if (!size)
		return 0;
	if (table->lines)
		rc = read_slots(line, &size, &slots, err);
	if (!rc)
		rc = hostlist_check_name(line, size, err);
	if (!rc)
		rc = count_host(table, hosts, line, size, number, slots, err);
	return rc ? error_prefix(err, "line %zu", number) : 0;
}

int nodefile_parse(const char *text, size_t size, bool once, struct hosts *out, struct error *err)
{
	struct hosts hosts = {0};
	struct table table = {0};
	size_t number = 0;
	int rc = 0;

	if (size > HOSTLIST_MAX_TEXT)
		return error_set(err, ERR_DATA, "the file has %zu bytes; expected at most %d", size,
				 HOSTLIST_MAX_TEXT);
	if (once && !(table.lines = calloc(1, sizeof *table.lines)))
		return error_memory(err, "the host file");
	while (!rc && size) {
		const char *end = memchr(text, '\n', size);
		size_t line = end ? (size_t)(end - text) : size;

		rc = read_line(&table, &hosts, text, line, ++number, err);
		line += end != NULL;
		text += line;
		size -= line;
	}
	free(table.places);
	free(table.lines);
	if (rc)
		hosts_free(&hosts);
	else
		*out = hosts;
	return rc;
}

int nodefile_read(const char *path, bool once, struct hosts *out, struct error *err)
{
	char *text = NULL;
	size_t size = 0;
	int rc = file_read_input(path, HOSTLIST_MAX_TEXT, FILE_INPUT_MS, &text, &size, err);

	if (!rc) {
		rc = nodefile_parse(text, size, once, out, err);
		if (rc)
			error_prefix(err, "%s", path);
	}
	free(text);
	return rc;
}
