/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/attempts.h"

#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/loop.h"

#define CLOCK_SET_MS 2000 /* less is nobody's doing: this process waited between two looks */

struct attempts {
	const struct attempts_policy *policy;
	const struct job_sink *sink;
	struct pool pool;
	size_t first_nodes; /* with ranks, in the first attempt */
	int restarts;	    /* of those that are counted */
	int64_t begun_ms;   /* this attempt */
	int64_t clock_ms;   /* the time of day at the start, less the monotonic clock */
	json_t *list;	    /* of the report */
	char *refused;	    /* why there is no further one; NULL: there was nothing to refuse */
};

void attempts_log_dir(const char *log_dir, int max_restarts, int attempt, char *out, size_t size)
{
	if (max_restarts)
		snprintf(out, size, "%s/attempt-%d", log_dir, attempt);
	else
		snprintf(out, size, "%s", log_dir);
}

static void say(const struct attempts *attempts, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void say(const struct attempts *attempts, enum log_level level, const char *format, ...)
{
	char text[1200];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	attempts->sink->note(attempts->sink->context, level, text);
}

static void on_pool_note(void *context, const char *text)
{
	say(context, LOG_WARNING, "%s", text);
}

static void refuse(struct attempts *attempts, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void refuse(struct attempts *attempts, const char *format, ...)
{
	va_list ap;

	free(attempts->refused);
	va_start(ap, format);
	if (vasprintf(&attempts->refused, format, ap) < 0)
		attempts->refused = NULL;
	va_end(ap);
}

/* Could another attempt end in another way? */
static bool is_worth_it(struct attempts *attempts, const struct job_result *result)
{
	if (!result->code || result->interrupted || result->code == ERR_STOPPED)
		return false;
	if (!result->by_program && result->code != ERR_NETWORK) {
		refuse(attempts, "it would end in the same way");
		return false;
	}
	if (result->by_program && attempts->policy->ours && result->code >= ERR_USAGE &&
	    result->code <= ERR_INPUT) {
		refuse(attempts, "code %d tells of wrong options or data, which stay wrong",
		       result->code);
		return false;
	}
	return true;
}

static bool made_progress(const struct attempts *attempts, const struct job_result *result)
{
	int quick_ms = attempts->policy->quick_ms ? attempts->policy->quick_ms : ATTEMPTS_QUICK_MS;

	return result->steps >= 0 ? result->steps >= 1 : result->lived_ms >= quick_ms;
}

static bool is_used_up(struct attempts *attempts)
{
	int most = attempts->policy->max_restarts;

	if (attempts->restarts < most)
		return false;
	refuse(attempts, "it was started again %d time%s, as --max-restarts allows", most,
	       most == 1 ? "" : "s");
	return true;
}

/* With other nodes it may go better. */
static bool is_stuck(struct attempts *attempts, const struct job_result *result, size_t left_out)
{
	if (!attempts->restarts || left_out || made_progress(attempts, result))
		return false;
	if (result->steps >= 0)
		refuse(attempts, "no step was made since the last start");
	else
		refuse(attempts,
		       "it ended %.0f s after the last start, and says nothing of its steps "
		       "(BERTH_HEARTBEAT_FILE): that counts as no progress",
		       (double)result->lived_ms / 1e3);
	return true;
}

static json_t *node_names(const struct pool *pool)
{
	json_t *names = json_array();

	for (size_t i = 0; i < pool->active_count; i++)
		json_array_append_new(names,
				      json_text(pool->alloc->nodes[pool->active[i]].name));
	return names;
}

static void record(struct attempts *attempts, const struct job_result *result)
{
	json_array_append_new(
		attempts->list,
		json_pack("{s:i, s:o, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:f}", "attempt",
			  result->attempt, "nodes", node_names(&attempts->pool), "by",
			  result->by_program || !result->code ? "program" : "berth", "code",
			  result->code, "signal", result->signal, "rank",
			  result->rank >= 0 ? json_integer(result->rank) : json_null(), "node",
			  json_text(result->node), "first_cause", json_text(result->first_cause),
			  /* Those that were done: a program may tell of a part of one (process/heartbeat.h). */
			  "steps", result->steps >= 0 ? json_integer((json_int_t)result->steps) : json_null(),
			  "seconds", (double)(clock_now_ms() - attempts->begun_ms) / 1e3));
}

/* job_request.again: the attempt has ended, its agents are still there. */
static bool decide(void *context, const struct job_result *result)
{
	struct attempts *attempts = context;
	size_t left_out;

	record(attempts, result);
	if (!is_worth_it(attempts, result) || !attempts->policy->max_restarts)
		return false;
	if (result->began && is_used_up(attempts))
		return false;
	say(attempts, LOG_WARNING, "%s", result->first_cause ? result->first_cause : "it failed");
	left_out = pool_learn(&attempts->pool, result, on_pool_note, attempts);
	if (is_stuck(attempts, result, left_out))
		return false;
	/* Where ranks were never started, and the next try is without the node at fault, that is none
	 * of the restarts that were allowed: there are not more of these than nodes. */
	if (!result->began && !left_out && is_used_up(attempts))
		return false;
	if (!result->began && left_out) {
		say(attempts, LOG_WARNING, "starting with %zu node%s", attempts->pool.active_count,
		    attempts->pool.active_count == 1 ? "" : "s");
	} else {
		attempts->restarts++;
		say(attempts, LOG_WARNING, "starting again, %d of at most %d times",
		    attempts->restarts, attempts->policy->max_restarts);
	}
	return true;
}

/* With fewer nodes than --ranks was meant for: the same share. */
static int ranks_of(const struct attempts *attempts, int ranks)
{
	int64_t share = (int64_t)ranks * (int64_t)attempts->pool.active_count /
			(int64_t)attempts->first_nodes;

	return share || !ranks ? (int)share : 1;
}

/* How far the wall clock is ahead of the monotonic one. */
static int64_t wall_ahead_ms(void)
{
	return clock_wall_us() / 1000 - clock_now_ms();
}

/* The job's end is counted by the monotonic clock: where the clock was set since the start, it is
 * another time of day now. */
static void keep_end(struct attempts *attempts, struct alloc *alloc)
{
	int64_t set_ms = wall_ahead_ms() - attempts->clock_ms, set_s = set_ms / 1000;

	if (llabs((long long)set_ms) < CLOCK_SET_MS || !alloc->end_time)
		return;
	alloc->end_time += set_s;
	say(attempts, LOG_WARNING,
	    "this machine's clock was set %lld s %s since the start; the job's end moves with it",
	    llabs((long long)set_s), set_s > 0 ? "ahead" : "back");
}

/* 1: another one follows. */
static int run_one(struct attempts *attempts, const struct job_request *wish, int number,
		   struct job_result *out, struct error *err)
{
	struct job_request request = *wish;
	struct alloc alloc;
	char log_dir[PATH_MAX];
	int rc = pool_alloc(&attempts->pool, &alloc, err);

	if (rc)
		return rc;
	keep_end(attempts, &alloc);
	request.alloc = &alloc;
	request.spares = attempts->pool.spare_count;
	request.plan.attempt = number;
	request.plan.ranks = ranks_of(attempts, wish->plan.ranks);
	request.watch = attempts->policy->max_restarts > 0;
	request.again = decide;
	request.again_context = attempts;
	if (wish->log_dir) {
		attempts_log_dir(wish->log_dir, attempts->policy->max_restarts, number, log_dir,
				 sizeof log_dir);
		request.log_dir = log_dir;
	}
	attempts->begun_ms = clock_now_ms();
	rc = job_run(&request, attempts->sink, out, err);
	free(alloc.nodes);
	return rc ? rc : out->again;
}

/* Signals that come between two attempts are the next one's. */
static void hold_signals(sigset_t *old)
{
	sigset_t held;

	sigemptyset(&held);
	for (const int *number = (const int[]){SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, 0};
	     *number; number++)
		sigaddset(&held, *number);
	sigprocmask(SIG_BLOCK, &held, old);
}

int attempts_run(const struct job_request *request, const struct attempts_policy *policy,
		 const struct job_sink *sink, struct job_result *out, struct error *err)
{
	struct attempts attempts = {.policy = policy, .sink = sink, .list = json_array()};
	struct job_result result = {.rank = -1};
	int number = request->plan.attempt;
	sigset_t old;
	int rc = attempts_check(policy, request->alloc, err);

	if (!rc)
		rc = pool_new(request->alloc, policy, &attempts.pool, err);
	attempts.first_nodes = attempts.pool.active_count;
	attempts.clock_ms = wall_ahead_ms();
	hold_signals(&old);
	while (!rc && (rc = run_one(&attempts, request, number++, &result, err)) > 0) {
		job_result_free(&result);
		rc = 0;
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (!rc) {
		result.attempts = json_incref(attempts.list);
		result.left_out = json_incref(attempts.pool.left_out);
		if (policy->max_restarts) {
			result.refused = attempts.refused;
			attempts.refused = NULL;
		}
		*out = result;
	}
	free(attempts.refused);
	json_decref(attempts.list);
	pool_free(&attempts.pool);
	return rc;
}
