/* SPDX-License-Identifier: BSD-3-Clause */
/* Run a program as a job: what berth run and berth train do after their options are read. */
#ifndef BERTH_BIN_RUN_RUN_H
#define BERTH_BIN_RUN_RUN_H

#include <stdbool.h>

#include "base/env.h"
#include "base/error.h"
#include "run/attempts.h"
#include "explain/explain.h"
#include "run/requeue.h"
#include "run/run_options.h"

struct console;

/* The results of the stages before the agents start. The caller of run_prepare owns it and frees it
 * with run_setup_free. */
struct run_setup {
	const struct run_options *options;
	struct env *env;	      /* captured, --env applied */
	struct alloc alloc;	      /* the nodes to be used */
	struct alloc_query query;     /* asks the scheduler about it; completes alloc */
	char berth_path[4096];	      /* this berth's own path */
	struct launch_options launch; /* options->launch, and the three above */
	char *cwd;
	/* The program of the ranks, if it is not that of the command line: see
	 * run_check_kept_options and run_ask_launcher. */
	const char **kept_argv;
	struct plan_request plan;   /* options->shared.plan, and sizes */
	struct plan_sizes sizes;    /* of run_ask_launcher */
	json_t *answer;		    /* likewise; owns words of kept_argv */
	struct requeue *requeue;    /* requeue.h; NULL without --requeue */
	struct console *console;    /* while the job runs */
	char *report;		    /* --report, or report.json in --log-dir, or NULL */
	const char *const *program; /* that of the command line; borrowed */
	bool own_program;	    /* that is berth train's */
	bool answered;		    /* the scheduler has answered, or will not */
	bool bad_report;	    /* write none: it cannot be written, or is another run's */
};

/* run_prepare.c: prepare environment, allocation and launcher, and check everything that can be
 * checked before anything starts: program, log directory, report. setup: options, program and
 * own_program; the rest is zeroed. */
int run_prepare(struct run_setup *setup, struct error *err);
void run_setup_free(struct run_setup *setup);

/* Run it, or show it with --dry-run. Returns the exit code after all messages are printed and
 * --report is written. own_program: it is one of berth's own, which uses progress.h. */
int run_program(const struct run_options *options, const char *const *argv, bool own_program);

/* run_end.c: what is known about the job's end besides the first cause: the reason, as far as berth
 * or the scheduler knows it, and how to continue. run_end_find asks the scheduler if a signal ended
 * the job. */
struct run_end {
	enum run_end_kind kind;
	char why[240];			    /* "" if the first cause is sufficient */
	char next[600];			    /* "" likewise */
	struct explain_exception exception; /* of the failed rank; line 0: none */
	const struct explain_row *known;    /* matches the output tail; NULL: no known failure */
};
void run_end_find(const struct run_setup *setup, const struct job_result *result,
		  struct run_end *out);

/* Tell the user. An error that the end of the output still shows is not printed again. */
void run_end_print(const struct run_setup *setup, const struct job_result *result,
		   const struct run_end *end, bool tail_is_shown);
/* Write the report, if there is to be one and it can be written. */
int run_end_report(const struct run_setup *setup, const struct job_result *result,
		   const struct run_end *end, int timeout_ms, struct error *err);

/* run_prepare.c: lock --log-dir as long as this process and its agents here live. Return
 * -ERR_OUTPUT if another run writes there. */
int run_lock_log_dir(const char *log_dir, struct error *err);

/* run_prepare.c: the images of all roles. See container_pull. */
int run_pull_images(const struct run_setup *setup, struct error *err);

/* run_task.c: refuse to be one of several ranks of mpirun, torchrun or another berth run, unless
 * --nested, --dry-run or --node-rank is given. own_program: this is berth train. Return 0, or
 * -ERR_USAGE with the right line. */
int run_refuse_nested(const struct run_options *options, const struct env *env, bool own_program,
		      struct error *err);
/* If srun has started this process as one of several tasks, act as that rank. On
 * success the program replaces this process. Return 1 if that failed or was a dry run, with the
 * exit code in *code; 0 if this is no such task. */
int run_as_task(const struct run_options *options, const struct env *env, const char *const *argv,
		int *code, struct error *err);

/* run_launchers.c: refuse a program that starts ranks of its own (mpirun, srun), or, for torchrun,
 * set --per-node and print a note. Return 0, or -ERR_USAGE with the right line. */
int run_check_launchers(struct run_options *options, const char *const *argv, struct error *err);
/* Is argv a launcher that berth asks for its ranks' program and variables? first: the index of its
 * first argument. */
struct run_asked {
	const char *name; /* NULL: no; "accelerate" or "deepspeed" */
	size_t first;
	size_t module; /* the index of -m in argv, after python and its options; 0: none */
};
struct run_asked run_asked(const struct run_options *options, const char *const *argv);
/* run_ask.c: ask it, and store its answer in setup: env, kept_argv, plan. Starts its Python, for
 * 120 s at most. Does nothing for other programs, and on machines that are not the first. Return
 * -ERR_USAGE if its arguments are wrong, -ERR_INPUT if it cannot be read, or -ERR_UNAVAILABLE. */
int run_ask_launcher(struct run_setup *setup, const char *const *argv, struct error *err);
/* With --per-node on several nodes: if torchrun has an option that cannot be right on all of them
 * (--node_rank=0, --nnodes of another number, an endpoint that each node finds on itself), print a
 * warning and set setup->kept_argv to argv without torchrun's rendezvous options; berth has set
 * their variables. For accelerate, which has no such variables, return -ERR_USAGE. */
int run_check_kept_options(struct run_setup *setup, const char *const *argv, struct error *err);

#define REPORT_MS 5000 /* how long the report may take */

/* run.c: as file_write_atomic, but a child process writes, because the file system may hang: then
 * the child stays behind, and berth goes on. text NULL: only see whether path answers. Return 0, or
 * an error of file_write_atomic, -ERR_IO after timeout_ms, or -ERR_UNAVAILABLE. */
int run_write_bounded(const char *path, const char *text, size_t size, int timeout_ms,
		      struct error *err);

/* run_hand.c: is another machine the first node of this job (--node-rank 1, OpenPAI's task 1)? */
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

/* run_dry.c: print on stdout what would be started. Returns the exit code. */
int run_dry_run(const struct run_setup *setup, const char *const *argv, struct error *err);

#endif
