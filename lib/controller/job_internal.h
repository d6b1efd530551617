/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a job at the controller, shared by job.c, job_*.c, input.c and end.c only. */
#ifndef BERTH_CONTROLLER_JOB_INTERNAL_H
#define BERTH_CONTROLLER_JOB_INTERNAL_H

#include "agent/job_state.h"
#include "base/loop.h"
#include "controller/controller.h"
#include "controller/hang.h"
#include "controller/job.h"
#include "controller/node_notes.h"
#include "controller/stop.h"
#include "overlay/tree.h"
#include "plan/plan.h"

enum job_phase {
	JOB_PHASE_QUEUE,  /* other runs wait for longer; no agent was started */
	JOB_PHASE_LAUNCH, /* waiting for agents to connect */
	JOB_PHASE_INVENTORIES,
	JOB_PHASE_PROBE,
	JOB_PHASE_CLAIM, /* CLAIM was sent, or will be */
	JOB_PHASE_RUN,	 /* START was sent */
	JOB_PHASE_END,	 /* STOP was sent */
	JOB_PHASE_OVER,
};

/* What comes next, once everything that it needs is there. */
enum job_step {
	JOB_STEP_NONE,
	JOB_STEP_LAUNCH, /* start the agents */
	JOB_STEP_PROBE,	 /* ask the nodes which addresses they reach */
	JOB_STEP_PLAN,	 /* plan, and claim what the ranks use */
	JOB_STEP_START,	 /* the ranks; of a role in stages, those of the first node */
	JOB_STEP_OTHERS, /* the ranks of its other nodes */
};

/* A killed rank closes its connections before its agent can report its death. A rank that waits
 * for it may fail because of that, and be reported first. So a weaker cause waits a moment for a
 * stronger one that explains it. */
enum job_cause {
	CAUSE_STOPPED, /* a rank exited with ERR_STOPPED; the others should do so, too */
	CAUSE_CODE,    /* a rank exited with a code, or called abort */
	CAUSE_RAISED,  /* a rank was killed by a signal that failing programs raise themselves */
	CAUSE_SIGNAL,  /* a rank was killed by another signal */
	CAUSE_BERTH,   /* an agent, a node, berth itself */
};

struct job_node {
	bool inventory_received, started, done;
	int port;     /* that it reserves for MASTER_PORT; -1: none */
	bool settled; /* has reported all ranks that ended before or soon after the first cause */
};

/* The core. A feature with a state of its own is a part (struct job_part). */
struct job {
	const struct job_request *request;
	const struct job_sink *sink;
	struct job_result result;
	struct loop *loop;
	struct controller *controller; /* NULL in JOB_PHASE_QUEUE */
	enum job_phase phase;	       /* changed by job_enter alone */
	enum job_step next;	       /* to be taken after the callbacks of the loop */
	/* All times are by loop_now_ms, but for those that say so. */
	struct loop_timer deadline; /* of the phase */
	int64_t cancelled_due_ms; /* see job_awaits_cancelled, by clock_now_ms; 0: it has not begun
				   */
	int64_t start_due_ms;	  /* when all agents must have connected */
	bool use_fallback;	  /* the launcher brought no agent */
	size_t node_count, inventory_received;
	size_t started; /* nodes with ranks that have reported STARTED */
	struct job_node *nodes;
	struct inventory *inventories; /* [node_count], or NULL */
	int port;		       /* MASTER_PORT, reserved by rank 0's node */
	bool listens;		       /* the first node of a role in stages */
	bool port_taken;	       /* by another user: no restart on the same ports */
	int blocks;		       /* of ports that all nodes have bound: agent/ports.h */
	struct plan plan;	       /* zeroed before job_start_make_plan */
	bool planned;
	struct {			  /* the first cause, filled in by core.c */
		bool failed;		  /* result holds it */
		enum job_cause cause;	  /* how strong the cause is */
		int alike;		  /* ranks that failed as the first one did */
		struct loop_timer settle; /* until then a stronger cause replaces it */
		int64_t settled_ms;	  /* at the earliest, once all nodes have settled */
	} first;
	struct job_hang hang;
	struct node_notes notes;
	struct gathers gathers;
	/* Set by the parts for all others. */
	int64_t stop_begun_ms; /* when a stop signal was forwarded; 0: none was */
	int64_t end_ms;	       /* the job's time limit by clock_now_ms, which cannot be set, while
				  the scheduler gives a time of day; 0: unknown */
	int64_t end_time;      /* the same in Unix seconds */
	int kill_wait_ms;      /* as in the query; 0: no query */
	struct loop_timer second;	    /* for what is looked at once a second */
	struct {			    /* by clock_now_ms, for what the user reads */
		int64_t start_sent_ms;	    /* when START was sent; 0: not yet */
		int64_t started_ms;	    /* when all ranks ran; 0: not yet */
		int64_t next_ms, waited_ms; /* since when next waits for other roles, and before */
		int64_t phase_begin_ms, phase_ms[JOB_PHASE_OVER]; /* how long each phase took */
	} times;
	/* The parts' own states. */
	struct job_claims *claims;
	struct job_reach *reach;
	struct job_ready_state *ready;
	struct job_limit *limit;
	struct job_input *input;
	struct job_stop *stop;
	const struct job_part *const *parts; /* all of them, in job.c's order */
	size_t part_count;		     /* that are open */
};

struct job_handler {
	enum message_type type;
	void (*handle)(struct job *job, size_t node, const struct message *message);
};

/* A feature of the job, in one file, which alone knows its state. The core calls it; it calls the
 * core, and no other part. All but open and close may be NULL. */
struct job_part {
	int (*open)(struct job *job, struct error *err); /* allocates the state */
	/* The messages that it wants, before the core has them; {0} is the last. */
	const struct job_handler *handlers;
	void (*rank_ended)(struct job *job, const struct message_ended *ended);
	/* A signal to this process, but for SIGCHLD. */
	void (*on_signal)(struct job *job, const struct signalfd_siginfo *info);
	void (*close)(struct job *job);
};

/* ---- core.c, for all files below ---- */

/* For what happens to all roles alike: the user reads it once. */
const struct job_sink *job_common_sink(const struct job *job);
const char *job_node_name(const struct job *job, size_t node);
/* Return the node of a rank according to the plan; -1 if there is no such rank. */
long job_node_of_rank(const struct job *job, int64_t rank);
/* The number of this attempt, which counts those of the job's earlier starts. */
int job_attempt(const struct job_request *request);
/* Whose standard input the ranks get. */
enum agent_job_stdin job_input_kind(const struct job_request *request);
/* Does a role in stages wait until its first node listens? May the node's ranks start before? */
bool job_waits_for_listener(const struct job *job);
bool job_node_is_due(const struct job *job, size_t node);
/* Change the phase, and record how long the last one took. Its deadline is set apart. */
void job_enter(struct job *job, enum job_phase phase);
/* Everything that the next step needs is there. */
void job_continue(struct job *job, enum job_step next);
/* The phase ends after ms, unless it did before. */
void job_set_deadline(struct job *job, int64_t ms);
/* Send the ranks a signal (0: none), and create the stop file on all nodes, with the word why in it
 * (NULL: no stop file). */
void job_signal_ranks(struct job *job, int number, const char *why);
/* The first block of ports that all nodes have bound. */
int job_port_block(const struct job *job);
void job_record_time_left(struct job *job);

/* The first cause. Each of these functions ends the ranks if its cause is the first one, or
 * explains the one recorded so far. Later causes are a cascade and change nothing. job_fail is
 * for berth's own. Return true if it is the first cause. */
bool job_is_first_cause(struct job *job, enum job_cause cause, int code, long node);
/* The caller of job_is_first_cause fills in the rest of job->result, and calls this, which ends the
 * ranks if no stronger cause can replace this one any more. */
void job_settle(struct job *job);
/* All nodes may have settled: no stronger cause can come any more. */
void job_check_settled(struct job *job);
/* A stop signal was forwarded, so all ranks have time to save. */
void job_stop_begins(struct job *job);
int job_stop_grace_ms(const struct job *job);
void job_clear_cause(struct job_first_cause *cause);

/* ---- the parts ---- */

/* job_claims.c, for runs beside others. */
extern const struct job_part job_claims_part;
/* Take a place in the queue: JOB_PHASE_QUEUE, or with few runs before this one JOB_STEP_LAUNCH. */
int job_queue(struct job *job, struct error *err);
/* The deadline of JOB_PHASE_QUEUE: look again. */
int job_look_at_queue(struct job *job, struct error *err);
/* Has the run waited for too long, or is the job's time limit too near to start ranks? The job
 * fails then. Also true while the limit is not known yet. */
bool job_is_late(struct job *job);
/* Mark what other runs use; nothing if the ranks need more than that leaves free. Return 1 if the
 * run waits instead: ask the nodes again soon. */
int job_apply_claims(struct job *job, const struct plan_request *plan_request, struct error *err);
/* Ask the nodes to claim what their ranks use; return false if there is nothing to claim. */
bool job_claim(struct job *job);
/* The deadline of JOB_PHASE_CLAIM. */
void job_claims_due(struct job *job);
void job_leave_queue(struct job *job);
/* Tell the user if the ranks share GPUs with other runs. */
void job_announce_claims(struct job *job);

/* job_start.c, from the nodes' inventories to running ranks. */
extern const struct job_part job_reach_part;
/* All inventories have arrived: ask the nodes which addresses of node 0 they reach, and set the
 * deadline of their answers. */
int job_start_probe(struct job *job, struct error *err);
/* The deadline of JOB_PHASE_PROBE: go on without the nodes that have not answered. */
void job_start_probes_due(struct job *job);
/* Plan on what job_apply_claims has left. */
int job_start_make_plan(struct job *job, const struct plan_request *plan_request,
			struct error *err);
/* Tell the user what the plan warns about. */
void job_start_announce(struct job *job);
/* Send the plan, the environments and the program, so that the ranks start; of a role that starts
 * in stages, those of the first node only. */
int job_start_send(const struct job *job, struct error *err);
/* The second stage. */
int job_start_send_others(const struct job *job, struct error *err);

/* job_ready.c: when others may use what a role offers. */
extern const struct job_part job_ready_part;

/* job_time.c: the time limit. */
extern const struct job_part job_limit_part;
/* Warn the ranks if the limit is near; handle a scheduler that does not answer. now_ms: by
 * clock_now_ms, as what it returns: when to call it again, at the latest; 0: no need. */
int64_t job_time_check(struct job *job, int64_t now_ms);

/* input.c: rank 0's standard input. */
extern const struct job_part job_input_part;

/* job_signals.c: signals to berth run, and stops. */
extern const struct job_part job_stop_part;
/* All have ended after a stop signal: set the exit code. */
void job_finish_stop(struct job *job);

/* ---- job_agents.c: what agents report ---- */

struct controller_events job_controller_events(struct job *job);
/* How long nodes may take to start their ranks, from START on. */
int job_ranks_timeout_ms(const struct job *job);
/* That time is up: fail the job if a node has not reported that its ranks run. */
void job_fail_not_started(struct job *job);
/* The time for agents and inventories is up: fail the job. */
void job_fail_missing(struct job *job);
/* Fail unless at least one agent has connected. Return true if that is the job's first failure. */
bool job_fail_without_agents(struct job *job);

/* ---- end.c ---- */

/* Handle ENDED and ABORT. */
void job_handle_rank_ended(struct job *job, size_t node, const struct message *message);
void job_handle_abort(struct job *job, size_t node, const struct message *message);
/* Did the agents end because a user cancelled their job step? Slurm kills them, but no node has
 * failed, and a restart or a requeue would undo the cancel. */
void job_find_cancelled(struct job *job);
/* Is that still open, as srun's output may come a moment after the loss of a node? */
bool job_awaits_cancelled(struct job *job);

#endif
