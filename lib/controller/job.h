/* SPDX-License-Identifier: BSD-3-Clause */
/* A job from its allocation to its end, as the head sees it:
 *
 *   launch -> cards -> reach -> plan -> start -> run -> end
 *
 *   job.c         the chain, signals, deadlines
 *   job_agents.c  what agents say
 *   job_check.c   before anything starts
 *   job_start.c   what the nodes are told: plan, environments, program
 *   hang.c    heartbeats; ranks that do not go on
 *   job_time.c    the warning before the job's time is over
 *   end.c     the first cause, the result, the report
 *
 * attempts.h runs a job again that has failed.
 *
 * The first failure is the job's: the rank or node whose end was not our doing. All others are
 * ended within SUPERVISE_GRACE_MS + SUPERVISE_KILL_MS, and what they say then is a cascade. */
#ifndef BERTH_CONTROLLER_JOB_H
#define BERTH_CONTROLLER_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "launch/launcher.h"
#include "plan/plan.h"

struct job; /* opaque: one that runs */
struct job_result;

/* Who talks with the ranks while they run: by lines on their standard input, which job_write_stdin
 * writes, and on their standard output, which the sink is told. All calls are made from job_run. */
struct job_driver {
	void *context;
	/* The ranks are being started: what is sent now reaches them. cards: one a node; port: as
	 * MASTER_PORT in the plan. Both are the job's. */
	void (*starting)(void *context, struct job *job, const struct inventory *inventories,
			 int port);
	/* About every second, and at the time it asked for: when (as loop_now_ms) it wants to be
	 * called again at the latest, 0: whenever. */
	int64_t (*tick)(void *context, int64_t now_ms);
	/* A node's agent, or its card, did not come in time; called before the job fails of it.
	 * words: what the engine's tool has printed, "" when nothing. */
	void (*missing)(void *context, size_t node, const char *output_tail);
};

enum job_pmix { JOB_PMIX_AUTO, JOB_PMIX_ON, JOB_PMIX_OFF };

/* What to run. Borrowed during job_run. */
struct job_request {
	const struct launch_options *launch;
	const char *const *argv;  /* the ranks' program; looked up in PATH on each node */
	const char *cwd;	  /* the ranks' folder; NULL: the agent's */
	struct plan_request plan; /* port: the MASTER_PORT wanted, 0: any; attempt: from 0 */
	const char *log_dir;	  /* or NULL */
	size_t spares; /* the last nodes of alloc: in place, without ranks; when one is lost
			  the others go on */
	enum job_pmix pmix;
	bool port_hold;	      /* the port stays bound while rank 0 runs */
	bool pass_stdin;      /* rank 0 gets the agent's stdin (engine fork alone) */
	int ranks_timeout_ms; /* for all nodes to have started their ranks, once told; 0: a minute
			       */
	int hang_timeout_ms;  /* without a step or output from any rank the job fails; 0: never */
	bool want_heartbeats; /* ask for heartbeats, also without hang_timeout_ms: result's steps */
	int64_t warn_before_ms; /* warn the ranks so long before the allocation's end_time; 0: do
				   not */
	int warn_signal;	/* to the ranks then; 0: their stop file alone appears */
	bool any_master_addr;	/* the plan's head address does not matter: not tried from the nodes
				 */
	const struct job_driver *driver; /* or NULL */
	/* The ranks have ended and the agents are there still: will the job be run again? Then
	 * agents that nobody starts for us (engine hand) come back. May be NULL. */
	bool (*should_restart)(void *context, const struct job_result *result);
	void *restart_context;
};

/* What the caller is told while the job runs. */
struct job_sink {
	void *context;
	/* A line of a rank, or a piece of one (newline false); any bytes. */
	void (*output)(void *context, int rank, bool is_err, const char *text, size_t size,
		       bool newline);
	void (*note)(void *context, enum log_level level, const char *text);
	/* So much output is waiting that no more should come: the ranks are held back until
	 * drained_fd is readable and full says no. NULL: never. */
	bool (*full)(void *context);
	int drained_fd;
};

/* A line for the sink's note. */
void job_note(const struct job_sink *sink, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* How it ended. Owned by the caller; zero-initialised before, job_result_free after. */
struct job_result {
	int code;	     /* exit code of the job: design.md section 5 */
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
	bool warned;	 /* the ranks were told that the job's time is nearly over */
	bool time_left_known;
	int64_t time_left_ms; /* of the job's time when that signal came, or else at the end */
	bool lost_node;	      /* the first cause is that a node was lost */
	bool oom;	      /* ... or the kernel's out-of-memory killer */
	char *saved;	      /* what the program said that it saved (BERTH_REPORT), or NULL */
	char *next;	      /* ... and what continues it */
	char *unkilled;	      /* processes that could not be ended, or NULL */
	json_t *ranks;	 /* array: {rank, node, code, signal, peak_memory_bytes} as they ended */
	long node_index; /* of node, in the allocation; -1 */
	bool *lost;	 /* [alloc->node_count]: whose agent did not come, or is gone or silent */
	bool start_sent; /* the nodes were told to start their ranks */
	int64_t run_ms;	 /* since then */
	double steps; /* of the rank with the most, see process/heartbeat.h; -1: nobody has said */
	bool restart; /* as job_request.again said */
	json_t *attempts, *excluded_nodes; /* by attempts.h, for the report; NULL elsewhere */
	char *stacks;			   /* of ranks that hung, or NULL */
	char *no_restart_reason;	   /* why there was no further attempt, or NULL */
};

/* Run it. Blocks until everything has ended and nothing is left. Takes SIGINT, SIGTERM, SIGHUP,
 * SIGQUIT, SIGUSR1, SIGUSR2 (forwarded to all ranks; a second INT or TERM ends the job at once) and
 * SIGCHLD for itself meanwhile; makes this process a child subreaper.
 * 0: out says how the job ended, also where it failed; negative: it did not come to start. */
int job_run(const struct job_request *request, const struct job_sink *sink, struct job_result *out,
	    struct error *err);
void job_result_free(struct job_result *result); /* frees what it holds and clears it */

/* For a driver. Write to the standard input of a node's ranks (-1: of all nodes'); -ERR_DATA:
 * larger than a message may be. A node that is lost is no error. */
int job_write_stdin(struct job *job, long node, const void *data, size_t size, struct error *err);
/* End the ranks; what they end with then is no failure. grace_ms as supervise_stop's. */
void job_request_end(struct job *job, int grace_ms);

/* berth.run/1, see design.md section 5. A new reference; NULL: memory out. */
json_t *job_report(const struct job_result *result);

/* Is argv[0] a program that execvp would start with env's PATH? 0; -ERR_INPUT: there is none;
 * -ERR_UNAVAILABLE: it is there and may not be executed. err names it. */
int job_check_program(const char *name, const struct env *env, struct error *err);

#endif
