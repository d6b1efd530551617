/* SPDX-License-Identifier: BSD-3-Clause */
/* Restarts of a job after a failure, without leaving its allocation: one job_run after the other,
 * each with agents, an address, a port and PMIx names of its own.
 *
 *   attempts.c   the attempts one after the other, and what is reported of them
 *   node_pool.c  which nodes take part in the next one, and which are left out
 *
 * A job is not restarted if it succeeded, if a signal ended it, if it stopped with a checkpoint
 * (75), or if berth found a fault before it started anything (64 to 70). What remains is a failure
 * of the program itself, a hang, and a node or a network that failed.
 *
 * A node is left out if it is lost (its agent is gone or silent), or if a failure began on it
 * twice, as long as a spare replaces it or min_nodes are left. A node that cannot be spared is
 * tried again. The first node has the rendezvous address, and this process may run on it: if the
 * machine of berth run itself is gone, so is the job. */
#ifndef BERTH_CONTROLLER_ATTEMPTS_H
#define BERTH_CONTROLLER_ATTEMPTS_H

#include "controller/job.h"

struct attempts_policy {
	int max_restarts; /* 0: none */
	int spares;	  /* the last nodes of the allocation: they have agents and no ranks */
	int min_nodes;	  /* the job continues with so many; 0: as many as at first */
	bool own_program; /* the program is berth's: its codes 64 to 66 are not worth a restart */
};

/* -ERR_USAGE: min_nodes, spares and the nodes of alloc conflict; err names them. */
int attempts_check(const struct attempts_policy *policy, const struct alloc *alloc,
		   struct error *err);

/* As job_run: spares, log_dir (of each attempt) and should_restart of request are set here;
 * plan.attempt is the first one's. out is the last attempt's, with attempts and excluded_nodes. */
int attempts_run(const struct job_request *request, const struct attempts_policy *policy,
		 const struct job_sink *sink, struct job_result *out, struct error *err);

/* The directory of an attempt's logs: DIR/attempt-2, or DIR itself without restarts. */
void attempts_log_dir(const char *log_dir, int max_restarts, int attempt, char *out, size_t size);

/* ---- node_pool.c ---- */

/* Nodes by their index in the allocation. Zero-initialise; node_pool_new, node_pool_free. */
struct node_pool {
	const struct alloc *alloc; /* borrowed */
	size_t min_nodes;
	size_t *nodes; /* in order: the active ones, which have ranks, then the spares */
	size_t active_count, spare_count;
	int *failures;		/* [alloc->node_count] that began there */
	json_t *excluded_nodes; /* [{node, why, attempt}] */
};

int node_pool_new(const struct alloc *alloc, const struct attempts_policy *policy,
		  struct node_pool *out, struct error *err);
void node_pool_free(struct node_pool *node_pool);
/* The allocation of the next attempt: the active ones, then the spares. Names are shared with the
 * pool's; free(out->nodes) alone. */
int node_pool_alloc(const struct node_pool *node_pool, struct alloc *out, struct error *err);
/* Learn from how an attempt with node_pool_alloc's nodes ended. A note per
 * change goes to sink. Returns how many nodes were left out. */
size_t node_pool_update(struct node_pool *node_pool, const struct job_result *result,
			const struct job_sink *sink);

#endif
