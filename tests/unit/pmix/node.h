/* SPDX-License-Identifier: BSD-3-Clause */
/* A small agent for tests: one node's PMIx server and its ranks, in this process; with a peer on
 * another socket two such processes are a job of two nodes. */
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
	int peer;	     /* socket to the other node, or -1 */
	const char *process; /* where the module is: the server gets its own process; or NULL */
	const char *expect_missing; /* or NULL */
	int again;		    /* run so many times more (the next attempt) */
	int kill_rank, kill_ms;	    /* SIGKILL local rank after a time; -1: no */
	bool end_on_failure;	    /* as berth does: a failed rank ends the others */

	/* Filled by node_run. */
	int status[NODE_RANKS]; /* wait status, -1 when it had to be killed at the end */
	int aborts, abort_rank, abort_status;
	char abort_text[128];
	bool missing_seen; /* missing() has said expect_missing */
	int gathers, fetches;
	bool dir_clean; /* nothing was left in the folder after stop */
};

/* Start, run to the end (at most 20 s), stop. 0, or the server's error. */
int node_run(const struct ranks_server_ops *ops, struct node *node, struct error *err);

#endif
