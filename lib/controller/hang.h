/* SPDX-License-Identifier: BSD-3-Clause */
/* Hang detection: the ranks' heartbeats, and which rank is behind when none makes progress. */
#ifndef BERTH_CONTROLLER_HANG_H
#define BERTH_CONTROLLER_HANG_H

#include "controller/controller.h"
#include "controller/job.h"
#include "plan/plan.h"

/* For hang.c; job.c reads most_steps. Zero-initialise; before job_hang_open the functions have
 * nothing to do. */
struct job_hang {
	const struct job_request *request;
	const struct plan *plan;
	struct controller *controller;
	const struct job_sink *sink;
	struct job_rank *ranks;	     /* [plan->world_size] */
	double most_steps;	     /* that any rank has reported; -1: none has */
	int64_t active_ms;	     /* the last step or output of any rank */
	int64_t stacks_requested_ms; /* DUMP_STACKS was sent; 0 */
	size_t nodes_with_ranks;
	size_t stacks_received; /* nodes that have answered */
	char *stacks;		/* that they sent, or NULL */
};

/* What a hang is blamed on. */
struct job_hang_finding {
	int rank;	 /* the one that is behind; -1: none is */
	long node;	 /* its node; -1 */
	char *stacks;	 /* malloced, the caller's; or NULL */
	char text[1200]; /* the first cause */
};

/* The ranks of plan are about to start. All pointers are borrowed. If request has no
 * hang_timeout_ms, the steps are recorded and no hang is found. */
int job_hang_open(struct job_hang *hang, const struct job_request *request, const struct plan *plan,
		  struct controller *controller, const struct job_sink *sink, struct error *err);
void job_hang_close(struct job_hang *hang);
/* A rank printed something, or the controller itself held the ranks back. */
void job_hang_mark_active(struct job_hang *hang);
void job_hang_handle_progress(struct job_hang *hang, size_t node, const json_t *text);
void job_hang_handle_stacks(struct job_hang *hang, size_t node, const json_t *text);
/* Call it about every second while the ranks run; slept: this process was stopped meanwhile. When
 * nothing has happened for timeout_ms, it asks the agents for stacks. True: the job hangs; *out
 * says on whom. */
bool job_hang_tick(struct job_hang *hang, int64_t now_ms, bool slept, struct job_hang_finding *out);

#endif
