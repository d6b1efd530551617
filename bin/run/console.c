/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/console.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "process/logs.h"
#include "progress.h"
#include "report/collapse.h"
#include "run/printer.h"

#define SHOWN_LINES 48	  /* of the ranks: about a screen */
#define COLLAPSE_RANKS 16 /* more of them collapse on a terminal */

/* What a sink belongs to. */
struct source {
	struct console *console;
	const char *role; /* NULL: the only program */
};

struct console {
	const struct run_options *options;
	struct source sources[ROLES_MAX];
	enum log_level limit; /* of notes */
	struct printer *printer;
	struct collapse *collapse; /* NULL: lines are not collapsed */
	bool over;		   /* progress lines overwrite each other */
	bool heard;		   /* rank 0 has sent one */
	bool labels;		   /* each line begins with its rank */
	double begin_s;
	int64_t drawn_ms;
	bool one;   /* stdout and stderr are the same terminal or file */
	bool dirty; /* the terminal's last line is a progress line */
	/* The ranks of the last lines, as a ring; ~rank: a reader of stderr does not see it. */
	int shown[SHOWN_LINES];
	size_t lines;
};

/* A number for a rank that no rank of another role has: OPTIONS_RANKS_MAX is less than 2^20. */
static int source_id(size_t role, int rank)
{
	return (int)(role << 20) | rank;
}

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
	const struct source *source = context;
	struct console *console = source->console;
	int id = source_id((size_t)(source - console->sources), rank);
	char label[ROLE_NAME_MAX + 16];
	bool driver;
	size_t mark = console->over && !rank && is_err && newline ? progress_mark(text, size) : 0;

	if (mark) {
		console->heard = true;
		draw_progress(console, text + mark, size - mark);
		return;
	}
	if (newline)
		console->shown[console->lines++ % SHOWN_LINES] = is_err || console->one ? id : ~id;
	if (console->collapse) {
		collapse_line(console->collapse, rank, is_err, text, size, newline, clock_now_ms());
		return;
	}
	end_progress(console);
	/* A driver's output looks as if it ran alone. */
	driver = console->options->roles.ray && source != console->sources;
	snprintf(label, sizeof label, "%s%s%d", source->role ? source->role : "",
		 source->role ? " " : "", rank);
	printer_line(console->printer, id, console->labels && !driver ? label : NULL, is_err, text,
		     size, newline);
}

static void on_collapsed(void *context, const char *ranks, int rank, bool is_err, const char *text,
			 size_t size, bool newline)
{
	struct console *console = context;

	end_progress(console);
	printer_line(console->printer, rank, ranks, is_err, text, size, newline);
}

static int64_t on_tick(void *context, int64_t now_ms)
{
	struct console *console = ((const struct source *)context)->console;

	if (now_ms != INT64_MAX)
		draw_start(console, now_ms);
	return console->collapse ? collapse_tick(console->collapse, now_ms) : 0;
}

static void on_begun(void *context, int world_size)
{
	struct console *console = ((const struct source *)context)->console;
	bool many = world_size > COLLAPSE_RANKS && isatty(STDOUT_FILENO);

	collapse_free(console->collapse); /* nothing waits after an attempt */
	console->collapse = NULL;
	if (console->options->roles.count)
		return;
	if (console->options->collapse == RUN_COLLAPSE_ON ||
	    (console->options->collapse == RUN_COLLAPSE_AUTO && many))
		collapse_new(world_size, on_collapsed, console, &console->collapse, NULL);
}

void console_note(void *context, enum log_level level, const char *text)
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

static bool is_full(void *context)
{
	const struct source *source = context;

	return printer_full(source->console->printer);
}

/* Like other programs in front of "| head". */
static bool is_abandoned(void *context)
{
	const struct source *source = context;

	return printer_has_no_reader(source->console->printer);
}

int console_open(const struct run_options *options, bool progress, struct console **out,
		 struct error *err)
{
	struct console *console = calloc(1, sizeof *console);
	int rc;

	if (!console)
		return error_memory(err, "the output");
	console->options = options;
	console->limit = options->request.quiet ? LOG_ERROR
			 : options->verbose	? LOG_DEBUG
						: LOG_NOTE;
	console->over = progress;
	console->begin_s = clock_now_s();
	for (size_t i = 0; i < ROLES_MAX; i++)
		console->sources[i] = (struct source){
			console, i < options->roles.count ? options->roles.roles[i].name : NULL};
	console->labels = options->label || options->roles.count;
	rc = printer_new(STDOUT_FILENO, STDERR_FILENO, &console->printer, err);
	if (rc) {
		free(console);
		return rc;
	}
	console->one = printer_is_one(console->printer);
	log_set_level(console->limit);
	log_set_writer(on_log, console);
	on_tick(&console->sources[0], clock_now_ms());
	*out = console;
	return 0;
}

static void on_note(void *context, enum log_level level, const char *text)
{
	console_note(((const struct source *)context)->console, level, text);
}

struct job_sink console_sink(struct console *console, size_t role)
{
	return (struct job_sink){
		.context = &console->sources[role],
		.output = on_output,
		.note = on_note,
		.begun = on_begun,
		.tick = on_tick,
		.full = is_full,
		.drained_fd = printer_drained_fd(console->printer),
		/* --log-dir keeps the output. */
		.abandoned = console->options->request.job.log_dir ? NULL : is_abandoned,
	};
}

/* Output is stuck. If it is stderr, the messages about the end must not block. */
static void leave_stderr(void)
{
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	int fd = poll(&ready, 1, 0) ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (fd >= 0)
		dup2(fd, STDERR_FILENO);
}

bool console_close(struct console *console, const struct job_result *result, char *problem,
		   size_t size)
{
	bool shown = is_shown(console, source_id(result->role, result->cause.rank),
			      json_array_size(result->cause.output_tail));
	bool abandoned =
		!console->options->request.job.log_dir && is_abandoned(&console->sources[0]);

	end_progress(console);
	collapse_free(console->collapse);
	log_set_writer(NULL, NULL);
	if (!printer_free(console->printer, result->interrupted ? 2000 : -1, problem, size))
		leave_stderr();
	if (abandoned && result->code)
		problem[0] = '\0';
	free(console);
	return shown && !problem[0];
}
