/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/attempts.h"

#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "roles/jobs.h"

/* If its ranks reported no steps, a shorter attempt counts as one without progress. */
#define MIN_PROGRESS_MS 30000
#define CLOCK_SET_MS 2000 /* smaller differences come from the delay between two readings */

struct attempts {
	const struct attempts_policy *policy;
	const struct role *roles; /* [role_count] */
	size_t role_count;
	const struct job_sink *sink; /* [role_count], or one */
	struct node_pool node_pool;
	size_t first_nodes;	  /* nodes with ranks in the first attempt */
	int restarts;		  /* restarts that count towards max_restarts */
	int64_t started_ms;	  /* when this attempt started */
	off_t input_at;		  /* where a file as standard input began; -1: not a file */
	int64_t clock_ms;	  /* wall clock minus monotonic clock, at the start */
	json_t *list;		  /* the report's list of attempts */
	int restarted[ROLES_MAX]; /* see jobs_request */
	char *no_restart_reason;  /* why there is no further attempt; NULL if none was needed */
};

__attribute__((format(printf, 2, 3))) static void set_no_restart_reason(struct attempts *attempts,
									const char *format, ...)
{
	va_list ap;

	free(attempts->no_restart_reason);
	va_start(ap, format);
	if (vasprintf(&attempts->no_restart_reason, format, ap) < 0)
		attempts->no_restart_reason = NULL;
	va_end(ap);
	if (attempts->no_restart_reason)
		log_info(LOG_CONTROLLER, "not restarting: %s", attempts->no_restart_reason);
}

/* Could another attempt have a different result? */
static bool may_succeed(struct attempts *attempts, const struct job_result *result)
{
	if (!result->code || result->interrupted || result->cause.end == JOB_END_CANCELLED ||
	    result->code == ERR_STOPPED)
		return false;
	if (result->cause.end < JOB_END_PROGRAM && result->code != ERR_NETWORK) {
		set_no_restart_reason(attempts, "the same error would occur again");
		return false;
	}
	if (result->cause.end >= JOB_END_PROGRAM && attempts->policy->own_program &&
	    result->code >= ERR_USAGE && result->code <= ERR_INPUT) {
		set_no_restart_reason(attempts,
				      "exit code %d means wrong options or data, so the same error "
				      "would occur again",
				      result->code);
		return false;
	}
	return true;
}

static bool made_progress(const struct attempts *attempts, const struct job_result *result)
{
	return result->steps >= 0 ? result->steps >= 1 : result->run_ms >= MIN_PROGRESS_MS;
}

static bool restarts_exhausted(struct attempts *attempts)
{
	int most = attempts->policy->max_restarts;

	if (attempts->restarts < most)
		return false;
	set_no_restart_reason(attempts, "the limit of %d restart%s (--max-restarts) is reached",
			      most, most == 1 ? "" : "s");
	return true;
}

/* Without progress a restart is pointless, unless other nodes take part. */
static bool made_no_progress(struct attempts *attempts, const struct job_result *result,
			     size_t excluded_nodes)
{
	if (!attempts->restarts || excluded_nodes || made_progress(attempts, result))
		return false;
	if (result->steps >= 0)
		set_no_restart_reason(attempts, "no step was completed since the last start");
	else
		set_no_restart_reason(attempts,
				      "it exited %.0f s after the last start without reporting "
				      "steps (BERTH_HEARTBEAT_FILE), which counts as no progress",
				      (double)result->run_ms / 1e3);
	return true;
}

static json_t *node_names(const struct node_pool *node_pool)
{
	json_t *names = json_array();

	for (size_t i = 0; i < node_pool->active_count; i++)
		json_array_append_new(names,
				      json_text(node_pool->alloc->nodes[node_pool->nodes[i]].name));
	return names;
}

/* How far the wall clock is ahead of the monotonic clock. */
static int64_t wall_ahead_ms(void)
{
	return clock_wall_us() / 1000 - clock_now_ms();
}

static void record(struct attempts *attempts, const struct job_result *result)
{
	json_array_append_new(
		attempts->list,
		json_pack("{s:i, s:o, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:f, s:f, s:I}", "attempt",
			  result->attempt, "nodes", node_names(&attempts->node_pool), "by",
			  job_result_by(result), "code", result->code, "signal",
			  result->cause.signal, "rank",
			  result->cause.rank >= 0 ? json_integer(result->cause.rank) : json_null(),
			  "node", json_text(result->cause.node), "first_cause",
			  json_text(result->cause.text),
			  /* Whole steps only: a program may report a fraction of one
			   * (process/heartbeat.h). */
			  "steps",
			  result->steps >= 0 ? json_integer((json_int_t)result->steps)
					     : json_null(),
			  "seconds", (double)(clock_now_ms() - attempts->started_ms) / 1e3,
			  "run_seconds", (double)result->run_ms / 1e3, "started",
			  (json_int_t)((attempts->started_ms + wall_ahead_ms()) / 1000)));
}

/* job_request.should_restart: the attempt has ended, and its agents are still connected. */
static bool decide(void *context, const struct job_result *result)
{
	struct attempts *attempts = context;
	struct explain_exception exception;
	size_t excluded_nodes;

	record(attempts, result);
	if (!may_succeed(attempts, result) || !attempts->policy->max_restarts)
		return false;
	if (result->start_sent && restarts_exhausted(attempts))
		return false;
	if (job_result_exception(result, &exception))
		job_note(attempts->sink, LOG_WARNING, "%s: %s (%s:%d)", result->cause.text,
			 exception.text, exception.file, exception.line);
	else
		job_note(attempts->sink, LOG_WARNING, "%s",
			 result->cause.text ? result->cause.text : "the attempt failed");
	excluded_nodes = node_pool_update(&attempts->node_pool, result, attempts->sink);
	if (made_no_progress(attempts, result, excluded_nodes))
		return false;
	/* If ranks were never started and the next attempt excludes the faulty node, do not
	 * count a restart. There are at most as many of these attempts as nodes. */
	if (!result->start_sent && !excluded_nodes && restarts_exhausted(attempts))
		return false;
	if (!result->start_sent && excluded_nodes) {
		job_note(attempts->sink, LOG_WARNING, "starting with %zu node%s",
			 attempts->node_pool.active_count,
			 attempts->node_pool.active_count == 1 ? "" : "s");
	} else {
		attempts->restarts++;
		job_note(attempts->sink, LOG_WARNING, "restarting, %d of at most %d times",
			 attempts->restarts, attempts->policy->max_restarts);
	}
	return true;
}

/* If fewer nodes are left than --ranks was meant for, reduce the ranks in proportion. */
static int ranks_of(const struct attempts *attempts, int ranks)
{
	int64_t share = (int64_t)ranks * (int64_t)attempts->node_pool.active_count /
			(int64_t)attempts->first_nodes;

	return share || !ranks ? (int)share : 1;
}

/* The controller measures the job's end by the monotonic clock. If the wall clock was set since
 * the start, the end is now at another time of day. */
static void adjust_end_time(struct attempts *attempts, struct alloc *alloc)
{
	int64_t set_ms = wall_ahead_ms() - attempts->clock_ms, set_s = set_ms / 1000;

	if (llabs((long long)set_ms) < CLOCK_SET_MS || !alloc->end_time)
		return;
	alloc->end_time += set_s;
	job_note(attempts->sink, LOG_WARNING,
		 "this host's clock was set %lld s %s since the start; adjusted the job's end time",
		 llabs((long long)set_s), set_s > 0 ? "ahead" : "back");
}

static int run_jobs(struct attempts *attempts, const struct job_request *request,
		    struct job_result *out, struct error *err)
{
	const struct jobs_entry entry = {.request = request, .sink = attempts->sink};
	struct roles_set *set = NULL;
	int rc;

	if (!attempts->role_count)
		return jobs_run(&(struct jobs_request){.entries = &entry, .count = 1}, out, err);
	rc = roles_open(attempts->roles, attempts->role_count, request, attempts->sink,
			attempts->restarted, &set, err);
	if (!rc)
		rc = jobs_run(roles_jobs(set), out, err);
	roles_close(set);
	return rc;
}

/* Run one attempt. Return 1 if another one follows. */
static int run_one(struct attempts *attempts, const struct job_request *base_request, int number,
		   struct job_result *out, struct error *err)
{
	struct launch_options launch = *base_request->launch;
	struct job_request request = *base_request;
	struct alloc alloc;
	int rc = node_pool_alloc(&attempts->node_pool, &alloc, err);

	if (rc)
		return rc;
	adjust_end_time(attempts, &alloc);
	launch.alloc = &alloc;
	request.launch = &launch;
	request.spares = attempts->node_pool.spare_count;
	request.plan.attempt = number;
	request.plan.ranks = ranks_of(attempts, base_request->plan.ranks);
	if (number)
		request.plan.sizes = NULL; /* --min-nodes may have shrunk the job */
	request.calls.should_restart = decide;
	request.calls.restart_context = attempts;
	/* Each attempt reads the whole file. */
	if (request.pass_stdin && attempts->input_at >= 0)
		lseek(STDIN_FILENO, attempts->input_at, SEEK_SET);
	attempts->started_ms = clock_now_ms();
	log_info(LOG_CONTROLLER, "attempt %d begins on %zu nodes, %zu of them spare", number,
		 alloc.node_count, request.spares);
	rc = run_jobs(attempts, &request, out, err);
	if (!rc)
		log_info(LOG_CONTROLLER, "attempt %d ends with code %d: %s", number, out->code,
			 out->cause.text ? out->cause.text : "no failure");
	free(alloc.nodes);
	return rc ? rc : out->restart;
}

/* Keep signals that arrive between two attempts for the next one. */
static void block_signals(sigset_t *old)
{
	sigset_t held;

	sigemptyset(&held);
	for (const int *number =
		     (const int[]){SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, 0};
	     *number; number++)
		sigaddset(&held, *number);
	sigprocmask(SIG_BLOCK, &held, old);
}

int attempts_run(const struct job_request *request, const struct role *roles, size_t role_count,
		 const struct attempts_policy *policy, const struct job_sink *sinks,
		 struct job_result *out, struct error *err)
{
	struct attempts attempts = {.policy = policy,
				    .roles = roles,
				    .role_count = role_count,
				    .sink = sinks,
				    .list = json_array()};
	struct job_result result = {.cause = JOB_NO_CAUSE};
	int number = 0;
	sigset_t old;
	int rc = attempts_check(policy, request->launch->alloc, err);

	if (!rc)
		rc = node_pool_new(request->launch->alloc, policy, &attempts.node_pool, err);
	attempts.first_nodes = attempts.node_pool.active_count;
	attempts.clock_ms = wall_ahead_ms();
	attempts.input_at = lseek(STDIN_FILENO, 0, SEEK_CUR);
	block_signals(&old);
	while (!rc && (rc = run_one(&attempts, request, number++, &result, err)) > 0) {
		job_result_free(&result);
		rc = 0;
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (!rc) {
		result.attempts = json_incref(attempts.list);
		result.excluded_nodes = json_incref(attempts.node_pool.excluded_nodes);
		if (policy->max_restarts) {
			result.no_restart_reason = attempts.no_restart_reason;
			attempts.no_restart_reason = NULL;
		}
		*out = result;
	}
	free(attempts.no_restart_reason);
	json_decref(attempts.list);
	node_pool_free(&attempts.node_pool);
	return rc;
}
