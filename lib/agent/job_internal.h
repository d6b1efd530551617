/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a job at the head, shared by job.c, job_start.c and job_end.c alone. */
#ifndef BERTH_AGENT_JOB_INTERNAL_H
#define BERTH_AGENT_JOB_INTERNAL_H

#include "agent/gather.h"
#include "agent/head.h"
#include "agent/job.h"
#include "agent/loop.h"

enum job_phase {
	PHASE_LAUNCH, /* agents are on their way */
	PHASE_CARDS,
	PHASE_REACH,
	PHASE_RUN, /* START is sent */
	PHASE_END, /* STOP is sent */
	PHASE_OVER,
};

/* A rank that is killed closes its connections before anybody can be told that it is dead: a rank
 * that waits for it may fail of that, end, and be heard of first. So the weaker ends wait a moment
 * for a stronger one that explains them. */
enum job_cause {
	CAUSE_CODE,   /* a rank ended with a code, or called abort */
	CAUSE_RAISED, /* it was ended by a signal that failing programs raise themselves */
	CAUSE_SIGNAL, /* ... by another signal */
	CAUSE_BERTH,  /* an agent, a node, berth itself */
};

struct job_node {
	bool carded, started, done, lost;
	size_t running; /* ranks that have not ended */
};

struct job {
	const struct job_request *request;
	const struct job_sink *sink;
	struct job_result *result;
	struct loop *loop;
	struct head *head;
	struct loop_source signals, drained;
	enum job_phase phase;
	bool failed;	      /* result has the first cause */
	enum job_cause cause; /* how much of a cause it is */
	int64_t settle_ms;    /* until then a better one takes its place, then STOP; 0: sent */
	struct error error;   /* a failure before any rank was started */
	size_t node_count, carded, started, done;
	struct job_node *nodes;
	struct machine *cards; /* [node_count] */
	int port;	       /* MASTER_PORT, held by node 0 */
	size_t reach_nodes;
	struct plan_reach reach;
	int *reached, *shared;
	int64_t deadline_ms; /* of the phase; 0: none */
	struct plan plan;
	bool planned;
	size_t gathering; /* nodes with ranks */
	struct gathers gathers;
	int64_t woke_ms, tick_ms;
	struct {
		int signal;
		int64_t at_ms;
	} last_signal;
	int interrupts;
};

/* job_start.c */
int job_ask_reach(struct job *job, struct error *err); /* PHASE_CARDS -> PHASE_REACH */
int job_take_reached(struct job *job, const struct wire_message *message); /* 1: all are in */
int job_plan(struct job *job, struct error *err);
int job_send_start(struct job *job, struct error *err); /* -> PHASE_RUN */

/* job_check.c: what the program and the log folder make worth a note, once the plan is there. */
void job_check_worlds(struct job *job);
void job_check_logs(struct job *job);

/* job_end.c: the first one counts (see enum job_cause), later ones are the cascade; each begins
 * the end. */
void job_fail(struct job *job, int code, long node, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void job_take_ended(struct job *job, size_t node, const json_t *text);
void job_take_abort(struct job *job, size_t node, const json_t *text);
/* Called when settle_ms is over. */
void job_settle(struct job *job, int64_t now_ms);
/* End all ranks; grace_ms 0: at once. */
void job_stop(struct job *job, int grace_ms);
void job_note(struct job *job, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
