/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run --requeue: puts the job back into the scheduler's queue. Slurm has a command for that;
 * a PBS job is submitted again, from a copy of its script that is made at the start. */
#ifndef BERTH_RUN_REQUEUE_H
#define BERTH_RUN_REQUEUE_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/alloc.h"
#include "alloc/query.h"
#include "base/bytes.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "controller/job.h"

/* What may follow an end with --requeue. */
enum requeue_rule {
	REQUEUE_DONE,	  /* the scheduler has requeued the job */
	REQUEUE_NO,	  /* never: it was the user */
	REQUEUE_IF_SAVED, /* if the program stopped with its work saved (75) */
	REQUEUE_YES,
};

/* How a run has ended, its kind in docs/reference/json.md, and whether the job is requeued. What
 * the user reads of it is in end.c. */
#define RUN_END_KINDS(KIND)                                                                        \
	KIND(ENDED, "ended", IF_SAVED)                                                             \
	KIND(STOPPED, "stopped", IF_SAVED)                                                         \
	KIND(WALLTIME, "walltime", IF_SAVED)                                                       \
	KIND(PREEMPTED, "preempted", YES)                                                          \
	KIND(CANCELLED, "cancelled", NO)                                                           \
	KIND(INTERRUPTED, "interrupted", NO)                                                       \
	KIND(REQUEUED, "requeued", DONE)                                                           \
	KIND(NODE, "node", YES)                                                                    \
	KIND(OOM, "oom", IF_SAVED)                                                                 \
	KIND(SIGNAL, "signal", IF_SAVED)                                                           \
	KIND(CODE, "code", IF_SAVED)                                                               \
	KIND(BERTH, "berth", IF_SAVED)
#define RUN_END_NUMBER(kind, name, rule) RUN_END_##kind,
enum run_end_kind { RUN_END_KINDS(RUN_END_NUMBER) };
extern const char *const run_end_names[];
extern const enum requeue_rule requeue_rules[];

struct requeue; /* opaque */

/* Become one of the runs of this job that may requeue it. query is borrowed until
 * requeue_free. Return 0, or -ERR_UNAVAILABLE if memory is out. */
int requeue_new(struct alloc_query *query, int max, struct requeue **out, struct error *err);
/* The scheduler has answered, or will not: find out whether the job can be requeued, and keep what
 * a requeue needs. If the job cannot be requeued, requeue_announce reports why, and the job runs
 * anyway. If the scheduler is away, the functions below ask again. Does nothing if requeue is NULL,
 * or once the scheduler has answered. */
void requeue_prepare(struct requeue *requeue);
void requeue_free(struct requeue *requeue); /* NULL is fine */

/* Report at the start of the job what --requeue will do, once if several runs of the job want the
 * requeue. Does nothing if requeue is NULL. */
void requeue_announce(const struct requeue *requeue, void *context,
		      void (*note)(void *context, enum log_level level, const char *text));

/* Should the job be requeued now that this run has ended in this way (kind)? Of
 * several runs of a job only the last one to end requeues it, if any of them wants it. next
 * receives what happens now, or why the job is not requeued. It is unchanged if --requeue does not
 * apply. Waits for other runs that are requeueing the job, and for the scheduler if it has not
 * answered yet. */
bool requeue_now_due(struct requeue *requeue, const struct job_result *result,
		     enum run_end_kind kind, char *next, size_t size);
/* Requeue the job. Call it after all output is written, because Slurm then ends this process.
 * Prints the result on stderr. Returns false if the requeue failed or its result is unknown; next
 * then holds what to do. */
bool requeue_now(struct requeue *requeue, char *next, size_t size);
/* If requeue_now_due has left the requeue to another run, fork a child that waits until none is
 * left. Returns true in the child if the last one was killed before it requeued the job. */
bool requeue_outlive(struct requeue *requeue);

/* requeue_runs.c: the runs with --requeue of one job, on one node. */
struct requeue_runs; /* opaque */
enum requeue_turn {
	REQUEUE_TURN_NONE,  /* nothing to do */
	REQUEUE_TURN_LATER, /* another run still runs, and will requeue the job */
	REQUEUE_TURN_DONE,  /* another run has requeued the job */
	REQUEUE_TURN_NOW,   /* this was the last run: requeue the job */
};
/* Become one of the job's runs. Return 0; -ERR_OUTPUT if the file that they share cannot be used;
 * or -ERR_UNAVAILABLE if memory is out. */
int requeue_runs_join(const struct alloc *alloc, const struct env *env, struct requeue_runs **out,
		      struct error *err);
/* Is this the first of the runs to ask? */
bool requeue_runs_note(struct requeue_runs *runs);
/* This run has ended; wanted: it wants the job requeued. After REQUEUE_TURN_NOW the other runs that
 * end wait until requeue_runs_leave, or 90 s. */
enum requeue_turn requeue_runs_end(struct requeue_runs *runs, bool wanted);
/* After REQUEUE_TURN_LATER, in a child: close all other descriptors above standard error, and wait
 * until no run is left. Return true if the job is then still to be requeued, by this process. */
bool requeue_runs_outlive(struct requeue_runs *runs);
/* The job has been requeued. job_continues: its script may start more runs. */
void requeue_runs_done(struct requeue_runs *runs, bool job_continues);
void requeue_runs_leave(struct requeue_runs *runs); /* frees it; NULL is fine */

/* requeue_script.c: the variables of a PBS job that is submitted again, byte for byte. */
/* The environment that PBS gave the job's script, or a copy of env if it cannot be read. The caller
 * frees it with env_free; NULL if memory is out. */
struct env *requeue_script_environment(const struct env *env);
bool requeue_script_is_plain(const char *name, const char *value); /* qsub -v keeps it as it is */
/* Append a line of shell that sets the variable or exported function. False if memory is out. */
bool requeue_script_add(struct bytes *lines, const char *name, const char *value);
/* Does a POSIX shell run the script? Without a line "#!" the session's leading shell does. */
bool requeue_script_is_shell(const char *script);
/* Insert such lines into the script, which is malloced and ends with a NUL. Return 0, or -1 if
 * memory is out; then nothing has changed. */
int requeue_script_insert(const struct bytes *lines, char **script, size_t *size);

/* requeue_pbs.c */
struct requeue_pbs; /* opaque: script, options, variables of the next qsub */
/* query: with the job's attributes, or the reason for their absence. Return 0, or 1 if it is
 * impossible, with the reason in why; then *out only serves requeue_pbs_line. */
int requeue_pbs_prepare(struct alloc_query *query, int done, struct requeue_pbs **out, char *why,
			size_t size);
void requeue_pbs_free(struct requeue_pbs *pbs);
enum requeue_try {
	REQUEUE_TRY_DONE,
	REQUEUE_TRY_AWAY,    /* the server cannot be reached: try again */
	REQUEUE_TRY_REFUSED, /* or the result is unknown */
};
/* What does a failed tool's message mean? */
enum requeue_try requeue_try_failed(const char *message);
/* reply receives the new job's name, or the error. */
enum requeue_try requeue_pbs_submit(struct requeue_pbs *pbs, char *reply, size_t size);
/* The command that submitted the job, for people. */
const char *requeue_pbs_line(const struct requeue_pbs *pbs);

#endif
