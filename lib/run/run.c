/* SPDX-License-Identifier: BSD-3-Clause */
/* The job of a run that is prepared: its restarts, its report while it may still be killed. */
#include "run/run.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "base/clock.h"
#include "base/file.h"

#define WARN_MS 120000	     /* --warn-signal alone */
#define EARLY_REPORT_MS 1000 /* while agents wait for heartbeats */

int run_write_bounded(const char *path, const char *text, size_t size, int timeout_ms,
		      struct error *err)
{
	struct error *why =
		mmap(NULL, sizeof *why, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int64_t until = clock_now_ms() + timeout_ms;
	pid_t pid = why == MAP_FAILED ? -1 : fork(), ended = 0;

	if (pid == 0) {
		/* Whoever reads from berth must not wait for this process. */
		file_close_range(strncmp(path, "/dev/", 5) && strncmp(path, "/proc/", 6) ? 0 : 3,
				 INT_MAX);
		if (text)
			file_write_atomic(path, text, size, 0666, why);
		else
			(void)!access(path, F_OK);
		_exit(0);
	}
	while (pid > 0 && !ended && clock_now_ms() < until) {
		ended = waitpid(pid, NULL, WNOHANG);
		if (!ended)
			usleep(200);
	}
	if (pid < 0)
		error_set(err, ERR_UNAVAILABLE, "cannot write %s: %m", path);
	else if (!ended)
		error_set(err, ERR_IO, "cannot write %s: the file system has not answered for %d s",
			  path, timeout_ms / 1000);
	else
		*err = *why;
	if (pid > 0 && !ended)
		kill(pid, SIGKILL);
	if (why != MAP_FAILED)
		munmap(why, sizeof *why);
	return -err->code;
}

/* What the controller calls while the job runs. */
struct running {
	struct run_setup *setup;
	const struct run_output *output;
	bool answered; /* the scheduler has answered, or will not */
};

/* The scheduler may kill the job before it ends by itself. */
static void on_stop_report(void *context, const struct job_result *result)
{
	const struct running *running = context;
	struct run_end end;
	struct error err = {0};

	run_end_find(running->setup, result, &end);
	if (run_end_report(running->setup, result, &end, EARLY_REPORT_MS, &err))
		log_user(LOG_WARNING, "%s", err.text);
}

/* What depends on the scheduler's answer and was not needed before. */
static void on_answered(void *context)
{
	struct running *running = context;
	struct run_setup *setup = running->setup;
	const struct run_request *request = setup->request;
	const struct run_output *output = running->output;
	const struct alloc_query *query = &setup->query;
	char text[400];

	if (running->answered)
		return;
	running->answered = true;
	if ((request->job.end.warn_before_ms || request->job.end.warn_signal) &&
	    !setup->alloc.end_time)
		output->note(output->context, LOG_WARNING,
			     "job end time unknown: no warning will be sent. Set --end-time.");
	requeue_prepare(setup->requeue);
	requeue_announce(setup->requeue, output->context, output->note);
	if (!request->restarts.max_restarts || setup->alloc.node_count < 2 ||
	    setup->alloc.source != ALLOC_FROM_SLURM)
		return;
	output->note(
		output->context,
		slurm_lost_node_policy(query->job, query->limits, query->script, text, sizeof text)
			? LOG_NOTE
			: LOG_WARNING,
		text);
}

static const int ignored_signals[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

void run_ignore_signals(void)
{
	for (size_t i = 0; i < sizeof ignored_signals / sizeof *ignored_signals; i++)
		signal(ignored_signals[i], SIG_IGN);
}

int run_job(struct run_setup *setup, const struct run_output *output, struct job_result *result,
	    struct error *err)
{
	const struct run_request *asked = setup->request;
	struct running running = {.setup = setup, .output = output};
	struct attempts_policy policy = asked->restarts;
	struct job_request request = asked->job;
	sigset_t set, old;
	int rc;

	policy.own_program = asked->own_program;
	request.launch = &setup->launch;
	request.argv = run_argv(setup);
	request.cwd = setup->cwd;
	/* On a login node other limits apply, and launchers have their own rules for them. */
	if (setup->alloc.this_node >= 0)
		limits_read(&request.limits);
	request.calls.stop_report = on_stop_report;
	request.calls.query = &setup->query;
	request.calls.answered = on_answered;
	request.calls.context = &running;
	request.pass_stdin = !asked->own_program && run_has_input();
	request.plan = setup->plan;
	request.plan.max_restarts = asked->restarts.max_restarts;
	if (request.end.warn_signal && !request.end.warn_before_ms)
		request.end.warn_before_ms = WARN_MS;
	if (!alloc_query_runs(&setup->query))
		on_answered(&running);
	/* A signal that arrives after the job's last check stays blocked until it is ignored. */
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof ignored_signals / sizeof *ignored_signals; i++)
		sigaddset(&set, ignored_signals[i]);
	sigprocmask(SIG_BLOCK, &set, &old);
	rc = attempts_run(&request, asked->roles, asked->role_count, &policy, output->sinks, result,
			  err);
	run_ignore_signals();
	sigprocmask(SIG_SETMASK, &old, NULL);
	return rc;
}
