/* SPDX-License-Identifier: BSD-3-Clause */
/* Errors as values: a code that is also the exit code, and a text for a person. */
#ifndef BERTH_BASE_ERROR_H
#define BERTH_BASE_ERROR_H

/* Codes; berth's own exit codes (sysexits.h's numbers where one fits). */
enum error_code {
	ERR_USAGE = 64,	      /* the command line is wrong */
	ERR_DATA = 65,	      /* bad data in a file, a variable or a message */
	ERR_INPUT = 66,	      /* an input is missing or cannot be read */
	ERR_UNAVAILABLE = 69, /* something needed is not there (library, device, tool) */
	ERR_INTERNAL = 70,    /* a defect of berth */
	ERR_OUTPUT = 73,      /* an output cannot be created */
	ERR_IO = 74,	      /* reading or writing failed midway */
	ERR_STOPPED = 75,     /* stopped with a checkpoint saved: submit again */
	ERR_NETWORK = 76,     /* a node or the network failed */
};

/* An error, held by value by whoever wants one. text: what was seen, what was
 * expected, what to do; one line without the final newline; cut at the array's end. */
struct error {
	int code; /* 0 when none */
	char text[1024];
};

/* Set *err to code and the formatted text (replacing what was there).
 * err may be NULL. Returns -code, so that `return error_set(...)` reads well. */
int error_set(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Put formatted text and ": " before err's text: context on the way up.
 * err may be NULL. Returns -err->code, or -ERR_INTERNAL when err is NULL or clear. */
int error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Out of memory: -ERR_UNAVAILABLE with a text that names what. */
int error_memory(struct error *err, const char *what);

#endif
