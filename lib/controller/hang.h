/* SPDX-License-Identifier: BSD-3-Clause */
/* Hang detection: records the ranks' heartbeats, and finds which rank is behind when none makes
 * progress. */
#ifndef BERTH_CONTROLLER_HANG_H
#define BERTH_CONTROLLER_HANG_H

#include "controller/controller.h"
#include "controller/job.h"
#include "plan/plan.h"

/* Used by hang.c; job.c reads most_steps. Zero-initialised; before job_hang_open the functions
 * do nothing. */
struct job_hang {
	const struct job_request *request;
	const struct plan *plan;
	struct controller *controller;
	const struct job_sink *sink;
	const struct loop *loop;     /* for its clock */
	struct job_rank *ranks;	     /* [plan->world_size] */
	double most_steps;	     /* the most steps that any rank has reported; -1: none has */
	int64_t active_ms;	     /* when a rank last made a step or printed output */
	int64_t noted_ms;	     /* when a silence was last noted */
	int64_t stacks_requested_ms; /* when DUMP_STACKS was sent; 0: it was not */
	size_t stacks_received;	     /* nodes that have answered */
	char *stacks;		     /* the stacks that they sent, or NULL */
	/* Ranks that have not met the others (agent/joined.h). */
	int64_t begin_ms;
	bool missing_named;
	int64_t missing_stacks_ms; /* when DUMP_STACKS was sent for them; 0: it was not */
};

/* What caused a hang. */
struct job_hang_finding {
	int rank;	 /* the rank that is behind; -1: none is */
	long node;	 /* its node, or -1 */
	char *stacks;	 /* malloced; the caller frees it; may be NULL */
	char text[1200]; /* the first cause */
};

/* Prepare for the start of plan's ranks. All pointers are borrowed. If request has no
 * hang_timeout_ms, a hang is only noted, after 10 minutes. */
int job_hang_open(struct job_hang *hang, const struct job_request *request, const struct plan *plan,
		  struct controller *controller, const struct job_sink *sink,
		  const struct loop *loop, struct error *err);
void job_hang_close(struct job_hang *hang);
/* Call it when a rank has printed output, or when the controller itself holds the ranks back. */
void job_hang_mark_active(struct job_hang *hang);
void job_hang_handle_progress(struct job_hang *hang, size_t node,
			      const struct message_progress *progress);
void job_hang_handle_stacks(struct job_hang *hang, size_t node,
			    const struct message_stacks *answer);
void job_hang_handle_joined(struct job_hang *hang, size_t node,
			    const struct message_joined *joined);
/* Call it when all ranks have ended with code 0: warn if none has ever met another. */
void job_hang_check_apart(const struct job_hang *hang);
/* Call it about once a second while the ranks run; now_ms is loop_now_ms. If nothing has happened
 * for hang_timeout_ms, it requests stacks from the agents. Return true if the job hangs; *out then
 * names the rank. After 30 s, it warns about ranks that have not met the others, and prints their
 * stacks. */
bool job_hang_check(struct job_hang *hang, int64_t now_ms, struct job_hang_finding *out);

#endif
