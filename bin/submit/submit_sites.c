/* SPDX-License-Identifier: BSD-3-Clause */
/* Defaults of a site and a user for their job scripts: two small files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "submit/submit.h"

#define FILE_MAX 65536
#define LIST_MAX 64
#define SITE "/etc/berth/submit.json"

void submit_free(struct submit *submit)
{
	if (!submit)
		return;
	for (size_t i = 0; i < submit->line_count; i++)
		free(submit->lines[i]);
	for (size_t i = 0; i < submit->directive_count; i++)
		free(submit->directives[i]);
	for (size_t i = 0; i < submit->owned_count; i++)
		free(submit->owned[i]);
	free(submit->lines);
	free(submit->directives);
	memset(submit, 0, sizeof *submit);
}

static const char *keep_string(struct submit *submit, const char *text)
{
	char *copy = submit->owned_count < sizeof submit->owned / sizeof *submit->owned
			     ? strdup(text)
			     : NULL;

	if (copy)
		submit->owned[submit->owned_count++] = copy;
	return copy;
}

/* Require a single line: a newline would start another script line, and a NUL ends JSON's strings
 * anyway. */
static int check_line(const char *path, const char *key, const char *text, struct error *err)
{
	if (*text && !text[strcspn(text, "\n\r")])
		return 0;
	return error_set(err, ERR_DATA,
			 "%s: \"%s\" has an entry that is empty or has several lines; expected one "
			 "line each",
			 path, key);
}

/* Put a file's list before those that were read already. */
static int read_list(const char *path, const char *key, const json_t *value, char ***list,
		     size_t *count, struct error *err)
{
	size_t size = json_array_size(value);
	char **grown;
	int rc = 0;

	if (!json_is_array(value) || size > LIST_MAX)
		return error_set(err, ERR_DATA, "%s: \"%s\" is not a list of at most %d lines",
				 path, key, LIST_MAX);
	grown = realloc(*list, (*count + size + 1) * sizeof **list);
	if (!grown)
		return error_memory(err, path);
	memmove(grown + size, grown, *count * sizeof *grown);
	memset(grown, 0, size * sizeof *grown);
	*list = grown;
	*count += size;
	for (size_t i = 0; !rc && i < size; i++) {
		const char *text = json_string_value(json_array_get(value, i));

		if (!text)
			return error_set(err, ERR_DATA, "%s: \"%s\"[%zu] is not a string", path,
					 key, i);
		rc = check_line(path, key, text, err);
		if (!rc && !(grown[i] = strdup(text)))
			rc = error_memory(err, path);
	}
	return rc;
}

static int read_kind(const char *path, const json_t *value, struct submit *submit,
		     struct error *err)
{
	const char *text = json_string_value(value);

	if (!text || (strcmp(text, "slurm") && strcmp(text, "pbs")))
		return error_set(err, ERR_DATA,
				 "%s: \"scheduler\" is neither \"slurm\" nor \"pbs\"", path);
	if (submit->kind == SUBMIT_UNKNOWN)
		submit->kind = *text == 's' ? SUBMIT_SLURM : SUBMIT_PBS;
	return 0;
}

static int read_member(const char *path, const char *key, const json_t *value,
		       struct submit *submit, struct error *err)
{
	const struct {
		const char *key;
		const char **place;
	} texts[] = {
		{"queue", &submit->queue},
		{"account", &submit->account},
		{"berth", &submit->berth},
	};
	const struct {
		const char *key;
		int *place, least;
	} numbers[] = {
		{"gpus_per_node", &submit->gpus_per_node, 0},
		{"cpus_per_node", &submit->cpus_per_node, 1},
	};

	if (!strcmp(key, "scheduler"))
		return read_kind(path, value, submit, err);
	if (!strcmp(key, "lines"))
		return read_list(path, key, value, &submit->lines, &submit->line_count, err);
	if (!strcmp(key, "directives"))
		return read_list(path, key, value, &submit->directives, &submit->directive_count,
				 err);
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		if (strcmp(key, texts[i].key))
			continue;
		if (!json_is_string(value) || !json_string_length(value))
			return error_set(err, ERR_DATA, "%s: \"%s\" is not a non-empty string",
					 path, key);
		int rc = check_line(path, key, json_string_value(value), err);

		if (!rc && !*texts[i].place &&
		    !(*texts[i].place = keep_string(submit, json_string_value(value))))
			rc = error_memory(err, path);
		return rc;
	}
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		if (strcmp(key, numbers[i].key))
			continue;
		if (!json_is_integer(value) || json_integer_value(value) < numbers[i].least ||
		    json_integer_value(value) > 100000)
			return error_set(err, ERR_DATA,
					 "%s: \"%s\" is not an integer from %d to 100000", path,
					 key, numbers[i].least);
		if (!*numbers[i].place)
			*numbers[i].place = json_integer_value(value)
						    ? (int)json_integer_value(value)
						    : SUBMIT_NONE;
		return 0;
	}
	return error_set(err, ERR_DATA,
			 "%s: unknown key \"%.60s\"; known keys: scheduler, queue, account, berth, "
			 "gpus_per_node, cpus_per_node, lines, directives",
			 path, key);
}

static int read_file(const char *path, struct submit *submit, struct error *err)
{
	JSON_AUTO json = NULL;
	const char *key;
	json_t *value;
	int rc;

	if (access(path, F_OK))
		return 0;
	rc = json_read_file(path, FILE_MAX, &json, err);
	if (!rc)
		json_object_foreach(json, key, value) if (!rc) rc =
			read_member(path, key, value, submit, err);
	return rc;
}

int submit_read_site_files(const struct env *env, struct submit *submit, struct error *err)
{
	const char *home = env_get(env, "HOME");
	char path[4096];
	int rc = 0;

	/* The user's scalars are read first and so win; the site's lines still come first. */
	if (home && *home == '/' &&
	    snprintf(path, sizeof path, "%s/.config/berth/submit.json", home) < (int)sizeof path)
		rc = read_file(path, submit, err);
	return rc ? rc : read_file(SITE, submit, err);
}
