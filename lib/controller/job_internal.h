/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a job at the controller, shared by job.c, job_agents.c, job_start.c and end.c alone.
 */
#ifndef BERTH_CONTROLLER_JOB_INTERNAL_H
#define BERTH_CONTROLLER_JOB_INTERNAL_H

#include "base/loop.h"
#include "controller/controller.h"
#include "controller/hang.h"
#include "controller/job.h"
#include "overlay/tree.h"
#include "plan/plan.h"

enum job_phase {
	JOB_PHASE_LAUNCH, /* agents are on their way */
	JOB_PHASE_INVENTORIES,
	JOB_PHASE_PROBE,
	JOB_PHASE_RUN, /* START is sent */
	JOB_PHASE_END, /* STOP is sent */
	JOB_PHASE_OVER,
};

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

struct job_node {
	bool inventory_received, started, done;
};

struct job {
	const struct job_request *request;
	const struct job_sink *sink;
	struct job_result *result;
	struct loop *loop;
	struct controller *controller;
	struct loop_source signals, drained;
	enum job_phase phase;
	int64_t deadline_ms; /* of the phase; 0: none */
	size_t node_count, inventory_received, started;
	struct job_node *nodes;
	/* From the inventories to the plan: filled in by job_start.c. */
	struct inventory *inventories; /* [node_count], or NULL */
	int port;		       /* MASTER_PORT, held by node 0 */
	size_t address_count;	       /* of node 0 */
	int *reached, *shared;	       /* [address_count]: see struct plan_reach */
	size_t reach_nodes;	       /* that have answered */
	struct plan plan;	       /* zeroed before job_start_make_plan */
	bool planned;
	size_t nodes_with_ranks;
	/* The first cause, filled in by end.c. */
	bool failed;	      /* result has it */
	enum job_cause cause; /* how much of a cause it is */
	int64_t settle_ms;    /* until then a better one replaces it; 0: none does */
	struct job_hang hang;
	/* The time limit, by the monotonic clock, which nobody sets; the scheduler gives a time of
	 * day. 0: not known; no warning, or it was sent. */
	int64_t end_ms, warn_ms;
	struct gathers gathers;
	int64_t woke_ms, tick_ms;
	int64_t start_sent_ms; /* START was sent; 0 */
	struct {
		int signal;
		int64_t at_ms;
	} last_signal;
	int interrupts;
};

/* job_agents.c: what the agents report. */
struct controller_events job_controller_events(struct job *job);
const char *job_node_name(const struct job *job, size_t node);
/* How long nodes may take to start their ranks, from START on. */
int job_ranks_timeout_ms(const struct job *job);
/* That time is over: the job fails if a node has not reported it. */
void job_fail_not_started(struct job *job);
/* The time for the agents and their inventories is over: the job fails. */
void job_fail_missing(struct job *job);

/* end.c: the first cause. Each of these ends the ranks if it is the first one, or explains the one
 * that was taken for it. Later ones are the cascade and change nothing. The job fails of this; node
 * -1: none. True if it is the first cause. */
bool job_fail(struct job *job, int code, long node, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* ENDED and ABORT. */
void job_handle_rank_ended(struct job *job, size_t node, const json_t *text);
void job_handle_abort(struct job *job, size_t node, const json_t *text);

/* job.c, the chain */
void job_begin_probes(struct job *job); /* JOB_PHASE_INVENTORIES -> JOB_PHASE_PROBE */
void job_begin_ranks(struct job *job);	/* -> JOB_PHASE_RUN, or the job fails */
/* An agent was sent that signal: pass it on to all ranks, unless it is the one that was passed on
 * just now. */
void job_handle_signal(struct job *job, int number);
/* End the ranks once there is a first cause that no better one will replace. */
void job_settle(struct job *job, int64_t now_ms);

/* job_start.c, from the nodes' inventories to running ranks. The text of a node's INVENTORY: */
int job_start_add_inventory(struct job *job, size_t node, const json_t *text, struct error *err);
/* All inventories are here: ask the nodes which addresses of node 0 they reach, and set the
 * deadline of their answers. */
int job_start_probe(struct job *job, struct error *err);
/* True: all nodes have answered. */
bool job_start_handle_probed(struct job *job, const struct wire_message *message);
int job_start_make_plan(struct job *job, struct error *err);
/* Send the plan, the environments and the program: the ranks start. */
int job_start_send(const struct job *job, struct error *err);

/* job_check.c: what the program and the log directory make worth a note, once the plan is there. */
void job_check_world_size(const char *program, const struct env *env, int world_size,
			  const struct job_sink *sink);
void job_check_logs(const char *log_dir, int world_size, const struct job_sink *sink);

#endif
