/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks in a container: the runtime's command line in front of the program's, and what of the
 * environment the image's own variables must not replace. The agent stays outside. It starts the
 * runtime where it would start the program, so a rank's place, descriptors, session and signals are
 * those of the runtime, which passes them on. */
#ifndef BERTH_CONTAINER_CONTAINER_H
#define BERTH_CONTAINER_CONTAINER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"

/* A list of binds, separated by commas, for offers. */
#define CONTAINER_OFFERS "BERTH_CONTAINER_BIND"

/* All strings and lists are malloced. */
struct container {
	char *image;	   /* a path, or a name that the runtime knows; NULL: no container */
	char *pulled_from; /* the URI of an image that berth pulls to there; NULL: it does not */
	char *runtime;	   /* a path whose last part is the runtime's name */
	char **binds; /* "/HOST", "/HOST:/CONTAINER" or "/HOST:/CONTAINER:ro", bind_count of them */
	size_t bind_count;
	char **offers; /* as binds: of the site, left out where they cannot be shown */
	size_t offer_count;
	char **exact; /* names of variables whose values replace the image's */
	size_t exact_count;
};

/* Find the runtime called name, or if it is NULL the first that takes the image, in env's PATH.
 * *out is malloced. Return 0, -ERR_USAGE if berth does not know it, or -ERR_UNAVAILABLE. */
int container_find_runtime(const char *name, const char *image, const struct env *env, char **out,
			   struct error *err);
/* Check the form of --bind. -ERR_USAGE. */
int container_check_bind(const char *bind, struct error *err);
/* Where it is shown: the first *length bytes of the result, which is borrowed. */
const char *container_bind_target(const char *bind, size_t *length);
/* Does one of the binds show path? */
bool container_shows(const struct container *container, const char *path);
/* Check that image is there, whole, and for this machine's architecture, as far as its first bytes
 * tell; *directory: is it one? -ERR_INPUT, -ERR_DATA. */
int container_check_image(const char *image, bool *directory, struct error *err);
/* The image is a URI: move it to pulled_from, and let image be the path to which container_pull
 * pulls it: $BERTH_IMAGES, $XDG_CACHE_HOME/berth/images or ~/.cache/berth/images. -ERR_USAGE. */
int container_name_pulled(struct container *container, const struct env *env, struct error *err);
/* Pull the image of a URI unless it is there, which can take minutes, or wait for another process
 * that pulls it, an hour at most. Then delete images of other URIs that were used longest ago and
 * are not in use, until BERTH_IMAGES_GB (100 if it is not set) are left. The image stays as long as
 * this process. Does nothing if pulled_from is NULL. -ERR_UNAVAILABLE, -ERR_OUTPUT, -ERR_IO,
 * -ERR_DATA. */
int container_pull(const struct container *container, const struct env *env, struct error *err);
/* Is the image a path? Some runtimes keep images under names, which begin with neither / nor a
 * dot. */
bool container_is_path(const struct container *container);
/* Check that the runtime takes the image, that what is bound exists, and that it can be shown, as
 * can cwd. For a machine on which ranks will run. -ERR_INPUT, -ERR_DATA, -ERR_USAGE. */
int container_check(const struct container *container, const char *cwd, struct error *err);

/* The newest major version of CUDA for which a driver is, as /sys/module/nvidia/version names it;
 * 0: unknown. */
int container_cuda_of_driver(const char *driver);

/* For JOB. What env has from an option or a site file is exact. A new reference; NULL if memory is
 * out. */
json_t *container_to_json(const struct container *container, const struct env *env);
/* -ERR_DATA, -ERR_UNAVAILABLE. Call container_free even on failure. */
int container_from_json(const json_t *json, struct container *out, struct error *err);
void container_free(struct container *container);

/* What the command line of a rank needs. All is borrowed. */
struct container_start {
	const char *dir;       /* the agent's directory, which is visible in the container */
	const char *cwd;       /* the program's working directory, visible as well */
	const char *name;      /* of the container, unique on the machine */
	const struct env *env; /* the rank's, before container_environment */
	const char *const *argv;
};

/* The command line that runs a rank's program in the container, as execve takes it, in one malloced
 * block; NULL if memory is out. Looks for the devices of GPUs and networks. */
char **container_command(const struct container *container, const struct container_start *start);
/* The command line that removes containers whose names follow, which may outlast their processes;
 * likewise. *out is NULL if the runtime keeps none. -ERR_UNAVAILABLE. */
int container_removal(const struct container *container, char ***out, struct error *err);
/* The names of the runtime's own processes, in a list that NULL ends; NULL without a container. If
 * a signal ends one, the program dies of SIGBUS or its exit code is lost. */
const char *const *container_processes(const struct container *container);
/* Change a rank's environment to that of the runtime: variables of berth and of the scheduler, and
 * those that are exact, reach the program as they are. Of the others the runtime decides; those
 * that would mix the host's programs into the image are left out. -ERR_UNAVAILABLE. */
int container_environment(const struct container *container, struct env *env, struct error *err);

#endif
