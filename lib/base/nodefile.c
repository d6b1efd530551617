/* SPDX-License-Identifier: BSD-3-Clause */
/* Node files: a host a line, repeats are slots. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/file.h"
#include "base/hostlist.h"

/* Names seen, by hash: node files repeat names thousands of times, in any order. */
struct table {
	size_t *places; /* host index + 1, 0 empty; size is a power of two */
	size_t size;
};

/* FNV-1a from a start that is this process's own: a file cannot be written so that its names
 * collide. */
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

static size_t *place_of(const struct table *table, const struct hosts *hosts, const char *name,
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
	if (!places || !names || !slots) {
		free(places);
		return error_memory(err, "the node file");
	}
	free(table->places);
	*table = (struct table){places, size};
	for (size_t i = 0; i < hosts->count; i++)
		*place_of(table, hosts, hosts->names[i], strlen(hosts->names[i])) = i + 1;
	return 0;
}

static int count_host(struct table *table, struct hosts *hosts, const char *name, size_t size,
		      struct error *err)
{
	if (hosts->count >= table->size / 2) {
		int rc = grow(table, hosts, err);

		if (rc)
			return rc;
	}
	size_t *place = place_of(table, hosts, name, size);

	if (*place) {
		hosts->slots[*place - 1]++;
		return 0;
	}
	if (hosts->count == HOSTLIST_MAX_HOSTS)
		return error_set(err, ERR_DATA, "more than %d hosts", HOSTLIST_MAX_HOSTS);
	hosts->names[hosts->count] = strndup(name, size);
	if (!hosts->names[hosts->count])
		return error_memory(err, "the node file");
	hosts->slots[hosts->count++] = 1;
	*place = hosts->count;
	return 0;
}

static int read_line(struct table *table, struct hosts *hosts, const char *line, size_t size,
		     size_t number, struct error *err)
{
	static const char blanks[] = " \t\r\v\f";
	const char *comment = memchr(line, '#', size);

	if (comment)
		size = (size_t)(comment - line);
	while (size && memchr(blanks, *line, sizeof blanks - 1))
		line++, size--;
	while (size && memchr(blanks, line[size - 1], sizeof blanks - 1))
		size--;
	if (!size)
		return 0;
	if (size > HOSTLIST_MAX_NAME)
		return error_set(err, ERR_DATA, "line %zu: a name of %zu bytes; expected at most "
				 "%d", number, size, HOSTLIST_MAX_NAME);
	for (size_t i = 0; i < size; i++) {
		unsigned char c = (unsigned char)line[i];

		if (c <= ' ' || c == 0x7f || strchr(",[]/", c) || (c == '-' && !i))
			return error_set(err, ERR_DATA, "line %zu ('%.*s'): character %zu does not "
					 "belong in a host name; expected one name a line", number,
					 (int)(size < 60 ? size : 60), line, i + 1);
	}
	int rc = count_host(table, hosts, line, size, err);

	return rc ? error_prefix(err, "line %zu", number) : 0;
}

int nodefile_parse(const char *text, size_t size, struct hosts *out, struct error *err)
{
	struct hosts hosts = {0};
	struct table table = {0};
	size_t number = 0;
	int rc = 0;

	if (size > HOSTLIST_MAX_TEXT)
		return error_set(err, ERR_DATA, "node file of %zu bytes; expected at most %d",
				 size, HOSTLIST_MAX_TEXT);
	while (!rc && size) {
		const char *end = memchr(text, '\n', size);
		size_t line = end ? (size_t)(end - text) : size;

		rc = read_line(&table, &hosts, text, line, ++number, err);
		line += end != NULL;
		text += line;
		size -= line;
	}
	free(table.places);
	if (rc)
		hosts_free(&hosts);
	else
		*out = hosts;
	return rc;
}

int nodefile_read(const char *path, struct hosts *out, struct error *err)
{
	char *text = NULL;
	size_t size = 0;
	int rc = file_read(path, HOSTLIST_MAX_TEXT, &text, &size, err);

	if (!rc) {
		rc = nodefile_parse(text, size, out, err);
		if (rc)
			error_prefix(err, "%s", path);
	}
	free(text);
	return rc;
}
