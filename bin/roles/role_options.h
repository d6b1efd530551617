/* SPDX-License-Identifier: BSD-3-Clause */
/* Several programs on one command line of berth run:
 *
 *   berth run [JOB OPTIONS] --role NAME [OPTIONS] -- PROGRAM ... : --role NAME [OPTIONS] -- PROGRAM
 */
#ifndef BERTH_BIN_ROLES_ROLE_OPTIONS_H
#define BERTH_BIN_ROLES_ROLE_OPTIONS_H

#include "arguments.h"
#include "roles/roles.h"

#define ROLE_RAY_VARIABLES 4

struct role_options {
	const char *first;     /* the name of the first role; NULL: there are no roles */
	const char *separator; /* --separator, or NULL: ":" */
	bool ray;	       /* --ray: the only program is a driver of Ray, see ray.h */
	bool ray_inside;       /* Ray is that of an image */
	const char *ray_args;  /* --ray-args, or NULL */
	struct role *roles;    /* [ROLES_MAX] */
	size_t count, line_count;
	/* Of --ray: the line of its roles, or NULL, and the variables in it. */
	char **words, *variables[ROLE_RAY_VARIABLES];
	char ***lines; /* [line_count]: the arguments of each role, malloced arrays of borrowed
			  words */
};

/* Beside the job's options; it fills a struct role_options. The row of --role itself is the
 * verb's. */
extern const struct arguments_option role_options_table[];
/* It fills a struct role. Before the first --role, as those of the job, role_options_refuse refuses
 * them. */
extern const struct arguments_option role_options_own_table[];
int role_options_refuse(void *filled, const char *name, const char *text, struct error *err);

/* Read what follows the first role's name, or the program of --ray, up to its NULL. On a wrong
 * option the process exits like arguments_parse. Return 0, or -ERR_USAGE. */
int role_options_read(struct role_options *options, char **rest, struct error *err);
void role_options_free(struct role_options *options);

#endif
