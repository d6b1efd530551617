/* SPDX-License-Identifier: BSD-3-Clause */
#include "alloc/query.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define SLURM_MS 2000 /* of alloc_query_now */
#define PBS_TOOL_MS 5000
#define PBS_MS 10000
_Static_assert(SLURM_MS == 2000 && PBS_MS == 10000, "query.h says 2 s and 10 s");
#define EXIT_MS 1000 /* from the end of a tool's output to its exit */

/* Start the next tool. One that cannot be started has answered. */
static void start_next(struct alloc_query *query)
{
	for (;; query->step++) {
		const struct alloc_query_step *step = &query->steps[query->step];
		char *argv[8] = {NULL};

		if (!step->command)
			return;
		if (!step->command(query, argv))
			continue;
		query->deadline_ms = clock_now_ms() + query->timeout_ms;
		if (!scheduler_tool_begin(&query->tool, argv, query->env, step->limit))
			return;
		step->answer(query, SCHEDULER_TOOL_UNAVAILABLE, NULL);
	}
}

void alloc_query_begin(struct alloc_query *query, const struct env *env, struct alloc *alloc,
		       unsigned also, int timeout_ms)
{
	static const struct alloc_query_step none;

	*query = (struct alloc_query){
		.env = env, .alloc = alloc, .also = also, .timeout_ms = timeout_ms, .steps = &none};
	if (alloc->source == ALLOC_FROM_SLURM) {
		query->steps = alloc_query_slurm;
		query->kill_wait_ms = 30000; /* the default of KillWait */
	} else if (alloc->source == ALLOC_FROM_PBS) {
		query->steps = alloc_query_pbs;
		query->kill_wait_ms = 10000; /* of kill_delay */
	}
	start_next(query);
}

bool alloc_query_runs(const struct alloc_query *query)
{
	return query->tool.pid != 0;
}

void alloc_query_continue(struct alloc_query *query)
{
	while (alloc_query_runs(query)) {
		bool ended = scheduler_tool_read(&query->tool);
		int64_t now = clock_now_ms();
		struct scheduler_tool_output output = {0};
		enum scheduler_tool_result result;

		if (!ended && now < query->deadline_ms)
			return;
		result = scheduler_tool_end(&query->tool, ended ? now + EXIT_MS : now, &output);
		query->steps[query->step++].answer(query, result, &output);
		free(output.text);
		/* Other tools would ask the same server. */
		if (result == SCHEDULER_TOOL_TIMEOUT)
			break;
		start_next(query);
	}
	log_info(LOG_ALLOC, "the scheduler reports end time %lld (%s), %d earlier starts",
		 (long long)query->alloc->end_time,
		 query->alloc->end_reason ? query->alloc->end_reason : "unknown",
		 query->alloc->restarts);
}

void alloc_query_wait(struct alloc_query *query, int timeout_ms, bool job_only)
{
	int64_t deadline = clock_now_ms() + timeout_ms;

	while (alloc_query_runs(query) && !(job_only && query->job)) {
		int64_t due = query->deadline_ms < deadline ? query->deadline_ms : deadline;
		int64_t left = due - clock_now_ms();

		if (left > 0)
			poll(&(struct pollfd){.fd = query->tool.fd, .events = POLLIN}, 1,
			     (int)left);
		alloc_query_continue(query);
		if (clock_now_ms() >= deadline)
			return;
	}
}

void alloc_query_again(struct alloc_query *query)
{
	if (alloc_query_runs(query) || !query->steps)
		return;
	query->also = 0;
	query->step = 0;
	free(query->job);
	query->job = NULL;
	query->why[0] = '\0';
	start_next(query);
}

void alloc_query_now(const struct env *env, struct alloc *alloc)
{
	bool pbs = alloc->source == ALLOC_FROM_PBS;
	struct alloc_query query;

	/* The servers of large PBS sites are slower. */
	alloc_query_begin(&query, env, alloc, 0, pbs ? PBS_TOOL_MS : SLURM_MS);
	alloc_query_wait(&query, pbs ? PBS_MS : SLURM_MS, false);
	alloc_query_end(&query);
}

void alloc_query_end(struct alloc_query *query)
{
	struct scheduler_tool_output output = {0};

	if (alloc_query_runs(query))
		scheduler_tool_end(&query->tool, 0, &output);
	free(output.text);
	free(query->job);
	free(query->limits);
	free(query->script);
	*query = (struct alloc_query){0};
}
