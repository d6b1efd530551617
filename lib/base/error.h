/* SPDX-License-Identifier: BSD-3-Clause */
/* Errors as values: a code that is also the exit code, and a message for people. */
#ifndef BERTH_BASE_ERROR_H
#define BERTH_BASE_ERROR_H

/* Error codes, which are also berth's exit codes. They follow sysexits.h where it has a matching
 * code. */
enum error_code {
	ERR_USAGE = 64,	      /* the command line is wrong */
	ERR_DATA = 65,	      /* bad data in a file, a variable or a message */
	ERR_INPUT = 66,	      /* an input is missing or cannot be read */
	ERR_UNAVAILABLE = 69, /* a required library, device or tool is missing */
	ERR_INTERNAL = 70,    /* a defect of berth */
	ERR_OUTPUT = 73,      /* an output cannot be created */
	ERR_IO = 74,	      /* reading or writing failed midway */
	ERR_STOPPED = 75,     /* stopped with a checkpoint saved: submit again */
	ERR_NETWORK = 76,     /* a node or the network failed */
};

/* An error, held by value. text says what failed, what was expected and what to do. It is one line
 * without a final newline, cut at the end of the array. */
struct error {
	int code; /* 0 when none */
	char text[1024];
};

/* Set *err to code and the formatted text, replacing its contents. err may be NULL. Return -code,
 * so that callers can write `return error_set(...)`. */
int error_set(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Put the formatted text and ": " in front of err's text, to add context on the way up. err may be
 * NULL. Return -err->code, or -ERR_INTERNAL if err is NULL or clear. */
int error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Report that memory is out: return -ERR_UNAVAILABLE with a text that names what. */
int error_memory(struct error *err, const char *what);

/* "TERM" for SIGTERM; NULL for a number without a name. glibc has sigabbrev_np only since 2.32. */
const char *error_signal_name(int number);

#endif
