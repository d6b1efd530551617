/* SPDX-License-Identifier: BSD-3-Clause */
/* A run in four steps, each with a value: what was prepared (struct run_setup), the job's result,
 * its explanation (struct run_end), and whether the job is requeued. */
#include "run/run_program.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "process/logs.h"
#include "progress.h"
#include "run/console.h"
#include "submit/submit.h"
#include "verb.h"

/* The program draws its progress on this terminal. Log lines would be written over it. */
static bool draws_progress(const struct run_options *options)
{
	return options->request.own_program && !options->label && !options->request.quiet &&
	       !log_is_on() && isatty(STDERR_FILENO);
}

/* Return 1 if this process had something else to do than to run the job, with its exit code. */
static int prepare(const struct run_options *options, struct run_setup *setup, int *code,
		   struct error *err)
{
	const struct run_request *request = setup->request;
	struct env *env = env_capture();
	int64_t begin_ms;
	int rc = env ? run_refuse_nested(options, env, err) : error_memory(err, "the environment");

	if (!rc)
		rc = run_as_task(options, env, code, err);
	env_free(env);
	if (rc > 0)
		return 1;
	/* Reaching the file size limit must be an error message, not a signal. The ranks get the
	 * default action back. */
	signal(SIGXFSZ, SIG_IGN);
	begin_ms = clock_now_ms();
	if (!rc)
		rc = submit_environment(options->env, options->env_count, &setup->env, err);
	if (!rc)
		rc = run_prepare(setup, err);
	if (rc)
		return rc;
	if (options->verbose)
		log_user(LOG_DEBUG, "times: allocation and checks %.2f s",
			 (double)(clock_now_ms() - begin_ms) / 1e3);
	run_warn_hosts(setup);
	if (request->own_program && (request->quiet || draws_progress(options)))
		rc = env_set(setup->env, PROGRESS_ENV, request->quiet ? PROGRESS_NONE : "terminal",
			     ENV_FROM_OPTION, request->quiet ? "--quiet" : "a terminal", err);
	if (rc)
		return rc;
	if (!request->dry_run && !run_is_agent(setup))
		return run_prepare_job(setup, err);
	*code = request->dry_run ? run_dry_run(options, setup, err) : run_as_agent(setup, err);
	if (*code < 0)
		*code = verb_fail(err);
	return 1;
}

/* *tail_is_shown: the end of what was printed contains result's output_tail. */
static int run_on_console(const struct run_options *options, struct run_setup *setup,
			  struct job_result *result, bool *tail_is_shown, struct error *err)
{
	struct job_sink sinks[ROLES_MAX];
	struct run_output output = {.sinks = sinks, .note = console_note};
	struct console *console;
	char problem[256] = "";
	int rc = console_open(options, draws_progress(options), &console, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < setup->request->role_count || !i; i++)
		sinks[i] = console_sink(console, i);
	output.context = console;
	rc = run_job(setup, &output, result, err);
	*tail_is_shown = console_close(console, result, problem, sizeof problem);
	/* A job whose output was lost has failed, whatever its ranks' exit codes are. */
	if (problem[0] && !rc && !result->code && !result->cause.text) {
		result->code = ERR_IO;
		result->cause.end = JOB_END_BERTH;
		result->cause.text = strdup(problem);
	} else if (problem[0]) {
		log_user(LOG_WARNING, "%s", problem);
	}
	return rc;
}

/* ---- end ---- */

/* An error that the end of the output still shows is not printed again. */
static void print_end(const struct run_request *request, const struct job_result *result,
		      const struct run_end *end, bool tail_is_shown)
{
	size_t i;
	json_t *line;

	if (result->unkilled)
		log_user(LOG_WARNING, "cannot kill %s", result->unkilled);
	if (!result->code) {
		if (request->job.share.waits && !request->quiet)
			log_user(LOG_NOTE, "the ranks ended after %lld s",
				 (long long)result->run_ms / 1000);
		return;
	}
	/* If the program stopped with its work saved, its output contains no error to show. */
	bool stopped = result->code == ERR_STOPPED;
	bool ctrl_c = result->interrupted == SIGINT && end->kind == RUN_END_INTERRUPTED &&
		      (stopped || result->code == 128 + SIGINT);

	if (json_array_size(result->cause.output_tail) && !request->quiet && !stopped &&
	    !tail_is_shown) {
		log_user(LOG_NOTE, "last output of rank %d:", result->cause.rank);
		json_array_foreach(result->cause.output_tail, i, line)
			fprintf(stderr, "berth:   | %s\n", json_string_value(line));
	}
	if (request->job.log_dir && result->cause.rank >= 0 && !stopped) {
		char dir[PATH_MAX], of_role[PATH_MAX];

		snprintf(of_role, sizeof of_role, "%s%s%s", request->job.log_dir,
			 request->role_count ? "/" : "",
			 request->role_count ? request->roles[result->role].name : "");
		logs_attempt_dir(of_role, request->restarts.max_restarts, result->attempt, dir,
				 sizeof dir);
		log_user(LOG_NOTE, "full output: %s/rank-%04d.log%s%s", dir, result->cause.rank,
			 result->cause.node ? " on " : "",
			 result->cause.node ? result->cause.node : "");
	}
	if (result->no_restart_reason)
		log_user(LOG_NOTE, "not restarting: %s", result->no_restart_reason);
	if (end->known) {
		log_user(LOG_NOTE, "known failure: %s", end->known->cause);
		log_user(LOG_NOTE, "fix: %s (%s)", end->known->fix, end->known->source);
	}
	if (end->why[0] && (!ctrl_c || result->sender[0]))
		log_user(LOG_NOTE, "reason: %s", end->why);
	if (result->saved)
		log_user(LOG_NOTE, "saved: %s", result->saved);
	if (end->next[0])
		log_user(LOG_NOTE, "next: %s", end->next);
	if (end->exception.line)
		log_user(LOG_ERROR, "%s: %s (%s:%d)", result->cause.text, end->exception.text,
			 end->exception.file, end->exception.line);
	else if (!ctrl_c || (result->cause.text && result->cause.signal != SIGINT))
		log_user(stopped ? LOG_NOTE : LOG_ERROR, "%s",
			 result->cause.text    ? result->cause.text
			 : result->interrupted ? "a stop signal ended the job"
					       : "the job failed");
	if (ctrl_c)
		log_user(stopped ? LOG_NOTE : LOG_ERROR, "stopped by Ctrl-C (SIGINT)");
}

/* The job did not start: the report contains that, too. */
static struct job_result result_of_error(const struct error *err)
{
	struct job_result result = {.code = err->code ? err->code : ERR_INTERNAL,
				    .cause = JOB_NO_CAUSE};

	result.cause.text = strdup(err->text);
	return result;
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
	print_end(setup->request, result, &end, tail_is_shown);
	if (requeue && !code)
		log_user(LOG_NOTE, "another run of this job stopped before its end: %s", end.next);
	if (run_end_report(setup, result, &end, RUN_REPORT_MS, &err)) {
		/* Only a report that was asked for is worth a failure. */
		if (!setup->request->report)
			log_user(LOG_WARNING, "%s", err.text);
		else if (verb_fail(&err) && !code)
			code = err.code;
	}
	/* This comes last, because the scheduler may then end this process. */
	if (requeue && !requeue_now(setup->requeue, end.next, sizeof end.next))
		run_end_report(setup, result, &end, RUN_REPORT_MS, &err);
	if (requeue_outlive(setup->requeue))
		requeue_late(setup, result);
	return code;
}

int run_program(const struct run_options *options)
{
	struct run_setup setup = {.request = &options->request};
	struct job_result result = {.cause = JOB_NO_CAUSE};
	bool tail_is_shown = false;
	struct error err = {0};
	int code = 0, rc;

	/* The messages of a sweep's runs mix. */
	if (options->request.job.share.waits)
		log_set_run(options->request.job.log_dir);
	rc = prepare(options, &setup, &code, &err);
	if (!rc)
		rc = run_on_console(options, &setup, &result, &tail_is_shown, &err);
	if (rc <= 0) {
		run_ignore_signals();
		if (rc)
			result = result_of_error(&err);
		code = finish(&setup, &result, tail_is_shown);
	}
	job_result_free(&result);
	run_setup_free(&setup);
	return code;
}
