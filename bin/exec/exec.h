/* SPDX-License-Identifier: BSD-3-Clause */
/* To take the place of a rank that somebody else's launcher has started: berth exec. */
#ifndef BERTH_BIN_EXEC_EXEC_H
#define BERTH_BIN_EXEC_EXEC_H

#include <stdbool.h>
#include <stddef.h>

struct exec_request {
	const char *const *program; /* argv, NULL-terminated */
	const char *const *env;	    /* "NAME=VALUE", env_count of them, for the program */
	size_t env_count;
	const char *master_addr; /* numeric address, or NULL */
	int port;		 /* MASTER_PORT; 0: not said */
	bool keep_binding, dry_run, gpus_visible_own;
};

/* Become the program; returns only when that fails or dry_run shows what it would be: the exit
 * code, what there is to say has been said. */
int exec_in_place(const struct exec_request *params);

#endif
