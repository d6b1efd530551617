/* SPDX-License-Identifier: BSD-3-Clause */
/* The job's time limit: learned from the scheduler while the job runs, and passed to the ranks. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/query.h"
#include "base/clock.h"
#include "base/json.h"
#include "controller/job_internal.h"
#include "overlay/messages.h"

#define MOVED_MS 3000	 /* clocks and rounding differ by less */
#define RECHECK_MS 10000 /* how long a warning waits for the scheduler; at most a quarter of it */

struct job_limit {
	struct job *job;
	struct loop_source query;
	/* By clock_now_ms, as end_ms; warn_ms 0: no warning, or it was sent. */
	int64_t warn_ms;
	int64_t recheck_ms; /* until then the warning waits for the scheduler's answer; 0: not asked
			     */
	bool attempt_noted; /* that the attempt's number is too low */
};

/* end_time: Unix seconds, 0: unknown. */
static void set_clock(struct job *job, int64_t end_time)
{
	int64_t before_ms = job->request->end.warn_before_ms;

	job->end_time = end_time;
	job->end_ms = job->limit->warn_ms = job->limit->recheck_ms = 0;
	if (!end_time)
		return;
	job->end_ms = clock_now_ms() + end_time * 1000 - clock_wall_us() / 1000;
	if (!before_ms || job->result.warned)
		return;
	job->limit->warn_ms = job->end_ms - before_ms;
	if (!job->limit->warn_ms)
		job->limit->warn_ms = -1; /* 0 means that there is none */
}

/* Tell ranks that already run. Others get the time in their environment. */
static void send_end_time(struct job *job)
{
	if (job->phase == JOB_PHASE_RUN && job->end_time)
		controller_send(job->controller, MESSAGE_END_TIME, WIRE_ALL, 0, 0,
				&(struct message_end_time){job->end_time}, NULL, 0, NULL);
}

/* Each attempt has a copy of the allocation's nodes. */
static void learn_gpus(struct job *job)
{
	const struct alloc *from = job->request->calls.query->alloc,
			   *to = job->request->launch->alloc;
	bool known = false;
	char text[400];

	for (size_t i = 0, k = 0; i < to->node_count; i++) {
		for (size_t n = 0; n < from->node_count; n++, k = (k + 1) % from->node_count)
			if (from->nodes[k].name == to->nodes[i].name)
				break;
		if (from->nodes[k].name != to->nodes[i].name)
			continue;
		known |= to->nodes[i].gpus != from->nodes[k].gpus;
		to->nodes[i].gpus = from->nodes[k].gpus;
	}
	if (known && job->planned && job->inventories &&
	    plan_unseen_gpus(to, job->inventories, text, sizeof text))
		job_note(job->sink, LOG_WARNING, "%s", text);
}

static void learn(struct job *job)
{
	const struct alloc_query *query = job->request->calls.query;
	int64_t before_ms = job->end_ms, later_ms;
	char text[400];

	job->kill_wait_ms = query->kill_wait_ms;
	learn_gpus(job);
	if (job->planned && job_attempt(job->request) != job->plan.attempt &&
	    !job->limit->attempt_noted) {
		job->limit->attempt_noted = true;
		job_note(job->sink, LOG_WARNING,
			 "the job was started %d time%s before, which BERTH_ATTEMPT of these ranks "
			 "does not count: %s reported it too late",
			 query->alloc->restarts, query->alloc->restarts == 1 ? "" : "s",
			 alloc_from_name(query->alloc->source));
	}
	if (alloc_drop_past_end(query->alloc, text, sizeof text))
		job_note(job->sink, LOG_WARNING, "%s", text);
	if (query->alloc->end_time != job->end_time) {
		set_clock(job, query->alloc->end_time);
		send_end_time(job);
		later_ms = job->end_ms - before_ms;
		if (before_ms && !job->end_ms)
			job_note(job->sink, LOG_NOTE, "the job no longer has a time limit");
		else if (before_ms && llabs((long long)later_ms) >= MOVED_MS)
			job_note(job->sink, LOG_NOTE,
				 "the job's time limit is %lld s %s than before",
				 llabs((long long)later_ms) / 1000,
				 later_ms > 0 ? "later" : "earlier");
	}
	if (!alloc_query_runs(query) && job->request->calls.answered)
		job->request->calls.answered(job->request->calls.context);
}

/* Wait for the tool that runs now. */
static void watch(struct job *job)
{
	const struct alloc_query *query = job->request->calls.query;

	controller_spare(job->controller, query->tool.pid);
	if (alloc_query_runs(query))
		loop_add(job->loop, &job->limit->query, query->tool.fd, EPOLLIN, NULL);
}

static void proceed(struct job *job)
{
	loop_remove(job->loop, &job->limit->query); /* each tool has a descriptor of its own */
	alloc_query_continue(job->request->calls.query);
	watch(job);
	learn(job);
}

static void on_answer(struct loop_source *source, uint32_t events)
{
	(void)events;
	proceed(LOOP_OWNER(source, struct job_limit, query)->job);
}

static int open_limit(struct job *job, struct error *err)
{
	job->limit = malloc(sizeof *job->limit);
	if (!job->limit)
		return error_memory(err, "the time limit");
	*job->limit = (struct job_limit){.job = job, .query = {on_answer, -1, 0}};
	set_clock(job, job->request->launch->alloc->end_time);
	if (job->request->calls.query) {
		job->kill_wait_ms = job->request->calls.query->kill_wait_ms;
		watch(job);
	}
	return 0;
}

static void close_limit(struct job *job)
{
	loop_remove(job->loop, &job->limit->query);
	free(job->limit);
}

const struct job_part job_limit_part = {.open = open_limit, .close = close_limit};

/* A warning signal would kill ranks that are still starting. The last STARTED message wakes the
 * loop, which then warns them. */
static bool all_ranks_run(const struct job *job)
{
	return job->phase == JOB_PHASE_RUN && job->started == job->plan.nodes_with_ranks;
}

/* Before the ranks are warned: has the job's limit been extended, or was the job suspended? Return
 * true while the scheduler has not answered. */
static bool is_rechecking(struct job *job, int64_t now)
{
	struct alloc_query *query = job->request->calls.query;
	int64_t wait_ms = job->request->end.warn_before_ms / 4;

	if (!query || query->alloc->end_given)
		return false;
	if (!job->limit->recheck_ms) {
		loop_remove(job->loop, &job->limit->query);
		alloc_query_again(query);
		watch(job);
		job->limit->recheck_ms = now + (wait_ms < RECHECK_MS ? wait_ms : RECHECK_MS);
	}
	return alloc_query_runs(query) && now < job->limit->recheck_ms;
}

static const char *signal_name(int number)
{
	const char *name = error_signal_name(number);

	return name ? name : strsignal(number);
}

/* Warn the ranks with their stop file and a signal if the time limit is near. */
static void warn_of_end(struct job *job, int64_t now)
{
	int number = job->request->end.warn_signal;
	long left = (long)((job->end_ms - now) / 1000);

	if (!all_ranks_run(job) || !job->limit->warn_ms || now < job->limit->warn_ms ||
	    is_rechecking(job, now))
		return;
	job->limit->warn_ms = 0;
	job_signal_ranks(job, number, "warning");
	job_note(job_common_sink(job), LOG_NOTE,
		 "the job's time limit is reached in %ld s: warned the ranks with %s%s%s",
		 left < 0 ? 0 : left, number ? "SIG" : "", number ? signal_name(number) : "",
		 number ? " and their stop file" : "their stop file");
	job->result.warned = true;
}

int64_t job_time_check(struct job *job, int64_t now_ms)
{
	const struct alloc_query *query = job->request->calls.query;
	int64_t due, warn;

	if (query && alloc_query_runs(query) && now_ms >= query->deadline_ms)
		proceed(job);
	warn_of_end(job, now_ms);
	due = query && alloc_query_runs(query) ? query->deadline_ms : 0;
	warn = all_ranks_run(job) ? stop_warning_due(job->limit->warn_ms, job->limit->recheck_ms)
				  : 0;
	return warn && (!due || warn < due) ? warn : due;
}

void job_copy_limit(struct job *job, const struct job *from)
{
	job->kill_wait_ms = from->kill_wait_ms;
	if (job->end_time == from->end_time)
		return;
	set_clock(job, from->end_time);
	send_end_time(job);
}
