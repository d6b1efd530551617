/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by process.c and process_fork.c alone. */
#ifndef BERTH_RANKS_PROCESS_INTERNAL_H
#define BERTH_RANKS_PROCESS_INTERNAL_H

#include "ranks/channel.h"
#include "ranks/process.h"

struct ranks_process {
	pid_t pid;
	struct channel channel;
};

/* How it ended, for people; it is reaped. Blocks for 1 s at most. */
void process_end_text(struct ranks_process *process, char *text, size_t size);

#endif
