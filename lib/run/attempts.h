/* SPDX-License-Identifier: BSD-3-Clause */
/* Restarts of a job after a failure, without leaving its allocation: one jobs_run after the other,
 * each with its own agents, address, port and PMIx names.
 *
 *   attempts.c   runs the attempts in turn, and reports on them
 *   node_pool.c  which nodes take part in the next attempt, and which are excluded
 *
 * A job is not restarted if it succeeded, if a signal ended it, if it stopped with a checkpoint
 * (75), or if berth found a fault before it started anything (64 to 70). It is restarted
 * after a failure of the program, after a hang, and if a node or the network failed.
 *
 * A node is excluded if it is lost (its agent has exited or is silent), or if a failure began on
 * it twice, provided that a spare replaces it or min_nodes are left. Otherwise the job tries the
 * node again. berth run itself is not replaced: if its host fails, the job fails. */
#ifndef BERTH_RUN_ATTEMPTS_H
#define BERTH_RUN_ATTEMPTS_H

#include "roles/roles.h"

struct attempts_policy {
	int max_restarts; /* 0: never restart */
	int spares; /* number of spares: the last nodes of the allocation, which have agents but no
		       ranks */
	int min_nodes; /* the job continues while it has this many nodes; 0: as many as at first */
	bool own_program; /* the program is berth's own: do not restart after its exit codes 64 to
			     66 */
};

/* -ERR_USAGE: min_nodes, spares and the nodes of alloc conflict; err names them. */
int attempts_check(const struct attempts_policy *policy, const struct alloc *alloc,
		   struct error *err);

/* Run attempts with jobs_run until none follows. role_count 0: request has the program. sinks: one,
 * or one per role. This function sets spares, plan.attempt and
 * should_restart of request. out is the last attempt's result, with attempts and excluded_nodes
 * filled in. Errors are those of jobs_run. */
int attempts_run(const struct job_request *request, const struct role *roles, size_t role_count,
		 const struct attempts_policy *policy, const struct job_sink *sinks,
		 struct job_result *out, struct error *err);

/* ---- node_pool.c ---- */

/* The nodes of a job, by their index in the allocation. Zero-initialised before node_pool_new. */
struct node_pool {
	const struct alloc *alloc; /* borrowed */
	size_t min_nodes;
	size_t *nodes; /* first the active nodes, which have ranks, then the spares */
	size_t active_count, spare_count;
	int *failures;		/* [alloc->node_count]: how many failures began on each node */
	json_t *excluded_nodes; /* [{node, why, attempt}] */
};

int node_pool_new(const struct alloc *alloc, const struct attempts_policy *policy,
		  struct node_pool *out, struct error *err);
void node_pool_free(struct node_pool *node_pool);
/* Make the allocation of the next attempt: the active nodes, then the spares. Names are shared
 * with the pool's allocation; free only out->nodes. */
int node_pool_alloc(const struct node_pool *node_pool, struct alloc *out, struct error *err);
/* Exclude nodes according to the result of an attempt on node_pool_alloc's nodes. Send a note
 * per change to sink. Return how many nodes were excluded. */
size_t node_pool_update(struct node_pool *node_pool, const struct job_result *result,
			const struct job_sink *sink);

#endif
