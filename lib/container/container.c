/* SPDX-License-Identifier: BSD-3-Clause */
/* Apptainer, and Singularity, which it was before. Both read options and variables for the
 * container from the environment as well, under a prefix. Settings go there: a version that does
 * not know one ignores it. Sources: apptainer exec --help and the user guide's page on
 * environments, 1.4. */
#include "container/container.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json_fields.h"

static const struct runtime {
	const char *name, *prefix; /* of its variables */
} runtimes[] = {{"apptainer", "APPTAINER"}, {"singularity", "SINGULARITY"}};
#define RUNTIMES (sizeof runtimes / sizeof *runtimes)

/* NULL if path's last part is not the name of a runtime. */
static const struct runtime *runtime_of(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	for (size_t i = 0; i < RUNTIMES; i++)
		if (!strcmp(runtimes[i].name, name))
			return &runtimes[i];
	return NULL;
}

int container_find_runtime(const char *name, const struct env *env, char **out, struct error *err)
{
	char path[4096];
	bool found = false;

	if (name && !runtime_of(name))
		return error_set(err, ERR_USAGE,
				 "--container-runtime '%.200s': expected apptainer or singularity, "
				 "or the path of one",
				 name);
	if (name && strchr(name, '/')) {
		found = !access(name, X_OK) && strlen(name) < sizeof path;
		if (found)
			strcpy(path, name);
	} else if (name) {
		found = env_find_tool(env, name, path, sizeof path);
	} else {
		for (size_t i = 0; !found && i < RUNTIMES; i++)
			found = env_find_tool(env, runtimes[i].name, path, sizeof path);
	}
	if (!found && name)
		return error_set(err, ERR_UNAVAILABLE,
				 "--container: cannot find %.200s. Load its module, or name its "
				 "path with --container-runtime",
				 name);
	if (!found)
		return error_set(err, ERR_UNAVAILABLE,
				 "--container: found neither apptainer nor singularity in PATH. "
				 "Load its module, or name its path with --container-runtime");
	*out = strdup(path);
	return *out ? 0 : error_memory(err, "--container-runtime");
}

int container_check_bind(const char *bind, struct error *err)
{
	size_t from = strcspn(bind, ":");
	const char *to = bind[from] ? bind + from + 1 : bind;
	const char *mode = to + strcspn(to, ":");

	if (*bind != '/' || *to != '/' || strchr(bind, ',') ||
	    (*mode && to != bind && strcmp(mode, ":ro") != 0 && strcmp(mode, ":rw") != 0))
		return error_set(err, ERR_USAGE,
				 "--bind '%.200s': expected /PATH, /PATH:/PATH or /PATH:/PATH:ro, "
				 "without commas; repeat the option for more",
				 bind);
	return 0;
}

int container_check(const struct container *container, struct error *err)
{
	int rc = container_check_image(container->image, err);

	for (size_t i = 0; !rc && i < container->bind_count; i++) {
		char *source = strndup(container->binds[i], strcspn(container->binds[i], ":"));

		if (!source)
			rc = error_memory(err, "--bind");
		else if (access(source, F_OK))
			rc = error_set(err, ERR_INPUT, "--bind: cannot bind '%s': %m", source);
		free(source);
	}
	return rc;
}

/* ---- as JSON ---- */

static const struct json_field fields[] = {
	{"image", &json_as_text, JSON_MEMBER(struct container, image)},
	{"runtime", &json_as_text, JSON_MEMBER(struct container, runtime)},
	{"binds", &json_as_list, JSON_LIST(struct container, binds, bind_count),
	 .entry = &json_as_text},
	{"exact", &json_as_list, JSON_LIST(struct container, exact, exact_count),
	 .entry = &json_as_text},
	{0}};

json_t *container_to_json(const struct container *container, const struct env *env)
{
	struct container sent = *container;
	json_t *json;

	sent.exact_count = 0;
	sent.exact = calloc(env_count(env) + 1, sizeof *sent.exact);
	if (!sent.exact)
		return NULL;
	for (size_t i = 0; i < env_count(env); i++) {
		const struct env_var *var = env_at(env, i);

		if (var->from == ENV_FROM_OPTION || var->from == ENV_FROM_SITE)
			sent.exact[sent.exact_count++] = (char *)(uintptr_t)var->name;
	}
	json = json_fields_write(fields, &sent);
	free(sent.exact);
	return json;
}

int container_from_json(const json_t *json, struct container *out, struct error *err)
{
	int rc = json_fields_read(fields, json, out, "container", err);

	if (!rc && !runtime_of(out->runtime))
		rc = error_set(err, ERR_DATA, "container: unknown runtime '%.200s'", out->runtime);
	return rc;
}

void container_free(struct container *container)
{
	for (size_t i = 0; i < container->bind_count; i++)
		free(container->binds[i]);
	for (size_t i = 0; i < container->exact_count; i++)
		free(container->exact[i]);
	free(container->binds);
	free(container->exact);
	free(container->image);
	free(container->runtime);
	memset(container, 0, sizeof *container);
}

/* ---- starting it ---- */

const char **container_command(const struct container *container, const char *dir,
			       const char *const *argv)
{
	size_t count = 0, n = 0;
	const char **line;

	while (argv[count])
		count++;
	line = calloc(count + 2 * container->bind_count + 8, sizeof *line);
	if (!line)
		return NULL;
	line[n++] = container->runtime;
	line[n++] = "exec";
	/* The host's driver, if there is one: the option warns otherwise. */
	if (!access("/dev/nvidiactl", F_OK))
		line[n++] = "--nv";
	else if (!access("/dev/kfd", F_OK))
		line[n++] = "--rocm";
	line[n++] = "--bind";
	line[n++] = dir;
	for (size_t i = 0; i < container->bind_count; i++) {
		line[n++] = "--bind";
		line[n++] = container->binds[i];
	}
	line[n++] = container->image;
	memcpy(line + n, argv, count * sizeof *line);
	return line;
}

const char *const *container_processes(const struct container *container)
{
	static const char *const names[] = {"starter",	      "starter-suid", "squashfuse_ll",
					    "squashfuse",     "fuse2fs",      "gocryptfs",
					    "fuse-overlayfs", "fusermount3",  NULL};

	return container->image ? names : NULL;
}

static bool is_exact(const struct container *container, const struct env_var *var)
{
	static const char *const of_schedulers[] = {"SLURM_*", "PBS_*", "PAI_*", NULL};

	if (var->from == ENV_FROM_BERTH || env_name_matches(var->name, of_schedulers))
		return true;
	for (size_t i = 0; i < container->exact_count; i++)
		if (!strcmp(container->exact[i], var->name))
			return true;
	return false;
}

int container_environment(const struct container *container, struct env *env, struct error *err)
{
	/* They name programs and libraries of the host, and the runtime would pass them on; PATH
	 * and LD_LIBRARY_PATH it replaces itself. */
	static const char *const of_host[] = {"PYTHONPATH", "PYTHONHOME", "LD_PRELOAD"};
	/* QUIET: no remarks on standard error. NO_EVAL: no shell expands values. */
	static const char *const settings[] = {"QUIET", "NO_EVAL"};
	const char *prefix = runtime_of(container->runtime)->prefix;
	size_t count = env_count(env);
	char name[400];
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		const struct env_var *var = env_at(env, i);

		if (!var->value || !is_exact(container, var) ||
		    strlen(var->name) > sizeof name - 40)
			continue;
		snprintf(name, sizeof name, "%sENV_%s", prefix, var->name);
		rc = env_set(env, name, var->value, ENV_FROM_BERTH, NULL, err);
	}
	for (size_t i = 0; i < sizeof of_host / sizeof *of_host; i++)
		env_drop(env, of_host[i]);
	for (size_t i = 0; !rc && i < sizeof settings / sizeof *settings; i++) {
		snprintf(name, sizeof name, "%s_%s", prefix, settings[i]);
		rc = env_set(env, name, "1", ENV_FROM_BERTH, NULL, err);
	}
	return rc;
}
