/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/run.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
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
#include "base/json.h"
#include "base/log.h"
#include "report/collapse.h"
#include "run/printer.h"
#include "explain/explain.h"
#include "process/logs.h"
#include "progress.h"
#include "verb.h"

#define WARN_MS 120000	     /* --warn-signal alone */
#define EARLY_REPORT_MS 1000 /* while agents wait for heartbeats */
#define SHOWN_LINES 48	     /* of the ranks: about a screen */
#define COLLAPSE_RANKS 16    /* more of them collapse on a terminal */

/* ---- output of the job ---- */

struct console {
	struct run_setup *setup;
	bool answered; /* the scheduler has answered, or will not */
	struct printer *printer;
	struct collapse *collapse; /* NULL: lines are not collapsed */
	enum run_collapse collapse_mode;
	enum log_level limit;
	bool over;  /* progress lines overwrite each other */
	bool heard; /* rank 0 has sent one */
	double begin_s;
	int64_t drawn_ms;
	bool one;   /* stdout and stderr are the same terminal or file */
	bool dirty; /* the terminal's last line is a progress line */
	/* The ranks of the last lines, as a ring; ~rank: a reader of stderr does not see it. */
	int shown[SHOWN_LINES];
	size_t lines;
};

/* Does the end of what was printed still show the rank's last count lines? */
static bool is_shown(const struct console *console, int rank, size_t count)
{
	size_t size = console->lines < SHOWN_LINES ? console->lines : SHOWN_LINES, seen = 0;

	for (size_t i = 1; i <= size && seen < count; i++) {
		int line = console->shown[(console->lines - i) % SHOWN_LINES];

		if (line == ~rank)
			return false;
		seen += line == rank;
	}
	return seen >= count;
}

static void end_progress(struct console *console)
{
	if (console->dirty)
		printer_note(console->printer, PROGRESS_OVER, sizeof PROGRESS_OVER - 1);
	console->dirty = false;
}

/* Print a progress line, which the next line will overwrite. */
static void draw_progress(struct console *console, const char *text, size_t size)
{
	char line[512];
	int length = snprintf(line, sizeof line, PROGRESS_OVER "%.*s",
			      (int)progress_fit(STDERR_FILENO, size), text);

	printer_note(console->printer, line,
		     (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
	console->dirty = true;
}

/* Once a second, until rank 0 draws its own progress. */
static void draw_start(struct console *console, int64_t now_ms)
{
	char text[80];

	if (!console->over || console->heard || now_ms - console->drawn_ms < 1000)
		return;
	progress_elapsed("", clock_now_s() - console->begin_s, "starting the ranks", text,
			 sizeof text);
	draw_progress(console, text, strlen(text));
	console->drawn_ms = now_ms;
}

/* How many bytes of a line of rank 0 mark it as progress; 0: it is none. */
static size_t progress_mark(const char *text, size_t size)
{
	if (logs_is_status(text, size))
		return sizeof LOGS_STATUS_MARK - 1;
	return size && !memcmp(text, PROGRESS_MARK, sizeof PROGRESS_MARK - 1)
		       ? sizeof PROGRESS_MARK - 1
		       : 0;
}

static void on_output(void *context, int rank, bool is_err, const char *text, size_t size,
		      bool newline)
{
	struct console *console = context;
	size_t mark = console->over && !rank && is_err && newline ? progress_mark(text, size) : 0;

	if (mark) {
		console->heard = true;
		draw_progress(console, text + mark, size - mark);
		return;
	}
	if (newline)
		console->shown[console->lines++ % SHOWN_LINES] =
			is_err || console->one ? rank : ~rank;
	if (console->collapse) {
		collapse_line(console->collapse, rank, is_err, text, size, newline, clock_now_ms());
		return;
	}
	end_progress(console);
	printer_line(console->printer, rank, is_err, text, size, newline);
}

static void on_collapsed(void *context, const char *ranks, int rank, bool is_err, const char *text,
			 size_t size, bool newline)
{
	struct console *console = context;

	end_progress(console);
	printer_ranks_line(console->printer, ranks, rank, is_err, text, size, newline);
}

static int64_t on_tick(void *context, int64_t now_ms)
{
	struct console *console = context;

	if (now_ms != INT64_MAX)
		draw_start(console, now_ms);
	return console->collapse ? collapse_tick(console->collapse, now_ms) : 0;
}

static void on_begun(void *context, int world_size)
{
	struct console *console = context;
	bool many = world_size > COLLAPSE_RANKS && isatty(STDOUT_FILENO);

	collapse_free(console->collapse); /* nothing waits after an attempt */
	console->collapse = NULL;
	if (console->collapse_mode == RUN_COLLAPSE_ON ||
	    (console->collapse_mode == RUN_COLLAPSE_AUTO && many))
		collapse_new(world_size, on_collapsed, console, &console->collapse, NULL);
}

static void on_note(void *context, enum log_level level, const char *text)
{
	const struct console *console = context;

	if (level <= console->limit)
		log_user(level, "%s", text);
}

/* A line of berth itself. */
static void on_log(void *context, const char *line, size_t size)
{
	struct console *console = context;

	end_progress(console);
	printer_note(console->printer, line, size);
}

/* Output is stuck. If it is stderr, the messages about the end must not block. */
static void leave_stderr(void)
{
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	int fd = poll(&ready, 1, 0) ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (fd >= 0)
		dup2(fd, STDERR_FILENO);
}

static bool is_full(void *context)
{
	struct console *console = context;

	return printer_full(console->printer);
}

/* Like other programs in front of "| head". */
static bool is_abandoned(void *context)
{
	const struct console *console = context;

	return printer_has_no_reader(console->printer);
}

/* An error that the end of the output still shows is not printed again. */
static void print_end(const struct job_result *result, const struct run_end *end,
		      const struct run_options *options, bool tail_is_shown)
{
	size_t i;
	json_t *line;

	if (result->unkilled)
		log_user(LOG_WARNING, "cannot kill %s", result->unkilled);
	if (!result->code) {
		if (options->shared.plan.waits && !options->quiet)
			log_user(LOG_NOTE, "the ranks ended after %lld s",
				 (long long)result->run_ms / 1000);
		return;
	}
	/* If the program stopped with its work saved, its output contains no error to show. */
	bool stopped = result->code == ERR_STOPPED;
	bool ctrl_c = result->interrupted == SIGINT && !strcmp(end->kind, "interrupted") &&
		      (stopped || result->code == 128 + SIGINT);

	if (json_array_size(result->output_tail) && !options->quiet && !stopped && !tail_is_shown) {
		log_user(LOG_NOTE, "last output of rank %d:", result->rank);
		json_array_foreach(result->output_tail, i, line)
			fprintf(stderr, "berth:   | %s\n", json_string_value(line));
	}
	if (options->job.log_dir && result->rank >= 0 && !stopped) {
		char dir[PATH_MAX];

		attempts_log_dir(options->job.log_dir, options->restarts.max_restarts,
				 result->attempt, dir, sizeof dir);
		log_user(LOG_NOTE, "full output: %s/rank-%04d.log%s%s", dir, result->rank,
			 result->node ? " on " : "", result->node ? result->node : "");
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
		log_user(LOG_ERROR, "%s: %s (%s:%d)", result->first_cause, end->exception.text,
			 end->exception.file, end->exception.line);
	else if (!ctrl_c || result->signal != SIGINT)
		log_user(stopped ? LOG_NOTE : LOG_ERROR, "%s",
			 result->first_cause ? result->first_cause : "the job failed");
	if (ctrl_c)
		log_user(stopped ? LOG_NOTE : LOG_ERROR, "stopped by Ctrl-C (SIGINT)");
}

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

static int write_report(const struct run_setup *setup, const struct job_result *result,
			const struct run_end *end, int timeout_ms, struct error *err)
{
	const char *path = setup->report;
	JSON_AUTO report = NULL;
	char *text;
	int rc;

	if (!path)
		return 0;
	report = job_report(result);
	if (report) {
		json_t *program = json_array();

		for (size_t i = 0; setup->program && setup->program[i]; i++)
			json_array_append_new(program, json_text(setup->program[i]));
		json_object_set_new(report, "version", json_string(BERTH_VERSION));
		json_object_set_new(report, "program", program);
		json_object_set_new(report, "kind", json_string(end->kind));
		json_object_set_new(report, "why", json_text(end->why[0] ? end->why : NULL));
		json_object_set_new(report, "known", explain_row_json(end->known));
		json_object_set_new(report, "exception",
				    end->exception.line
					    ? json_pack("{s:o, s:o, s:i}", "text",
							json_text(end->exception.text), "file",
							json_text(end->exception.file), "line",
							end->exception.line)
					    : json_null());
		if (end->next[0])
			json_object_set_new(report, "next", json_text(end->next));
	}
	text = report ? json_dumps(report, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
	if (!text)
		return error_memory(err, "the report");
	size_t length = strlen(text);

	text[length] = '\n'; /* ends the last line; replaces the terminating NUL */
	rc = run_write_bounded(path, text, length + 1, timeout_ms, err);
	free(text);
	return rc;
}

/* The scheduler may kill the job before it ends by itself. */
static void on_stop_report(void *context, const struct job_result *result)
{
	const struct run_setup *setup = ((const struct console *)context)->setup;
	struct run_end end;
	struct error err = {0};

	run_end_find(setup, result, &end);
	if (write_report(setup, result, &end, EARLY_REPORT_MS, &err))
		log_user(LOG_WARNING, "%s", err.text);
}

/* The job did not start: the report contains that, too. */
static struct job_result result_of_error(const struct error *err)
{
	return (struct job_result){.rank = -1,
				   .code = err->code ? err->code : ERR_INTERNAL,
				   .first_cause = strdup(err->text)};
}

/* These signals must not interrupt the report or the requeue after the ranks have ended, for
 * example if the scheduler repeats its signal. Everything that follows has a deadline. */
static const int ignored_signals[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

static void ignore_signals(void)
{
	for (size_t i = 0; i < sizeof ignored_signals / sizeof *ignored_signals; i++)
		signal(ignored_signals[i], SIG_IGN);
}

/* What depends on the scheduler's answer and was not needed before. */
static void on_answered(void *context)
{
	struct console *console = context;
	struct run_setup *setup = console->setup;
	const struct run_options *options = setup->options;
	const struct alloc_query *query = &setup->query;
	char text[400];

	if (console->answered)
		return;
	console->answered = true;
	if ((options->job.warn_before_ms || options->job.warn_signal) && !setup->alloc.end_time)
		on_note(console, LOG_WARNING,
			"job end time unknown: no warning will be sent. Set --end-time.");
	requeue_prepare(setup->requeue);
	requeue_announce(setup->requeue, console, on_note);
	if (!options->restarts.max_restarts || setup->alloc.node_count < 2 ||
	    setup->alloc.source != ALLOC_FROM_SLURM)
		return;
	on_note(console,
		slurm_lost_node_policy(query->job, query->limits, query->script, text, sizeof text)
			? LOG_NOTE
			: LOG_WARNING,
		text);
}

/* Run the job. A signal that arrives after its last check stays blocked until it is ignored. */
static int run_attempts(const struct job_request *request, const struct attempts_policy *policy,
			const struct job_sink *sink, struct job_result *result, struct error *err)
{
	sigset_t set, old;
	int rc;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof ignored_signals / sizeof *ignored_signals; i++)
		sigaddset(&set, ignored_signals[i]);
	sigprocmask(SIG_BLOCK, &set, &old);
	rc = attempts_run(request, policy, sink, result, err);
	ignore_signals();
	sigprocmask(SIG_SETMASK, &old, NULL);
	return rc;
}

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

/* *tail_is_shown: the end of what was printed contains result's output_tail. */
static int run(struct run_setup *setup, const char *const *argv, bool own_program, bool progress,
	       struct job_result *result, bool *tail_is_shown, struct error *err)
{
	const struct run_options *options = setup->options;
	struct attempts_policy policy = options->restarts;
	struct job_request request = options->job;
	struct console console = {
		.limit = options->quiet	    ? LOG_ERROR
			 : options->verbose ? LOG_DEBUG
					    : LOG_NOTE,
		.over = progress,
		.collapse_mode = options->collapse,
		.begin_s = clock_now_s(),
		.setup = setup,
	};
	char problem[256];
	int rc = printer_new(STDOUT_FILENO, STDERR_FILENO, options->label, &console.printer, err);

	if (rc)
		return rc;
	struct job_sink sink = {
		.context = &console,
		.output = on_output,
		.note = on_note,
		.begun = on_begun,
		.tick = on_tick,
		.full = is_full,
		.drained_fd = printer_drained_fd(console.printer),
		.abandoned = request.log_dir ? NULL : is_abandoned,
	};

	console.one = printer_is_one(console.printer);
	log_set_level(console.limit);
	log_set_writer(on_log, &console);
	policy.own_program = own_program;
	request.launch = &setup->launch;
	request.argv = argv;
	request.cwd = setup->cwd;
	/* On a login node other limits apply, and launchers have their own rules for them. */
	if (setup->alloc.this_node >= 0)
		limits_read(&request.limits);
	request.stop_report = on_stop_report;
	request.query = &setup->query;
	request.answered = on_answered;
	request.caller = &console;
	request.pass_stdin = !own_program && is_input(STDIN_FILENO);
	request.pty = options->pty;
	request.plan = setup->plan;
	request.plan.max_restarts = options->restarts.max_restarts;
	if (request.warn_signal && !request.warn_before_ms)
		request.warn_before_ms = WARN_MS;
	if (!alloc_query_runs(&setup->query))
		on_answered(&console);
	on_tick(&console, clock_now_ms());
	rc = run_attempts(&request, &policy, &sink, result, err);
	end_progress(&console);
	collapse_free(console.collapse);
	*tail_is_shown = is_shown(&console, result->rank, json_array_size(result->output_tail));
	log_set_writer(NULL, NULL);
	bool abandoned = sink.abandoned && is_abandoned(&console);

	if (!printer_free(console.printer, result->interrupted ? 2000 : -1, problem,
			  sizeof problem))
		leave_stderr();
	if (!problem[0] || (abandoned && result->code))
		return rc;
	*tail_is_shown = false;
	/* A job whose output was lost has failed, whatever its ranks' exit codes are. */
	if (!rc && !result->code && !result->first_cause) {
		result->code = ERR_IO;
		result->by_program = false;
		result->first_cause = strdup(problem);
	} else {
		log_user(LOG_WARNING, "%s", problem);
	}
	return rc;
}

int run_program(const struct run_options *options, const char *const *argv, bool progress)
{
	struct run_setup setup = {0};
	struct job_result result = {.rank = -1};
	struct error err = {0}, report_err = {0};
	struct run_end end = {.kind = "berth"};

	/* The messages of a sweep's runs mix. */
	if (options->shared.plan.waits)
		log_set_run(options->job.log_dir);

	struct env *env = env_capture();
	int as_task = 0;
	int rc = env ? run_refuse_nested(options, env, progress, &err)
		     : error_memory(&err, "the environment");

	if (!rc)
		rc = run_as_task(options, env, argv, &as_task, &err);
	env_free(env);
	if (rc > 0)
		return as_task;
	/* Reaching the file size limit must be an error message, not a signal. The ranks get the
	 * default action back. */
	signal(SIGXFSZ, SIG_IGN);
	int64_t begin_ms = clock_now_ms();

	if (!rc)
		rc = run_prepare(options, argv, &setup, &err);
	setup.program = argv;
	if (setup.kept_argv)
		argv = setup.kept_argv;
	setup.own_program = progress;
	if (!rc && options->verbose)
		log_user(LOG_DEBUG, "times: allocation and checks %.2f s",
			 (double)(clock_now_ms() - begin_ms) / 1e3);
	if (!rc)
		run_warn_hosts(&setup);
	bool bad_report = rc && setup.bad_report, tail_is_shown = false;
	bool own_program = progress;

	/* Log lines would be written over the progress line. */
	progress = progress && !options->label && !options->quiet && !log_is_on() &&
		   isatty(STDERR_FILENO);
	if (!rc && (progress || (own_program && options->quiet)))
		rc = env_set(setup.env, PROGRESS_ENV, progress ? "terminal" : PROGRESS_NONE,
			     ENV_FROM_OPTION, progress ? "a terminal" : "--quiet", &err);
	if (!rc && options->dry_run) {
		rc = run_dry_run(&setup, argv, &err);
		run_setup_free(&setup);
		return rc ? verb_fail(&err) : 0;
	}
	if (!rc && run_is_agent(&setup)) {
		rc = run_as_agent(&setup, &err);
		run_setup_free(&setup);
		return rc < 0 ? verb_fail(&err) : rc;
	}
	if (!rc)
		rc = run_check_rendezvous(&setup, &err);
	if (!rc && options->job.log_dir) {
		rc = run_lock_log_dir(options->job.log_dir, &err);
		bad_report |= rc && !options->report; /* the report there is the other run's */
		/* If this run is killed, no report says that it ended well. */
		if (!rc && !options->report)
			unlink(setup.report);
	}
	if (!rc && options->pty)
		rc = check_pty(own_program, &err);
	if (!rc && options->requeue)
		rc = requeue_new(&setup.query, options->max_requeues, &setup.requeue, &err);
	if (!rc)
		rc = run(&setup, argv, own_program, progress, &result, &tail_is_shown, &err);
	ignore_signals();
	if (rc)
		result = result_of_error(&err);
	run_end_find(&setup, &result, &end);
	bool will_requeue =
		requeue_now_due(setup.requeue, &result, end.kind, end.next, sizeof end.next);

	print_end(&result, &end, options, tail_is_shown);
	if (will_requeue && !result.code)
		log_user(LOG_NOTE, "another run of this job stopped before its end: %s", end.next);
	rc = result.code;
	/* If the run failed because of an unwritable report, that was already reported. */
	if (!bad_report && write_report(&setup, &result, &end, REPORT_MS, &report_err)) {
		/* Only a report that was asked for is worth a failure. */
		if (!options->report)
			log_user(LOG_WARNING, "%s", report_err.text);
		else if (verb_fail(&report_err) && !rc)
			rc = report_err.code;
	}
	/* This comes last, because the scheduler may then end this process. */
	if (will_requeue && !requeue_now(setup.requeue, end.next, sizeof end.next) && !bad_report)
		write_report(&setup, &result, &end, REPORT_MS, &report_err);
	if (requeue_outlive(setup.requeue)) {
		result.interrupted = SIGKILL; /* the run that was to requeue the job */
		run_end_find(&setup, &result, &end);
		if (strcmp(end.kind, "cancelled") != 0 && strcmp(end.kind, "requeued") != 0)
			requeue_now(setup.requeue, end.next, sizeof end.next);
	}
	job_result_free(&result);
	run_setup_free(&setup);
	return rc;
}
