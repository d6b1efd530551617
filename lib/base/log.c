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

const char *log_level_name(enum log_level level)
{
	return level_names[level];
}

void log_user(enum log_level level, const char *format, ...)
{
	char line[LINE_MAX_BYTES];
	int at = snprintf(line, sizeof line, "berth: %s: ", level_names[level]), n;
	va_list ap;

	va_start(ap, format);
	n = vsnprintf(line + at, sizeof line - 1 - (size_t)at, format, ap);
	va_end(ap);
	at = n < 0 ? at : at + n;
	if ((size_t)at > sizeof line - 2)
		at = sizeof line - 2;
	line[at] = '\n';
	if (write(STDERR_FILENO, line, (size_t)at + 1) < 0)
		return; /* stderr is closed: there is nowhere to report it */
}

void log_line(enum log_level level, const char *module, const char *format, ...)
{
	int saved = errno;
	char line[LINE_MAX_BYTES], rank[24] = "";
	va_list ap;

	if (level > state.limit)
		return;
	if (state.rank >= 0)
		snprintf(rank, sizeof rank, "rank %d ", state.rank);
	size_t text = (size_t)snprintf(line, sizeof line, "berth: %s%s%s%s %.99s: ", state.host,
				       state.host[0] ? " " : "", rank, level_names[level], module);
	/* The last byte is reserved for the newline. */
	size_t room = sizeof line - 1 - text, at = text;

	errno = saved; /* for %m */
	va_start(ap, format);
	int n = vsnprintf(line + text, room, format, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < room) {
		at += (size_t)n;
	} else if (n >= 0) {
		at = sizeof line - 2;
		memcpy(line + at - 3, "...", 3);
	}
	/* Keep one message on one line: tools that read many hosts' logs split them at newlines. */
	for (size_t i = text; i < at; i++)
		if (line[i] == '\n' || line[i] == '\r')
			line[i] = ' ';
	line[at++] = '\n';
	(void)!write(STDERR_FILENO, line, at);
	errno = saved;
}
