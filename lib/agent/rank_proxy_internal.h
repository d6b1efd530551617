/* SPDX-License-Identifier: BSD-3-Clause */
/* What keeper and task say to each other; rank_proxy_channel.c, rank_proxy.c and slurm_task.c alone. */
#ifndef BERTH_AGENT_RANK_PROXY_INTERNAL_H
#define BERTH_AGENT_RANK_PROXY_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "agent/rank_proxy_channel.h"

/* The keeper's first words carry these descriptors: what the rank is (a memfd: struct tasks_rank, the
 * cores as a cpu_set_t, then strings: the folder, the arguments, the environment) and its output. */
enum { TASKS_RANK, TASKS_STDOUT, TASKS_STDERR, TASKS_FDS };

struct tasks_rank {
	uint32_t cpus_size, argc, envc, strings_size;
};

enum tasks_kind {
	TASKS_BEGIN = 1, /* keeper: with descriptors */
	TASKS_SIGNAL,	 /* keeper: send the program this signal */
	TASKS_ENDED,	 /* task: wait status */
	TASKS_NOT_RUN,	 /* task: errno of the program's start */
};
struct tasks_word {
	uint32_t kind;
	int32_t value;
};

/* The signals that are passed on, blocked for this process from now on; a signalfd, or -1. */
int tasks_signals(int more);

/* Token and rank (from the variable rank_name) make the address. -ERR_DATA, -ERR_USAGE. */
int tasks_address(const struct env *env, const char *rank_name, int *rank, struct sockaddr_un *out,
		  socklen_t *size, struct error *err);
/* Is the other end a process of this user? */
int tasks_is_ours(int fd);

int tasks_say(int fd, enum tasks_kind kind, int value, const int *fds, size_t fd_count);
/* 1: a word; 0: the other one is gone; -1: nothing yet. fds: room for TASKS_FDS, or NULL; -1 each where
 * none came. */
int tasks_hear(int fd, struct tasks_word *out, int *fds);

#endif
