/* SPDX-License-Identifier: BSD-3-Clause */
/* Keep variables of this process's environment from a library that reads them itself. */
#ifndef BERTH_BASE_ENV_HIDE_H
#define BERTH_BASE_ENV_HIDE_H

#include <stddef.h>

#define ENV_HIDE_MAX 16

/* What was hidden; by value, zeroed at first. */
struct env_hidden {
	size_t count;
	size_t at[ENV_HIDE_MAX];   /* places in environ */
	char *entry[ENV_HIDE_MAX]; /* NAME=VALUE as it stands there */
};

/* Until env_show, getenv() finds none of names (a list that ends with NULL, at most
 * ENV_HIDE_MAX found). Entries are replaced in place, one pointer each, so that getenv() in
 * other threads stays safe; nobody may change the environment meanwhile. */
void env_hide(const char *const *names, struct env_hidden *out);
void env_show(struct env_hidden *hidden);

#endif
