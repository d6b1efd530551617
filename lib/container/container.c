/* SPDX-License-Identifier: BSD-3-Clause */
/* What the user asked for: checks before the start, and its way to the agents. */
#include "container/container_internal.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/json_fields.h"
#include "base/log.h"

/* "apptainer, singularity or bwrap", in out */
static void list_runtimes(char *out, size_t size)
{
	const struct container_runtime *at;

	*out = '\0';
	for (size_t i = 0; (at = container_runtime_at(i)); i++)
		text_append(out, size, "%s%s",
			    !i				  ? ""
			    : container_runtime_at(i + 1) ? ", "
							  : " or ",
			    at->name);
}

/* May the runtime take the image, as far as that is known here? */
static bool takes(const struct container_runtime *runtime, const char *image)
{
	struct stat info;

	if (strstr(image, "://"))
		return runtime->pull;
	if (*image != '/' && *image != '.')
		return runtime->names;
	if (stat(image, &info))
		return true;
	return S_ISDIR(info.st_mode)
		       ? runtime->directories
		       : runtime->files && (runtime->prefix || !container_is_sif(image));
}

int container_find_runtime(const char *name, const char *image, const struct env *env, char **out,
			   struct error *err)
{
	const struct container_runtime *at;
	char path[4096], known[200];
	bool found = false;

	list_runtimes(known, sizeof known);
	if (name && !container_runtime_of(name))
		return error_set(err, ERR_USAGE,
				 "--container-runtime '%.200s': expected %s, or the path of one",
				 name, known);
	if (name && strchr(name, '/')) {
		found = !access(name, X_OK) && strlen(name) < sizeof path;
		if (found)
			strcpy(path, name);
	} else if (name) {
		found = env_find_tool(env, name, path, sizeof path);
	} else {
		/* If none takes the image, the first one: the reason follows from both. */
		for (int any = 0; any < 2; any++)
			for (size_t i = 0; !found && (at = container_runtime_at(i)); i++)
				found = (any || takes(at, image)) &&
					env_find_tool(env, at->name, path, sizeof path);
	}
	if (!found && name)
		return error_set(err, ERR_UNAVAILABLE,
				 "--container: cannot find %.200s. Load its module, or name its "
				 "path with --container-runtime",
				 name);
	if (!found)
		return error_set(err, ERR_UNAVAILABLE,
				 "--container: found none of these in PATH: %s. Load its module, "
				 "or name its path with --container-runtime",
				 known);
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

const char *container_bind_target(const char *bind, size_t *length)
{
	const char *to = strchr(bind, ':');

	to = to ? to + 1 : bind;
	*length = strcspn(to, ":");
	return to;
}

bool container_is_path(const struct container *container)
{
	const char *image = container->image;

	return *image == '/' || *image == '.' || !container_runtime_of(container->runtime)->names;
}

static int check_kind(const struct container *container, const struct container_runtime *runtime,
		      bool directory, struct error *err)
{
	if (takes(runtime, container->image))
		return 0;
	if (!directory && runtime->files)
		return error_set(err, ERR_USAGE,
				 "--container: %s cannot start '%s', which is one of Apptainer's",
				 runtime->name, container->image);
	return error_set(err, ERR_USAGE, "--container: %s takes %s%s%s, and '%s' is a %s",
			 runtime->name, runtime->directories ? "a directory" : "",
			 runtime->directories && runtime->names ? " or " : "",
			 runtime->names ? runtime->files ? "a file or a name of its own storage"
							 : "a name of its own storage"
					: "",
			 container->image, directory ? "directory" : "file");
}

/* Some runtimes show what is bound only where the image has a place for it. */
static int check_place(const struct container *container, const char *place, struct error *err)
{
	char path[8192];

	snprintf(path, sizeof path, "%s%s", container->image, place);
	if (!strncmp(place, "/tmp/", 5) || !access(path, F_OK))
		return 0;
	return error_set(err, ERR_INPUT,
			 "--container: %s cannot show %s, as the image has no such path. Make one: "
			 "mkdir -p %s",
			 container_runtime_of(container->runtime)->name, place, path);
}

static bool is_directory(const char *path)
{
	struct stat info;

	return !stat(path, &info) && S_ISDIR(info.st_mode);
}

static int check_bound(const struct container *container, const char *bind, struct error *err)
{
	const struct container_runtime *runtime = container_runtime_of(container->runtime);
	size_t length;
	const char *to = container_bind_target(bind, &length);
	char *source = strndup(bind, strcspn(bind, ":")), *place = strndup(to, length);
	int rc = 0;

	if (!source || !place)
		rc = error_memory(err, "--bind");
	else if (access(source, F_OK))
		rc = error_set(err, ERR_INPUT, "--bind: cannot bind '%s': %m", source);
	else if (strstr(to, ":ro") && !runtime->read_only)
		rc = error_set(err, ERR_USAGE,
			       "--bind '%s': %s cannot bind without writing. Leave out :ro, or "
			       "use a runtime that can: "
			       "--container-runtime apptainer or bwrap",
			       bind, runtime->name);
	else if (runtime->fixed && is_directory(container->image))
		rc = check_place(container, place, err);
	free(source);
	free(place);
	return rc;
}

bool container_can_offer(const struct container *container, const char *offer)
{
	size_t length;
	const char *to = container_bind_target(offer, &length);
	char *place = strndup(to, length);
	bool can =
		place && !container_shows(container, place) && !check_bound(container, offer, NULL);

	free(place);
	return can;
}

/* Can this user make a user namespace? 0, or the error's number. */
static int try_namespace(void)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid)
		_exit(unshare(CLONE_NEWUSER) ? errno : 0);
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status)
									       : 0;
}

static int check_namespaces(const char *path, const struct container_runtime *runtime,
			    struct error *err)
{
	char real[PATH_MAX], program[PATH_MAX + 100], *slash;
	struct stat info;
	int number = geteuid() && !runtime->privileged ? try_namespace() : 0;

	if (!number)
		return 0;
	if (runtime->setuid && realpath(path, real)) {
		for (int i = 0; i < 2 && (slash = strrchr(real, '/')); i++)
			*slash = '\0';
		snprintf(program, sizeof program, "%s/%s", real, runtime->setuid);
		if (!stat(program, &info) && (info.st_mode & S_ISUID))
			return 0;
	}
	return error_set(err, ERR_UNAVAILABLE,
			 "--container: %s needs user namespaces, and this system refuses them: %s. "
			 "The administrator can allow them (sysctl user.max_user_namespaces, "
			 "kernel.unprivileged_userns_clone)%s.",
			 runtime->name,
			 number == ENOSPC ? "their number is limited" : strerror(number),
			 runtime->setuid ? ", or install the part with setuid" : "");
}

/* Without a driver of NVIDIA, nothing is known or wrong. */
static int check_cuda(const struct container *container, struct error *err)
{
	char driver[64];
	bool compat;
	int needed, has;

	if (file_read_line("/sys/module/nvidia/version", driver, sizeof driver))
		return 0;
	has = container_cuda_of_driver(driver);
	needed = container_cuda_of_image(container->image, &compat);
	if (!has || needed <= has)
		return 0;
	if (!compat)
		return error_set(
			err, ERR_UNAVAILABLE,
			"--container: the image has CUDA %d, and the driver here (%s) is "
			"for CUDA %d. Use an image with an older CUDA, or one with NVIDIA's "
			"cuda-compat.",
			needed, driver, has);
	log_user(
		LOG_WARNING,
		"--container: the image has CUDA %d, and the driver here (%s) is for CUDA %d: GPUs "
		"work only if the image has NVIDIA's cuda-compat",
		needed, driver, has);
	return 0;
}

int container_check(const struct container *container, const char *cwd, struct error *err)
{
	const struct container_runtime *runtime = container_runtime_of(container->runtime);
	bool path = container_is_path(container) && !container->pulled_from, directory = false;
	int rc = path ? container_check_image(container->image, &directory, err) : 0;

	if (!rc)
		rc = check_namespaces(container->runtime, runtime, err);
	if (!rc && path)
		rc = check_kind(container, runtime, directory, err);
	if (!rc && *container->image == '/')
		rc = check_cuda(container, err);
	for (size_t i = 0; !rc && i < container->bind_count; i++)
		rc = check_bound(container, container->binds[i], err);
	if (!rc && runtime->fixed && directory && !container_shows(container, cwd))
		rc = check_place(container, cwd, err);
	return rc;
}

/* ---- as JSON ---- */

static const struct json_field fields[] = {
	{"image", &json_as_text, JSON_MEMBER(struct container, image)},
	{"pulled_from", &json_as_text, JSON_MEMBER(struct container, pulled_from), JSON_OPTIONAL},
	{"runtime", &json_as_text, JSON_MEMBER(struct container, runtime)},
	{"binds", &json_as_list, JSON_LIST(struct container, binds, bind_count),
	 .entry = &json_as_text},
	{"offers", &json_as_list, JSON_LIST(struct container, offers, offer_count),
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

	if (!rc && !container_runtime_of(out->runtime))
		rc = error_set(err, ERR_DATA, "container: unknown runtime '%.200s'", out->runtime);
	return rc;
}

void container_free(struct container *container)
{
	for (size_t i = 0; i < container->bind_count; i++)
		free(container->binds[i]);
	for (size_t i = 0; i < container->offer_count; i++)
		free(container->offers[i]);
	for (size_t i = 0; i < container->exact_count; i++)
		free(container->exact[i]);
	free(container->binds);
	free(container->offers);
	free(container->exact);
	free(container->image);
	free(container->pulled_from);
	free(container->runtime);
	memset(container, 0, sizeof *container);
}
