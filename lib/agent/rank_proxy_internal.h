/* SPDX-License-Identifier: BSD-3-Clause */
/* What keeper and task say to each other; rank_proxy_channel.c, rank_proxy.c and slurm_task.c
 * alone. */
#ifndef BERTH_AGENT_RANK_PROXY_INTERNAL_H
#define BERTH_AGENT_RANK_PROXY_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "agent/rank_proxy_channel.h"

/* The keeper's first words carry these descriptors: what the rank is (a memfd: struct
 * rank_proxies_rank, the cores as a cpu_set_t, then strings: the folder, the arguments, the
 * environment) and its output. */
enum { RANK_PROXIES_RANK, RANK_PROXIES_STDOUT, RANK_PROXIES_STDERR, RANK_PROXIES_FDS };

struct rank_proxies_rank {
	uint32_t cpus_size, argc, envc, strings_size;
};

enum rank_proxies_kind {
	RANK_PROXIES_BEGIN = 1, /* keeper: with descriptors */
	RANK_PROXIES_SIGNAL,	/* keeper: send the program this signal */
	RANK_PROXIES_ENDED,	/* task: wait status */
	RANK_PROXIES_NOT_RUN,	/* task: errno of the program's start */
};
struct rank_proxies_message {
	uint32_t kind;
	int32_t value;
};

/* The signals that are passed on, blocked for this process from now on; a signalfd, or -1. */
int rank_proxies_block_signals(int more);

/* Token and rank (from the variable rank_name) make the address. -ERR_DATA, -ERR_USAGE. */
int rank_proxies_address(const struct env *env, const char *rank_name, int *rank,
			 struct sockaddr_un *out, socklen_t *size, struct error *err);
/* Is the other end a process of this user? */
int rank_proxies_is_own_user(int fd);

int rank_proxies_send(int fd, enum rank_proxies_kind kind, int value, const int *fds,
		      size_t fd_count);
/* 1: a word; 0: the other one is gone; -1: nothing yet. fds: room for RANK_PROXIES_FDS, or NULL; -1
 * each where none came. */
int rank_proxies_receive(int fd, struct rank_proxies_message *out, int *fds);

#endif
