/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/query.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/job_internal.h"
#include "overlay/messages.h"
#include "process/supervise.h"

#define SECOND_MS 1000
#define LOOK_MS 100    /* see job_awaits_cancelled */
#define AGENTS_MS 3000 /* how long the agents may take to exit after the final frames */
_Static_assert(AGENTS_MS + CONTROLLER_STOP_MS < NODE_TIMEOUT_MS,
	       "other jobs of the process lose no node while one is closed");

/* The terminal is released before this process stops itself. */
static const struct job_part *const parts[] = {&job_claims_part,
					       &job_reach_part,
					       &job_ready_part,
					       &job_limit_part,
					       &job_input_part,
					       &job_stop_part,
					       NULL};

/* ---- the loop ---- */

void job_pause(struct job *job, bool full)
{
	controller_pause(job->controller, full);
	/* The controller itself holds the ranks back, so this is not a hang. */
	if (full)
		job_hang_mark_active(&job->hang);
}

/* When the driver wants to be called next; 0: no preference. */
static int64_t run_driver(struct job *job, int64_t now)
{
	const struct job_driver *driver = job->request->driver;

	return driver && job->phase == JOB_PHASE_RUN ? driver->tick(driver->context, now) : 0;
}

/* ---- the phases ---- */

static int launch(struct job *job, struct error *err)
{
	const struct job_request *request = job->request;
	const struct launch_options *options = request->launch;
	struct controller_events events = job_controller_events(job);
	int start_ms = options->start_timeout_ms, launch_ms = options->launch_timeout_ms;
	int rc;

	job_enter(job, JOB_PHASE_LAUNCH);
	job->start_due_ms = loop_now_ms(job->loop) + start_ms;
	job_set_deadline(job, options->fallback && launch_ms < start_ms ? launch_ms : start_ms);
	rc = controller_start(job->loop, options, request->plan.port, &events, &job->controller,
			      err);
	if (request->calls.query)
		controller_spare(job->controller, request->calls.query->tool.pid);
	return rc;
}

static void begin_probes(struct job *job)
{
	struct error err = {0};

	job_enter(job, JOB_PHASE_PROBE);
	if (job_start_probe(job, &err))
		job_fail(job, err.code, -1, "%s", err.text);
}

static void start_ranks(struct job *job)
{
	const struct job_request *request = job->request;
	struct error err = {0};
	int rc = job_hang_open(&job->hang, request, &job->plan, job->controller, job->sink,
			       job->loop, &err);

	if (!rc) {
		job_announce_claims(job);
		job_start_announce(job);
		rc = job_start_send(job, &err);
		job_leave_queue(job);
		job->times.start_sent_ms = clock_now_ms();
		job_set_deadline(job, job_ranks_timeout_ms(job));
		job->result.start_sent = true;
		job_enter(job, JOB_PHASE_RUN);
	}
	if (rc)
		job_fail(job, err.code, -1, "%s", err.text);
	else if (request->driver)
		request->driver->starting(request->driver->context, job, job->inventories,
					  job->port);
}

static void start_others(struct job *job)
{
	struct error err;

	if (job->phase != JOB_PHASE_RUN)
		return;
	job_set_deadline(job, job_ranks_timeout_ms(job));
	if (job_start_send_others(job, &err))
		job_fail(job, err.code, -1, "%s", err.text);
}

static void begin_ranks(struct job *job)
{
	struct plan_request plan_request = job_plan_request(job);
	struct error err = {0};
	int rc;

	if (job_is_late(job))
		return;
	if (job->planned)
		plan_free(&job->plan);
	job->planned = false;
	job->result.attempt = plan_request.attempt;
	rc = job_apply_claims(job, &plan_request, &err);
	if (!rc)
		rc = job_start_make_plan(job, &plan_request, &err);
	if (rc < 0)
		job_fail(job, err.code, -1, "%s", err.text);
	else if (!rc && !job_claim(job))
		job_continue(job, JOB_STEP_START);
}

/* Roles plan one after the other, and start when the caller says so. */
static bool may_take_step(const struct job *job)
{
	const struct job_role *role = job->request->role;

	if (!job->next || job->phase == JOB_PHASE_OVER)
		return false;
	return !role || (job->next == JOB_STEP_PROBE   ? role->others != NULL
			 : job->next == JOB_STEP_PLAN  ? role->turn
			 : job->next == JOB_STEP_START ? role->released
						       : true);
}

static void take_step(struct job *job)
{
	enum job_step step = job->next;
	int64_t waited_ms = clock_now_ms() - job->times.next_ms;
	struct error err = {0};

	job->next = JOB_STEP_NONE;
	/* The wait for other roles is no part of the phase. */
	job->times.waited_ms += waited_ms;
	job->times.phase_begin_ms += waited_ms;
	if (step == JOB_STEP_LAUNCH && launch(job, &err))
		job_fail(job, err.code, -1, "%s", err.text);
	else if (step == JOB_STEP_PROBE)
		begin_probes(job);
	else if (step == JOB_STEP_PLAN)
		begin_ranks(job);
	else if (step == JOB_STEP_START)
		start_ranks(job);
	else if (step == JOB_STEP_OTHERS)
		start_others(job);
}

struct inventory *job_take_inventories(struct job *job)
{
	struct inventory *inventories = job->inventories;

	job->inventories =
		NULL; /* the job does not use the inventories once the ranks are starting */
	return inventories;
}

static void on_settled(struct loop_timer *timer)
{
	job_request_end(LOOP_OWNER(timer, struct job, first.settle), SUPERVISE_GRACE_MS);
}

static void on_deadline(struct loop_timer *timer)
{
	struct job *job = LOOP_OWNER(timer, struct job, deadline);
	struct error err = {0};

	if (job->next) /* the next step, taken in this round, sets the deadline of its phase */
		return;
	if (job->phase == JOB_PHASE_QUEUE) {
		if (job_look_at_queue(job, &err))
			job_fail(job, err.code, -1, "%s", err.text);
	} else if (job->phase <= JOB_PHASE_INVENTORIES &&
		   loop_now_ms(job->loop) < job->start_due_ms) {
		loop_timer_set(job->loop, timer, job->start_due_ms);
		job->use_fallback = job_fail_without_agents(job);
	} else if (job->phase == JOB_PHASE_LAUNCH || job->phase == JOB_PHASE_INVENTORIES) {
		job_fail_missing(job);
	} else if (job->phase == JOB_PHASE_PROBE) {
		job_start_probes_due(job);
	} else if (job->phase == JOB_PHASE_CLAIM) {
		job_claims_due(job);
	} else if (job->phase == JOB_PHASE_RUN) {
		job_fail_not_started(job);
	} else if (job->phase == JOB_PHASE_END) {
		if (job_awaits_cancelled(job))
			job_set_deadline(job, SECOND_MS);
		else
			job_enter(job, JOB_PHASE_OVER);
	}
}

static void check_over(struct job *job)
{
	size_t waiting = 0;

	for (size_t i = 0; i < job->node_count; i++)
		waiting += !job->nodes[i].done && !controller_is_lost(job->controller, i);
	if (!waiting && !job_awaits_cancelled(job))
		job_enter(job, JOB_PHASE_OVER);
}

static void check_hang(struct job *job)
{
	struct job_hang_finding hang;
	const struct job_role *role = job->request->role;

	/* A service makes no steps, and is quiet between requests. */
	if (job->phase != JOB_PHASE_RUN || job->first.failed || (role && role->service) ||
	    !job_hang_check(&job->hang, loop_now_ms(job->loop), &hang))
		return;
	job->result.stacks = hang.stacks;
	job_fail(job, ERR_NETWORK, hang.node, "%s", hang.text);
	job->result.cause.rank = hang.rank;
}

static void print_times(const struct job *job)
{
	const int64_t *ms = job->times.phase_ms;
	int64_t start =
		job->times.started_ms ? job->times.started_ms - job->times.start_sent_ms : 0;
	char waited[64] = "";

	if (job->request->role)
		snprintf(waited, sizeof waited, ", waiting for other roles %.2f s",
			 (double)job->times.waited_ms / 1e3);
	job_note(job->sink, LOG_DEBUG,
		 "times: agents %.2f s, inventories %.2f s, addresses %.2f s, start of the ranks "
		 "%.2f s, ranks %.2f s, end %.2f s%s",
		 (double)ms[JOB_PHASE_LAUNCH] / 1e3, (double)ms[JOB_PHASE_INVENTORIES] / 1e3,
		 (double)ms[JOB_PHASE_PROBE] / 1e3, (double)start / 1e3,
		 (double)(ms[JOB_PHASE_RUN] - start) / 1e3, (double)ms[JOB_PHASE_END] / 1e3,
		 waited);
}

static void on_second(struct loop_timer *timer)
{
	struct job *job = LOOP_OWNER(timer, struct job, second);

	loop_timer_after(job->loop, timer, SECOND_MS);
	check_hang(job);
}

void job_signal(struct job *job, const struct signalfd_siginfo *info)
{
	for (size_t i = 0; i < job->part_count; i++)
		if (parts[i]->on_signal)
			parts[i]->on_signal(job, info);
}

int64_t job_round(struct job *job, int64_t now_ms)
{
	int64_t limit_ms, driver_ms;

	if (job->phase == JOB_PHASE_OVER)
		return 0;
	/* What an answer has made possible is done here, after the callbacks of the loop. */
	while (may_take_step(job))
		take_step(job);
	limit_ms = job_time_check(job, now_ms);
	driver_ms = run_driver(job, now_ms);
	if (job->phase >= JOB_PHASE_RUN && job->phase != JOB_PHASE_OVER)
		check_over(job);
	/* A tool's output does not wake the loop. */
	if (job->cancelled_due_ms && job->phase != JOB_PHASE_OVER)
		limit_ms = now_ms + LOOK_MS;
	return driver_ms && (!limit_ms || driver_ms < limit_ms) ? driver_ms : limit_ms;
}

bool job_is_known(const struct job *job)
{
	return job->phase > JOB_PHASE_INVENTORIES || job->next >= JOB_STEP_PROBE;
}

bool job_is_prepared(const struct job *job)
{
	return job->phase < JOB_PHASE_RUN && job->next == JOB_STEP_START;
}

bool job_runs(const struct job *job)
{
	return job->phase == JOB_PHASE_RUN;
}

bool job_is_ending(const struct job *job)
{
	return job->phase >= JOB_PHASE_END;
}

const struct plan *job_plan(const struct job *job)
{
	return job->planned ? &job->plan : NULL;
}

const struct inventory *job_inventories(const struct job *job)
{
	return job->inventories;
}

bool job_is_over(const struct job *job)
{
	return job->phase == JOB_PHASE_OVER;
}

void job_finish(struct job *job, struct job_result *out)
{
	struct job_result *result = &job->result;

	print_times(job);
	if (!job_needs_fallback(job)) {
		job_find_cancelled(job);
		job_finish_stop(job);
		result->steps = job->hang.ranks ? job->hang.most_steps : -1;
		if (!result->code)
			job_hang_check_apart(&job->hang);
		if (job->times.start_sent_ms)
			result->run_ms = clock_now_ms() - job->times.start_sent_ms;
	}
	if (!result->interrupted)
		job_record_time_left(job);
	*out = *result;
	*result = (struct job_result){.cause = JOB_NO_CAUSE};
}

bool job_needs_fallback(const struct job *job)
{
	return job->use_fallback && !job->result.interrupted;
}

void job_announce_end(struct job *job, int code, bool restart)
{
	controller_send(job->controller, MESSAGE_JOB_OVER, WIRE_ALL, 0, 0,
			&(struct message_job_over){code, restart}, NULL, 0, NULL);
}

void job_close(struct job *job, struct job_result *result)
{
	char left[512] = "";

	if (!job)
		return;
	for (; job->part_count; job->part_count--)
		parts[job->part_count - 1]->close(job);
	controller_stop(job->controller, job->use_fallback ? 0 : AGENTS_MS, left, sizeof left);
	if (left[0] && result && !result->unkilled)
		result->unkilled = strdup(left);
	node_notes_print(&job->notes);
	loop_timer_stop(&job->deadline);
	loop_timer_stop(&job->first.settle);
	loop_timer_stop(&job->second);
	gathers_free(&job->gathers);
	job_hang_close(&job->hang);
	for (size_t i = 0; job->inventories && i < job->node_count; i++)
		inventory_free(&job->inventories[i]);
	free(job->inventories);
	if (job->planned)
		plan_free(&job->plan);
	free(job->nodes);
	job_result_free(&job->result);
	free(job);
}

static int open_parts(struct job *job, struct error *err)
{
	size_t n = job->node_count;
	int rc = 0;

	job->nodes = calloc(n, sizeof *job->nodes);
	job->inventories = calloc(n, sizeof *job->inventories);
	job->result.lost = calloc(n, sizeof *job->result.lost);
	job->result.ranks = json_array();
	if (!job->nodes || !job->inventories || !job->result.lost || !job->result.ranks)
		return error_memory(err, "the nodes");
	job->parts = parts;
	while (!rc && parts[job->part_count]) {
		rc = parts[job->part_count]->open(job, err);
		job->part_count += !rc;
	}
	return rc;
}

int job_open(struct loop *loop, const struct job_request *request, const struct job_sink *sink,
	     struct job **out, struct error *err)
{
	struct job *job = malloc(sizeof *job);
	int rc;

	if (!job)
		return error_memory(err, "a job");
	*job = (struct job){
		.request = request,
		.sink = sink,
		.result = {.cause = JOB_NO_CAUSE, .steps = -1, .attempt = job_attempt(request)},
		.loop = loop,
		.node_count = request->launch->alloc->node_count,
		.blocks = request->launch->first_port ? 1 : -1,
		.deadline.due = on_deadline,
		.first.settle.due = on_settled,
		.second.due = on_second,
		.times.phase_begin_ms = clock_now_ms(),
	};
	node_notes_init(&job->notes, loop, request->launch->alloc, sink);
	loop_timer_after(loop, &job->second, SECOND_MS);
	rc = open_parts(job, err);
	if (!rc)
		rc = request->share.waits ? job_queue(job, err) : launch(job, err);
	if (rc && request->role && request->role->released) {
		job_fail(job, err->code, -1, "%s", err->text);
		job_enter(job, JOB_PHASE_OVER);
		rc = 0;
	}
	if (rc)
		job_close(job, NULL);
	else
		*out = job;
	return rc;
}
