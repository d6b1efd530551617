/* SPDX-License-Identifier: BSD-3-Clause */
/* The end of a job: its first cause, and the result that is made of it. */
#ifndef BERTH_CONTROLLER_END_H
#define BERTH_CONTROLLER_END_H

#include "alloc/alloc.h"
#include "controller/job.h"

/* A rank that is killed closes its connections before anybody can report that it is dead. A rank
 * that waits for it may fail of that, end, and be reported first. So the weaker ends wait a moment
 * for a stronger one that explains them. */
enum job_cause {
	CAUSE_STOPPED, /* a rank ended with ERR_STOPPED: the others are doing so, too */
	CAUSE_CODE,    /* a rank ended with a code, or called abort */
	CAUSE_RAISED,  /* it was ended by a signal that failing programs raise themselves */
	CAUSE_SIGNAL,  /* ... by another signal */
	CAUSE_BERTH,   /* an agent, a node, berth itself */
};

/* For end.c, and for job.c, which ends the ranks when settle_ms is over. */
struct job_end {
	const struct alloc *alloc;
	struct job_result *result;
	bool failed;	      /* result has the first cause */
	enum job_cause cause; /* how much of a cause it is */
	int64_t settle_ms;    /* until then a better one replaces it; 0: none does */
};

/* alloc and result are borrowed; result is filled in by the functions below. */
void job_end_begin(struct job_end *end, const struct alloc *alloc, struct job_result *result);

/* Each of these returns true when this is the first cause, or explains the one that was taken for
 * it. Later ones are the cascade and change nothing. node -1: none. */
bool job_end_fail(struct job_end *end, int code, long node, const char *text);
bool job_end_handle_rank_ended(struct job_end *end, size_t node, const json_t *text);
bool job_end_handle_abort(struct job_end *end, size_t node, const json_t *text);

/* Is there a first cause that no better one will replace, and the ranks have not been stopped? */
bool job_end_is_settled(const struct job_end *end, int64_t now_ms);

#endif
