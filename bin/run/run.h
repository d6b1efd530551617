/* SPDX-License-Identifier: BSD-3-Clause */
/* Run a program as a job: what berth run and berth train do after their options are read. */
#ifndef BERTH_BIN_RUN_RUN_H
#define BERTH_BIN_RUN_RUN_H

#include <stdbool.h>

#include "base/env.h"
#include "base/error.h"
#include "controller/attempts.h"
#include "run/requeue.h"
#include "run/run_options.h"

/* The stages before the agents, as a value; owned by run_prepare's caller, run_setup_free it. */
struct run_setup {
	const struct run_options *options;
	struct env *env;	      /* captured, --env applied */
	struct alloc alloc;	      /* the nodes to be used */
	char berth_path[4096];	      /* this berth's own path */
	struct launch_options launch; /* options->launch, and the three above */
	char *cwd;
	struct requeue *requeue; /* requeue.h; NULL without --requeue */
	bool bad_report;	 /* run_prepare failed because --report cannot be written */
};

/* Environment, allocation, launcher, and everything that can be checked before something starts:
 * program, log directory, report. argv: the ranks' program. */
int run_prepare(const struct run_options *options, const char *const *argv, struct run_setup *out,
		struct error *err);
void run_setup_free(struct run_setup *setup);

/* Run (or with --dry-run show) it. Returns the exit code; has said what there is to say on stderr,
 * and written --report. progress: it is a program of berth's that knows progress.h. */
int run_program(const struct run_options *options, const char *const *argv, bool progress);

/* run_end.c: when the job's time is over, as option, environment or scheduler say: into
 * setup->alloc. -ERR_USAGE: a time that is no time, or over. */
int run_end_time(struct run_setup *setup, struct error *err);
/* BERTH_STOP_FILE, where the user has set it: one of an earlier run, by which this one would stop
 * at once, is removed and reported (--dry-run: reported). -ERR_OUTPUT: it cannot be removed. */
int run_remove_stale_stop_file(const struct run_setup *setup, struct error *err);
/* What there is to say of the end beyond the first cause: why, as far as berth or the scheduler
 * knows, what was saved, what continues it; on stderr. Asks the scheduler's tool where a signal
 * ended it. */
struct run_end {
	const char *kind; /* "ended", "stopped", "walltime", "preempted", "cancelled", "node",
			     "oom", "signal", "code", "berth" */
	char why[240];	  /* "" where the first cause says it all */
	char next[240];	  /* "" likewise */
	const struct explain_row *known; /* of the last lines; NULL: nothing known */
};
void run_end_find(const struct run_setup *setup, const struct job_result *result,
		  struct run_end *out);

/* run_task.c: where srun has started this process as one of several tasks, be that rank. 1: done,
 * *code is the exit code (also: the program runs, and this never returns); 0: not such a task. */
int run_as_task(const struct run_options *options, const struct env *env, const char *const *argv,
		int *code, struct error *err);

/* run_hand.c: is another machine the first node of this job (--node-rank 1, OpenPAI's task 1)? */
bool run_is_agent(const struct run_setup *setup);
/* If this machine is the first node of such a job: do the others find it at --rdzv-endpoint?
 * -ERR_NETWORK: the name is not known here; an address of no interface of its own is a warning,
 * since it may be right (NAT). */
int run_check_rendezvous(const struct run_setup *setup, struct error *err);
/* Hosts that the user named inside a scheduler's job are reached by ssh, past the scheduler: a
 * warning. */
void run_warn_hosts(const struct run_setup *setup);
/* Be this machine's agent until the job is over. Return the job's exit code; -ERR_NETWORK: it was
 * lost, or never there. */
int run_as_agent(const struct run_setup *setup, struct error *err);

/* run_dry.c: what would be started, on stdout; exit code. */
int run_dry_run(const struct run_setup *setup, const char *const *argv, struct error *err);

#endif
