/* SPDX-License-Identifier: BSD-3-Clause */
/* An environment as a fuzz target's input: a variable per line. */
#ifndef BERTH_FUZZ_ENV_H
#define BERTH_FUZZ_ENV_H

#include "fuzz.h"

#include "base/env.h"

/* Return the variables of text, which is overwritten. visit sees each variable and
 * returns the value to set. */
static inline struct env *fuzz_env(char *text, char *(*visit)(const char *name, char *value))
{
	struct env *env = env_new();

	CHECK(env);
	for (char *next = text; next;) {
		char *line = strsep(&next, "\n"), *value = strchr(line, '=');

		if (!value)
			continue;
		*value++ = '\0';
		value = visit(line, value);
		env_set(env, line, value, ENV_FROM_USER, NULL, NULL);
	}
	return env;
}

#endif
