/* SPDX-License-Identifier: BSD-3-Clause */
/* What belongs to this process and not to one job: the loop, signals, children, the output that
 * waits to be printed. */
#include "roles/jobs.h"

#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/loop.h"
#include "controller/controller.h"

static const int handled_signals[] = {SIGINT,  SIGTERM, SIGHUP,	 SIGQUIT,  SIGUSR1, SIGUSR2,
				      SIGTSTP, SIGCONT, SIGTTIN, SIGWINCH, SIGCHLD};

struct jobs {
	struct loop *loop;
	const struct job_sink *sink;
	struct job *job;
	struct loop_source signals, drained;
	struct loop_timer wake; /* only wakes the loop: something is due after this round */
	int64_t suspended_ms;	/* for how long this process was, when last looked at */
	int node_timeout_ms;
};

static void on_drained(struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events; /* apply_backpressure checks it */
}

static void on_wake(struct loop_timer *timer)
{
	(void)timer; /* round_of_all looks what is due */
}

static void on_signal(struct loop_source *source, uint32_t events)
{
	struct jobs *jobs = LOOP_OWNER(source, struct jobs, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGCHLD)
			controller_reap();
		else
			job_signal(jobs->job, &info);
		/* As srun and mpirun do, once all ranks are being stopped and the terminal is
		 * released. */
		if (info.ssi_signo == SIGTSTP)
			kill(getpid(), SIGSTOP);
	}
}

static void apply_backpressure(struct jobs *jobs)
{
	if (jobs->sink->full)
		job_pause(jobs->job, jobs->sink->full(jobs->sink->context));
}

static void check_reader(struct jobs *jobs)
{
	if (job_runs(jobs->job) && !job_has_failed(jobs->job) && jobs->sink->abandoned &&
	    jobs->sink->abandoned(jobs->sink->context))
		job_fail(jobs->job, ERR_IO, -1,
			 "the reader of the output has gone, so the job was ended; --log-dir keeps "
			 "the output, and the job then continues");
}

static void note_suspension(struct jobs *jobs)
{
	int64_t ms = loop_suspended_ms(jobs->loop) - jobs->suspended_ms;

	jobs->suspended_ms += ms;
	if (ms > jobs->node_timeout_ms && job_runs(jobs->job))
		job_note(jobs->sink, LOG_NOTE,
			 "berth run was suspended for %lld s; the ranks continue",
			 (long long)(ms / 1000));
}

/* What the callbacks of the loop have made possible. */
static void round_of_all(struct jobs *jobs)
{
	int64_t now_ms = clock_now_ms(), due_ms, sink_ms = 0;

	due_ms = job_round(jobs->job, now_ms);
	note_suspension(jobs);
	apply_backpressure(jobs);
	check_reader(jobs);
	if (jobs->sink->tick)
		sink_ms = jobs->sink->tick(jobs->sink->context, now_ms);
	if (sink_ms && (!due_ms || sink_ms < due_ms))
		due_ms = sink_ms;
	if (due_ms)
		loop_timer_after(jobs->loop, &jobs->wake, due_ms - now_ms);
	else
		loop_timer_stop(&jobs->wake);
}

static int open_loop(struct jobs *jobs, struct error *err)
{
	const struct job_sink *sink = jobs->sink;
	int rc = loop_new(&jobs->loop, err);

	if (!rc)
		rc = loop_add_signals(jobs->loop, &jobs->signals, handled_signals,
				      sizeof handled_signals / sizeof *handled_signals, err);
	if (!rc && sink->full && sink->drained_fd >= 0)
		rc = loop_add(jobs->loop, &jobs->drained, sink->drained_fd, EPOLLIN, err);
	return rc;
}

/* Set *use_fallback if the launcher brought no agent, so that another one may. */
static int run_with(const struct job_request *request, const struct job_sink *sink,
		    struct job_result *out, bool *use_fallback, struct error *err)
{
	struct jobs jobs = {.sink = sink,
			    .signals = {on_signal, -1, 0},
			    .drained = {on_drained, -1, 0},
			    .wake.due = on_wake,
			    .node_timeout_ms = request->launch->node_timeout_ms};
	struct sigaction ignore = {.sa_handler = SIG_IGN}, old_pipe;
	const struct job_result *result;
	struct error failure = {0};
	sigset_t old;
	int rc;

	sigprocmask(SIG_SETMASK, NULL, &old);
	sigaction(SIGPIPE, &ignore, &old_pipe);
	rc = open_loop(&jobs, err);
	if (!rc)
		rc = job_open(jobs.loop, request, sink, &jobs.job, err);
	if (!rc) {
		for (;;) {
			round_of_all(&jobs);
			if (job_is_over(jobs.job))
				break;
			if (loop_once(jobs.loop, &failure)) {
				job_fail(jobs.job, failure.code, -1, "%s", failure.text);
				break;
			}
		}
		*use_fallback = job_needs_fallback(jobs.job);
		result = job_finish(jobs.job);
		if (!*use_fallback)
			job_announce_end(
				jobs.job, result->code,
				request->should_restart &&
					request->should_restart(request->restart_context, result));
	}
	loop_remove(jobs.loop, &jobs.drained);
	job_close(jobs.job, rc ? NULL : out);
	if (sink->tick)
		sink->tick(sink->context, INT64_MAX);
	loop_close(jobs.loop, &jobs.signals);
	loop_free(jobs.loop);
	sigaction(SIGPIPE, &old_pipe, NULL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return rc;
}

int jobs_run(const struct job_request *request, const struct job_sink *sink, struct job_result *out,
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
