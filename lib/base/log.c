/* SPDX-License-Identifier: BSD-3-Clause */
/* A line is built in one buffer and written at once. At most PIPE_BUF bytes long, it does not mix
 * with the lines of other processes in a pipe. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"

/* PIPE_BUF: long enough for any error text. A longer line is cut and ends in dots. */
#define LINE_MAX_BYTES 4096

static struct {
	char host[256];
	int rank;
	enum log_level limit;
	bool colour;
	const char *run; /* borrowed, or NULL */
} state = {.rank = -1, .limit = LOG_NOTE};

static struct {
	log_writer_fn *write;
	void *context;
	pid_t pid;
} writer;

static const char *const level_names[] = {"error", "warning", "note", "debug"};

void log_set_identity(const char *host, int rank)
{
	snprintf(state.host, sizeof state.host, "%s", host ? host : "");
	state.rank = rank;
}

void log_set_level(enum log_level limit)
{
	state.limit = limit;
}

bool log_fd_has_colour(int fd, const struct env *env)
{
	const char *no_color = env_get(env, "NO_COLOR"), *term = env_get(env, "TERM");

	return isatty(fd) && !(no_color && *no_color) && term && strcmp(term, "dumb");
}

void log_set_colour(bool colour)
{
	state.colour = colour;
}

void log_set_run(const char *name)
{
	state.run = name;
}

void log_set_writer(log_writer_fn *write, void *context)
{
	writer.write = write;
	writer.context = context;
	writer.pid = getpid();
}

void log_write_or_drop(void *context, const char *line, size_t size)
{
	static _Atomic unsigned dropped;
	char text[96];

	(void)context;
	if (!file_wait_writable(STDERR_FILENO, 0)) {
		dropped++;
		return;
	}
	if (dropped) {
		int length = snprintf(text, sizeof text, LOG_DROPPED, (size_t)dropped);

		dropped = 0;
		file_write_all(STDERR_FILENO, text, (size_t)length);
	}
	file_write_all(STDERR_FILENO, line, size);
}

/* Write start, which fits, and the formatted text as one line. error is what %m shows. */
static void __attribute__((format(printf, 3, 0)))
write_line(const char *start, int error, const char *format, va_list ap)
{
	char line[LINE_MAX_BYTES];
	/* The last byte is reserved for the newline. */
	size_t text = (size_t)snprintf(line, sizeof line, "%s", start), at = text;
	size_t room = sizeof line - 1 - text;

	errno = error;
	int n = vsnprintf(line + text, room, format, ap);

	if (n >= 0 && (size_t)n < room) {
		at += (size_t)n;
	} else if (n >= 0) {
		at = sizeof line - 2;
		memcpy(line + at - 3, "...", 3);
	}
	/* Keep one message on one line: tools that read many hosts' logs split them at newlines.
	 * Other control characters would move a terminal's cursor. */
	line[at] = '\0';
	text_replace_controls(line + text, ' ', "");
	line[at++] = '\n';
	/* A forked child has a copy of the writer's state, but not the parent's threads and reader.
	 */
	if (writer.write && writer.pid == getpid())
		writer.write(writer.context, line, at);
	else
		file_write_all(STDERR_FILENO, line, at);
	errno = error;
}

static void __attribute__((format(printf, 3, 4)))
write_text(const char *start, int error, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	write_line(start, error, format, ap);
	va_end(ap);
}

void log_line(enum log_level level, const char *module, const char *format, ...)
{
	int saved = errno;
	char start[512], rank[24] = "";
	va_list ap;

	if (level > state.limit)
		return;
	if (state.rank >= 0)
		snprintf(rank, sizeof rank, "rank %d ", state.rank);
	snprintf(start, sizeof start, "berth: %s%s%s%s %.99s: ", state.host,
		 state.host[0] ? " " : "", rank, level_names[level], module);
	va_start(ap, format);
	write_line(start, saved, format, ap);
	va_end(ap);
}

void log_user(enum log_level level, const char *format, ...)
{
	static const char *const colours[] = {"\033[1;31m", "\033[33m"}; /* error, warning */
	bool colour = state.colour && level <= LOG_WARNING;
	int saved = errno;
	char start[256];
	va_list ap;

	snprintf(start, sizeof start, "%sberth: %s:%s %.199s%s", colour ? colours[level] : "",
		 level_names[level], colour ? "\033[0m" : "", state.run ? state.run : "",
		 state.run ? ": " : "");
	va_start(ap, format);
	write_line(start, saved, format, ap);
	va_end(ap);
}

/* ---- BERTH_LOG ---- */

unsigned char log_details[LOG_MODULE_COUNT];

static const char *const module_names[LOG_MODULE_COUNT] = {
	"alloc",   "hostlist", "inventory",  "plan",	"launch",     "controller", "agent",
	"overlay", "pmix",     "rendezvous", "process", "checkpoint", "resume",	    "train"};

static int unknown_word(const char *word, int length, struct error *err)
{
	char names[256] = "";

	for (size_t i = 0; i < LOG_MODULE_COUNT; i++)
		text_append(names, sizeof names, ", %s", module_names[i]);
	return error_set(err, ERR_DATA,
			 "BERTH_LOG: unknown word '%.*s'; choose from: info, debug%s (separated by "
			 "commas)",
			 length, word, names);
}

static bool is_word(const char *text, size_t length, const char *word)
{
	return strlen(word) == length && !strncmp(text, word, length);
}

static size_t find_module(const char *text, size_t length)
{
	size_t module = 0;

	while (module < LOG_MODULE_COUNT && !is_word(text, length, module_names[module]))
		module++;
	return module;
}

int log_configure(const char *words, struct error *err)
{
	unsigned char all = LOG_OFF, named[LOG_MODULE_COUNT] = {LOG_OFF};
	const char *at = words && *words ? words : NULL;

	while (at) {
		size_t length = strcspn(at, ","), module = find_module(at, length);

		if (module < LOG_MODULE_COUNT)
			named[module] = LOG_MESSAGES;
		else if (is_word(at, length, "debug"))
			all = LOG_MESSAGES;
		else if (!is_word(at, length, "info"))
			return unknown_word(at, (int)length, err);
		else if (all < LOG_INFO)
			all = LOG_INFO;
		at = at[length] ? at + length + 1 : NULL;
	}
	for (size_t i = 0; i < LOG_MODULE_COUNT; i++)
		log_details[i] = named[i] > all ? named[i] : all;
	return 0;
}

bool log_is_on(void)
{
	for (size_t i = 0; i < LOG_MODULE_COUNT; i++)
		if (log_details[i])
			return true;
	return false;
}

bool log_is_line(const char *text)
{
	static const char form[] = "berth: 0000-00-00T00:00:00.000Z ";

	for (const char *at = form; *at; at++, text++)
		if (*at == '0' ? *text < '0' || *text > '9' : *text != *at)
			return false;
	return true;
}

void log_relay(const char *line)
{
	write_text("", errno, "%s", line);
}

void log_write(enum log_module module, enum log_detail detail, const char *format, ...)
{
	int saved = errno;
	int64_t now_us = clock_wall_us();
	time_t now_s = (time_t)(now_us / 1000000);
	char start[600], day[32], rank[24] = "", host[256] = "";
	struct tm utc;
	va_list ap;

	strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now_s, &utc));
	if (!state.host[0])
		gethostname(host, sizeof host - 1);
	if (state.rank >= 0)
		snprintf(rank, sizeof rank, "rank %d ", state.rank);
	snprintf(start, sizeof start, "berth: %s.%03dZ %s %s%s %s: ", day,
		 (int)(now_us / 1000 % 1000), state.host[0] ? state.host : host, rank,
		 detail == LOG_INFO ? "info" : "debug", module_names[module]);
	va_start(ap, format);
	write_line(start, saved, format, ap);
	va_end(ap);
}
