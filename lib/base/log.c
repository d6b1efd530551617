/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Long enough for any error text. A longer line is cut and ends in dots. */
#define LINE_MAX_BYTES 2048

static struct {
	char host[256];
	int rank;
	enum log_level limit;
} state = {.rank = -1, .limit = LOG_NOTE};

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

int log_level_parse(const char *text)
{
	for (int i = LOG_ERROR; i <= LOG_DEBUG; i++)
		if (!strcmp(text, level_names[i]))
			return i;
	return -1;
}

/* Append what fits. *at never passes the last byte, which is reserved for the newline. */
static void __attribute__((format(printf, 3, 0)))
append(char *line, size_t *at, const char *format, va_list ap)
{
	size_t room = LINE_MAX_BYTES - 1 - *at;
	int n = vsnprintf(line + *at, room, format, ap);

	if (n < 0)
		return;
	if ((size_t)n < room) {
		*at += (size_t)n;
		return;
	}
	*at = LINE_MAX_BYTES - 2;
	memcpy(line + *at - 3, "...", 3);
}

static void appendf(char *line, size_t *at, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void appendf(char *line, size_t *at, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	append(line, at, format, ap);
	va_end(ap);
}

void log_line(enum log_level level, const char *module, const char *format, ...)
{
	int saved = errno;
	char line[LINE_MAX_BYTES];
	size_t at = 0;
	va_list ap;

	if (level > state.limit)
		return;
	appendf(line, &at, "berth: ");
	if (state.host[0])
		appendf(line, &at, "%s ", state.host);
	if (state.rank >= 0)
		appendf(line, &at, "rank %d ", state.rank);
	appendf(line, &at, "%s %s: ", level_names[level], module);
	size_t text = at;

	errno = saved; /* for %m */
	va_start(ap, format);
	append(line, &at, format, ap);
	va_end(ap);
	/* Keep one message on one line: tools that read many hosts' logs split them at newlines. */
	for (size_t i = text; i < at; i++)
		if (line[i] == '\n' || line[i] == '\r')
			line[i] = ' ';
	line[at++] = '\n';
	(void)!write(STDERR_FILENO, line, at);
	errno = saved;
}
