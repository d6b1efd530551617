/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run --requeue: the job goes back into the scheduler's queue. Slurm has a call for it; a job
 * of PBS's is submitted anew, from a copy of its script that is taken at the start. */
#ifndef BERTH_BIN_RUN_REQUEUE_H
#define BERTH_BIN_RUN_REQUEUE_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "controller/job.h"

struct requeue; /* opaque */

/* Ask the scheduler whether the job can be queued again, and keep what that needs. alloc and env
 * are borrowed until requeue_free. Where it cannot be, requeue_announce says why, and the job runs
 * all the same. -ERR_UNAVAILABLE: memory. Starts processes. */
int requeue_prepare(const struct alloc *alloc, const struct env *env, int max, struct requeue **out,
		    struct error *err);
void requeue_free(struct requeue *requeue); /* NULL is fine */

/* For the job's beginning: what --requeue will do. requeue NULL: nothing. */
void requeue_announce(const struct requeue *requeue, void *context,
		      void (*note)(void *context, enum log_level level, const char *text));

/* Is a job that ended so (kind: struct run_end's) to be queued again? next: what happens now, or
 * why nothing does; left as it is where the end is none of --requeue's. */
bool requeue_wanted(const struct requeue *requeue, const struct job_result *result,
		    const char *kind, char *next, size_t size);
/* Do it, after everything is said and written: Slurm ends this process for it. Says on stderr what
 * came of it. False: it was not done, or nobody knows; next says what to do now. */
bool requeue_now(const struct requeue *requeue, char *next, size_t size);

/* requeue_pbs.c */
struct requeue_pbs; /* opaque: script, options, variables of the next qsub */
/* 0; 1: it cannot be done, why says so; -ERR_UNAVAILABLE: memory. */
int requeue_pbs_prepare(const struct alloc *alloc, const struct env *env, int done,
			struct requeue_pbs **out, char *why, size_t size, struct error *err);
void requeue_pbs_free(struct requeue_pbs *pbs);
/* 0, and the new job's name in said; or -1, and what was wrong. */
int requeue_pbs_submit(const struct requeue_pbs *pbs, char *reply, size_t size);

#endif
