/* SPDX-License-Identifier: BSD-3-Clause */
/* Between the files of this directory. */
#ifndef BERTH_CONTAINER_CONTAINER_INTERNAL_H
#define BERTH_CONTAINER_CONTAINER_INTERNAL_H

#include "container/container.h"

/* A list of texts that ends with NULL. */
#define WORDS(...)                                                                                 \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

/* A row of the table of runtimes. Lists end with NULL; what a row leaves out is NULL or false. */
struct container_runtime {
	const char *name;
	const char *const *start;  /* words behind the name; CONTAINER_IMAGE: the image */
	const char *bind;	   /* the option before FROM:TO */
	const char *read_only;	   /* behind FROM:TO; an option instead of bind; NULL: it cannot */
	const char *cwd;	   /* the option of the working directory */
	const char *called;	   /* the option of the container's name */
	const char *const *remove; /* a command; CONTAINER_RUNTIME: the runtime's path */
	const char *const *pull;   /* words before FILE URI that pull an image */
	const char *suffix;	   /* of such a file */
	const char *rootfs;	   /* the option before an image that is a directory */
	const char *end;	   /* before the program */
	const char *prefix;	   /* variables that begin so reach the program, without it; or: */
	const char *env_option;	   /* variables that it names do; or all of the runtime's do */
	const char *const *settings;		/* of the runtime: variables, without the prefix */
	const char *const *nvidia, *const *amd; /* options that show the GPUs */
	const char *const *processes;		/* container_processes */
	const char *setuid; /* below its prefix: a program that needs no user namespace */
	bool privileged;    /* a service of root's does the work */
	bool image_first;   /* start has it */
	bool keeps_cwd;	    /* shows the working directory, and starts the program there */
	bool fixed;	    /* what is bound needs a place in the image; /tmp is the host's */
	bool files, directories, names; /* what the image may be; names: in its own storage */
};

extern const char CONTAINER_IMAGE[], CONTAINER_RUNTIME[];

/* NULL if path's last part is not the name of a runtime. */
const struct container_runtime *container_runtime_of(const char *path);
/* The row at index, in the order in which they are looked for; NULL behind the last. */
const struct container_runtime *container_runtime_at(size_t index);

/* The major version of CUDA that an image's variables name, as those of NVIDIA's images; 0: none.
 * *compat: it has, or may have, NVIDIA's cuda-compat, with which an older driver may do. */
int container_cuda_of_image(const char *image, bool *compat);
/* Can it be shown here, and is nothing else shown there? */
bool container_can_offer(const struct container *container, const char *offer);
/* Is the file one of Apptainer's? */
bool container_is_sif(const char *image);
#endif
