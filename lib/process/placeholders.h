/* SPDX-License-Identifier: BSD-3-Clause */
/* What stands for an address or a number in the arguments of a role, "{port}" or "{serve.addr}".
 * Each has a variable of the rank's environment, so this is a second way to read that. All other
 * braces are left as they are: JSON and templates are full of them. */
#ifndef BERTH_PROCESS_PLACEHOLDERS_H
#define BERTH_PROCESS_PLACEHOLDERS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"

struct placeholder {
	const char *at; /* its '{', in the text */
	size_t size;	/* up to behind its '}' */
	bool lists;	/* "{serve.urls}", "{serve.addrs}": of all replicas */
	bool mine;	/* "{serve.my.addr}": of the replicas that belong to the rank's own one */
	const char *before; /* "{serve.urls:WORD|SUFFIX}": what stands behind ':', or NULL */
	size_t before_size;
	bool is_plain; /* "{{port}}": the text "{port}" */
	char role[40]; /* "": the rank's own */
	const char *what,
		*variable; /* "gpus", "BERTH_GPUS"; "addr", NULL: see placeholder_variable */
};

/* Find the first placeholder of text. Pure. */
bool placeholder_find(const char *text, struct placeholder *out);

/* "BERTH_ROLE_MY_SERVER_ADDR" of "my-server" and "ADDR". */
void placeholder_variable(const char *role, const char *what, char *out, size_t size);
char placeholder_letter(char c); /* of a role's name, in that variable */

/* The arguments with the values of env, as execve takes them, in one malloced block; NULL if memory
 * is out. What env lacks is empty. */
char **placeholders_fill(const char *const *argv, const struct env *env);

#endif
