/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "controller/job_internal.h"
#include "overlay/messages.h"

#define TICK_MS 1000
#define AGENTS_MS 3000 /* from the goodbye to the agents' own end */
#define SAME_SIGNAL_MS 2000

/* ---- signals ---- */

static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};

static bool ends_a_job(int number)
{
	return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

static void forward_signal(struct job *job, int number)
{
	int64_t now = clock_now_ms();

	if (ends_a_job(number) && !job->result->interrupted) {
		job->result->interrupted = number;
		job_time_mark(job);
	} else if (!ends_a_job(number) && !job->result->asked) {
		job->result->asked = number;
	}
	if (job->phase < PHASE_RUN) {
		if (ends_a_job(number))
			job_fail(job, 128 + number, -1,
				 "stopped by %s before the ranks were started", strsignal(number));
		return;
	}
	job_tell_stop(job, number, number == SIGTERM ? "SIGTERM" : NULL);
	job->last_signal.signal = number;
	job->last_signal.at_ms = now;
	if (number == SIGINT || number == SIGTERM)
		job_note(job, LOG_NOTE, "%s was passed on to the ranks; the same again ends them at once",
			 number == SIGINT ? "the interrupt" : "SIGTERM");
}

/* A scheduler that signals every task signals the head and all agents: that counts once. */
static bool is_the_same(const struct job *job, int number)
{
	return job->last_signal.signal == number &&
	       clock_now_ms() - job->last_signal.at_ms < SAME_SIGNAL_MS;
}

void job_take_signal(struct job *job, int number)
{
	if (!is_the_same(job, number))
		forward_signal(job, number);
}

static void on_signal(struct loop_source *source, uint32_t events)
{
	struct job *job = (struct job *)((char *)source - offsetof(struct job, signals));
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info) {
		int number = (int)info.ssi_signo;

		if (number == SIGCHLD) {
			head_reap(job->head);
			continue;
		}
		if ((number == SIGINT || number == SIGTERM) && ++job->interrupts > 1) {
			job_note(job, LOG_WARNING, "a second signal: ending everything at once");
			if (!job->failed)
				job_fail(job, 128 + number, -1, "stopped by a second %s",
					 strsignal(number));
			job_stop(job, 0);
			continue;
		}
		forward_signal(job, number);
	}
}

/* ---- the loop ---- */

static void on_drained(struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events; /* hold_back asks */
}

static void hold_back(struct job *job)
{
	bool full = job->sink->full && job->sink->full(job->sink->context);

	if (job->sink->full)
		head_pause(job->head, full);
	if (full)
		job_is_active(job); /* it is we who hold them back */
}

static void tell_missing(struct job *job)
{
	const struct job_driver *driver = job->request->driver;
	char words[700];

	if (!driver)
		return;
	head_words(job->head, words, sizeof words);
	for (size_t i = 0; i < job->node_count; i++)
		if (!job->nodes[i].carded)
			driver->missing(driver->context, i, words);
}

/* When the driver wants to be called next; 0: whenever. */
static int64_t drive(struct job *job, int64_t now)
{
	const struct job_driver *driver = job->request->driver;

	return driver && job->phase == PHASE_RUN ? driver->tick(driver->context, now) : 0;
}

int job_input(struct job *job, long node, const void *data, size_t size, struct error *err)
{
	return head_send(job->head, MESSAGE_INPUT, node < 0 ? WIRE_ALL : (uint32_t)node,
			 (uint32_t)job->plan.attempt, 0, NULL, data, size, err);
}

void job_end(struct job *job, int grace_ms)
{
	job_stop(job, grace_ms);
}

static void check_deadline(struct job *job, int64_t now)
{
	char missing[512];

	if (!job->deadline_ms || now < job->deadline_ms)
		return;
	job->deadline_ms = 0;
	if (job->phase == PHASE_LAUNCH || job->phase == PHASE_CARDS) {
		tell_missing(job);
		if (!head_missing(job->head, missing, sizeof missing)) {
			for (size_t i = 0; i < job->node_count; i++)
				if (!job->nodes[i].carded && strlen(missing) < 400)
					sprintf(missing + strlen(missing), "%s%.64s",
						missing[0] ? ", " : "",
						job->request->alloc->nodes[i].name);
		}
		for (size_t i = 0; i < job->node_count; i++)
			job->result->lost[i] |= !head_folder(job->head, i)[0];
		char words[700];

		head_words(job->head, words, sizeof words);
		job_fail(job, ERR_NETWORK, -1,
			 "no agent, or no word about its machine, from %s within %d s%s%s", missing,
			 job->request->start_timeout_ms / 1000, words[0] ? "; " : "", words);
	} else if (job->phase == PHASE_REACH) {
		job_note(job, LOG_WARNING,
			 "%zu of %zu nodes said in time which addresses of the head they reach",
			 job->reach_nodes, job->node_count);
		job_start_ranks(job);
	} else if (job->phase == PHASE_RUN) {
		job_not_started(job);
	} else if (job->phase == PHASE_END) {
		job->phase = PHASE_OVER;
	}
}

static void check_over(struct job *job)
{
	size_t waiting = 0;

	for (size_t i = 0; i < job->node_count; i++)
		waiting += !job->nodes[i].done && !head_is_lost(job->head, i);
	if (!waiting)
		job->phase = PHASE_OVER;
}

static void run(struct job *job)
{
	struct error err = {0};
	int64_t driver_ms = 0;

	job->woke_ms = clock_now_ms();
	job_time_begin(job);
	job->deadline_ms = job->woke_ms + job->request->start_timeout_ms;
	while (job->phase != PHASE_OVER) {
		int64_t now = clock_now_ms(), next = job->tick_ms + TICK_MS;

		if (job->deadline_ms && job->deadline_ms < next)
			next = job->deadline_ms;
		if (job->settle_ms && job->settle_ms < next)
			next = job->settle_ms;
		if (head_silence_due(job->head) && head_silence_due(job->head) < next)
			next = head_silence_due(job->head);
		if (job_time_due(job) && job_time_due(job) < next)
			next = job_time_due(job);
		if (driver_ms && driver_ms < next)
			next = driver_ms;
		if (loop_once(job->loop, next > now ? (int)(next - now) : 0, &err)) {
			job_fail(job, err.code, -1, "%s", err.text);
			return;
		}
		hold_back(job);
		now = clock_now_ms();
		if (now - job->tick_ms >= TICK_MS) {
			/* Were we stopped (^Z)? Then it was us who was silent. */
			bool slept = now - job->woke_ms > 3 * TICK_MS;

			head_tick(job->head, now, slept);
			job_hang_tick(job, now, slept);
			job->tick_ms = now;
		} else if (head_silence_due(job->head) && now >= head_silence_due(job->head)) {
			head_look_at_silence(job->head, now);
		}
		job->woke_ms = now;
		job_settle(job, now);
		check_deadline(job, now);
		job_time_check(job, now);
		driver_ms = drive(job, now);
		if (job->phase >= PHASE_RUN && job->phase != PHASE_OVER)
			check_over(job);
	}
}

static int prepare(struct job *job, struct error *err)
{
	size_t n = job->node_count;

	job->nodes = calloc(n, sizeof *job->nodes);
	job->cards = calloc(n, sizeof *job->cards);
	job->result->lost = calloc(n, sizeof *job->result->lost);
	if (!job->nodes || !job->cards || !job->result->lost)
		return error_memory(err, "the nodes");
	return loop_new(&job->loop, err);
}

static int launch(struct job *job, struct error *err)
{
	const struct job_request *request = job->request;
	struct head_options options = {
		.alloc = request->alloc,
		.engine = request->engine,
		.env = request->env,
		.program = request->program,
		.node_timeout_ms = request->node_timeout_ms,
		.fanout = request->fanout,
		.port = request->plan.port,
	};
	struct head_events events = job_events(job);
	int rc = head_start(job->loop, &options, &events, &job->head, err);

	if (!rc && job->sink->full && job->sink->drained_fd >= 0) {
		job->drained.ready = on_drained;
		rc = loop_add(job->loop, &job->drained, job->sink->drained_fd, EPOLLIN, err);
	}
	return rc;
}

static void ask_again(struct job *job)
{
	const struct job_request *request = job->request;

	if (job->began_ms)
		job->result->lived_ms = clock_now_ms() - job->began_ms;
	job->result->again = request->again && request->again(request->again_context, job->result);
	head_send(job->head, MESSAGE_OVER, WIRE_ALL, 0, 0,
		  json_pack("{s:i, s:b}", "code", job->result->code, "again", job->result->again),
		  NULL, 0, NULL);
}

static void clean(struct job *job)
{
	char left[512] = "";

	loop_remove(job->loop, &job->drained);
	head_stop(job->head, AGENTS_MS, left, sizeof left);
	if (left[0])
		job->result->left = strdup(left);
	if (job->signals.fd >= 0) {
		int fd = job->signals.fd;

		loop_remove(job->loop, &job->signals);
		close(fd);
	}
	gathers_free(&job->gathers);
	job_hang_close(job);
	for (size_t i = 0; job->cards && i < job->node_count; i++)
		machine_free(&job->cards[i]);
	free(job->cards);
	free(job->nodes);
	free(job->reached);
	free(job->shared);
	if (job->planned)
		plan_free(&job->plan);
	loop_free(job->loop);
}

int job_run(const struct job_request *request, const struct job_sink *sink, struct job_result *out,
	    struct error *err)
{
	struct job job = {
		.request = request, .sink = sink, .node_count = request->alloc->node_count};
	struct job_result result = {
		.rank = -1, .node_index = -1, .steps = -1, .attempt = request->plan.attempt};
	struct sigaction ignore = {.sa_handler = SIG_IGN}, old_pipe;
	sigset_t old;
	int rc;

	job.result = &result;
	job.signals.fd = job.drained.fd = -1;
	result.ranks = json_array();
	sigprocmask(SIG_SETMASK, NULL, &old);
	sigaction(SIGPIPE, &ignore, &old_pipe);
	rc = prepare(&job, err);
	job.signals.ready = on_signal;
	if (!rc)
		rc = loop_add_signals(job.loop, &job.signals, taken, sizeof taken / sizeof *taken,
				      err);
	if (!rc)
		rc = launch(&job, err);
	if (!rc) {
		run(&job);
		ask_again(&job);
		if (!result.interrupted)
			job_time_mark(&job);
	}
	if (job.loop)
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
