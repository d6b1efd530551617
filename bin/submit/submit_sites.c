/* SPDX-License-Identifier: BSD-3-Clause */
/* Defaults of a site and a user, for job scripts and for runs: two small files. Those for runs
 * become variables, which the user's environment overrides and all agents get. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wordexp.h>

#include "base/bytes.h"
#include "base/json.h"
#include "container/container.h"
#include "inventory/inventory.h"
#include "launch/launcher.h"
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

/* Set a variable unless the environment or a file that was read before sets it. A rank has the
 * value from its agent: that is this file's, too. */
static int set(struct submit *submit, const char *path, const char *name, const char *value,
	       struct error *err)
{
	const struct env_var *now = submit->settings ? env_find(submit->settings, name) : NULL;

	if (!submit->settings || (now && (now->from != ENV_FROM_USER || strcmp(now->value, value))))
		return 0;
	return env_set(submit->settings, name, value, ENV_FROM_SITE, path, err);
}

/* Variables of network libraries only: a site's file sets no PATH. */
static int read_fabric(const char *path, const json_t *value, struct submit *submit,
		       struct error *err)
{
	static const char *const patterns[] = {"NCCL_*",     "RCCL_*",	   "FI_*",	 "CXI_*",
					       "UCX_*",	     "UCC_*",	   "GLOO_*",	 "MPICH_*",
					       "OMPI_MCA_*", "PRTE_MCA_*", "PMIX_MCA_*", NULL};
	const char *name;
	json_t *text;
	int rc = 0;

	if (!json_is_object(value))
		return error_set(err, ERR_DATA, "%s: \"fabric\" is not an object of variables",
				 path);
	json_object_foreach((json_t *)value, name, text)
	{
		if (!env_name_matches(name, patterns) || name[strcspn(name, "= \n")])
			return error_set(err, ERR_DATA,
					 "%s: \"fabric\": %.60s is not a variable of NCCL, "
					 "libfabric, UCX, gloo or MPI",
					 path, name);
		if (!json_is_string(text))
			return error_set(err, ERR_DATA, "%s: \"fabric\": %.60s is not a string",
					 path, name);
		if (!rc)
			rc = check_line(path, name, json_string_value(text), err);
		if (!rc)
			rc = set(submit, path, name, json_string_value(text), err);
	}
	return rc;
}

static bool is_interface(const char *text)
{
	return *text && !text[strcspn(text, ", \n")];
}

static bool is_bind(const char *text)
{
	return !container_check_bind(text, NULL) && !strchr(text, '\n');
}

/* A list whose entries commas separate in the variable. */
static int read_entries(const char *path, const char *key, const json_t *value,
			struct submit *submit, struct error *err)
{
	bool binds = *key == 'c';
	char list[4096] = "";
	size_t i;
	json_t *entry;

	if (!json_is_array(value) || !json_array_size(value))
		return error_set(err, ERR_DATA, "%s: \"%s\" is not a list of %s", path, key,
				 binds ? "paths" : "interfaces");
	json_array_foreach(value, i, entry)
	{
		const char *text = json_string_value(entry);

		if (!text || !(binds ? is_bind(text) : is_interface(text)) ||
		    strlen(list) + strlen(text) + 2 > sizeof list)
			return error_set(err, ERR_DATA, "%s: \"%s\"[%zu] is not %s", path, key, i,
					 binds ? "/PATH, /PATH:/PATH or /PATH:/PATH:ro"
					       : "the name of an interface, such as eno1 or "
						 "docker*");
		text_append(list, sizeof list, "%s%s", *list ? "," : "", text);
	}
	return set(submit, path, binds ? CONTAINER_OFFERS : INVENTORY_BANNED, list, err);
}

static int read_launcher(const char *path, const char *text, struct submit *submit,
			 struct error *err)
{
	const struct launcher *launcher;

	if (launcher_find(text, NULL, NULL, &launcher, err)) {
		err->code = ERR_DATA;
		return error_prefix(err, "%s", path);
	}
	return set(submit, path, LAUNCHER_PREFERRED, text, err);
}

/* A path with variables, such as /local/$SLURM_JOB_ID; absent where one of them is. */
static int read_staging(const char *path, const char *text, struct submit *submit,
			struct error *err)
{
	wordexp_t words = {0};
	int rc = wordexp(text, &words, WRDE_NOCMD | WRDE_UNDEF);

	if (rc == WRDE_BADVAL)
		return 0;
	if (rc || words.we_wordc != 1 || *words.we_wordv[0] != '/')
		rc = error_set(err, ERR_DATA,
			       "%s: \"staging\" is not one absolute path, such as "
			       "/local/$SLURM_JOB_ID",
			       path);
	else
		rc = set(submit, path, "BERTH_STAGING", words.we_wordv[0], err);
	wordfree(&words);
	return rc;
}

static int read_member(const char *path, const char *key, const json_t *value,
		       struct submit *submit, struct error *err)
{
	const struct {
		const char *key;
		const char **place; /* NULL: read is called */
		int (*read)(const char *path, const char *text, struct submit *submit,
			    struct error *err);
	} texts[] = {
		{"queue", &submit->queue, NULL}, {"account", &submit->account, NULL},
		{"berth", &submit->berth, NULL}, {"launcher", NULL, read_launcher},
		{"staging", NULL, read_staging},
	};
	const struct {
		const char *key;
		int *place, least, most;
	} numbers[] = {
		{"gpus_per_node", &submit->gpus_per_node, 0, 1024},
		{"cpus_per_node", &submit->cpus_per_node, 1, 100000},
		{"cpus_per_gpu", &submit->cpus_per_gpu, 1, 100000},
	};

	if (!strcmp(key, "scheduler"))
		return read_kind(path, value, submit, err);
	if (!strcmp(key, "lines"))
		return read_list(path, key, value, &submit->lines, &submit->line_count, err);
	if (!strcmp(key, "directives"))
		return read_list(path, key, value, &submit->directives, &submit->directive_count,
				 err);
	if (!strcmp(key, "fabric"))
		return read_fabric(path, value, submit, err);
	if (!strcmp(key, "banned_interfaces") || !strcmp(key, "container_bind"))
		return read_entries(path, key, value, submit, err);
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		if (strcmp(key, texts[i].key))
			continue;
		if (!json_is_string(value) || !json_string_length(value))
			return error_set(err, ERR_DATA, "%s: \"%s\" is not a non-empty string",
					 path, key);
		int rc = check_line(path, key, json_string_value(value), err);

		if (!rc && texts[i].read)
			return texts[i].read(path, json_string_value(value), submit, err);
		if (!rc && !*texts[i].place &&
		    !(*texts[i].place = keep_string(submit, json_string_value(value))))
			rc = error_memory(err, path);
		return rc;
	}
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		if (strcmp(key, numbers[i].key))
			continue;
		if (!json_is_integer(value) || json_integer_value(value) < numbers[i].least ||
		    json_integer_value(value) > numbers[i].most)
			return error_set(err, ERR_DATA,
					 "%s: \"%s\" is not an integer from %d to %d", path, key,
					 numbers[i].least, numbers[i].most);
		if (!*numbers[i].place)
			*numbers[i].place = json_integer_value(value)
						    ? (int)json_integer_value(value)
						    : SUBMIT_NONE;
		return 0;
	}
	return error_set(
		err, ERR_DATA,
		"%s: unknown key \"%.60s\"; known keys: scheduler, queue, account, berth, "
		"gpus_per_node, cpus_per_node, cpus_per_gpu, lines, directives, launcher, fabric, "
		"banned_interfaces, staging, container_bind",
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

int submit_environment(const char *const *texts, size_t count, struct env **out, struct error *err)
{
	struct submit submit = {.settings = *out = env_capture()};
	int rc = *out ? env_set_texts(*out, texts, count, err)
		      : error_memory(err, "the environment");

	if (!rc)
		rc = submit_read_site_files(*out, &submit, err);
	submit_free(&submit);
	return rc;
}
