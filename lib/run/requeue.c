/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/requeue.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/scheduler_tool.h"
#include "alloc/slurm.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"

#define ANSWER_MS 10000 /* after the end, each time, for an answer that has not come yet */
#define REQUEUE_MS 30000
#define PAUSE_MS 1000 /* before the second try; doubled up to PAUSE_MAX_MS */
#define PAUSE_MAX_MS 30000
#define PATIENCE_MAX_MS (30 * 60000)
#define PATIENCE_MIN_MS 20000 /* Slurm's KillWait is 30 s by default */
#define BEFORE_END_MS 5000
#define WAITED_MS 10000 /* other runs have used the job's time meanwhile */
#define ENDED_S 5	/* Slurm ends the script within this time; it must not continue meanwhile */
#define ANSWER_MAX (8 << 20)
#define COUNT "BERTH_REQUEUES" /* under PBS, where the next job is a new one */

#define END_NAME(kind, name, rule) [RUN_END_##kind] = (name),
const char *const run_end_names[] = {RUN_END_KINDS(END_NAME)};
#define END_RULE(kind, name, rule) [RUN_END_##kind] = REQUEUE_##rule,
const enum requeue_rule requeue_rules[] = {RUN_END_KINDS(END_RULE)};

struct requeue {
	struct alloc_query *query; /* with the allocation and the environment */
	int done, max;		   /* requeues before this run; at most */
	bool prepared, possible;
	char why[400]; /* if not possible, or not prepared because the scheduler does not answer */
	struct requeue_pbs *pbs;
	struct requeue_runs *runs; /* NULL if the runs of this job cannot know each other */
	bool later;		   /* another run is to requeue the job */
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
	const struct alloc_query *query = requeue->query;

	if (slurm_in_step(requeue->query->env))
		snprintf(requeue->why, sizeof requeue->why,
			 "srun started berth run, which therefore ends with the job step; call it "
			 "in the batch script without srun");
	else if (!query->job)
		snprintf(requeue->why, sizeof requeue->why, "%s", query->why);
	else
		requeue->possible = slurm_allows(query->job, requeue->why, sizeof requeue->why);
}

int requeue_new(struct alloc_query *query, int max, struct requeue **out, struct error *err)
{
	struct requeue *requeue = calloc(1, sizeof *requeue);
	enum alloc_from source = query->alloc->source;
	struct error why = {0};

	if (!requeue)
		return error_memory(err, "--requeue");
	requeue->query = query;
	requeue->max = max;
	if ((source == ALLOC_FROM_SLURM || source == ALLOC_FROM_PBS) &&
	    requeue_runs_join(query->alloc, query->env, &requeue->runs, &why))
		log_user(LOG_WARNING,
			 "--requeue: if several runs of this job want it, each requeues it: %s",
			 why.text);
	*out = requeue;
	return 0;
}

void requeue_prepare(struct requeue *requeue)
{
	const struct alloc *alloc;
	const char *count;

	if (!requeue || requeue->prepared)
		return;
	alloc = requeue->query->alloc;
	requeue->done = alloc->restarts;
	if (alloc->source == ALLOC_FROM_SLURM) {
		prepare_slurm(requeue);
	} else if (alloc->source == ALLOC_FROM_PBS) {
		requeue_pbs_free(requeue->pbs);
		requeue->pbs = NULL;
		count = env_get(requeue->query->env, COUNT);
		if (count && number_int(COUNT, count, 0, 1000000, &requeue->done, NULL))
			requeue->done =
				requeue->max; /* the user changed it: avoid an endless loop */
		requeue->possible =
			!requeue_pbs_prepare(requeue->query, requeue->done, &requeue->pbs,
					     requeue->why, sizeof requeue->why);
	} else {
		snprintf(requeue->why, sizeof requeue->why, "no scheduler runs this job (%s)",
			 alloc->why);
	}
	if (!requeue->possible && !*requeue->why)
		snprintf(requeue->why, sizeof requeue->why, "the scheduler does not answer");
	/* A server that is away may answer when the run ends. */
	requeue->prepared = requeue->possible || requeue->query->job ||
			    requeue_try_failed(requeue->why) != REQUEUE_TRY_AWAY;
	if (requeue->prepared && !requeue->possible) {
		requeue_runs_leave(requeue->runs);
		requeue->runs = NULL;
	}
}

/* Ask the scheduler again if it has not answered yet. */
static void ask(struct requeue *requeue, int64_t timeout_ms)
{
	if (requeue->prepared)
		return;
	if (!requeue->query->job)
		alloc_query_again(requeue->query);
	alloc_query_wait(requeue->query, (int)timeout_ms, true);
	requeue_prepare(requeue);
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

	if (!requeue || (requeue->possible && requeue->runs && !requeue_runs_note(requeue->runs)))
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
		snprintf(text, sizeof text, "--requeue: %s: %s",
			 requeue->prepared ? "cannot requeue the job"
					   : "berth will ask again when the run ends",
			 requeue->why);
	note(context, requeue->possible ? LOG_NOTE : LOG_WARNING, text);
	if (requeue->possible && !requeue->pbs &&
	    slurm_requeue_truncates(requeue->query->env, requeue->query->job,
				    requeue->query->limits, text, sizeof text))
		note(context, LOG_WARNING, text);
}

/* May a job that ended in this way be requeued? next receives what happens now. */
static bool may_requeue(struct requeue *requeue, enum run_end_kind kind, char *next, size_t size)
{
	if (requeue_rules[kind] == REQUEUE_NO)
		snprintf(next, size,
			 "not requeued, because it was %s; submit the job again to continue",
			 run_end_names[kind]);
	if (requeue_rules[kind] <= REQUEUE_NO)
		return false;
	ask(requeue, ANSWER_MS);
	if (requeue->prepared && !requeue->possible) {
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
	snprintf(next, size, "trying to requeue the job with %s (%d of at most %d times)",
		 requeue->pbs ? "qsub" : "scontrol requeue", requeue->done + 1, requeue->max);
	return true;
}

bool requeue_now_due(struct requeue *requeue, const struct job_result *result,
		     enum run_end_kind kind, char *next, size_t size)
{
	/* In a job whose limit is too short for a run, the next job would start none either. */
	bool stopped = result->code == ERR_STOPPED &&
		       (result->start_sent || result->waited_ms > WAITED_MS);
	bool lost = result->code && requeue_rules[kind] == REQUEUE_YES;
	bool wanted = requeue && (stopped || lost) && may_requeue(requeue, kind, next, size);

	if (!requeue || !requeue->runs)
		return wanted;
	switch (requeue_runs_end(requeue->runs, wanted)) {
	case REQUEUE_TURN_NOW:
		return wanted || may_requeue(requeue, kind, next, size);
	case REQUEUE_TURN_LATER:
		requeue->later = true;
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

/* Run scontrol or qsub once. reply receives its answer: the new job's id, or why it failed. */
static enum requeue_try try_once(struct requeue *requeue, int64_t left_ms, char *reply, size_t size)
{
	char *const argv[] = {(char *)"scontrol", (char *)"requeue",
			      (char *)job_name(requeue->query->alloc), NULL};
	struct scheduler_tool_output answer;
	enum scheduler_tool_result end;

	ask(requeue, left_ms < ANSWER_MS ? left_ms : ANSWER_MS);
	if (!requeue->possible) {
		snprintf(reply, size, "%s", requeue->why);
		return requeue->prepared ? REQUEUE_TRY_REFUSED : REQUEUE_TRY_AWAY;
	}
	if (requeue->pbs)
		return requeue_pbs_submit(requeue->pbs, reply, size);
	end = scheduler_tool_run(argv, requeue->query->env, REQUEUE_MS, ANSWER_MAX, &answer);
	if (end == SCHEDULER_TOOL_UNAVAILABLE)
		snprintf(reply, size, "it cannot be started now");
	else if (end == SCHEDULER_TOOL_TIMEOUT)
		snprintf(reply, size, "no answer within %d s", REQUEUE_MS / 1000);
	if (end != SCHEDULER_TOOL_EXITED)
		return REQUEUE_TRY_AWAY;
	free(answer.text);
	snprintf(reply, size, "%s", answer.stderr_text);
	return answer.code ? requeue_try_failed(reply) : REQUEUE_TRY_DONE;
}

enum requeue_try requeue_try_failed(const char *message)
{
	static const char *const away[] = {"connect",	"contact",    "communication failure",
					   "timed out", "zero bytes", "try again",
					   "not answer"};

	for (size_t i = 0; i < sizeof away / sizeof *away; i++)
		if (strcasestr(message, away[i]))
			return REQUEUE_TRY_AWAY;
	return REQUEUE_TRY_REFUSED;
}

/* How long may berth repeat the requeue? The scheduler kills the job at its end time, or soon after
 * the signal that has ended this run. */
static int64_t patience_ms(const struct alloc *alloc)
{
	int64_t left = alloc->end_time
			       ? (alloc->end_time - (int64_t)time(NULL)) * 1000 - BEFORE_END_MS
			       : PATIENCE_MAX_MS;

	return left > PATIENCE_MAX_MS	? PATIENCE_MAX_MS
	       : left < PATIENCE_MIN_MS ? PATIENCE_MIN_MS
					: left;
}

bool requeue_now(struct requeue *requeue, char *next, size_t size)
{
	const char *tool = requeue->pbs ? "qsub" : "scontrol requeue";
	int64_t now, until = clock_now_ms() + patience_ms(requeue->query->alloc);
	int64_t left_ms, pause_ms = PAUSE_MS;
	enum requeue_try end;
	char reply[300], line[400];

	/* The output must survive the end of this process. Pipes and terminals have nothing to
	 * sync. */
	fflush(NULL);
	fsync(STDOUT_FILENO);
	fsync(STDERR_FILENO);
	for (;;) {
		end = try_once(requeue, until - clock_now_ms(), reply, sizeof reply);
		snprintf(line, sizeof line, "%s%.300s", requeue->pbs ? "" : "scontrol requeue ",
			 requeue->pbs ? requeue_pbs_line(requeue->pbs)
				      : job_name(requeue->query->alloc));
		now = clock_now_ms();
		if (end != REQUEUE_TRY_AWAY || until - now < PAUSE_MS)
			break;
		if (pause_ms == PAUSE_MS)
			log_user(LOG_WARNING,
				 "%s: %.250s; trying again for up to %lld s; if the job ends "
				 "before, run: %s",
				 tool, reply, (long long)(until - now) / 1000, line);
		left_ms = until - PAUSE_MS - now; /* the last try comes in time */
		usleep((useconds_t)(pause_ms < left_ms ? pause_ms : left_ms) * 1000);
		pause_ms = pause_ms < PAUSE_MAX_MS ? pause_ms * 2 : pause_ms;
	}
	if (end != REQUEUE_TRY_DONE) {
		snprintf(next, size, "%s: %.250s; to continue, run: %s", tool, reply, line);
		log_user(LOG_WARNING, "%s", next);
		return false;
	}
	if (requeue->pbs)
		log_user(LOG_NOTE, "requeued as %s", reply);
	if (requeue->runs)
		requeue_runs_done(requeue->runs, requeue->pbs);
	if (!requeue->pbs)
		sleep(ENDED_S);
	return true;
}

bool requeue_outlive(struct requeue *requeue)
{
	pid_t child = requeue && requeue->later ? fork() : -1;
	struct stat info;
	int fd;

	/* The script may end right after this run. PBS then kills its session. */
	for (int i = 0; i < 1000 && child > 0 && getsid(child) != child; i++)
		usleep(1000);
	if (child)
		return false;
	setsid();
	/* Whoever reads this run's output from a pipe must not wait for this process. */
	fd = open("/dev/null", O_RDWR);
	for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
		if (i != STDERR_FILENO || fstat(i, &info) || !S_ISREG(info.st_mode))
			dup2(fd, i);
	requeue->query->tool = (struct scheduler_tool){0}; /* a child of the parent */
	return requeue_runs_outlive(requeue->runs);
}
