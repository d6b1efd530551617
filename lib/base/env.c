/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/env.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Entries are in order of first setting and own their strings. index is an open-addressing hash
 * table of entry numbers + 1; its size is a power of two and at least twice count. Batch jobs have
 * hundreds of variables and every rank's environment is built from one, so look-up must not be
 * linear. */
struct env {
	struct env_var *vars;
	size_t count, room;
	size_t *index;
	size_t index_size;
};

const char *env_from_name(enum env_from from)
{
	static const char *const names[] = {
		[ENV_FROM_OPTION] = "option", [ENV_FROM_USER] = "user",
		[ENV_FROM_SITE] = "site",     [ENV_FROM_SCHEDULER] = "scheduler",
		[ENV_FROM_BERTH] = "berth",   [ENV_FROM_START] = "start",
	};

	return (size_t)from < sizeof names / sizeof *names ? names[from] : "unknown";
}

struct env *env_new(void)
{
	return calloc(1, sizeof(struct env));
}

static void var_clear(struct env_var *var)
{
	free((char *)var->name);
	free((char *)var->value);
	free((char *)var->why);
}

void env_free(struct env *env)
{
	if (!env)
		return;
	for (size_t i = 0; i < env->count; i++)
		var_clear(&env->vars[i]);
	free(env->vars);
	free(env->index);
	free(env);
}

static size_t hash(const char *name)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return (size_t)(h ^ h >> 32);
}

/* Find the slot of name, or the free slot where it belongs. The table must have free slots. */
static size_t *slot_of(const struct env *env, const char *name)
{
	size_t mask = env->index_size - 1;
	size_t i = hash(name) & mask;

	while (env->index[i] && strcmp(env->vars[env->index[i] - 1].name, name))
		i = (i + 1) & mask;
	return &env->index[i];
}

static void reindex(struct env *env)
{
	memset(env->index, 0, env->index_size * sizeof *env->index);
	for (size_t i = 0; i < env->count; i++)
		*slot_of(env, env->vars[i].name) = i + 1;
}

static int make_room(struct env *env)
{
	if (env->count < env->room)
		return 0;
	size_t room = env->room ? env->room * 2 : 64;
	struct env_var *vars = realloc(env->vars, room * sizeof *vars);

	if (!vars)
		return -1;
	env->vars = vars;
	size_t *index = realloc(env->index, 2 * room * sizeof *index);

	if (!index)
		return -1;
	env->index = index;
	env->index_size = 2 * room;
	env->room = room;
	reindex(env);
	return 0;
}

const struct env_var *env_find(const struct env *env, const char *name)
{
	if (!env || !env->count)
		return NULL;
	size_t at = *slot_of(env, name);

	return at ? &env->vars[at - 1] : NULL;
}

const char *env_get(const struct env *env, const char *name)
{
	const struct env_var *var = env_find(env, name);

	return var ? var->value : NULL;
}

size_t env_count(const struct env *env)
{
	return env ? env->count : 0;
}

const struct env_var *env_at(const struct env *env, size_t index)
{
	return index < env_count(env) ? &env->vars[index] : NULL;
}

/* Copy the three strings into *out. Return -1 with nothing held if memory is out. */
static int var_copy(struct env_var *out, const char *name, const char *value, const char *why)
{
	struct env_var copy = {
		.name = strdup(name),
		.value = value ? strdup(value) : NULL,
		.why = why ? strdup(why) : NULL,
	};

	if (!copy.name || (value && !copy.value) || (why && !copy.why)) {
		var_clear(&copy);
		return -1;
	}
	*out = copy;
	return 0;
}

int env_set(struct env *env, const char *name, const char *value, enum env_from from,
	    const char *why, struct error *err)
{
	struct env_var copy;

	if (!*name || strchr(name, '='))
		return error_set(err, ERR_DATA,
				 "\"%s\" cannot name an environment variable: expected a nonempty "
				 "name without '='",
				 name);
	if (var_copy(&copy, name, value, why))
		return error_memory(err, "the environment");
	copy.from = from;

	struct env_var *old = (struct env_var *)env_find(env, name);

	if (old) {
		var_clear(old);
		*old = copy;
		return 0;
	}
	if (make_room(env)) {
		var_clear(&copy);
		return error_memory(err, "the environment");
	}
	env->vars[env->count++] = copy;
	*slot_of(env, copy.name) = env->count;
	return 0;
}

int env_setf(struct env *env, const char *name, enum env_from from, const char *why,
	     struct error *err, const char *format, ...)
{
	char *value = NULL;
	va_list ap;

	va_start(ap, format);
	int n = vasprintf(&value, format, ap);
	va_end(ap);
	if (n < 0)
		return error_memory(err, "the environment");
	int rc = env_set(env, name, value, from, why, err);

	free(value);
	return rc;
}

void env_drop(struct env *env, const char *name)
{
	struct env_var *var = (struct env_var *)env_find(env, name);

	if (!var)
		return;
	size_t at = (size_t)(var - env->vars);

	var_clear(var);
	memmove(var, var + 1, (env->count - at - 1) * sizeof *var);
	env->count--;
	reindex(env);
}

void env_erase(struct env *env, const char *name)
{
	size_t length = strlen(name);

	for (char **entry = environ; entry && *entry; entry++)
		if (!strncmp(*entry, name, length) && (*entry)[length] == '=')
			explicit_bzero(*entry + length + 1, strlen(*entry + length + 1));
	unsetenv(name);
	env_drop(env, name);
}

bool env_name_matches(const char *name, const char *const *patterns)
{
	for (; *patterns; patterns++) {
		size_t length = strcspn(*patterns, "*");

		if (!strncmp(name, *patterns, length) && ((*patterns)[length] || !name[length]))
			return true;
	}
	return false;
}

void env_drop_matching(struct env *env, const char *const *drop, const char *const *keep)
{
	size_t kept = 0;

	for (size_t i = 0; i < env->count; i++) {
		struct env_var *var = &env->vars[i];

		if (env_name_matches(var->name, drop) && !env_name_matches(var->name, keep))
			var_clear(var);
		else
			env->vars[kept++] = *var;
	}
	if (kept == env->count)
		return;
	env->count = kept;
	reindex(env);
}

int env_apply(struct env *base, const struct env *changes, struct error *err)
{
	for (size_t i = 0; i < env_count(changes); i++) {
		const struct env_var *var = &changes->vars[i];

		if (!var->value) {
			env_drop(base, var->name);
			continue;
		}
		int rc = env_set(base, var->name, var->value, var->from, var->why, err);

		if (rc)
			return rc;
	}
	return 0;
}

struct env *env_copy(const struct env *env)
{
	struct env *copy = env_new();

	for (size_t i = 0; copy && i < env_count(env); i++) {
		const struct env_var *var = &env->vars[i];

		if (env_set(copy, var->name, var->value, var->from, var->why, NULL)) {
			env_free(copy);
			return NULL;
		}
	}
	return copy;
}

struct env *env_capture(void)
{
	struct env *env = env_new();

	for (char **entry = environ; env && entry && *entry; entry++) {
		const char *equals = strchr(*entry, '=');

		if (!equals || equals == *entry)
			continue;
		char *name = strndup(*entry, (size_t)(equals - *entry));
		/* If a name occurs twice, the first counts, as in getenv. */
		int rc = !name ? -1
			 : env_find(env, name)
				 ? 0
				 : env_set(env, name, equals + 1, ENV_FROM_USER, NULL, NULL);

		free(name);
		if (rc) {
			env_free(env);
			return NULL;
		}
	}
	return env;
}

char **env_to_envp(const struct env *env)
{
	size_t pointers = (env_count(env) + 1) * sizeof(char *);
	size_t bytes = pointers;

	for (size_t i = 0; i < env_count(env); i++)
		if (env->vars[i].value)
			bytes += strlen(env->vars[i].name) + strlen(env->vars[i].value) + 2;

	char **envp = malloc(bytes);

	if (!envp)
		return NULL;
	char *text = (char *)envp + pointers;
	size_t n = 0;

	for (size_t i = 0; i < env_count(env); i++) {
		if (!env->vars[i].value)
			continue;
		envp[n++] = text;
		text = stpcpy(text, env->vars[i].name);
		*text++ = '=';
		text = stpcpy(text, env->vars[i].value) + 1;
	}
	envp[n] = NULL;
	return envp;
}

int env_spawn(const struct env *env, const char *file, char *const argv[], const int stdio[3],
	      pid_t *pid)
{
	char **envp = env_to_envp(env);
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none;
	int rc = 0;

	if (!envp)
		return ENOMEM;
	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	for (int i = 0; i < 3 && !rc; i++)
		rc = stdio[i] < 0
			     ? posix_spawn_file_actions_addopen(&files, i, "/dev/null", O_RDWR, 0)
			     : posix_spawn_file_actions_adddup2(&files, stdio[i], i);
	posix_spawnattr_init(&attributes);
	/* berth run blocks the signals that it reads from a signalfd; the program must get them. */
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	if (!rc)
		rc = posix_spawnp(pid, file, &files, &attributes, argv, envp);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	free(envp);
	return rc;
}

bool env_find_tool(const struct env *env, const char *name, char *path, size_t size)
{
	const char *at = env_get(env, "PATH");

	for (; at && *at; at += strcspn(at, ":"), at += *at == ':') {
		int used = snprintf(path, size, "%.*s/%s", (int)strcspn(at, ":"), at, name);

		if (*at == '/' && used > 0 && (size_t)used < size && !access(path, X_OK))
			return true;
	}
	return false;
}

void env_override(struct env_override *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const char *before = getenv(list[i].name);

		list[i].before = before ? strdup(before) : NULL;
		if (list[i].value)
			setenv(list[i].name, list[i].value, !list[i].keep);
		else
			unsetenv(list[i].name);
	}
}

void env_restore(struct env_override *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (list[i].before)
			setenv(list[i].name, list[i].before, 1);
		else
			unsetenv(list[i].name);
		free(list[i].before);
	}
}

int env_set_texts(struct env *env, const char *const *texts, size_t count, struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		char *name = strdup(texts[i]);

		if (!name)
			return error_memory(err, "the environment");
		char *value = strchr(name, '=');

		*value++ = '\0';
		rc = env_set(env, name, value, ENV_FROM_OPTION, "--env", err);
		free(name);
	}
	return rc;
}
