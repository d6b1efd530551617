/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a job at the head, shared by the job*.c files alone. */
#ifndef BERTH_CONTROLLER_JOB_INTERNAL_H
#define BERTH_CONTROLLER_JOB_INTERNAL_H

#include "base/loop.h"
#include "controller/controller.h"
#include "controller/job.h"
#include "overlay/gather.h"

enum job_phase {
	JOB_PHASE_LAUNCH, /* agents are on their way */
	JOB_PHASE_INVENTORIES,
	JOB_PHASE_PROBE,
	JOB_PHASE_RUN, /* START is sent */
	JOB_PHASE_END, /* STOP is sent */
	JOB_PHASE_OVER,
};

/* A rank that is killed closes its connections before anybody can be told that it is dead: a rank
 * that waits for it may fail of that, end, and be heard of first. So the weaker ends wait a moment
 * for a stronger one that explains them. */
enum job_cause {
	CAUSE_STOPPED, /* a rank ended with ERR_STOPPED: the others are doing so, too */
	CAUSE_CODE,    /* a rank ended with a code, or called abort */
	CAUSE_RAISED,  /* it was ended by a signal that failing programs raise themselves */
	CAUSE_SIGNAL,  /* ... by another signal */
	CAUSE_BERTH,   /* an agent, a node, berth itself */
};

struct job_node {
	bool inventory_received, started, done;
	size_t running; /* ranks that have not ended */
};

/* hang.c */
struct job_hang {
	struct job_rank *ranks;	     /* [plan.world_size], once START is sent */
	int64_t active_ms;	     /* the last step or output of any */
	int64_t stacks_requested_ms; /* LOOK was sent; 0 */
	size_t stacks_received;	     /* nodes that have answered */
	char *stacks;		     /* that they sent, or NULL */
};

struct job {
	const struct job_request *request;
	const struct job_sink *sink;
	struct job_result *result;
	struct loop *loop;
	struct controller *controller;
	struct loop_source signals, drained;
	enum job_phase phase;
	bool failed;	      /* result has the first cause */
	enum job_cause cause; /* how much of a cause it is */
	int64_t settle_ms;    /* until then a better one takes its place, then STOP; 0: sent */
	struct error error;   /* a failure before any rank was started */
	size_t node_count, inventory_received, started, done;
	struct job_node *nodes;
	struct inventory *inventories; /* [node_count] */
	int port;		       /* MASTER_PORT, held by node 0 */
	size_t reach_nodes;
	struct plan_reach reach;
	int *reached, *shared;
	int64_t deadline_ms; /* of the phase; 0: none */
	struct plan plan;
	bool planned;
	size_t nodes_with_ranks; /* nodes with ranks */
	struct gathers gathers;
	int64_t woke_ms, tick_ms;
	int64_t start_sent_ms; /* START was sent; 0 */
	struct job_hang hang;
	int64_t end_ms,
		warn_ms; /* monotonic: the job's end, the warning; 0: not known, none or past */
	struct {
		int signal;
		int64_t at_ms;
	} last_signal;
	int interrupts;
};

/* job.c: an agent was sent that signal: to all ranks, unless it is the one that was passed on just
 * now. */
void job_handle_signal(struct job *job, int number);

/* job_agents.c */
struct controller_events job_controller_events(struct job *job);

/* job_start.c */
int job_start_probes(struct job *job,
		     struct error *err); /* JOB_PHASE_INVENTORIES -> JOB_PHASE_PROBE */
int job_handle_probed(struct job *job, const struct wire_message *message); /* 1: all are in */
void job_start_ranks(
	struct job *job); /* plan, START to each node: -> JOB_PHASE_RUN; or the job fails */
void job_fail_not_started(
	struct job *job); /* its deadline is over: who has not said STARTED fails the job */

/* job_check.c: what the program and the log folder make worth a note, once the plan is there. */
void job_check_world_size(struct job *job);
void job_check_logs(struct job *job);

/* hang.c: heartbeats, and what is done without them. */
int job_hang_open(struct job *job, struct error *err); /* once there is a plan */
void job_hang_close(struct job *job);
void job_mark_active(struct job *job); /* output, or the like */
void job_handle_progress(struct job *job, size_t node, const json_t *text);
void job_handle_stacks(struct job *job, size_t node, const json_t *text);
void job_hang_tick(struct job *job, int64_t now_ms, bool slept); /* slept: we did not run */

/* job_time.c */
void job_time_begin(struct job *job);
int64_t job_time_due(const struct job *job); /* when check wants to be called; 0: whenever */
void job_time_check(struct job *job, int64_t now_ms);
/* How much is left goes into the result. */
void job_time_record_left(struct job *job);
/* The stop file appears on all nodes, with that word in it; a signal to the ranks (0: none). */
void job_request_stop(struct job *job, int number, const char *why);

/* end.c: the first one counts (see enum job_cause), later ones are the cascade; each begins
 * the end. */
void job_fail(struct job *job, int code, long node, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void job_handle_rank_ended(struct job *job, size_t node, const json_t *text);
void job_handle_abort(struct job *job, size_t node, const json_t *text);
/* Called when settle_ms is over. */
void job_settle(struct job *job, int64_t now_ms);
/* End all ranks; grace_ms 0: at once. */
void job_stop(struct job *job, int grace_ms);
void job_note(struct job *job, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
