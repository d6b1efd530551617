/* SPDX-License-Identifier: BSD-3-Clause */
/* A job from its allocation to its end, as the controller sees it:
 *
 *   [queue ->] launch -> inventories -> probe -> plan -> claim -> start -> run -> end
 *
 * From top to bottom; a file calls only those below it:
 *
 *   job.c         the phases and their deadlines, the table of the parts
 *   job_agents.c  what agents report
 *   end.c         how a rank ended, the result, the report
 *   the parts, each with a state that no other file knows (struct job_part)
 *   core.c        notes, messages to the ranks, the first cause
 *
 * The parts:
 *
 *   job_claims.c  waiting for free GPUs and cores, and claiming them
 *   job_start.c   reachable addresses; also the plan, and what is sent to the nodes
 *   job_time.c    the time limit
 *   input.c       rank 0's standard input
 *   job_signals.c signals, and what follows a stop signal; stop.h decides
 *
 * hang.h finds ranks that make no progress.
 *
 * The job fails with its first failure, that of a rank or node that berth did not end itself. The
 * controller then ends all others within SUPERVISE_GRACE_MS + SUPERVISE_KILL_MS, and ignores the
 * failures that they report as a result. */
#ifndef BERTH_CONTROLLER_JOB_H
#define BERTH_CONTROLLER_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "container/container.h"
#include "explain/explain.h"
#include "launch/launcher.h"
#include "plan/plan.h"
#include "process/rlimits.h"

struct job; /* opaque: a running job */
struct job_result;
struct loop;
struct signalfd_siginfo;

/* A driver communicates with the ranks while they run: job_write_stdin writes lines to their
 * standard input, and the sink receives their standard output. job_round makes all calls. */
struct job_driver {
	void *context;
	/* The ranks are being started, so input sent from now on reaches them. inventories: one
	 * per node, owned by the job; port: MASTER_PORT in the plan. */
	void (*starting)(void *context, struct job *job, const struct inventory *inventories,
			 int port);
	/* Called about once a second, and at the time it asked for. Returns the latest time (as
	 * clock_now_ms) for the next call; 0: no preference. */
	int64_t (*tick)(void *context, int64_t now_ms);
	/* A node's agent or inventory did not arrive in time; called before the job fails for
	 * that reason. output_tail: the last lines of the launcher tool's output, "" if it
	 * printed nothing. */
	void (*missing)(void *context, size_t node, const char *output_tail);
};

enum job_pmix { JOB_PMIX_AUTO, JOB_PMIX_ON, JOB_PMIX_OFF };

#define JOB_STOP_GRACE_MS 30000

/* When a role is ready, besides that its ranks run. */
struct job_ready {
	const char *text; /* of --ready */
	const char *kind; /* as in struct message_ask_ready */
	const char *host; /* "": the role's address */
	int port;	  /* 0: the role's; from +0 on, if of_block, that of --ports */
	bool of_block;
	const char *path;
	int timeout_ms;
	/* The ranks of other nodes start once the first node listens on the first port of --ports,
	 * because they connect to it. */
	bool staged;
	char *place; /* holds host; malloced */
};
#define JOB_READY_MS 600000

/* What a job is to the others on its loop, if it is one of several roles. The caller changes turn
 * and released while the jobs run. */
struct job_role {
	const char *name;
	bool service; /* its ranks run until berth ends them: any other end is a failure */
	bool quiet;   /* another role tells the user what happens to all alike */
	bool overlap; /* it claims nothing, and nothing is taken from it */
	const struct job_ready *ready; /* NULL: once its ranks run */
	/* In which all nodes of all roles reach its first node; NULL: not known yet. */
	const struct plan_network *network;
	/* Addresses of other roles that its nodes are to try, "10.0.0.1:4711" or "". NULL: not
	 * known yet. */
	const json_t *others;
	bool turn;     /* to plan: the roles before it have claimed what they use */
	bool released; /* the ranks may start */
};

/* When the job ends by the clock or by a signal. */
struct job_ending {
	int64_t min_time_ms;	/* start the ranks only if the job lasts for this long; 0: always */
	int64_t warn_before_ms; /* how long before its end time to warn the ranks; 0: never */
	int warn_signal;	/* signal that warns the ranks; 0: only create their stop file */
	int stop_grace_ms; /* how long the ranks may take to save after a stop signal, or after one
			      of them has saved and stopped; 0: JOB_STOP_GRACE_MS */
};

/* Beside other runs of the same scheduler's job. */
struct job_share {
	bool refuse;	 /* fail if too few GPUs are free of other runs */
	bool waits;	 /* for what its ranks need, until other runs free it */
	int64_t wait_ms; /* then: how long at most; 0: forever */
};

/* What a job asks its caller, and tells it. Any function may be NULL. */
struct job_calls {
	/* The scheduler is asked while the job starts and runs. Its answer replaces the
	 * allocation's end time. NULL: it is not asked, and does not kill. */
	struct alloc_query *query;
	void (*answered)(void *context); /* whenever nothing more is being asked */
	/* Write what is known, because the scheduler will soon kill the job. */
	void (*stop_report)(void *context, const struct job_result *result);
	void *context; /* of these two */
	/* Will the job be restarted? Called when the ranks have ended and the agents are still
	 * connected. If true, agents that the user started (launcher hand) connect again. */
	bool (*should_restart)(void *context, const struct job_result *result);
	void *restart_context;
};

/* What to run. */
struct job_request {
	const struct launch_options *launch;
	const char *const *argv;    /* the ranks' program; looked up in PATH on each node */
	struct container container; /* in which they run it; image NULL: none */
	const char *cwd;	    /* the ranks' directory; NULL: the agent's */
	struct plan_request plan;   /* port: the requested MASTER_PORT, 0: any; attempt: from 0 at
				       each start of the job */
	const char *log_dir;	    /* or NULL; see logs_attempt_dir */
	size_t spares; /* number of spares: the last nodes of alloc, which have agents but no ranks;
			  losing one does not end the job */
	enum job_pmix pmix;
	struct job_share share;
	struct job_ending end;
	bool port_hold;	      /* the port stays bound while rank 0 runs */
	bool pass_stdin;      /* rank 0 gets this process's standard input */
	bool pty;	      /* with pass_stdin, from a terminal: rank 0 gets one of its own */
	struct limits limits; /* of the ranks; not known: each agent's own */
	int ranks_timeout_ms; /* how long all nodes may take to start their ranks after START; 0: a
				 minute */
	int hang_timeout_ms;  /* the job fails after this long without a step or output from any
				 rank; 0: never, but a note after 10 minutes */
	bool any_master_addr; /* the rendezvous address does not matter, so nodes do not probe it */
	struct job_calls calls;
	const struct job_driver *driver; /* or NULL */
	const struct job_role *role;	 /* NULL: the only one */
};

/* What the caller receives while the job runs. */
struct job_sink {
	void *context;
	/* A line of a rank, or a piece of one (newline false); any bytes. */
	void (*output)(void *context, int rank, bool is_err, const char *text, size_t size,
		       bool newline);
	void (*note)(void *context, enum log_level level, const char *text);
	/* Called before the ranks start. May be NULL. */
	void (*begun)(void *context, int world_size);
	/* Called at least once a second from before the agents start: print lines that have waited
	 * long enough, or all at the end of an attempt (now_ms INT64_MAX). Return when the next
	 * ones are due, by clock_now_ms; 0: none wait. May be NULL. */
	int64_t (*tick)(void *context, int64_t now_ms);
	/* Is so much output waiting that no more should arrive? If so, the controller holds the
	 * ranks back until drained_fd is readable and full returns false. NULL: never. */
	bool (*full)(void *context);
	int drained_fd;
	/* Has the only reader of the output gone, so that the job should end? NULL: never. */
	bool (*abandoned)(void *context);
};

/* Where --ready asks over the network; 0: it does not. Only of a job with a plan. */
int job_ready_port(const struct job *job);

/* Format a line and pass it to the sink's note. */
void job_note(const struct job_sink *sink, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* How the job ended. The caller owns it, zero-initialises it and calls job_result_free. */
/* What the first cause is. lib/run/requeue.h says what follows for the job. */
enum job_end {
	JOB_END_BERTH,	   /* the exit code is berth's own: a fault, or a time-out */
	JOB_END_NODE,	   /* likewise: a node was lost */
	JOB_END_CANCELLED, /* likewise: the agents' job step was cancelled */
	JOB_END_PROGRAM,   /* the exit code is a rank's */
	JOB_END_OOM,	   /* likewise, and the kernel's out-of-memory killer ended it */
};

/* The first cause: what ended the job. job_clear_cause frees it. */
struct job_first_cause {
	enum job_end end;
	int signal;	     /* the signal that killed the rank; 0: none */
	int rank;	     /* the rank that failed; -1: none */
	long node_index;     /* index of node in the allocation; -1: none */
	char *node;	     /* or NULL */
	char *text;	     /* a sentence; NULL if the job succeeded */
	json_t *output_tail; /* array of strings: the rank's last lines; NULL or empty */
	json_t *traceback;   /* likewise, of the exception that the program has recorded */
};

#define JOB_NO_CAUSE                                                                               \
	{                                                                                          \
		.rank = -1, .node_index = -1                                                       \
	}

struct job_result {
	int code; /* exit code of the job: see docs/reference/exit-codes.md */
	struct job_first_cause cause;
	size_t role; /* of several, the one whose result this is */
	int attempt;
	int interrupted; /* the first signal that was forwarded; 0: none */
	char sender[64]; /* the process of the job that sent it, "process 7 (sh) of this job", or ""
			  */
	int user_signal; /* the first of the other signals that were forwarded (SIGUSR1, SIGUSR2);
			    0: none */
	int64_t waited_ms; /* of a run that did not start for lack of time: how long it waited */
	bool warned;	   /* the ranks were warned that the time limit is near */
	bool time_left_known;
	int64_t time_left_ms; /* time left until the time limit, when that signal arrived or else at
				 the end */
	char *saved;	      /* what the program has saved, according to BERTH_REPORT, or NULL */
	char *next;	      /* how to continue, according to BERTH_REPORT, or NULL */
	char *unkilled;	      /* processes that could not be killed, or NULL */
	json_t *ranks;	 /* array of {rank, node, code, signal, peak_memory_bytes}, in the order in
			    which they ended; with roles, one role's after the other's, and role */
	json_t *roles;	 /* array of {role, service, code, nodes, world_size}, or NULL */
	bool *lost;	 /* [alloc->node_count]: the node's agent did not connect, or it is lost or
			    silent */
	bool start_sent; /* START was sent to the nodes */
	int64_t run_ms;	 /* run time since then */
	double steps; /* the most steps of any rank, see process/heartbeat.h; -1: none was reported
		       */
	bool restart; /* what should_restart returned */
	json_t *attempts, *excluded_nodes; /* filled in by attempts.c for the report; else NULL */
	char *stacks;			   /* stacks of ranks that hung, or NULL */
	char *no_restart_reason;	   /* why there was no further attempt, or NULL */
};

/* A job is one of several on a loop that the caller runs (roles/jobs.c):
 *
 *   job_open      starts the agents, or the wait for them
 *   job_round     after each round of the loop, and job_signal for each signal
 *   job_finish    once job_is_over: how it ended
 *   job_announce_end, job_close
 *
 * request and sink are borrowed until job_close. Makes this process a child subreaper. Return 0, or
 * a negative code if no agents could be started; for a role that was released, which is restarted,
 * the job fails instead. */
int job_open(struct loop *loop, const struct job_request *request, const struct job_sink *sink,
	     struct job **out, struct error *err);
/* Do what the loop's callbacks have made possible. now_ms: by clock_now_ms. Return the time of the
 * next call, at the latest; 0: no need. */
int64_t job_round(struct job *job, int64_t now_ms);
/* A signal to this process, but for SIGCHLD: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2
 * are forwarded to all ranks; a second SIGINT or SIGTERM that is not the scheduler's ends the job
 * at once. After SIGTSTP the ranks are stopped, and the caller stops this process. */
void job_signal(struct job *job, const struct signalfd_siginfo *info);
/* Hold the ranks back (or no longer), because their output is not being read. */
void job_pause(struct job *job, bool full);
/* The states of a job, in this order. */
bool job_is_known(const struct job *job);    /* it has all inventories */
bool job_is_prepared(const struct job *job); /* its role is not released */
bool job_runs(const struct job *job);	     /* the ranks were started, and nothing ends them */
bool job_is_ending(const struct job *job);   /* or it is over */
bool job_is_over(const struct job *job);
bool job_has_started(const struct job *job); /* all ranks have run */
bool job_is_ready(const struct job *job);    /* and others may use what they offer */
/* Has another user listened on one of its ports? It must not be restarted on them. */
bool job_lost_port(const struct job *job);
/* Both are the job's, and stay until job_close. The plan is NULL before there is one; of the
 * inventories, one per node, those that have not arrived are empty. */
const struct plan *job_plan(const struct job *job);
const struct inventory *job_inventories(const struct job *job);
/* The addresses of its first node, at which that node answers probes, in the inventory's order; ""
 * for one that other nodes cannot use. A new reference. */
json_t *job_addresses(const struct job *job);
/* How many of its nodes reach that one of role->others. */
int job_reached(const struct job *job, size_t other);
/* The ports that its nodes reserve (--ports), once it is known: the first of them, or 0; as text,
 * "20480-20495", "20480" or "". */
int job_first_port(const struct job *job);
void job_ports(const struct job *job, char *out, size_t size);
/* What to plan, or what was planned; the port is the one that node 0 reserves. */
struct plan_request job_plan_request(const struct job *job);
/* Take over the time limit that another job has learned from the scheduler. */
void job_copy_limit(struct job *job, const struct job *from);
/* What others than the job itself use on a node, as a claim of another run would say it (see
 * plan_apply_claims). Takes claim over. */
void job_add_claim(struct job *job, size_t node, json_t *claim);
/* Fail the job for the given reason, unless it has failed before; node -1: no node. Return true if
 * this is the first cause. */
bool job_fail(struct job *job, int code, long node, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
bool job_has_failed(const struct job *job);
const char *job_first_cause(const struct job *job); /* a sentence */
bool job_has_finished(const struct job *job);	    /* all ranks have ended, and none has failed */
int64_t job_silent_ms(const struct job *job); /* since its last step or output; 0: not started */
bool job_has_stopped(const struct job *job);  /* a rank has saved its work and stopped (code 75) */
bool job_is_interrupted(const struct job *job); /* by a stop signal */
/* The result of a job that is over, which becomes the caller's. It may wait for the launcher's
 * tool. */
void job_finish(struct job *job, struct job_result *out);
/* The launcher brought no agent, so another one may. */
bool job_needs_fallback(const struct job *job);
/* Tell the agents, which are still connected, whether the job is restarted. */
void job_announce_end(struct job *job, int code, bool restart);
/* End the agents, so that no process is left, and free the job; NULL is allowed. result (may be
 * NULL) receives unkilled. */
void job_close(struct job *job, struct job_result *result);
/* The Python exception that ended the job. Return false, and leave *out, if none did. */
bool job_result_exception(const struct job_result *result, struct explain_exception *out);
void job_result_free(struct job_result *result); /* frees what the result holds, and clears it */

/* For a driver. Write to the standard input of a node's ranks (-1: of all nodes). -ERR_DATA:
 * larger than a message may be. A lost node is not an error. */
int job_write_stdin(struct job *job, long node, const void *data, size_t size, struct error *err);
/* For a driver. End the ranks; their exit codes then do not count as failures. grace_ms: see
 * supervise_stop. */
void job_request_end(struct job *job, int grace_ms);
/* For a driver. Take over the inventories that job_driver.starting was given; call it at most
 * once, from then on. The caller frees each of them and the array. */
struct inventory *job_take_inventories(struct job *job);

/* The document berth.run/1 (--report). A new reference; NULL if memory is out. */
json_t *job_report(const struct job_result *result);
/* Whose the exit code is: "program" or "berth". */
const char *job_result_by(const struct job_result *result);

#endif
