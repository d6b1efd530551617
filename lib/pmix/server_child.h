/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server's process: its side of the channel. Private to this stage. */
#ifndef BERTH_PMIX_SERVER_CHILD_H
#define BERTH_PMIX_SERVER_CHILD_H

#include <sys/types.h>

/* Runs after the fork: serve the channel on fd until it ends. Does not return. */
_Noreturn void server_child_run(int fd, pid_t parent, const char *module_path);

#endif
