/* SPDX-License-Identifier: BSD-3-Clause */
/* A job from its allocation to its end, as the controller sees it:
 *
 *   launch -> inventories -> probe -> plan -> start -> run -> end
 *
 *   job.c         the chain, signals, deadlines, the time limit
 *   job_agents.c  what agents report
 *   job_check.c   what can be checked before anything starts
 *   job_start.c   inventories, reachable addresses, plan; what the nodes are sent
 *   hang.c        heartbeats; ranks that make no progress
 *   end.c         the first cause, the result, the report
 *
 * attempts.h restarts a job that has failed.
 *
 * The first failure is the job's: that of the rank or node which berth did not end. All others are
 * ended within SUPERVISE_GRACE_MS + SUPERVISE_KILL_MS, and what they report then is a cascade. */
#ifndef BERTH_CONTROLLER_JOB_H
#define BERTH_CONTROLLER_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "launch/launcher.h"
#include "plan/plan.h"

struct job; /* opaque: one that runs */
struct job_result;

/* Talks with the ranks while they run: job_write_stdin writes lines to their standard input, and
 * the sink receives their standard output. All calls are made from job_run. */
struct job_driver {
	void *context;
	/* The ranks are being started: what is sent now reaches them. inventories: one per node;
	 * port: MASTER_PORT in the plan. Both are the job's. */
	void (*starting)(void *context, struct job *job, const struct inventory *inventories,
			 int port);
	/* About every second, and at the time it asked for: when (as clock_now_ms) it wants to be
	 * called again at the latest, 0: whenever. */
	int64_t (*tick)(void *context, int64_t now_ms);
	/* A node's agent or inventory did not arrive in time; called before the job fails of it.
	 * output_tail: the last lines of the launcher's tool, "" if it printed nothing. */
	void (*missing)(void *context, size_t node, const char *output_tail);
};

enum job_pmix { JOB_PMIX_AUTO, JOB_PMIX_ON, JOB_PMIX_OFF };

/* What to run. Borrowed during job_run. */
struct job_request {
	const struct launch_options *launch;
	const char *const *argv;  /* the ranks' program; looked up in PATH on each node */
	const char *cwd;	  /* the ranks' directory; NULL: the agent's */
	struct plan_request plan; /* port: the MASTER_PORT wanted, 0: any; attempt: from 0 */
	const char *log_dir;	  /* or NULL */
	size_t spares; /* the last nodes of alloc: they have agents and no ranks; when one is lost
			  the others continue */
	enum job_pmix pmix;
	bool port_hold;	      /* the port stays bound while rank 0 runs */
	bool pass_stdin;      /* rank 0 gets the agent's stdin (launcher fork only) */
	int ranks_timeout_ms; /* for all nodes to start their ranks, from START on; 0: a minute */
	int hang_timeout_ms;  /* without a step or output from any rank the job fails; 0: never */
	bool want_heartbeats; /* ask for heartbeats, also without hang_timeout_ms: result's steps */
	int64_t warn_before_ms; /* warn the ranks so long before the allocation's end_time; 0: do
				   not */
	int warn_signal;	/* to the ranks then; 0: their stop file alone appears */
	bool any_master_addr;	/* the rendezvous address does not matter: nodes do not try it */
	const struct job_driver *driver; /* or NULL */
	/* The ranks have ended and the agents are still connected: will the job be restarted? Then
	 * agents that the user started (launcher hand) come back. May be NULL. */
	bool (*should_restart)(void *context, const struct job_result *result);
	void *restart_context;
};

/* What the caller receives while the job runs. */
struct job_sink {
	void *context;
	/* A line of a rank, or a piece of one (newline false); any bytes. */
	void (*output)(void *context, int rank, bool is_err, const char *text, size_t size,
		       bool newline);
	void (*note)(void *context, enum log_level level, const char *text);
	/* Is so much output waiting that no more should arrive? The ranks are held back until
	 * drained_fd is readable and full returns false. NULL: never. */
	bool (*full)(void *context);
	int drained_fd;
};

/* A line for the sink's note. */
void job_note(const struct job_sink *sink, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* How it ended. Owned by the caller; zero-initialised before, job_result_free after. */
struct job_result {
	int code;	     /* exit code of the job: see docs/reference/exit-codes.md */
	bool by_program;     /* the code is a rank's; else berth's own */
	int signal;	     /* that ended the rank; 0 */
	int rank;	     /* -1: no rank's doing */
	char *node;	     /* or NULL */
	char *first_cause;   /* a sentence; NULL when all went well */
	json_t *output_tail; /* array of strings: the rank's last lines; NULL or empty */
	int attempt;
	int interrupted; /* the first signal that was forwarded; 0 */
	int user_signal; /* the first of the other signals that were forwarded (SIGUSR1, SIGUSR2); 0
			  */
	bool warned;	 /* the ranks were warned that the time limit is near */
	bool time_left_known;
	int64_t time_left_ms; /* of the job's time when that signal came, or else at the end */
	bool lost_node;	      /* the first cause is that a node was lost */
	bool oom;	      /* ... or the kernel's out-of-memory killer */
	char *saved;	      /* what the program reports to have saved (BERTH_REPORT), or NULL */
	char *next;	      /* ... and what continues it */
	char *unkilled;	      /* processes that could not be ended, or NULL */
	json_t *ranks;	 /* array: {rank, node, code, signal, peak_memory_bytes} as they ended */
	long node_index; /* of node, in the allocation; -1 */
	bool *lost;	 /* [alloc->node_count]: whose agent did not come, or is gone or silent */
	bool start_sent; /* the nodes were sent START */
	int64_t run_ms;	 /* since then */
	double steps; /* of the rank with the most, see process/heartbeat.h; -1: none has reported
			 any */
	bool restart; /* what should_restart returned */
	json_t *attempts, *excluded_nodes; /* by attempts.h, for the report; NULL elsewhere */
	char *stacks;			   /* of ranks that hung, or NULL */
	char *no_restart_reason;	   /* why there was no further attempt, or NULL */
};

/* Run it. Blocks until everything has ended and nothing is left. Takes SIGINT, SIGTERM, SIGHUP,
 * SIGQUIT, SIGUSR1, SIGUSR2 (forwarded to all ranks; a second INT or TERM ends the job at once) and
 * SIGCHLD for itself meanwhile; makes this process a child subreaper.
 * 0: out says how the job ended, also if it failed; negative: it was not started. */
int job_run(const struct job_request *request, const struct job_sink *sink, struct job_result *out,
	    struct error *err);
void job_result_free(struct job_result *result); /* frees what it holds and clears it */

/* For a driver. Write to the standard input of a node's ranks (-1: of all nodes'); -ERR_DATA:
 * larger than a message may be. A node that is lost is no error. */
int job_write_stdin(struct job *job, long node, const void *data, size_t size, struct error *err);
/* End the ranks; what they end with then is no failure. grace_ms as supervise_stop's. */
void job_request_end(struct job *job, int grace_ms);
/* For a driver, once, from job_driver.starting on: take the inventories that starting was given.
 * The caller frees each of them, and the array. */
struct inventory *job_take_inventories(struct job *job);

/* The document berth.run/1 (--report). A new reference; NULL if memory is out. */
json_t *job_report(const struct job_result *result);

/* Is argv[0] a program that execvp would start with env's PATH? 0; -ERR_INPUT: there is none;
 * -ERR_UNAVAILABLE: it is there and may not be executed. err names it. */
int job_check_program(const char *name, const struct env *env, struct error *err);

#endif
