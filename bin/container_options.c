/* SPDX-License-Identifier: BSD-3-Clause */
#include "container_options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "submit/submit.h"

static int keep(char **slot, const char *text, struct error *err)
{
	free(*slot);
	*slot = strdup(text);
	return *slot ? 0 : error_memory(err, "the container's options");
}

static int read_image(const char *text, void *out, struct error *err)
{
	if (!*text)
		return error_set(err, ERR_USAGE, "--container: expected an image, not ''");
	return keep(&((struct container *)out)->image, text, err);
}

static int read_runtime(const char *text, void *out, struct error *err)
{
	return keep(&((struct container *)out)->runtime, text, err);
}

static int add_bind(const char *text, void *out, struct error *err)
{
	struct container *container = out;
	char **added;
	int rc = container_check_bind(text, err);

	if (rc)
		return rc;
	added = array_add(&container->binds, &container->bind_count, sizeof *added);
	return added ? keep(added, text, err) : error_memory(err, "--bind");
}

const struct arguments_option container_options_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 17, .doc = "Containers"},
	{"container", "IMAGE",
	 "Start the ranks in this image: a file or a directory that all nodes see, a name that the "
	 "runtime knows, or a URI (docker://NAME:TAG), which is pulled once; of a role: in an "
	 "image of its own",
	 ARGUMENTS_READ, .read = read_image},
	{"container-runtime", "NAME",
	 "Start containers with apptainer, singularity, ch-run, podman-hpc, podman, enroot, docker "
	 "or bwrap, or the one at this path (default: the first in PATH that takes the image)",
	 ARGUMENTS_READ, .read = read_runtime},
	{"bind", "/PATH[:/PATH[:ro]]",
	 "Show this file or directory of the host in the container, there or at the second path "
	 "(repeatable)",
	 ARGUMENTS_READ, .read = add_bind},
	{0},
};

/* What the site shows in every container. */
static int add_offers(struct container *container, const struct env *env, struct error *err)
{
	const char *list = env_get(env, CONTAINER_OFFERS);
	char *copy = strdup(list ? list : ""), *next = copy;
	int rc = copy ? 0 : error_memory(err, CONTAINER_OFFERS);

	for (char *bind; !rc && (bind = strsep(&next, ","));) {
		char **added;

		if (!*bind)
			continue;
		rc = container_check_bind(bind, err);
		if (rc)
			error_prefix(err, CONTAINER_OFFERS);
		else if ((added = array_add(&container->offers, &container->offer_count,
					    sizeof *added)))
			rc = keep(added, bind, err);
		else
			rc = error_memory(err, CONTAINER_OFFERS);
	}
	free(copy);
	return rc;
}

static int make_absolute(struct container *container, struct error *err)
{
	char *path = realpath(container->image, NULL);

	if (!path)
		return error_set(err, ERR_INPUT, "--container: cannot read '%.200s': %m",
				 container->image);
	free(container->image);
	container->image = path;
	return 0;
}

int container_options_prepare(struct container *container, struct error *err)
{
	struct env *env = NULL;
	char *path;
	int rc = 0;

	if (!container->image)
		return container->runtime || container->bind_count
			       ? error_set(err, ERR_USAGE, "%s needs --container IMAGE",
					   container->runtime ? "--container-runtime" : "--bind")
			       : 0;
	/* What is a file here is not meant as a name, unless a runtime with names was chosen. */
	if (!container->runtime && !access(container->image, F_OK))
		rc = make_absolute(container, err);
	if (!rc)
		rc = submit_environment(NULL, 0, &env, err);
	if (!rc)
		rc = add_offers(container, env, err);
	if (!rc)
		rc = container_find_runtime(container->runtime, container->image, env, &path, err);
	if (!rc) {
		free(container->runtime);
		container->runtime = path;
		if (strstr(container->image, "://"))
			rc = container_name_pulled(container, env, err);
		else if (*container->image != '/' && container_is_path(container))
			rc = make_absolute(container, err);
	}
	env_free(env);
	return rc;
}
