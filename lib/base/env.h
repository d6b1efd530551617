/* SPDX-License-Identifier: BSD-3-Clause */
/* An environment as a value. Each variable carries its provenance and a reason. */
#ifndef BERTH_BASE_ENV_H
#define BERTH_BASE_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Provenance, strongest first: an option overrides the user's environment, and so on. */
enum env_from {
	ENV_FROM_OPTION,    /* berth's command line */
	ENV_FROM_USER,	    /* the environment berth was started in */
	ENV_FROM_SITE,	    /* a site file */
	ENV_FROM_SCHEDULER, /* Slurm, PBS...: an input that berth may replace */
	ENV_FROM_BERTH,	    /* berth's own choice */
	ENV_FROM_START,	    /* likewise, but chosen at the start: the value is not known yet */
};
const char *env_from_name(enum env_from from); /* "option", "user", ... */

struct env_var {
	const char *name;
	const char *value; /* NULL in a set of changes: remove it, unless from is ENV_FROM_START */
	enum env_from from;
	const char *why; /* a reason for people, or NULL */
};

struct env; /* opaque; names are unique and in the order of their first setting */

struct env *env_new(void); /* NULL when memory is out */
void env_free(struct env *env);
struct env *env_copy(const struct env *env);

/* Copy this process's environment; every entry is ENV_FROM_USER. Entries without '=' are left out.
 * Nothing else in berth reads environ. Return NULL if memory is out. */
struct env *env_capture(void);

/* The value, or NULL if the variable is absent or marked for removal. Valid until the next change
 * of env. */
const char *env_get(const struct env *env, const char *name);
const struct env_var *env_find(const struct env *env, const char *name); /* or NULL */
size_t env_count(const struct env *env);
const struct env_var *env_at(const struct env *env, size_t index);

/* Set a variable, or mark it for removal if value is NULL. This replaces an earlier entry whatever
 * its provenance. Strings are copied; why may be NULL. Return 0, -ERR_DATA if the name is empty or
 * contains '=', or -ERR_UNAVAILABLE if memory is out. */
int env_set(struct env *env, const char *name, const char *value, enum env_from from,
	    const char *why, struct error *err);
int env_setf(struct env *env, const char *name, enum env_from from, const char *why,
	     struct error *err, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Set the variables of --env, count texts "NAME=VALUE" that were checked. Return 0, or
 * -ERR_UNAVAILABLE if memory is out. */
int env_set_texts(struct env *env, const char *const *texts, size_t count, struct error *err);
/* Delete the entry. Unlike a removal mark, nothing remains. */
void env_drop(struct env *env, const char *name);
/* Delete the entry, and the variable of this process: overwrite it where the kernel put it, which
 * /proc/PID/environ and core files show. unsetenv leaves it there. */
void env_erase(struct env *env, const char *name);

/* Is name in the list patterns, which NULL ends? "BERTH_*" stands for all names that begin so. */
bool env_name_matches(const char *name, const char *const *patterns);
/* Delete the entries whose name matches drop but not keep. */
void env_drop_matching(struct env *env, const char *const *drop, const char *const *keep);

/* Apply changes to base in place. Each variable replaces base's entry, with its provenance and
 * reason; a removal mark deletes base's entry. */
int env_apply(struct env *base, const struct env *changes, struct error *err);

/* Find an executable called name in the directories of env's PATH. If found, copy its path into
 * path and return true. Relative directories are skipped. */
bool env_find_tool(const struct env *env, const char *name, char *path, size_t size);

/* NAME=VALUE strings for execve in one malloced block; the caller frees it with free(). NULL if
 * memory is out. */
char **env_to_envp(const struct env *env);

/* Start file (looked up in this process's PATH unless it contains '/') in this environment and in a
 * session of its own, with all signals unblocked and these descriptors as its stdio; -1 is
 * /dev/null. Return 0 or an errno. */
int env_spawn(const struct env *env, const char *file, char *const argv[], const int stdio[3],
	      pid_t *pid);

/* A variable of this process while a library reads it with getenv(). */
struct env_override {
	const char *name, *value; /* value NULL: unset */
	bool keep;		  /* a value that the variable already has */
	char *before;		  /* filled in by env_override, freed by env_restore */
};

/* Between the two calls no other thread may read or change the environment. */
void env_override(struct env_override *list, size_t count);
void env_restore(struct env_override *list, size_t count);

#endif
