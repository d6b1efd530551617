/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/error.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *err, int code, const char *format, ...)
{
	if (err) {
		/* Arguments may point into err->text, so format into another buffer first. */
		char text[sizeof err->text];
		va_list ap;

		va_start(ap, format);
		vsnprintf(text, sizeof text, format, ap);
		va_end(ap);
		err->code = code;
		memcpy(err->text, text, sizeof text);
	}
	return -code;
}

int error_prefix(struct error *err, const char *format, ...)
{
	if (!err || !err->code)
		return -ERR_INTERNAL;

	char text[sizeof err->text];
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof text)
		snprintf(text + n, sizeof text - (size_t)n, ": %.*s", (int)sizeof err->text - 1,
			 err->text);
	memcpy(err->text, text, sizeof text);
	return -err->code;
}

int error_memory(struct error *err, const char *what)
{
	return error_set(err, ERR_UNAVAILABLE, "out of memory for %s", what);
}

const char *error_signal_name(int number)
{
	static const char *const names[] = {
		[SIGHUP] = "HUP",	[SIGINT] = "INT",	[SIGQUIT] = "QUIT",
		[SIGILL] = "ILL",	[SIGTRAP] = "TRAP",	[SIGABRT] = "ABRT",
		[SIGBUS] = "BUS",	[SIGFPE] = "FPE",	[SIGKILL] = "KILL",
		[SIGUSR1] = "USR1",	[SIGSEGV] = "SEGV",	[SIGUSR2] = "USR2",
		[SIGPIPE] = "PIPE",	[SIGALRM] = "ALRM",	[SIGTERM] = "TERM",
		[SIGSTKFLT] = "STKFLT", [SIGCHLD] = "CHLD",	[SIGCONT] = "CONT",
		[SIGSTOP] = "STOP",	[SIGTSTP] = "TSTP",	[SIGTTIN] = "TTIN",
		[SIGTTOU] = "TTOU",	[SIGURG] = "URG",	[SIGXCPU] = "XCPU",
		[SIGXFSZ] = "XFSZ",	[SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF",
		[SIGWINCH] = "WINCH",	[SIGPOLL] = "POLL",	[SIGPWR] = "PWR",
		[SIGSYS] = "SYS",
	};

	return number >= 0 && (size_t)number < sizeof names / sizeof *names ? names[number] : NULL;
}
