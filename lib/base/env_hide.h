/* SPDX-License-Identifier: BSD-3-Clause */
/* Hide variables of this process's environment from a library that reads them itself. */
#ifndef BERTH_BASE_ENV_HIDE_H
#define BERTH_BASE_ENV_HIDE_H

#include <stddef.h>

#define ENV_HIDE_MAX 16

/* The hidden variables. The caller holds the struct and zeroes it first. */
struct env_hidden {
	size_t count;
	size_t at[ENV_HIDE_MAX];   /* indices in environ */
	char *entry[ENV_HIDE_MAX]; /* the original NAME=VALUE */
};

/* Until env_show, getenv() finds none of names. names ends with NULL; at most ENV_HIDE_MAX of them
 * may be set. Entries are replaced in place, one pointer each, so that getenv() in other threads
 * stays safe. No thread may change the environment meanwhile. */
void env_hide(const char *const *names, struct env_hidden *out);
void env_show(struct env_hidden *hidden);

#endif
