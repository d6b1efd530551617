/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "alloc/query.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/job_internal.h"
#include "overlay/messages.h"
#include "process/supervise.h"

#define SECOND_MS 1000
#define AGENTS_MS 3000 /* how long the agents may take to exit after the final frames */

static const int handled_signals[] = {SIGINT,  SIGTERM, SIGHUP,	 SIGQUIT,  SIGUSR1, SIGUSR2,
				      SIGTSTP, SIGCONT, SIGTTIN, SIGWINCH, SIGCHLD};

/* The terminal is released before this process stops itself. */
static const struct job_part *const parts[] = {&job_claims_part, &job_reach_part, &job_limit_part,
					       &job_input_part,	 &job_stop_part,  NULL};

/* ---- the loop ---- */

static void on_drained(struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events; /* apply_backpressure checks it */
}

static void apply_backpressure(struct job *job)
{
	bool full = job->sink->full && job->sink->full(job->sink->context);

	if (job->sink->full)
		controller_pause(job->controller, full);
	if (full)
		job_hang_mark_active(&job->hang); /* the controller itself holds the ranks back, so
						     this is not a hang */
}

static void check_reader(struct job *job)
{
	if (job->phase == JOB_PHASE_RUN && !job->first.failed && job->sink->abandoned &&
	    job->sink->abandoned(job->sink->context))
		job_fail(job, ERR_IO, -1,
			 "the reader of the output has gone, so the job was ended; --log-dir keeps "
			 "the output, and the job then continues");
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

	job->phase = JOB_PHASE_LAUNCH;
	job->start_due_ms = loop_now_ms(job->loop) + start_ms;
	job_set_deadline(job, options->fallback && launch_ms < start_ms ? launch_ms : start_ms);
	rc = controller_start(job->loop, options, request->plan.port, &events, &job->controller,
			      err);
	if (request->query)
		controller_spare(job->controller, request->query->tool.pid);
	if (!rc && job->sink->full && job->sink->drained_fd >= 0)
		rc = loop_add(job->loop, &job->drained, job->sink->drained_fd, EPOLLIN, err);
	return rc;
}

static void begin_probes(struct job *job)
{
	struct error err = {0};

	job->phase = JOB_PHASE_PROBE;
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
		job->result->start_sent = true;
		job->phase = JOB_PHASE_RUN;
	}
	if (rc)
		job_fail(job, err.code, -1, "%s", err.text);
	else if (request->driver)
		request->driver->starting(request->driver->context, job, job->inventories,
					  job->port);
}

static void begin_ranks(struct job *job)
{
	struct plan_request plan_request = job_start_plan_request(job);
	struct error err = {0};
	int rc;

	if (job_is_late(job))
		return;
	if (job->planned)
		plan_free(&job->plan);
	job->planned = false;
	job->result->attempt = plan_request.attempt;
	rc = job_apply_claims(job, &plan_request, &err);
	if (!rc)
		rc = job_start_make_plan(job, &plan_request, &err);
	if (rc < 0)
		job_fail(job, err.code, -1, "%s", err.text);
	else if (!rc && !job_claim(job))
		start_ranks(job);
}

/* What an answer has made possible is done here, after the callbacks of the loop. */
static void take_step(struct job *job)
{
	enum job_step step = job->next;
	struct error err = {0};

	job->next = JOB_STEP_NONE;
	if (job->phase == JOB_PHASE_OVER)
		return;
	if (step == JOB_STEP_LAUNCH && launch(job, &err))
		job_fail(job, err.code, -1, "%s", err.text);
	else if (step == JOB_STEP_PROBE)
		begin_probes(job);
	else if (step == JOB_STEP_PLAN)
		begin_ranks(job);
	else if (step == JOB_STEP_START)
		start_ranks(job);
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
		job->phase = JOB_PHASE_OVER;
	}
}

static void check_over(struct job *job)
{
	size_t waiting = 0;

	for (size_t i = 0; i < job->node_count; i++)
		waiting += !job->nodes[i].done && !controller_is_lost(job->controller, i);
	if (!waiting)
		job->phase = JOB_PHASE_OVER;
}

static void check_hang(struct job *job)
{
	struct job_hang_finding hang;

	if (job->phase != JOB_PHASE_RUN || job->first.failed ||
	    !job_hang_check(&job->hang, loop_now_ms(job->loop), &hang))
		return;
	job->result->stacks = hang.stacks;
	job_fail(job, ERR_NETWORK, hang.node, "%s", hang.text);
	job->result->rank = hang.rank;
}

static void end_phase(struct job *job, enum job_phase before)
{
	static const char *const names[] = {"queue", "launch", "inventories", "probe",
					    "claim", "run",    "end",	      "over"};
	int64_t now = clock_now_ms();

	if (job->phase == before)
		return;
	log_info(LOG_CONTROLLER, "job state: %s, was %s", names[job->phase], names[before]);
	job->times.phase_ms[before] = now - job->times.phase_begin_ms;
	job->times.phase_begin_ms = now;
}

static void print_times(const struct job *job)
{
	const int64_t *ms = job->times.phase_ms;
	int64_t start =
		job->times.started_ms ? job->times.started_ms - job->times.start_sent_ms : 0;

	job_note(job->sink, LOG_DEBUG,
		 "times: agents %.2f s, inventories %.2f s, addresses %.2f s, start of the ranks "
		 "%.2f s, ranks %.2f s, end %.2f s",
		 (double)ms[JOB_PHASE_LAUNCH] / 1e3, (double)ms[JOB_PHASE_INVENTORIES] / 1e3,
		 (double)ms[JOB_PHASE_PROBE] / 1e3, (double)start / 1e3,
		 (double)(ms[JOB_PHASE_RUN] - start) / 1e3, (double)ms[JOB_PHASE_END] / 1e3);
}

static void note_suspension(struct job *job)
{
	int64_t ms = loop_suspended_ms(job->loop) - job->suspended_ms;

	job->suspended_ms += ms;
	if (job->phase == JOB_PHASE_RUN && ms > job->request->launch->node_timeout_ms)
		job_note(job->sink, LOG_NOTE,
			 "berth run was suspended for %lld s; the ranks continue",
			 (long long)(ms / 1000));
}

static void on_second(struct loop_timer *timer)
{
	struct job *job = LOOP_OWNER(timer, struct job, second);

	loop_timer_after(job->loop, timer, SECOND_MS);
	check_hang(job);
}

static void on_signal(struct loop_source *source, uint32_t events)
{
	struct job *job = LOOP_OWNER(source, struct job, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGCHLD)
			controller_reap(job->controller);
		for (size_t i = 0; i < job->part_count && info.ssi_signo != SIGCHLD; i++)
			if (parts[i]->on_signal)
				parts[i]->on_signal(job, &info);
	}
}

static void on_wake(struct loop_timer *timer)
{
	(void)timer; /* run() looks what is due */
}

/* Times by clock_now_ms; 0: none. */
static void wake_at(struct job *job, int64_t now_ms, const int64_t *due_ms, size_t count)
{
	int64_t first_ms = 0;

	for (size_t i = 0; i < count; i++)
		if (due_ms[i] && (!first_ms || due_ms[i] < first_ms))
			first_ms = due_ms[i];
	if (first_ms)
		loop_timer_after(job->loop, &job->wake, first_ms - now_ms);
	else
		loop_timer_stop(&job->wake);
}

static void run(struct job *job)
{
	struct error err = {0};

	while (job->phase != JOB_PHASE_OVER) {
		enum job_phase before = job->phase;
		int64_t now, due[3];

		if (loop_once(job->loop, &err)) {
			job_fail(job, err.code, -1, "%s", err.text);
			return;
		}
		take_step(job);
		note_suspension(job);
		apply_backpressure(job);
		check_reader(job);
		now = clock_now_ms();
		due[0] = job->sink->tick ? job->sink->tick(job->sink->context, now) : 0;
		due[1] = job_time_check(job, now);
		due[2] = run_driver(job, now);
		wake_at(job, now, due, sizeof due / sizeof *due);
		if (job->phase >= JOB_PHASE_RUN && job->phase != JOB_PHASE_OVER)
			check_over(job);
		end_phase(job, before);
	}
}

static int prepare(struct job *job, struct error *err)
{
	size_t n = job->node_count;

	job->nodes = calloc(n, sizeof *job->nodes);
	job->inventories = calloc(n, sizeof *job->inventories);
	job->result->lost = calloc(n, sizeof *job->result->lost);
	if (!job->nodes || !job->inventories || !job->result->lost)
		return error_memory(err, "the nodes");

	int rc = loop_new(&job->loop, err);

	if (rc)
		return rc;
	node_notes_init(&job->notes, job->loop, job->request->launch->alloc, job->sink);
	loop_timer_after(job->loop, &job->second, SECOND_MS);
	rc = loop_add_signals(job->loop, &job->signals, handled_signals,
			      sizeof handled_signals / sizeof *handled_signals, err);
	job->parts = parts;
	while (!rc && parts[job->part_count]) {
		rc = parts[job->part_count]->open(job, err);
		job->part_count += !rc;
	}
	return rc;
}

static void decide_restart(struct job *job)
{
	const struct job_request *request = job->request;

	job_find_cancelled(job);
	job_finish_stop(job);
	job->result->steps = job->hang.ranks ? job->hang.most_steps : -1;
	if (!job->result->code)
		job_hang_check_apart(&job->hang);
	if (job->times.start_sent_ms)
		job->result->run_ms = clock_now_ms() - job->times.start_sent_ms;
	job->result->restart = request->should_restart &&
			       request->should_restart(request->restart_context, job->result);
	controller_send(job->controller, MESSAGE_JOB_OVER, WIRE_ALL, 0, 0,
			&(struct message_job_over){job->result->code, job->result->restart}, NULL,
			0, NULL);
}

static void clean(struct job *job)
{
	char left[512] = "";

	loop_remove(job->loop, &job->drained);
	for (; job->part_count; job->part_count--)
		parts[job->part_count - 1]->close(job);
	controller_stop(job->controller, job->use_fallback ? 0 : AGENTS_MS, left, sizeof left);
	if (left[0])
		job->result->unkilled = strdup(left);
	node_notes_print(&job->notes);
	if (job->sink->tick)
		job->sink->tick(job->sink->context, INT64_MAX);
	loop_close(job->loop, &job->signals);
	gathers_free(&job->gathers);
	job_hang_close(&job->hang);
	for (size_t i = 0; job->inventories && i < job->node_count; i++)
		inventory_free(&job->inventories[i]);
	free(job->inventories);
	if (job->planned)
		plan_free(&job->plan);
	free(job->nodes);
	loop_free(job->loop);
}

/* Set *use_fallback if the launcher brought no agent, so that another one may. */
static int run_with(const struct job_request *request, const struct job_sink *sink,
		    struct job_result *out, bool *use_fallback, struct error *err)
{
	const struct alloc *alloc = request->launch->alloc;
	struct job job = {.request = request,
			  .sink = sink,
			  .node_count = alloc->node_count,
			  .deadline.due = on_deadline,
			  .first.settle.due = on_settled,
			  .second.due = on_second,
			  .wake.due = on_wake};
	struct job_result result = {
		.rank = -1, .node_index = -1, .steps = -1, .attempt = job_attempt(request)};
	struct sigaction ignore = {.sa_handler = SIG_IGN}, old_pipe;
	sigset_t old;
	int rc;

	job.result = &result;
	job.signals = (struct loop_source){on_signal, -1, 0};
	job.drained = (struct loop_source){on_drained, -1, 0};
	result.ranks = json_array();
	sigprocmask(SIG_SETMASK, NULL, &old);
	sigaction(SIGPIPE, &ignore, &old_pipe);
	rc = prepare(&job, err);
	job.times.phase_begin_ms = clock_now_ms();
	if (!rc)
		rc = request->plan.waits ? job_queue(&job, err) : 0;
	if (!rc && (!request->plan.waits || job.next == JOB_STEP_LAUNCH)) {
		job.next = JOB_STEP_NONE;
		rc = launch(&job, err);
	}
	if (!rc) {
		run(&job);
		print_times(&job);
		*use_fallback = job.use_fallback && !result.interrupted;
		if (!*use_fallback)
			decide_restart(&job);
		if (!result.interrupted)
			job_record_time_left(&job);
	}
	clean(&job);
	sigaction(SIGPIPE, &old_pipe, NULL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		job_result_free(&result);
		return rc;
	}
	*out = result;
	return 0;
}

int job_run(const struct job_request *request, const struct job_sink *sink, struct job_result *out,
	    struct error *err)
{
	struct launch_options launch = *request->launch;
	struct job_request second = *request;
	bool use_fallback = false;
	int rc = run_with(request, sink, out, &use_fallback, err);

	if (rc || !use_fallback)
		return rc;
	job_note(sink, LOG_WARNING, "%s; trying launcher %s", out->first_cause,
		 launch.fallback->name);
	job_result_free(out);
	/* Its controller has a new secret, which keeps late agents of the first launcher out. */
	launch.launcher = launch.fallback;
	launch.fallback = NULL;
	second.launch = &launch;
	return run_with(&second, sink, out, &use_fallback, err);
}
