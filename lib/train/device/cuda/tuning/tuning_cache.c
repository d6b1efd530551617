/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/tuning/tuning_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/env.h"
#include "base/file.h"

#define FILE_BYTES_MAX ((size_t)4 << 20)
#define LINES_MAX 20000

struct tuning_cache_entry {
	char key[TUNING_CACHE_KEY_BYTES];
	int numbers[TUNING_CACHE_NUMBERS];
	bool used; /* by this process */
};

struct tuning_cache {
	char *path; /* NULL: not stored */
	struct tuning_cache_entry *list;
	size_t count, capacity;
	bool changed;
};

static struct tuning_cache_entry *find_entry(const struct tuning_cache *tuned, const char *key)
{
	for (size_t i = 0; i < tuned->count; i++)
		if (!strcmp(tuned->list[i].key, key))
			return &tuned->list[i];
	return NULL;
}

bool tuning_cache_find(struct tuning_cache *tuned, const char *key, int *numbers)
{
	struct tuning_cache_entry *entry = find_entry(tuned, key);

	if (!entry)
		return false;
	memcpy(numbers, entry->numbers, sizeof entry->numbers);
	entry->used = true;
	return true;
}

/* used: by this process, and not as an entry of the file, which does not replace others. */
static bool put(struct tuning_cache *tuned, const char *key, const int *numbers, bool used)
{
	struct tuning_cache_entry *entry = find_entry(tuned, key);

	if (!entry && strlen(key) < TUNING_CACHE_KEY_BYTES && tuned->count < LINES_MAX &&
	    array_reserve(&tuned->list, tuned->count, &tuned->capacity, sizeof *tuned->list)) {
		entry = &tuned->list[tuned->count++];
		*entry = (struct tuning_cache_entry){0};
		snprintf(entry->key, sizeof entry->key, "%s", key);
	} else if (!entry || !used) {
		return false;
	}
	memcpy(entry->numbers, numbers, sizeof entry->numbers);
	entry->used = used;
	return true;
}

void tuning_cache_add(struct tuning_cache *tuned, const char *key, const int *numbers)
{
	tuned->changed |= put(tuned, key, numbers, true);
}

static void read_line(struct tuning_cache *tuned, char *line, bool used)
{
	char *rest = strchr(line, '\t');
	int numbers[TUNING_CACHE_NUMBERS];

	if (!rest)
		return;
	*rest++ = 0;
	for (int i = 0; i < TUNING_CACHE_NUMBERS; i++) {
		char *end;
		long number = strtol(rest, &end, 10);

		if (end == rest || number < -1 || number > 100000)
			return;
		numbers[i] = (int)number;
		rest = end;
	}
	if (!*rest)
		put(tuned, line, numbers, used);
}

static void read_text(struct tuning_cache *tuned, char *text, bool used)
{
	char *line;

	while ((line = strsep(&text, "\n")))
		read_line(tuned, line, used);
}

void tuning_cache_take(struct tuning_cache *tuned, char *text)
{
	read_text(tuned, text, true);
}

static void read_file(struct tuning_cache *tuned)
{
	char *text = NULL;
	size_t size;

	if (!tuned->path || file_read(tuned->path, FILE_BYTES_MAX, &text, &size, NULL))
		return;
	read_text(tuned, text, false);
	free(text);
}

struct tuning_cache *tuning_cache_open_file(const char *path)
{
	struct tuning_cache *tuned = calloc(1, sizeof *tuned);

	if (!tuned)
		return NULL;
	tuned->path = path ? strdup(path) : NULL;
	read_file(tuned);
	return tuned;
}

struct tuning_cache *tuning_cache_open(const char *gpu, unsigned long version)
{
	struct env *env = env_capture();
	const char *cache = env ? env_get(env, "XDG_CACHE_HOME") : NULL;
	const char *home = env ? env_get(env, "HOME") : NULL;
	bool own = cache && *cache == '/';
	struct tuning_cache *tuned;
	char *path = NULL;

	if (own || (home && *home == '/'))
		path = text_format("%s%s/berth/cudnn-%lu %s", own ? cache : home,
				   own ? "" : "/.cache", version, gpu);
	env_free(env);
	/* Keep '/' and characters that are special in a shell out of the file name. */
	for (char *c = path ? strrchr(path, '-') : NULL; c && *c; c++)
		if (*c == ' ')
			*c = '_';
	tuned = tuning_cache_open_file(path);
	free(path);
	return tuned;
}

static char *to_text(const struct tuning_cache *tuned, bool used, size_t *size)
{
	char *text = NULL;
	FILE *file = open_memstream(&text, size);

	if (!file)
		return NULL;
	for (size_t i = 0; i < tuned->count; i++) {
		if (used && !tuned->list[i].used)
			continue;
		fprintf(file, "%s\t", tuned->list[i].key);
		for (int k = 0; k < TUNING_CACHE_NUMBERS; k++)
			fprintf(file, "%d%c", tuned->list[i].numbers[k],
				k + 1 < TUNING_CACHE_NUMBERS ? ' ' : '\n');
	}
	fclose(file);
	return text;
}

const char *tuning_cache_given_up(const struct tuning_cache *tuned)
{
	for (size_t i = 0; i < tuned->count; i++)
		if (tuned->list[i].numbers[TUNING_CACHE_ATTEMPTS] >= TUNING_CACHE_ATTEMPTS_MAX)
			return tuned->path ? tuned->path : "";
	return NULL;
}

char *tuning_cache_text(const struct tuning_cache *tuned)
{
	size_t size;

	return to_text(tuned, true, &size);
}

void tuning_cache_save(struct tuning_cache *tuned)
{
	size_t size;
	char *text, *directory;

	if (!tuned->changed || !tuned->path)
		return;
	tuned->changed = false;
	read_file(tuned);
	directory = strdup(tuned->path);
	text = to_text(tuned, false, &size);
	if (text && directory) {
		*strrchr(directory, '/') = 0;
		if (!file_make_dirs(directory, NULL))
			file_write_atomic(tuned->path, text, size, 0666, NULL);
	}
	free(directory);
	free(text);
}

void tuning_cache_free(struct tuning_cache *tuned)
{
	if (!tuned)
		return;
	free(tuned->path);
	free(tuned->list);
	free(tuned);
}
