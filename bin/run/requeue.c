/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/requeue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/scheduler_tool.h"
#include "alloc/slurm.h"
#include "base/log.h"
#include "base/number.h"

#define QUERY_MS 5000
#define REQUEUE_MS 30000
#define ENDED_S 5 /* Slurm ends the script within this time; it must not continue meanwhile */
#define ANSWER_MAX (8 << 20)
#define COUNT                                                                                      \
	"BERTH_REQUEUES" /* under PBS, which has no count of its own for a job that is new         \
			  */

struct requeue {
	const struct alloc *alloc;
	const struct env *env;
	int done, max; /* requeues before this run; at most */
	bool possible;
	char why[400]; /* if not possible */
	struct requeue_pbs *pbs;
	struct requeue_runs *runs; /* NULL if the runs of this job cannot know each other */
};

static const char *job_name(const struct alloc *alloc)
{
	return alloc->array_task ? alloc->array_task : alloc->job_id;
}

/* Does scontrol's answer allow a requeue? If not, set why. */
static bool slurm_allows(const char *text, char *why, size_t size)
{
	if (!strstr(text, "JobId="))
		snprintf(why, size, "scontrol does not know the job");
	else if (strstr(text, "BatchFlag=0"))
		snprintf(why, size,
			 "it is not a batch job (salloc, or srun alone): only sbatch jobs have a "
			 "script that Slurm can start again");
	else if (strstr(text, "Requeue=0"))
		snprintf(why, size,
			 "requeueing is disabled for this job (--no-requeue, or the site's "
			 "JobRequeue=0): submit it with sbatch --requeue");
	else
		return true;
	return false;
}

static void prepare_slurm(struct requeue *requeue)
{
	char *const argv[] = {(char *)"scontrol", (char *)"-o",		  (char *)"show",
			      (char *)"job",	  requeue->alloc->job_id, NULL};
	struct scheduler_tool_output answer;
	enum scheduler_tool_result end;

	if (slurm_in_step(requeue->env)) {
		snprintf(requeue->why, sizeof requeue->why,
			 "srun started berth run, which therefore ends with the job step; call it "
			 "in the batch script without srun");
		return;
	}
	end = scheduler_tool_run(argv, requeue->env, QUERY_MS, ANSWER_MAX, &answer);
	if (end != SCHEDULER_TOOL_EXITED) {
		snprintf(requeue->why, sizeof requeue->why,
			 end == SCHEDULER_TOOL_TIMEOUT
				 ? "scontrol did not answer within %d s"
				 : "cannot run scontrol here (time limit: %d s)",
			 QUERY_MS / 1000);
		return;
	}
	if (answer.code)
		snprintf(requeue->why, sizeof requeue->why, "scontrol exited with code %d: %s",
			 answer.code, answer.stderr_text);
	else
		requeue->possible = slurm_allows(answer.text, requeue->why, sizeof requeue->why);
	free(answer.text);
}

static int join_runs(struct requeue *requeue, struct error *err)
{
	struct error why = {0};
	int rc = requeue_runs_join(requeue->alloc, requeue->env, &requeue->runs, &why);

	if (rc == -ERR_OUTPUT) {
		log_user(LOG_WARNING,
			 "--requeue: if several runs of this job want it, each requeues it: %s",
			 why.text);
		return 0;
	}
	*err = why;
	return rc;
}

int requeue_prepare(const struct alloc *alloc, const struct env *env, int max, struct requeue **out,
		    struct error *err)
{
	struct requeue *requeue = calloc(1, sizeof *requeue);
	const char *count = env_get(env, COUNT);
	int rc = 0;

	if (!requeue)
		return error_memory(err, "--requeue");
	requeue->alloc = alloc;
	requeue->env = env;
	requeue->max = max;
	requeue->done = alloc->restarts;
	if (!strcmp(alloc->source, "slurm")) {
		prepare_slurm(requeue);
	} else if (!strcmp(alloc->source, "pbs")) {
		if (count && number_int(COUNT, count, 0, 1000000, &requeue->done, NULL))
			requeue->done = max; /* the user changed it: avoid an endless loop */
		rc = requeue_pbs_prepare(alloc, env, requeue->done, &requeue->pbs, requeue->why,
					 sizeof requeue->why, err);
		requeue->possible = !rc;
	} else {
		snprintf(requeue->why, sizeof requeue->why, "no scheduler runs this job (%s)",
			 alloc->why ? alloc->why : alloc->source);
	}
	if (rc >= 0 && requeue->possible)
		rc = join_runs(requeue, err);
	if (rc < 0) {
		requeue_free(requeue);
		return rc;
	}
	*out = requeue;
	return 0;
}

void requeue_free(struct requeue *requeue)
{
	if (!requeue)
		return;
	requeue_pbs_free(requeue->pbs);
	requeue_runs_leave(requeue->runs);
	free(requeue);
}

void requeue_announce(const struct requeue *requeue, void *context,
		      void (*note)(void *context, enum log_level level, const char *text))
{
	char text[600];

	if (!requeue)
		return;
	if (requeue->possible)
		snprintf(text, sizeof text,
			 "--requeue: %s will requeue the job if it stops with its work saved, is "
			 "preempted, or loses a node (requeued %d of at most %d times)%s",
			 requeue->pbs ? "qsub with the job's script" : "scontrol requeue",
			 requeue->done, requeue->max,
			 requeue->pbs ? "; whether the server accepts jobs from this node is "
					"unknown until then"
				      : "");
	else
		snprintf(text, sizeof text, "--requeue: cannot requeue the job: %s", requeue->why);
	note(context, requeue->possible ? LOG_NOTE : LOG_WARNING, text);
}

/* May a job that ended in this way be requeued? next receives what happens now. */
static bool may_requeue(const struct requeue *requeue, const char *kind, char *next, size_t size)
{
	if (!strcmp(kind, "cancelled") || !strcmp(kind, "interrupted")) {
		/* A user who stops a job does not want it requeued. */
		snprintf(next, size,
			 "not requeued, because it was %s; submit the job again to continue",
			 *kind == 'c' ? "cancelled" : "interrupted");
		return false;
	}
	if (!requeue->possible) {
		snprintf(next, size, "cannot requeue, so submit the job again: %.180s",
			 requeue->why);
		return false;
	}
	if (requeue->done >= requeue->max) {
		snprintf(next, size,
			 "not requeued: reached the limit of --max-requeues (%d); submit the job "
			 "again to continue",
			 requeue->done);
		return false;
	}
	snprintf(next, size, "requeueing the job with %s (%d of at most %d times)",
		 requeue->pbs ? "qsub" : "scontrol requeue", requeue->done + 1, requeue->max);
	return true;
}

bool requeue_now_due(const struct requeue *requeue, const struct job_result *result,
		     const char *kind, char *next, size_t size)
{
	bool stopped = result->code == 75 && result->by_program;
	bool lost = result->code && (!strcmp(kind, "preempted") || !strcmp(kind, "node"));
	bool wanted = requeue && (stopped || lost) && may_requeue(requeue, kind, next, size);

	if (!requeue || !requeue->runs)
		return wanted;
	switch (requeue_runs_end(requeue->runs, wanted)) {
	case REQUEUE_TURN_NOW:
		return wanted || may_requeue(requeue, kind, next, size);
	case REQUEUE_TURN_LATER:
		snprintf(next, size,
			 "the job's last run with --requeue to end will requeue it; others still "
			 "run");
		return false;
	case REQUEUE_TURN_DONE:
		if (wanted)
			snprintf(next, size, "another run of this job has requeued it");
		return false;
	case REQUEUE_TURN_NONE:
		break;
	}
	return false;
}

static bool requeue_slurm(const struct requeue *requeue, char *next, size_t size)
{
	const char *name = job_name(requeue->alloc);
	char *const argv[] = {(char *)"scontrol", (char *)"requeue", (char *)name, NULL};
	struct scheduler_tool_output answer;
	enum scheduler_tool_result end =
		scheduler_tool_run(argv, requeue->env, REQUEUE_MS, ANSWER_MAX, &answer);
	bool done = end == SCHEDULER_TOOL_EXITED && !answer.code;

	if (end != SCHEDULER_TOOL_EXITED)
		snprintf(next, size,
			 "scontrol requeue %s did not answer: check with squeue whether the job is "
			 "pending; if not, submit it again",
			 name);
	else if (answer.code)
		snprintf(next, size, "scontrol requeue %s: %.120s; submit the job again", name,
			 answer.stderr_text);
	if (end == SCHEDULER_TOOL_EXITED)
		free(answer.text);
	return done;
}

bool requeue_now(const struct requeue *requeue, char *next, size_t size)
{
	char reply[300];
	bool done;

	/* The output must survive the end of this process. Pipes and terminals have nothing to
	 * sync. */
	fflush(NULL);
	fsync(STDOUT_FILENO);
	fsync(STDERR_FILENO);
	if (!requeue->pbs) {
		done = requeue_slurm(requeue, next, size);
	} else {
		done = !requeue_pbs_submit(requeue->pbs, reply, sizeof reply);
		if (done)
			log_user(LOG_NOTE, "requeued as %s", reply);
		else
			snprintf(next, size, "qsub: %.160s; submit the job again", reply);
	}
	if (!done)
		log_user(LOG_WARNING, "%s", next);
	else if (requeue->runs)
		requeue_runs_done(requeue->runs, requeue->pbs);
	if (done && !requeue->pbs)
		sleep(ENDED_S);
	return done;
}
