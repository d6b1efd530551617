/* SPDX-License-Identifier: BSD-3-Clause */
/* The command line that starts a rank in a container, and its environment. */
#include "container/container_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"

/* placeholder: stands for an empty word */
static void add_with(struct words *words, const char *const *list, const char *placeholder)
{
	for (; *list; list++)
		words_add(words, "%s", **list ? *list : placeholder);
}

/* bind: FROM[:TO[:ro]] */
static void add_bind(struct words *words, const struct container_runtime *runtime, const char *bind)
{
	size_t size;
	const char *to = container_bind_target(bind, &size);
	int from = (int)strcspn(bind, ":"), length = (int)size;
	bool read_only = !strcmp(to + length, ":ro");

	if (runtime->read_only && *runtime->read_only == '-') {
		words_add(words, "%s", read_only ? runtime->read_only : runtime->bind);
		words_add(words, "%.*s", from, bind);
		words_add(words, "%.*s", length, to);
	} else {
		words_add(words, "%s", runtime->bind);
		words_add(words, "%.*s:%.*s%s", from, bind, length, to,
			  read_only ? runtime->read_only : "");
	}
}

bool container_shows(const struct container *container, const char *path)
{
	for (size_t i = 0; i < container->bind_count; i++) {
		size_t length;
		const char *to = container_bind_target(container->binds[i], &length);

		if (!strncmp(path, to, length) &&
		    (length == 1 || !path[length] || path[length] == '/'))
			return true;
	}
	return false;
}

/* Show path of the host, unless it is visible anyway. */
static void add_path(struct words *words, const struct container *container,
		     const struct container_runtime *runtime, const char *path, size_t length)
{
	char bind[4096];

	snprintf(bind, sizeof bind, "%.*s", (int)length, path);
	if (length > 1 && !container_shows(container, bind) &&
	    !(runtime->fixed && !strncmp(path, "/tmp/", 5)))
		add_bind(words, runtime, bind);
}

static void add_binds(struct words *words, const struct container *container,
		      const struct container_runtime *runtime, const struct container_start *start)
{
	size_t length = strlen(start->dir);

	/* No image has a place for a directory with a new name, but it may have one for the
	 * directory above it. */
	while (runtime->fixed && start->dir[--length] != '/')
		;
	add_path(words, container, runtime, start->dir, length);
	for (size_t i = 0; i < container->bind_count; i++)
		add_bind(words, runtime, container->binds[i]);
	for (size_t i = 0; i < container->offer_count; i++)
		if (container_can_offer(container, container->offers[i]))
			add_bind(words, runtime, container->offers[i]);
	if (!runtime->keeps_cwd)
		add_path(words, container, runtime, start->cwd, strlen(start->cwd));
}

static void add_devices(struct words *words, const struct container_runtime *runtime)
{
	static const char *const fabric[] = {"/dev/infiniband", "/dev/cxi0", "/dev/cxi1",
					     "/dev/cxi2",	"/dev/cxi3", "/dev/cxi4",
					     "/dev/cxi5",	"/dev/cxi6", "/dev/cxi7"};

	if (!access("/dev/nvidiactl", F_OK))
		words_add_list(words, runtime->nvidia);
	else if (!access("/dev/kfd", F_OK))
		words_add_list(words, runtime->amd);
	/* Those that have names have a /dev of their own; the others show the host's. */
	for (size_t i = 0; runtime->called && i < sizeof fabric / sizeof *fabric; i++)
		if (!access(fabric[i], F_OK))
			words_add(words, "--device=%s", fabric[i]);
}

/* ---- variables ---- */

static bool is_exact(const struct container *container, const struct env_var *var)
{
	static const char *const of_schedulers[] = {"SLURM_*", "PBS_*", "PAI_*", NULL};

	if (!var->value)
		return false;
	if (var->from == ENV_FROM_BERTH || env_name_matches(var->name, of_schedulers))
		return true;
	if (var->from == ENV_FROM_OPTION || var->from == ENV_FROM_SITE) /* not with an agent */
		return true;
	for (size_t i = 0; i < container->exact_count; i++)
		if (!strcmp(container->exact[i], var->name))
			return true;
	return false;
}

char **container_command(const struct container *container, const struct container_start *start)
{
	const struct container_runtime *runtime = container_runtime_of(container->runtime);
	const char *image = container->image;
	struct words words = {0};

	words_add(&words, "%s", container->runtime);
	add_with(&words, runtime->start, image);
	if (runtime->called)
		words_add(&words, "%s=%s", runtime->called, start->name);
	/* Files are the user's, as outside. */
	if (runtime->called && geteuid() && runtime->rootfs)
		words_add(&words, "--userns=keep-id");
	else if (runtime->called && geteuid())
		words_add(&words, "--user=%d:%d", (int)geteuid(), (int)getegid());
	add_devices(&words, runtime);
	add_binds(&words, container, runtime, start);
	if (runtime->cwd)
		words_add_list(&words, WORDS(runtime->cwd, start->cwd));
	for (size_t i = 0; runtime->env_option && i < env_count(start->env); i++)
		if (is_exact(container, env_at(start->env, i)))
			words_add_list(&words,
				       WORDS(runtime->env_option, env_at(start->env, i)->name));
	if (runtime->rootfs && *image == '/')
		words_add(&words, "%s", runtime->rootfs);
	if (!runtime->image_first) /* :O: what the program writes to it is not kept */
		words_add(&words, "%s%s", image, runtime->rootfs && *image == '/' ? ":O" : "");
	if (runtime->end)
		words_add(&words, "%s", runtime->end);
	if (!runtime->keeps_cwd && !runtime->cwd)
		words_add_list(&words, WORDS("sh", "-c", "cd \"$0\" && exec \"$@\"", start->cwd));
	words_add_list(&words, start->argv);
	return words_end(&words);
}

int container_removal(const struct container *container, char ***out, struct error *err)
{
	const struct container_runtime *runtime = container_runtime_of(container->runtime);
	struct words words = {0};

	*out = NULL;
	if (!runtime->remove)
		return 0;
	add_with(&words, runtime->remove, container->runtime);
	*out = words_end(&words);
	return *out ? 0 : error_memory(err, "the container's command line");
}

const char *const *container_processes(const struct container *container)
{
	return container->image ? container_runtime_of(container->runtime)->processes : NULL;
}

/* ---- environment ---- */

static bool is_given(const struct container *container, const struct env *env, const char *name)
{
	const struct env_var *var = env_find(env, name);

	return var && is_exact(container, var);
}

/* The image's variables, which Charliecloud's ch-convert puts into /ch/environment: NAME=VALUE or
 * NAME='VALUE' in each line. */
static int add_of_image(const struct container *container, struct env *env, struct error *err)
{
	char path[4096], *text = NULL, *next, *line, *value;
	size_t size, length;
	int rc = 0;

	snprintf(path, sizeof path, "%s/ch/environment", container->image);
	if (file_read(path, 1 << 20, &text, &size, NULL))
		return 0;
	for (line = text; !rc && line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		value = strchr(line, '=');
		if (!value || value == line)
			continue;
		*value++ = '\0';
		length = strlen(value);
		if (length > 1 && *value == '\'' && value[length - 1] == '\'') {
			value[length - 1] = '\0';
			value++;
		}
		if (!is_given(container, env, line))
			rc = env_set(env, line, value, ENV_FROM_USER, NULL, err);
	}
	free(text);
	return rc;
}

/* The program has all variables of the runtime. Paths belong to the image. */
static int change_all(const struct container *container, struct env *env, struct error *err)
{
	static const char path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	int rc = 0;

	if (!is_given(container, env, "LD_LIBRARY_PATH"))
		env_drop(env, "LD_LIBRARY_PATH");
	if (!is_given(container, env, "PATH"))
		rc = env_set(env, "PATH", path, ENV_FROM_USER, NULL, err);
	if (!rc)
		rc = add_of_image(container, env, err);
	env_drop(env, "TMPDIR");	    /* ch-run would show it as /tmp */
	return !rc && !env_get(env, "USER") /* ch-run needs one */
		       ? env_setf(env, "USER", ENV_FROM_BERTH, NULL, err, "%d", (int)geteuid())
		       : rc;
}

/* Variables with the runtime's prefix. */
static int add_prefixed(const struct container *container, const struct container_runtime *runtime,
			struct env *env, struct error *err)
{
	size_t count = env_count(env);
	char name[400];
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		const struct env_var *var = env_at(env, i);

		if (!is_exact(container, var) || strlen(var->name) > sizeof name - 40)
			continue;
		snprintf(name, sizeof name, "%sENV_%s", runtime->prefix, var->name);
		rc = env_set(env, name, var->value, ENV_FROM_BERTH, NULL, err);
	}
	for (size_t i = 0; !rc && runtime->settings[i]; i++) {
		snprintf(name, sizeof name, "%s_%s", runtime->prefix, runtime->settings[i]);
		rc = env_set(env, name, "1", ENV_FROM_BERTH, NULL, err);
	}
	return rc;
}

int container_environment(const struct container *container, struct env *env, struct error *err)
{
	/* They name programs and libraries of the host. */
	static const char *const of_host[] = {"PYTHONPATH", "PYTHONHOME", "LD_PRELOAD"};
	const struct container_runtime *runtime = container_runtime_of(container->runtime);
	int rc = 0;

	if (runtime->prefix)
		rc = add_prefixed(container, runtime, env, err);
	for (size_t i = 0; i < sizeof of_host / sizeof *of_host; i++)
		if (runtime->prefix || !is_given(container, env, of_host[i]))
			env_drop(env, of_host[i]);
	if (!runtime->prefix && !runtime->env_option)
		rc = change_all(container, env, err);
	return rc;
}
