/* SPDX-License-Identifier: BSD-3-Clause */
/* berth exec: take the place of a rank that another launcher has started. */
#ifndef BERTH_BIN_EXEC_EXEC_H
#define BERTH_BIN_EXEC_EXEC_H

#include <stdbool.h>
#include <stddef.h>

struct exec_request {
	char **program;		/* argv, NULL-terminated */
	const char *const *env; /* "NAME=VALUE", env_count of them, for the program */
	size_t env_count;
	const char *master_addr; /* numeric address, or NULL */
	int port;		 /* MASTER_PORT; 0: option absent */
	bool keep_binding, dry_run, gpus_visible_own;
};

/* Replace this process by the program. It returns only if that fails, or if dry_run shows what
 * would happen: then with the exit code, after all messages were printed. */
int exec_in_place(const struct exec_request *request);

#endif
