/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by server_process.c and server_child.c only. */
#ifndef BERTH_PMIX_SERVER_PROCESS_INTERNAL_H
#define BERTH_PMIX_SERVER_PROCESS_INTERNAL_H

#include "rendezvous/channel.h"
#include "pmix/server_process.h"

/* The frames between the agent and its PMIx server's process. Both are one build on one machine. */
enum frame_kind {
	/* agent to server */
	FRAME_START = 1,   /* JSON: struct ranks_job */
	FRAME_GATHER_DONE, /* token, number: status, data */
	FRAME_FETCH_DONE,  /* token, number: status, data */
	FRAME_SERVE,	   /* token: the agent's own, number: rank */
	FRAME_PREPARE,	   /* number: node, data: directory, NUL, node's name, NUL; no answer */
	FRAME_RANK_ENDED,  /* number: local rank */
	FRAME_STOP,
	/* server to agent */
	/* number: 0 or -code, with a text as data. To START and STOP. The data of a START
	 * that worked are JSON: for each local rank its environment as [[name, value, why]...], or
	 * {"code", "text"} if PMIx has none for it. */
	FRAME_REPLY,
	FRAME_GATHER, /* token, sequence, data */
	FRAME_FETCH,  /* token, number: rank */
	FRAME_ABORT,  /* number: local rank, sequence: status, data: text */
	FRAME_SERVED, /* token, number: status, data */
};

struct server_process {
	pid_t pid;
	struct channel channel;
};

/* Reap the process and describe for people how it ended. Blocks for at most 1 s. */
void server_process_exit_text(struct server_process *process, char *text, size_t size);

/* server_accept.c: from now on accept closes peers of other users, unless the kernel does not tell
 * who a peer is, and recv fails with ETIMEDOUT when a blocking socket's time limit has passed. */
void server_accept_guard(void);

#endif
