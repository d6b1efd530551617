/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by server_process.c and server_child.c only. */
#ifndef BERTH_PMIX_SERVER_PROCESS_INTERNAL_H
#define BERTH_PMIX_SERVER_PROCESS_INTERNAL_H

#include "pmix/channel.h"
#include "pmix/server_process.h"

struct server_process {
	pid_t pid;
	struct channel channel;
};

/* Reap the process and describe for people how it ended. Blocks for at most 1 s. */
void server_process_exit_text(struct server_process *process, char *text, size_t size);

#endif
