/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/run.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/printer.h"
#include "explain/explain.h"
#include "process/logs.h"
#include "progress.h"
#include "run/run_tasks.h"
#include "verb.h"

#define WARN_MS 120000 /* --warn-signal alone */

static int set_variable(struct env *env, const char *text, const char *why, struct error *err)
{
	char *name = strdup(text), *value = name ? strchr(name, '=') : NULL;
	int rc;

	if (!value) {
		free(name);
		return name ? error_set(err, ERR_USAGE, "%s is no NAME=VALUE", text)
			    : error_memory(err, "the environment");
	}
	*value++ = 0;
	rc = env_set(env, name, value, ENV_FROM_OPTION, why, err);
	free(name);
	return rc;
}

/* The first N nodes, or pretended ones. */
static int choose_nodes(struct run_setup *setup, struct error *err)
{
	size_t wanted = (size_t)setup->options->nodes;
	struct alloc *alloc = &setup->alloc;
	struct alloc pretended;
	int rc;

	if (setup->engine->one_machine && !setup->engine->by_socket_pair) {
		rc = engine_pretend(alloc, wanted ? wanted : alloc->node_count, &pretended, err);
		if (rc)
			return rc;
		alloc_free(alloc);
		*alloc = pretended;
		return 0;
	}
	if (wanted && wanted != alloc->node_count && alloc->meet)
		return error_set(err, ERR_USAGE,
				 "--nodes %zu: here all %zu take part, each was started by itself",
				 wanted, alloc->node_count);
	if (wanted > alloc->node_count)
		return error_set(
			err, ERR_USAGE,
			"--nodes %zu: the allocation has %zu node%s (%s); ask the scheduler "
			"for more, name them with --hosts, or pretend with --launcher loopback",
			wanted, alloc->node_count, alloc->node_count == 1 ? "" : "s",
			alloc->why ? alloc->why : alloc->source);
	for (size_t i = wanted; wanted && i < alloc->node_count; i++)
		free(alloc->nodes[i].name);
	if (wanted)
		alloc->node_count = wanted;
	return 0;
}

/* Can FILE be made? The folder is what decides; an old file is replaced. */
static int check_report(const char *path, struct error *err)
{
	const char *slash = strrchr(path, '/');
	char *folder =
		slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
	struct stat info;
	int rc = 0;

	if (!folder)
		return error_memory(err, "--report");
	if (!*path || (!stat(path, &info) && S_ISDIR(info.st_mode)))
		rc = error_set(err, ERR_OUTPUT, "--report '%s' is no file that could be written",
			       path);
	else if (access(folder, W_OK | X_OK))
		rc = error_set(err, ERR_OUTPUT, "--report %s cannot be written: %s: %s", path,
			       folder, strerror(errno));
	free(folder);
	return rc;
}

static int find_self(char *out, size_t size, struct error *err)
{
	ssize_t n = readlink("/proc/self/exe", out, size - 1);

	if (n <= 0)
		return error_set(err, ERR_UNAVAILABLE, "/proc/self/exe: %s; is /proc mounted?",
				 strerror(errno));
	out[n] = 0;
	return 0;
}

int run_prepare(const struct run_options *options, const char *const *argv, struct run_setup *out,
		struct error *err)
{
	int rc = 0;

	out->options = options;
	out->env = env_capture();
	out->cwd = getcwd(NULL, 0);
	if (!out->env)
		return error_memory(err, "the environment");
	for (size_t i = 0; !rc && i < options->env_count; i++)
		rc = set_variable(out->env, options->env[i], "--env", err);
	if (!rc)
		rc = job_check_program(argv[0], out->env, err);
	if (!rc && options->log_dir && !options->dry_run)
		rc = logs_check_folder(options->log_dir, err);
	if (!rc && options->report && !options->dry_run)
		out->bad_report = (rc = check_report(options->report, err)) != 0;
	if (!rc)
		rc = find_self(out->program, sizeof out->program, err);
	if (!rc)
		rc = alloc_read(out->env, &options->shared.alloc, &out->alloc, err);
	if (!rc)
		alloc_ask(out->env, &out->alloc);
	if (!rc)
		rc = run_end_time(out, err);
	if (!rc)
		rc = run_old_stop_file(out, err);
	if (!rc)
		rc = engine_find(options->engine, &out->alloc, out->env, &out->engine, err);
	if (!rc)
		rc = choose_nodes(out, err);
	if (!rc) {
		const struct attempts_policy policy = run_policy(options, false);

		rc = attempts_check(&policy, &out->alloc, err);
	}
	if (!rc && options->max_restarts && out->engine->start_tasks)
		rc = error_set(err, ERR_USAGE,
			       "--max-restarts: the launcher %s starts its ranks once; without --launcher "
			       "they are berth's to start again",
			       out->engine->name);
	return rc;
}

struct attempts_policy run_policy(const struct run_options *options, bool ours)
{
	return (struct attempts_policy){.max_restarts = options->max_restarts,
					.spares = (size_t)options->spares,
					.min_nodes = (size_t)options->min_nodes,
					.ours = ours};
}

void run_setup_free(struct run_setup *setup)
{
	requeue_free(setup->requeue);
	alloc_free(&setup->alloc);
	env_free(setup->env);
	free(setup->cwd);
	memset(setup, 0, sizeof *setup);
}

/* ---- what the job tells ---- */

struct teller {
	struct printer *printer;
	enum log_level limit;
	bool over;  /* lines of progress go over each other */
	bool dirty; /* the terminal's last line is one */
	struct run_tasks *tasks; /* NULL: the agents start the ranks */
};

static void end_progress(struct teller *teller)
{
	if (teller->dirty)
		printer_line(teller->printer, 0, true, "", 0, true);
	teller->dirty = false;
}

/* Rank 0's line of progress, which the next one will go over. */
static void on_progress(struct teller *teller, const char *text, size_t size)
{
	size = progress_fit(STDERR_FILENO, size);
	printer_line(teller->printer, 0, true, PROGRESS_OVER, sizeof PROGRESS_OVER - 1, false);
	printer_line(teller->printer, 0, true, text, size, false);
	teller->dirty = true;
}

static void on_output(void *context, int rank, bool is_err, const char *text, size_t size,
		      bool newline)
{
	struct teller *teller = context;
	size_t mark = sizeof PROGRESS_MARK - 1;

	if (teller->over && !rank && is_err && newline && size >= mark &&
	    !memcmp(text, PROGRESS_MARK, mark)) {
		on_progress(teller, text + mark, size - mark);
		return;
	}
	end_progress(teller);
	printer_line(teller->printer, rank, is_err, text, size, newline);
}

static void on_note(void *context, enum log_level level, const char *text)
{
	struct teller *teller = context;
	char line[1400];
	int size;

	if (level > teller->limit)
		return;
	end_progress(teller);
	size = snprintf(line, sizeof line, "berth: %s%s\n", level == LOG_WARNING ? "warning: " : "",
			text);
	if (size > 0 && file_write_all(STDERR_FILENO, line,
				       (size_t)size < sizeof line ? (size_t)size : sizeof line - 1))
		return; /* nobody is left to be told */
}

static void on_planned(void *context, const struct plan *plan)
{
	struct teller *teller = context;

	if (teller->tasks)
		run_tasks_planned(teller->tasks, plan);
}

static bool is_full(void *context)
{
	struct teller *teller = context;

	return printer_full(teller->printer);
}

static void tell_end(const struct job_result *result, const struct run_end *end,
		     const struct run_options *options)
{
	size_t i;
	json_t *line;

	if (result->left)
		fprintf(stderr, "berth: warning: could not be ended: %s\n", result->left);
	if (!result->code)
		return;
	/* Who stopped with its work saved has no fault to look for in what it said. */
	bool stopped = result->code == ERR_STOPPED && result->by_program;

	if (json_array_size(result->last) && !options->quiet && !stopped) {
		fprintf(stderr, "berth: the last lines of rank %d:\n", result->rank);
		json_array_foreach(result->last, i, line)
			fprintf(stderr, "berth:   | %s\n", json_string_value(line));
	}
	if (options->log_dir && result->rank >= 0 && !stopped) {
		char folder[PATH_MAX];

		attempts_log_dir(options->log_dir, options->max_restarts, result->attempt, folder,
				 sizeof folder);
		fprintf(stderr, "berth: its output: %s/rank-%04d.log%s%s\n", folder, result->rank,
			result->node ? " on " : "", result->node ? result->node : "");
	}
	if (result->refused)
		fprintf(stderr, "berth: it is not started again: %s\n", result->refused);
	if (end->known)
		fprintf(stderr, "berth: this is known: %s\nberth: what to do: %s (%s)\n",
			end->known->cause, end->known->mend, end->known->source);
	if (end->why[0])
		fprintf(stderr, "berth: why: %s\n", end->why);
	if (result->saved)
		fprintf(stderr, "berth: saved: %s\n", result->saved);
	if (end->next[0])
		fprintf(stderr, "berth: next: %s\n", end->next);
	fprintf(stderr, "berth: %s\n", result->first_cause ? result->first_cause : "it failed");
}

static int write_report(const struct run_options *options, const struct job_result *result,
			const struct run_end *end, struct error *err)
{
	JSON_AUTO report = NULL;
	char *text;
	int rc;

	if (!options->report)
		return 0;
	report = job_report(result);
	if (report) {
		json_object_set_new(report, "kind", json_string(end->kind));
		json_object_set_new(report, "why", json_text(end->why[0] ? end->why : NULL));
		json_object_set_new(report, "known", explain_row_json(end->known));
		if (end->next[0])
			json_object_set_new(report, "next", json_text(end->next));
	}
	text = report ? json_dumps(report, JSON_INDENT(2)) : NULL;
	if (!text)
		return error_memory(err, "the report");
	size_t length = strlen(text);

	text[length] = '\n'; /* a file of lines, in the place of the end of the string */
	rc = file_write_atomic(options->report, text, length + 1, 0666, err);
	free(text);
	return rc;
}

/* It did not come to a start: the report says so as well. */
static void result_of_error(const struct error *err, struct job_result *result)
{
	memset(result, 0, sizeof *result);
	result->rank = -1;
	result->code = err->code ? err->code : ERR_INTERNAL;
	result->first_cause = strdup(err->text);
}

static int run(struct run_setup *setup, const char *const *argv, bool ours, bool progress,
	       struct job_result *result, struct error *err)
{
	const struct run_options *options = setup->options;
	const struct attempts_policy policy = run_policy(options, ours);
	struct teller teller = {
		.limit = options->quiet	    ? LOG_ERROR
			 : options->verbose ? LOG_DEBUG
					    : LOG_NOTE,
		.over = progress,
	};
	struct run_tasks tasks = {0};
	bool native = setup->engine->start_tasks != NULL;
	char problem[256];
	int rc = printer_new(STDOUT_FILENO, STDERR_FILENO, options->label, &teller.printer, err);

	if (!rc && native) {
		teller.tasks = &tasks;
		rc = run_tasks_prepare(&tasks, setup, argv, err);
	}
	if (rc) {
		run_tasks_end(&tasks, NULL);
		printer_free(teller.printer, 0, problem, sizeof problem);
		return rc;
	}
	struct job_sink sink = {
		.context = &teller,
		.output = on_output,
		.note = on_note,
		.full = is_full,
		.planned = on_planned,
		.drained_fd = printer_drained_fd(teller.printer),
	};
	struct job_request request = {
		.alloc = &setup->alloc,
		.engine = setup->engine,
		.env = setup->env,
		.program = setup->program,
		.argv = native ? tasks.argv : argv,
		.driver = native ? &tasks.driver : NULL,
		.cwd = setup->cwd,
		.plan = options->shared.plan,
		.log_dir = options->log_dir,
		.pmix = native ? JOB_PMIX_OFF : options->pmix, /* theirs is the cluster's */
		.port_hold = options->port_hold,
		.pass_stdin = !isatty(STDIN_FILENO),
		.node_timeout_ms = options->node_timeout_ms,
		.start_timeout_ms = options->start_timeout_ms,
		.hang_timeout_ms = options->hang_timeout_ms,
		.fanout = (size_t)options->fan_out,
	};

	log_limit(teller.limit);
	request.plan.port = options->port;
	/* Those of the job's earlier starts have had numbers of their own. */
	request.plan.attempt = setup->alloc.restarts * (options->max_restarts + 1);
	request.warn = options->warn_before_ms || options->warn_signal;
	request.warn_before_ms = options->warn_before_ms ? options->warn_before_ms : WARN_MS;
	request.warn_signal = options->warn_signal;
	if (request.warn && !setup->alloc.end_time)
		on_note(&teller, LOG_WARNING,
			"nobody says when the job's time is over, so there will be no warning; "
			"--end-time does");
	requeue_say(setup->requeue, &teller, on_note);
	rc = attempts_run(&request, &policy, &sink, result, err);
	run_tasks_end(&tasks, rc ? NULL : result);
	end_progress(&teller);
	printer_free(teller.printer, result->interrupted ? 2000 : -1, problem, sizeof problem);
	if (!problem[0])
		return rc;
	/* A job whose output did not arrive has not ended well, whatever its ranks say. */
	if (!rc && !result->code && !result->first_cause) {
		result->code = ERR_IO;
		result->by_program = false;
		result->first_cause = strdup(problem);
	} else {
		fprintf(stderr, "berth: warning: %s\n", problem);
	}
	return rc;
}

/* Who wants restarts after the loss of a node should know what becomes of the job itself. */
static void tell_lost_nodes(const struct run_setup *setup)
{
	const struct run_options *options = setup->options;
	char text[400];

	if (!options->max_restarts || setup->alloc.node_count < 2 || options->quiet)
		return;
	slurm_lost_node(setup->env, &setup->alloc, SLURM_ASK_MS, text, sizeof text);
	if (text[0])
		fprintf(stderr, "berth: %s\n", text);
}

/* The ranks have ended: a scheduler that sends its signal once more shall not end the report, or the job's
 * way back into the queue. All that follows has deadlines. */
static void end_undisturbed(void)
{
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR2, SIG_IGN);
}

int run_program(const struct run_options *options, const char *const *argv, bool progress)
{
	struct run_setup setup = {0};
	struct job_result result = {.rank = -1};
	struct error err = {0}, report_err = {0};
	struct run_end end = {.kind = "berth"};

	struct env *env = env_capture();
	int as_task = 0;
	int rc = env ? run_as_task(options, env, argv, &as_task, &err)
		     : error_memory(&err, "the environment");

	env_free(env);
	if (rc > 0)
		return as_task;
	/* A file that may not grow any further is an error to tell. The ranks get it back. */
	signal(SIGXFSZ, SIG_IGN);
	if (!rc)
		rc = run_prepare(options, argv, &setup, &err);
	if (!rc)
		run_say_hosts(&setup);
	bool bad_report = rc && setup.bad_report;
	bool ours = progress;

	progress = progress && !options->label && isatty(STDERR_FILENO);
	if (!rc && progress)
		rc = set_variable(setup.env, PROGRESS_ENV "=terminal", "a terminal", &err);
	if (!rc && options->dry_run) {
		rc = run_show(&setup, argv, &err);
		run_setup_free(&setup);
		return rc ? verb_fail(&err) : 0;
	}
	if (!rc && run_is_agent(&setup)) {
		int code = 0;

		rc = run_as_agent(&setup, &code, &err);
		run_setup_free(&setup);
		return rc ? verb_fail(&err) : code;
	}
	if (!rc)
		rc = run_check_head(&setup, &err);
	if (!rc && options->requeue)
		rc = requeue_prepare(&setup.alloc, setup.env, options->max_requeues, &setup.requeue, &err);
	if (!rc)
		tell_lost_nodes(&setup);
	if (!rc)
		rc = run(&setup, argv, ours, progress, &result, &err);
	end_undisturbed();
	if (rc)
		result_of_error(&err, &result);
	run_end_find(&setup, &result, &end);
	bool again = requeue_wanted(setup.requeue, &result, end.kind, end.next, sizeof end.next);

	tell_end(&result, &end, options);
	rc = result.code;
	/* A report that cannot be written has been said already, if that is what failed. */
	if (!bad_report && write_report(options, &result, &end, &report_err)) {
		int code = verb_fail(&report_err);

		rc = rc ? rc : code;
	}
	/* Last of all: the scheduler may end this process for it. */
	if (again && !requeue_now(setup.requeue, end.next, sizeof end.next) && !bad_report)
		write_report(options, &result, &end, &report_err);
	job_result_free(&result);
	run_setup_free(&setup);
	return rc;
}
