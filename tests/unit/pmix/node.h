/* SPDX-License-Identifier: BSD-3-Clause */
/* A small agent for tests: one node's PMIx server and its ranks, in this process. With a peer on
 * another socket, two such processes form a job of two nodes. */
#ifndef BERTH_TESTS_UNIT_PMIX_NODE_H
#define BERTH_TESTS_UNIT_PMIX_NODE_H

#include <stdbool.h>
#include <sys/types.h>

#include "rendezvous/ranks.h"

#define NODE_RANKS 8

struct node {
	/* Set by the test. */
	const char *program, *mode; /* the ranks run: program mode */
	int node_index, node_count, ranks_a_node;
	const char *const *names;
	int peer; /* socket to the other node, or -1 */
	const char
		*process; /* directory of the module: the server runs in its own process; or NULL */
	int again;	  /* run this many more times (the next attempts) */
	int kill_rank, kill_ms; /* SIGKILL this local rank after a time; -1: none */
	bool end_on_failure;	/* as berth does: end the other ranks if one fails */

	/* Filled by node_run. */
	int status[NODE_RANKS]; /* wait status; -1 if it had to be killed at the end */
	int aborts, abort_rank, abort_status;
	char abort_text[128];
	int gathers, fetches;
	bool dir_clean; /* nothing was left in the directory after stop */
};

/* Start the node, run it to the end (at most 60 s) and stop it. Return 0, or the server's error. */
int node_run(const struct ranks_server_ops *ops, struct node *node, struct error *err);

#endif
