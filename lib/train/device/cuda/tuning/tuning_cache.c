/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/tuning/tuning_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"

#define MOST_BYTES ((size_t)4 << 20)
#define MOST_LINES 20000

struct choice {
	char key[CHOICE_KEY];
	int numbers[CHOICE_NUMBERS];
};

struct choices {
	char *path; /* NULL: kept nowhere */
	struct choice *list;
	size_t count, room;
	bool changed;
};

static struct choice *find(const struct choices *choices, const char *key)
{
	for (size_t i = 0; i < choices->count; i++)
		if (!strcmp(choices->list[i].key, key))
			return &choices->list[i];
	return NULL;
}

bool choices_find(const struct choices *choices, const char *key, int *numbers)
{
	const struct choice *choice = find(choices, key);

	if (choice)
		memcpy(numbers, choice->numbers, sizeof choice->numbers);
	return choice;
}

/* At the end; what is there already stays. */
static bool append(struct choices *choices, const char *key, const int *numbers)
{
	if (strlen(key) >= CHOICE_KEY || choices->count >= MOST_LINES || find(choices, key))
		return false;
	if (choices->count == choices->room) {
		size_t room = choices->room ? choices->room * 2 : 64;
		struct choice *grown = realloc(choices->list, room * sizeof *grown);

		if (!grown)
			return false;
		choices->list = grown;
		choices->room = room;
	}

	struct choice *choice = &choices->list[choices->count++];

	snprintf(choice->key, sizeof choice->key, "%s", key);
	memcpy(choice->numbers, numbers, sizeof choice->numbers);
	return true;
}

void choices_add(struct choices *choices, const char *key, const int *numbers)
{
	struct choice *there = find(choices, key);

	if (there)
		memcpy(there->numbers, numbers, sizeof there->numbers);
	if (there || append(choices, key, numbers))
		choices->changed = true;
}

static void read_line(struct choices *choices, char *line)
{
	char *rest = strchr(line, '\t');
	int numbers[CHOICE_NUMBERS];

	if (!rest)
		return;
	*rest++ = 0;
	for (int i = 0; i < CHOICE_NUMBERS; i++) {
		char *end;
		long number = strtol(rest, &end, 10);

		if (end == rest || number < -1 || number > 100000)
			return;
		numbers[i] = (int)number;
		rest = end;
	}
	if (*rest)
		return;
	append(choices, line, numbers);
}

static void read_file(struct choices *choices)
{
	char *text = NULL, *rest, *line;
	size_t size;

	if (!choices->path || file_read(choices->path, MOST_BYTES, &text, &size, NULL))
		return;
	rest = text;
	while ((line = strsep(&rest, "\n")))
		read_line(choices, line);
	free(text);
}

struct choices *choices_open_file(const char *path)
{
	struct choices *choices = calloc(1, sizeof *choices);

	if (!choices)
		return NULL;
	choices->path = path ? strdup(path) : NULL;
	read_file(choices);
	return choices;
}

struct choices *choices_open(const char *gpu, unsigned long version)
{
	struct env *env = env_capture();
	const char *cache = env ? env_get(env, "XDG_CACHE_HOME") : NULL;
	const char *home = env ? env_get(env, "HOME") : NULL;
	char *path = NULL;
	int n = -1;

	if (cache && *cache == '/')
		n = asprintf(&path, "%s/berth/cudnn-%lu %s", cache, version, gpu);
	else if (home && *home == '/')
		n = asprintf(&path, "%s/.cache/berth/cudnn-%lu %s", home, version, gpu);
	if (n < 0)
		path = NULL;
	env_free(env);
	if (path) {
		/* No folder by a GPU's name, and nothing that a shell stumbles over. */
		for (char *c = strrchr(path, '-'); *c; c++)
			if (*c == ' ')
				*c = '_';
	}

	struct choices *choices = choices_open_file(path);

	free(path);
	return choices;
}

static char *to_text(const struct choices *choices, size_t *size)
{
	char *text = NULL;
	FILE *file = open_memstream(&text, size);

	if (!file)
		return NULL;
	for (size_t i = 0; i < choices->count; i++) {
		fprintf(file, "%s\t", choices->list[i].key);
		for (int k = 0; k < CHOICE_NUMBERS; k++)
			fprintf(file, "%d%c", choices->list[i].numbers[k],
				k + 1 < CHOICE_NUMBERS ? ' ' : '\n');
	}
	fclose(file);
	return text;
}

void choices_save(struct choices *choices)
{
	size_t size;
	char *text, *folder;

	if (!choices->changed || !choices->path)
		return;
	choices->changed = false;
	read_file(choices);
	folder = strdup(choices->path);
	text = to_text(choices, &size);
	if (text && folder) {
		*strrchr(folder, '/') = 0;
		if (!file_make_dirs(folder, NULL))
			file_write_atomic(choices->path, text, size, 0666, NULL);
	}
	free(folder);
	free(text);
}

void choices_free(struct choices *choices)
{
	if (!choices)
		return;
	free(choices->path);
	free(choices->list);
	free(choices);
}
