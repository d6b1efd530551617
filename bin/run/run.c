/* SPDX-License-Identifier: BSD-3-Clause */
/* A run in four steps, each with a value: what was prepared (struct run_setup), the job's result,
 * its explanation (struct run_end), and whether the job is requeued. */
#include "run/run.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/query.h"
#include "alloc/slurm.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "progress.h"
#include "run/console.h"
#include "verb.h"

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

/* ---- prepare ---- */

/* Rank 0 gets no terminal of another session, and needs no /dev/null of another machine. */
static bool is_input(int fd)
{
	struct stat input, null;

	if (isatty(fd))
		return tcgetpgrp(fd) >= 0;
	return !fstat(fd, &input) && (stat("/dev/null", &null) || input.st_rdev != null.st_rdev);
}

static int check_pty(bool own_program, struct error *err)
{
	if (own_program)
		return error_set(err, ERR_USAGE,
				 "--pty has no effect on berth train, whose ranks read no standard "
				 "input");
	if (!isatty(STDIN_FILENO) || !is_input(STDIN_FILENO))
		return error_set(err, ERR_USAGE,
				 "--pty needs a terminal as standard input, in this session");
	return 0;
}

static const char *const *run_argv(const struct run_setup *setup)
{
	return setup->kept_argv ? setup->kept_argv : setup->program;
}

/* The program draws its progress on this terminal. Log lines would be written over it. */
static bool draws_progress(const struct run_setup *setup)
{
	const struct run_options *options = setup->options;

	return setup->own_program && !options->label && !options->quiet && !log_is_on() &&
	       isatty(STDERR_FILENO);
}

/* What run_prepare leaves out, because a dry run and an agent do not need it. */
static int prepare_job(struct run_setup *setup, struct error *err)
{
	const struct run_options *options = setup->options;
	int rc = run_check_rendezvous(setup, err);

	if (!rc)
		rc = run_pull_images(setup, err);
	if (!rc && options->job.log_dir) {
		rc = run_lock_log_dir(options->job.log_dir, err);
		setup->bad_report |= rc && !options->report; /* that there is the other run's */
		/* If this run is killed, no report says that it ended well. */
		if (!rc && !options->report)
			unlink(setup->report);
	}
	if (!rc && options->pty)
		rc = check_pty(setup->own_program, err);
	if (!rc && options->requeue)
		rc = requeue_new(&setup->query, options->max_requeues, &setup->requeue, err);
	return rc;
}

/* Return 1 if this process had something else to do than to run the job, with its exit code. */
static int prepare(struct run_setup *setup, int *code, struct error *err)
{
	const struct run_options *options = setup->options;
	struct env *env = env_capture();
	int64_t begin_ms;
	int rc = env ? run_refuse_nested(options, env, setup->own_program, err)
		     : error_memory(err, "the environment");

	if (!rc)
		rc = run_as_task(options, env, setup->program, code, err);
	env_free(env);
	if (rc > 0)
		return 1;
	/* Reaching the file size limit must be an error message, not a signal. The ranks get the
	 * default action back. */
	signal(SIGXFSZ, SIG_IGN);
	begin_ms = clock_now_ms();
	if (!rc)
		rc = run_prepare(setup, err);
	if (rc)
		return rc;
	if (options->verbose)
		log_user(LOG_DEBUG, "times: allocation and checks %.2f s",
			 (double)(clock_now_ms() - begin_ms) / 1e3);
	run_warn_hosts(setup);
	if (setup->own_program && (options->quiet || draws_progress(setup)))
		rc = env_set(setup->env, PROGRESS_ENV, options->quiet ? PROGRESS_NONE : "terminal",
			     ENV_FROM_OPTION, options->quiet ? "--quiet" : "a terminal", err);
	if (rc)
		return rc;
	if (!options->dry_run && !run_is_agent(setup))
		return prepare_job(setup, err);
	*code = options->dry_run ? run_dry_run(setup, run_argv(setup), err)
				 : run_as_agent(setup, err);
	if (*code < 0)
		*code = verb_fail(err);
	return 1;
}

/* ---- run ---- */

/* The scheduler may kill the job before it ends by itself. */
static void on_stop_report(void *context, const struct job_result *result)
{
	const struct run_setup *setup = context;
	struct run_end end;
	struct error err = {0};

	run_end_find(setup, result, &end);
	if (run_end_report(setup, result, &end, EARLY_REPORT_MS, &err))
		log_user(LOG_WARNING, "%s", err.text);
}

/* These signals must not interrupt the report or the requeue after the ranks have ended, for
 * example if the scheduler repeats its signal. Everything that follows has a deadline. */
static const int ignored_signals[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

static void ignore_signals(void)
{
	for (size_t i = 0; i < sizeof ignored_signals / sizeof *ignored_signals; i++)
		signal(ignored_signals[i], SIG_IGN);
}

static void note(void *context, enum log_level level, const char *text)
{
	const struct run_setup *setup = context;

	console_note(setup->console, level, text);
}

/* What depends on the scheduler's answer and was not needed before. */
static void on_answered(void *context)
{
	struct run_setup *setup = context;
	const struct run_options *options = setup->options;
	const struct alloc_query *query = &setup->query;
	char text[400];

	if (setup->answered)
		return;
	setup->answered = true;
	if ((options->job.warn_before_ms || options->job.warn_signal) && !setup->alloc.end_time)
		note(setup, LOG_WARNING,
		     "job end time unknown: no warning will be sent. Set --end-time.");
	requeue_prepare(setup->requeue);
	requeue_announce(setup->requeue, setup, note);
	if (!options->restarts.max_restarts || setup->alloc.node_count < 2 ||
	    setup->alloc.source != ALLOC_FROM_SLURM)
		return;
	note(setup,
	     slurm_lost_node_policy(query->job, query->limits, query->script, text, sizeof text)
		     ? LOG_NOTE
		     : LOG_WARNING,
	     text);
}

/* Run the job. A signal that arrives after its last check stays blocked until it is ignored. */
static int run_attempts(const struct job_request *request, const struct role_options *roles,
			const struct attempts_policy *policy, const struct job_sink *sinks,
			struct job_result *result, struct error *err)
{
	sigset_t set, old;
	int rc;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof ignored_signals / sizeof *ignored_signals; i++)
		sigaddset(&set, ignored_signals[i]);
	sigprocmask(SIG_BLOCK, &set, &old);
	rc = attempts_run(request, roles->roles, roles->count, policy, sinks, result, err);
	ignore_signals();
	sigprocmask(SIG_SETMASK, &old, NULL);
	return rc;
}

/* *tail_is_shown: the end of what was printed contains result's output_tail. */
static int run_job(struct run_setup *setup, struct job_result *result, bool *tail_is_shown,
		   struct error *err)
{
	const struct run_options *options = setup->options;
	struct attempts_policy policy = options->restarts;
	struct job_request request = options->job;
	struct job_sink sinks[ROLES_MAX];
	char problem[256] = "";
	int rc = console_open(options, draws_progress(setup), &setup->console, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < options->roles.count || !i; i++)
		sinks[i] = console_sink(setup->console, i);
	policy.own_program = setup->own_program;
	request.launch = &setup->launch;
	request.argv = run_argv(setup);
	request.cwd = setup->cwd;
	/* On a login node other limits apply, and launchers have their own rules for them. */
	if (setup->alloc.this_node >= 0)
		limits_read(&request.limits);
	request.stop_report = on_stop_report;
	request.query = &setup->query;
	request.answered = on_answered;
	request.caller = setup;
	request.pass_stdin = !setup->own_program && is_input(STDIN_FILENO);
	request.pty = options->pty;
	request.plan = setup->plan;
	request.plan.max_restarts = options->restarts.max_restarts;
	if (request.warn_signal && !request.warn_before_ms)
		request.warn_before_ms = WARN_MS;
	if (!alloc_query_runs(&setup->query))
		on_answered(setup);
	rc = run_attempts(&request, &options->roles, &policy, sinks, result, err);
	*tail_is_shown = console_close(setup->console, result, problem, sizeof problem);
	setup->console = NULL;
	/* A job whose output was lost has failed, whatever its ranks' exit codes are. */
	if (problem[0] && !rc && !result->code && !result->first_cause) {
		result->code = ERR_IO;
		result->by_program = false;
		result->first_cause = strdup(problem);
	} else if (problem[0]) {
		log_user(LOG_WARNING, "%s", problem);
	}
	return rc;
}

/* ---- end ---- */

/* The job did not start: the report contains that, too. */
static struct job_result result_of_error(const struct error *err)
{
	return (struct job_result){.rank = -1,
				   .code = err->code ? err->code : ERR_INTERNAL,
				   .first_cause = strdup(err->text)};
}

/* The run that was to requeue the job was killed: requeue it now, in a process that has waited for
 * that. */
static void requeue_late(struct run_setup *setup, struct job_result *result)
{
	struct run_end end;

	result->interrupted = SIGKILL;
	run_end_find(setup, result, &end);
	if (end.kind != RUN_END_CANCELLED && end.kind != RUN_END_REQUEUED)
		requeue_now(setup->requeue, end.next, sizeof end.next);
}

/* Explain the result, report it, and requeue the job. Return the exit code. */
static int finish(struct run_setup *setup, struct job_result *result, bool tail_is_shown)
{
	bool requeue;
	struct run_end end;
	struct error err = {0};
	int code = result->code;

	run_end_find(setup, result, &end);
	requeue = requeue_now_due(setup->requeue, result, end.kind, end.next, sizeof end.next);
	run_end_print(setup, result, &end, tail_is_shown);
	if (requeue && !code)
		log_user(LOG_NOTE, "another run of this job stopped before its end: %s", end.next);
	if (run_end_report(setup, result, &end, REPORT_MS, &err)) {
		/* Only a report that was asked for is worth a failure. */
		if (!setup->options->report)
			log_user(LOG_WARNING, "%s", err.text);
		else if (verb_fail(&err) && !code)
			code = err.code;
	}
	/* This comes last, because the scheduler may then end this process. */
	if (requeue && !requeue_now(setup->requeue, end.next, sizeof end.next))
		run_end_report(setup, result, &end, REPORT_MS, &err);
	if (requeue_outlive(setup->requeue))
		requeue_late(setup, result);
	return code;
}

int run_program(const struct run_options *options, const char *const *argv, bool own_program)
{
	struct run_setup setup = {.options = options, .program = argv, .own_program = own_program};
	struct job_result result = {.rank = -1};
	bool tail_is_shown = false;
	struct error err = {0};
	int code = 0, rc;

	/* The messages of a sweep's runs mix. */
	if (options->job.waits)
		log_set_run(options->job.log_dir);
	rc = prepare(&setup, &code, &err);
	if (!rc)
		rc = run_job(&setup, &result, &tail_is_shown, &err);
	if (rc <= 0) {
		ignore_signals();
		if (rc)
			result = result_of_error(&err);
		code = finish(&setup, &result, tail_is_shown);
	}
	job_result_free(&result);
	run_setup_free(&setup);
	return code;
}
