/* SPDX-License-Identifier: BSD-3-Clause */
/* Run a program as a job, in steps that each give a value: what was prepared (struct run_setup),
 * the job's result, its explanation (struct run_end). What the user sees of it is the caller's.
 *
 *   prepare.c            allocation, launcher, and all that can be checked before a start
 *   launcher_programs.c  programs that start ranks of their own: torchrun, mpirun, accelerate
 *   ask_launcher.c       what accelerate and deepspeed would give their ranks
 *   by_hand.c            machines on which the user starts berth run
 *   run.c                the job itself
 *   end.c                why it ended, for the user and in the report */
#ifndef BERTH_RUN_RUN_H
#define BERTH_RUN_RUN_H

#include <stdbool.h>

#include "alloc/query.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "explain/explain.h"
#include "run/attempts.h"
#include "run/requeue.h"

/* What the user asks for. All is borrowed. */
struct run_request {
	struct plan_options place;    /* ranks, GPUs, cores, hosts, network; plan.port: --port */
	struct launch_options launch; /* the timeouts, fan_out */
	struct job_request job;	      /* log_dir, pmix, port_hold, pty, hang_timeout_ms, warn_* */
	struct attempts_policy restarts; /* all but own_program */
	const struct role *roles;	 /* several programs; role_count 0: there is one */
	size_t role_count;
	bool ray;	      /* the roles are Ray's own programs, and the driver */
	int nodes;	      /* -N; 0: all of the allocation */
	const char *launcher; /* NULL: the first that fits */
	const char *report;
	const char *end_time; /* Unix seconds or "+TIME"; NULL: the scheduler's */
	bool dry_run, quiet, requeue;
	int max_requeues;
	const char *const *program;
	bool own_program; /* it is berth train's */
};

/* The results of the stages before the agents start. The caller of run_prepare owns it and frees it
 * with run_setup_free. */
struct run_setup {
	const struct run_request *request;
	struct env *env;	      /* the caller's, which sets it; then owned */
	struct alloc alloc;	      /* the nodes to be used */
	struct alloc_query query;     /* asks the scheduler about it; completes alloc */
	char berth_path[4096];	      /* this berth's own path */
	struct launch_options launch; /* request->launch, and the three above */
	char *cwd;
	/* The program of the ranks, if it is not that of the request: see run_check_kept_options
	 * and run_ask_launcher. */
	const char **kept_argv;
	struct plan_request plan; /* request->place.plan, and sizes */
	struct plan_sizes sizes;  /* of run_ask_launcher */
	json_t *answer;		  /* likewise; owns words of kept_argv */
	struct requeue *requeue;  /* requeue.h; NULL without --requeue */
	char *report;		  /* --report, or report.json in --log-dir, or NULL */
	bool bad_report;	  /* write none: it cannot be written, or is another run's */
};

/* ---- prepare.c ---- */

/* Prepare allocation and launcher, and check everything that can be checked before anything starts:
 * program, log directory, report. setup: request and env; the rest is zeroed. */
int run_prepare(struct run_setup *setup, struct error *err);
/* The rest, which neither a dry run nor an agent needs: pull images, lock --log-dir as long as this
 * process and its agents here live, see whether the job can be requeued. Return 0, or -ERR_OUTPUT
 * if another run writes there, -ERR_USAGE and others. */
int run_prepare_job(struct run_setup *setup, struct error *err);
void run_setup_free(struct run_setup *setup);
/* The program that the ranks run. */
const char *const *run_argv(const struct run_setup *setup);
/* Is there a standard input for rank 0? It gets no terminal of another session, and needs no
 * /dev/null of another machine. */
bool run_has_input(void);
/* The images of all roles. See container_pull. */
int run_pull_images(const struct run_setup *setup, struct error *err);

/* ---- run.c ---- */

/* Where output and notes go. */
struct run_output {
	const struct job_sink *sinks; /* one, or one per role */
	void (*note)(void *context, enum log_level level, const char *text);
	void *context;
};

/* Run the job and its restarts. Signals that could interrupt what follows are ignored afterwards,
 * as after run_ignore_signals. Return 0 and the result, or an error of attempts_run. */
int run_job(struct run_setup *setup, const struct run_output *output, struct job_result *result,
	    struct error *err);
/* SIGTERM and the like must not interrupt the report or the requeue after the ranks have ended, for
 * example if the scheduler repeats its signal. Everything that follows has a deadline. */
void run_ignore_signals(void);

#define RUN_REPORT_MS 5000 /* how long the report may take */

/* As file_write_atomic, but a child process writes, because the file system may hang: then the
 * child stays behind, and berth goes on. text NULL: only see whether path answers. Return 0, or an
 * error of file_write_atomic, -ERR_IO after timeout_ms, or -ERR_UNAVAILABLE. */
int run_write_bounded(const char *path, const char *text, size_t size, int timeout_ms,
		      struct error *err);

/* ---- end.c ---- */

/* What is known about the job's end besides the first cause: the reason, as far as berth or the
 * scheduler knows it, and how to continue. run_end_find asks the scheduler if a signal ended the
 * job. */
struct run_end {
	enum run_end_kind kind;
	char why[240];			    /* "" if the first cause is sufficient */
	char next[600];			    /* "" likewise */
	struct explain_exception exception; /* of the failed rank; line 0: none */
	const struct explain_row *known;    /* matches the output tail; NULL: no known failure */
};
void run_end_find(const struct run_setup *setup, const struct job_result *result,
		  struct run_end *out);
/* Write the report, if there is to be one and it can be written. */
int run_end_report(const struct run_setup *setup, const struct job_result *result,
		   const struct run_end *end, int timeout_ms, struct error *err);

/* ---- launcher_programs.c, ask_launcher.c ---- */

/* Refuse a program that starts ranks of its own (mpirun, srun), or, for torchrun, set per_node and
 * print a note. Return 0, or -ERR_USAGE with the right line. */
int run_check_launchers(struct plan_request *plan, const char *const *argv, struct error *err);
/* Is argv a launcher that berth asks for its ranks' program and variables? first: the index of its
 * first argument. */
struct run_asked {
	const char *name; /* NULL: no; "accelerate" or "deepspeed" */
	size_t first;
	size_t module; /* the index of -m in argv, after python and its options; 0: none */
};
struct run_asked run_asked(const struct plan_request *plan, const char *const *argv);
/* Ask it, and store its answer in setup: env, kept_argv, plan. Starts its Python, for 120 s at
 * most. Does nothing for other programs, and on machines that are not the first. Return -ERR_USAGE
 * if its arguments are wrong, -ERR_INPUT if it cannot be read, or -ERR_UNAVAILABLE. */
int run_ask_launcher(struct run_setup *setup, struct error *err);
/* With --per-node on several nodes: if torchrun has an option that cannot be right on all of them
 * (--node_rank=0, --nnodes of another number, an endpoint that each node finds on itself), print a
 * warning and set setup->kept_argv to the program without torchrun's rendezvous options; berth has
 * set their variables. For accelerate, which has no such variables, return -ERR_USAGE. */
int run_check_kept_options(struct run_setup *setup, struct error *err);

/* ---- by_hand.c ---- */

/* Is another machine the first node of this job (--node-rank 1, OpenPAI's task 1)? */
bool run_is_agent(const struct run_setup *setup);
/* If this machine is the first node of such a job, check that the others find it at
 * --rdzv-endpoint. Return -ERR_NETWORK if the name does not resolve here. If no interface has the
 * address, print a warning only, since NAT may be in use. */
int run_check_rendezvous(const struct run_setup *setup, struct error *err);
/* Warn if the user named hosts inside a scheduler's job: berth reaches them through ssh, bypassing
 * the scheduler. */
void run_warn_hosts(const struct run_setup *setup);
/* Run as this machine's agent until the job ends. Return the job's exit code, or -ERR_NETWORK if
 * the controller was lost or never reached. */
int run_as_agent(const struct run_setup *setup, struct error *err);

#endif
