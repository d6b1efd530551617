/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a job at the controller, shared by job.c, job_*.c, input.c and end.c only. */
#ifndef BERTH_CONTROLLER_JOB_INTERNAL_H
#define BERTH_CONTROLLER_JOB_INTERNAL_H

#include <termios.h>

#include "agent/job_state.h"
#include "base/loop.h"
#include "controller/controller.h"
#include "controller/hang.h"
#include "controller/job.h"
#include "controller/node_notes.h"
#include "controller/stop.h"
#include "overlay/tree.h"
#include "plan/plan.h"

#define JOB_NEVER_MS (INT64_MAX / 2)

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
	int port;	/* that it reserves for MASTER_PORT; -1: none */
	bool awaited;	/* its CLAIMED is */
	bool taken;	/* it has its claim */
	json_t *claims; /* of other runs of the job, or NULL */
	bool settled;	/* has reported all ranks that ended before or soon after the first cause */
};

struct job {
	const struct job_request *request;
	const struct job_sink *sink;
	struct job_result *result;
	struct loop *loop;
	struct controller *controller;
	struct loop_source signals, drained, input, query;
	bool input_waits; /* this process is in the terminal's background */
	bool input_over;  /* rank 0, which had the terminal, has ended */
	bool raw;	  /* the terminal passes all keys on; as_before is how it was */
	struct termios as_before;
	enum job_phase phase;
	/* All times are by loop_now_ms, but for those that say so. */
	struct loop_timer deadline; /* of the phase */
	int64_t start_due_ms;	    /* when all agents must have connected */
	bool use_fallback;	    /* the launcher brought no agent */
	size_t node_count, inventory_received;
	size_t started; /* nodes with ranks that have reported STARTED */
	struct job_node *nodes;
	/* From the inventories to the plan; filled in by job_start.c. */
	struct inventory *inventories;	 /* [node_count], or NULL */
	int port;			 /* MASTER_PORT, reserved by rank 0's node */
	size_t address_count;		 /* of node 0 */
	int *reached, *shared, *stalled; /* [address_count]: see struct plan_reach */
	size_t reach_nodes;		 /* nodes that have answered */
	struct plan plan;		 /* zeroed before job_start_make_plan */
	bool planned;
	bool shares; /* too little is free: the ranks use GPUs of other runs, too */
	struct plan_fit fit;
	bool claims_sent; /* the nodes were asked to claim, not to give up */
	int claim_rounds; /* how often another run was faster */
	/* A run that waits. Its place in the queue is a claim without uses in a directory of this
	 * process. */
	struct {
		char dir[128];	  /* ""; or the directory, until the ranks are started */
		int lock_fd;	  /* of dir */
		char before[128]; /* that of a run before it, which has to leave first, or "" */
		int64_t until_ms; /* give up then, by clock_now_ms; 0: never */
		bool noted;	  /* that it waits */
		int64_t asked_ms; /* when it asked the nodes first, by clock_now_ms; 0: not yet */
	} place;
	/* The first cause, filled in by end.c. */
	bool failed;		  /* result holds it */
	enum job_cause cause;	  /* how strong the cause is */
	int alike;		  /* ranks that failed as the first one did */
	struct loop_timer settle; /* until then a stronger cause replaces it */
	int64_t settled_ms;	  /* at the earliest, once all nodes have settled */
	struct job_hang hang;
	struct node_notes notes;
	/* The time limit by clock_now_ms, which cannot be set; the scheduler gives a time of day.
	 * end_ms 0: unknown. warn_ms 0: no warning, or it was sent. */
	int64_t end_ms, warn_ms;
	int64_t end_time;   /* the same in Unix seconds */
	int64_t recheck_ms; /* until then the warning waits for the scheduler's answer; 0: not asked
			     */
	int kill_wait_ms;   /* as in the query; 0: no query */
	bool attempt_noted; /* that the attempt's number is too low */
	struct gathers gathers;
	struct loop_timer second; /* for what is looked at once a second */
	struct loop_timer wake;	  /* only wakes the loop: something is due after this round */
	int64_t suspended_ms;	  /* for how long this process was, when last looked at */
	/* By clock_now_ms, for what the user reads. */
	int64_t start_sent_ms;				  /* when START was sent; 0: not yet */
	int64_t started_ms;				  /* when all ranks ran; 0: not yet */
	int64_t phase_begin_ms, phase_ms[JOB_PHASE_OVER]; /* how long each phase took */
	struct {
		int signal;
		int64_t at_ms;
	} last_signal;
	struct { /* a stop signal from the launcher before the ranks run */
		int signal;
		struct loop_timer timer; /* it counts then */
	} early_stop;
	int interrupts;
	struct {
		int64_t begun_ms;		/* when a stop signal was forwarded; 0: none was */
		struct loop_timer kill, report; /* as struct stop_times */
	} stop;
};

/* job_agents.c: the callbacks that handle what the agents report. */
struct controller_events job_controller_events(struct job *job);
const char *job_node_name(const struct job *job, size_t node);
/* How long nodes may take to start their ranks, from START on. */
int job_ranks_timeout_ms(const struct job *job);
/* That time is up: fail the job if a node has not reported that its ranks run. */
void job_fail_not_started(struct job *job);
/* The time for agents and inventories is up: fail the job. */
void job_fail_missing(struct job *job);
/* Fail unless at least one agent has connected. Return true if that is the job's first failure. */
bool job_fail_without_agents(struct job *job);

/* end.c: the first cause. Each of these functions ends the ranks if its cause is the first one,
 * or explains the one recorded so far. Later causes are a cascade and change nothing. job_fail
 * fails the job for the given reason; node -1: no node. Return true if it is the first cause. */
/* All nodes may have settled: no stronger cause can come any more. */
void job_check_settled(struct job *job);
bool job_fail(struct job *job, int code, long node, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* Handle ENDED and ABORT. */
void job_handle_rank_ended(struct job *job, size_t node, const struct message *message);
void job_handle_abort(struct job *job, size_t node, const struct message *message);

/* Did the agents end because a user cancelled their job step? Slurm kills them, but no node has
 * failed, and a restart or a requeue would undo the cancel. After each lost node it waits up to 2 s
 * for srun's output, which may come a moment later. */
void job_find_cancelled(struct job *job);

/* job_time.c: the time limit. */
void job_time_begin(struct job *job);
/* Warn the ranks if the limit is near; handle a scheduler that does not answer. now_ms: by
 * clock_now_ms, as what it returns: when to call it again, at the latest; 0: no need. */
int64_t job_time_check(struct job *job, int64_t now_ms);
void job_time_close(struct job *job);

/* job.c: the phases */
int job_launch(struct job *job, struct error *err); /* -> JOB_PHASE_LAUNCH */
void job_begin_probes(struct job *job);		    /* JOB_PHASE_INVENTORIES -> JOB_PHASE_PROBE */
void job_begin_ranks(struct job *job); /* -> JOB_PHASE_CLAIM or _RUN, or the job fails */
void job_start_ranks(struct job *job); /* -> JOB_PHASE_RUN, or the job fails */
/* The phase ends after ms, unless it did before. */
void job_set_deadline(struct job *job, int64_t ms);
/* End the ranks if no stronger cause can replace the first one any more. */
void job_settle(struct job *job);

/* job_signals.c: handle the signals to this process. */
int job_open_signals(struct job *job, struct error *err);
/* An agent received this signal, from its launcher or from anyone: forward it to all ranks, unless
 * it is a duplicate of the one that was just forwarded. A launcher's stop signal before the ranks
 * run counts only if the launcher still runs 2 s later. */
void job_handle_signal(struct job *job, int number, bool by_launcher);
/* Send the ranks a signal (0: none), and create the stop file on all nodes, with the word why in it
 * (NULL: no stop file). */
void job_signal_ranks(struct job *job, int number, const char *why);
int job_stop_grace_ms(const struct job_request *request);
void job_finish_stop(struct job *job); /* all have ended: set the exit code */
void job_record_time_left(struct job *job);

/* job_start.c, from the nodes' inventories to running ranks. Add a node's: */
int job_start_add_inventory(struct job *job, size_t node, const struct message_inventory *message,
			    struct error *err);
/* All inventories have arrived: ask the nodes which addresses of node 0 they reach, and set the
 * deadline of their answers. */
int job_start_probe(struct job *job, struct error *err);
/* Add a node's answer. Return true once all nodes have answered. */
bool job_start_handle_probed(struct job *job, const struct message_probed *answer);
/* The number of this attempt, which counts those of the job's earlier starts. */
int job_start_attempt(const struct job_request *request);
/* Plan on what other runs of the job leave free; on all if that is too little. Return 1 if the run
 * waits instead: ask the nodes again soon. */
int job_start_make_plan(struct job *job, struct error *err);
/* Tell the user what the plan warns about. */
void job_start_announce(struct job *job);
/* Send the plan, the environments and the program, so that the ranks start. */
int job_start_send(const struct job *job, struct error *err);

/* job_claims.c, for runs beside others. */
/* Take a place in the queue: JOB_PHASE_QUEUE, or with few runs before this one job_launch. */
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
/* Add a node's answer. Continue once all have answered: start the ranks, or plan again. */
void job_handle_claimed(struct job *job, size_t node, const struct message *message);
/* The deadline of JOB_PHASE_CLAIM. */
void job_claims_due(struct job *job);
void job_leave_queue(struct job *job);
void job_free_claims(struct job *job);

/* input.c: whose standard input the ranks get. */
enum agent_job_stdin job_input_kind(const struct job_request *request);
/* Pass the next piece of this process's standard input to rank 0, as soon as there is one,
 * if that is where rank 0 gets it. */
void job_input_continue(struct job *job);
/* Once a second: continue if this process may be back in the terminal's foreground. */
void job_input_check(struct job *job);
/* Stop reading; the terminal is as before. */
void job_input_close(struct job *job);
/* This process will be stopped: the same until job_input_check. */
void job_input_suspend(struct job *job);
/* Rank 0 has ended: what is typed now is for the shell, and Ctrl-C for the job. */
void job_input_rank_ended(struct job *job);
/* SIGWINCH: rank 0's own terminal gets the size of this one. */
void job_input_resize(struct job *job);
/* Return the node of a rank according to the plan; -1 if there is no such rank. */
long job_node_of_rank(const struct job *job, int64_t rank);

#endif
