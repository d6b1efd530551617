/* SPDX-License-Identifier: BSD-3-Clause */
/* An environment as a value, each variable with where it came from and why. */
#ifndef BERTH_BASE_ENV_H
#define BERTH_BASE_ENV_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Provenance, weakest last: an option overrules the user's environment, and so on. */
enum env_from {
	ENV_FROM_OPTION,    /* berth's command line */
	ENV_FROM_USER,	    /* the environment berth was started in */
	ENV_FROM_SITE,	    /* a site file */
	ENV_FROM_SCHEDULER, /* Slurm, PBS...: an input, may be replaced */
	ENV_FROM_BERTH,	    /* berth's own choice */
};
const char *env_from_name(enum env_from from); /* "option", "user", ... */

struct env_var {
	const char *name;
	const char *value; /* NULL: "to be removed", in a set of changes */
	enum env_from from;
	const char *why; /* a reason for people, or NULL */
};

struct env; /* opaque: names are unique, order is that of the first setting */

struct env *env_new(void); /* NULL when memory is out */
void env_free(struct env *env);
struct env *env_copy(const struct env *env);

/* A copy of this process's environment, all ENV_FROM_USER. Entries without '=' are left out.
 * The only place in berth that reads environ. NULL when memory is out. */
struct env *env_capture(void);

/* The value, or NULL when absent or marked to be removed. Borrowed until the next change. */
const char *env_get(const struct env *env, const char *name);
const struct env_var *env_find(const struct env *env, const char *name); /* or NULL */
size_t env_count(const struct env *env);
const struct env_var *env_at(const struct env *env, size_t index);

/* Set, or mark as to be removed when value is NULL; replaces what was there whatever its
 * provenance. Strings are copied. why may be NULL. -ERR_DATA for a name that is empty or
 * has '='; -ERR_UNAVAILABLE when memory is out. */
int env_set(struct env *env, const char *name, const char *value, enum env_from from,
	    const char *why, struct error *err);
int env_setf(struct env *env, const char *name, enum env_from from, const char *why,
	     struct error *err, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Forget the entry (unlike a removal mark, nothing remains). */
void env_drop(struct env *env, const char *name);

/* Apply changes to base in place: each variable of changes replaces base's, a removal mark
 * drops it. Provenance and reason come along. */
int env_apply(struct env *base, const struct env *changes, struct error *err);

/* A program of that name in a folder of env's PATH, into path: true. Folders that are not absolute
 * are passed over. */
bool env_find_tool(const struct env *env, const char *name, char *path, size_t size);

/* NAME=VALUE strings for execve in one malloced block: free() it. NULL when memory is out. */
char **env_to_envp(const struct env *env);

#endif
