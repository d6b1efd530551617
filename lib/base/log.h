/* SPDX-License-Identifier: BSD-3-Clause */
/* Log lines on stderr, one write(2) each, unless log_set_writer redirects them.
 *
 * log_user writes messages for the user: "berth: level: text".
 * log_line writes errors, warnings and notes: "berth: host rank level module: text".
 * log_info and log_debug write what BERTH_LOG selects, nothing by default:
 * "berth: 2026-11-23T04:55:35.123Z host rank 3 debug pmix: text". */
#ifndef BERTH_BASE_LOG_H
#define BERTH_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"

/* The line that replaces dropped ones; its argument is their number (size_t). */
#define LOG_DROPPED "berth: warning: %zu messages are missing here: stderr was full\n"

enum log_level { LOG_ERROR, LOG_WARNING, LOG_NOTE, LOG_DEBUG };

/* Process-wide state: the host and rank at the start of each line, and the most detailed level
 * written (initially LOG_NOTE). host is copied. Rank -1 shows no rank. */
void log_set_identity(const char *host, int rank);
void log_set_level(enum log_level limit);

/* Does the terminal at fd show colour? Not if NO_COLOR is set and not empty, or TERM is dumb. */
bool log_fd_has_colour(int fd, const struct env *env);
/* Show errors and warnings of log_user in colour, or (the default) not. */
void log_set_colour(bool colour);

/* Name the run in the lines of log_user: "berth: note: NAME: text". name is borrowed; NULL: none.
 */
void log_set_run(const char *name);

/* Pass all lines, with their newline, to write instead of stderr; NULL restores stderr. Only for a
 * process that logs from one thread. Its forked children write to stderr. */
typedef void log_writer_fn(void *context, const char *line, size_t size);
void log_set_writer(log_writer_fn *write, void *context);
/* A writer for processes that must not wait for the reader of stderr: a line that stderr cannot
 * take now is dropped, and a later line reports how many were. */
void log_write_or_drop(void *context, const char *line, size_t size);

/* Write one line. module is the stage ("agent"). Keeps errno. */
void log_line(enum log_level level, const char *module, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Write "berth: LEVEL: text" for the user, regardless of log_set_level. */
void log_user(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- BERTH_LOG ---- */

/* The modules that BERTH_LOG can name; log.c has their names in the same order. */
enum log_module {
	LOG_ALLOC,
	LOG_HOSTLIST,
	LOG_INVENTORY,
	LOG_PLAN,
	LOG_LAUNCH,
	LOG_CONTROLLER,
	LOG_AGENT,
	LOG_OVERLAY,
	LOG_PMIX,
	LOG_RENDEZVOUS,
	LOG_PROCESS,
	LOG_CHECKPOINT,
	LOG_RESUME,
	LOG_TRAIN,
	LOG_MODULE_COUNT,
};
enum log_detail { LOG_OFF, LOG_INFO, LOG_MESSAGES };

/* What each module writes, an enum log_detail. Only log_configure changes it. */
extern unsigned char log_details[LOG_MODULE_COUNT];

/* Set what log_info and log_debug write. words is the value of BERTH_LOG: "info", "debug" and
 * modules, separated by commas; a module alone means debug for that module. NULL or "" turns all
 * off. Call it before there are threads. Return 0, or -ERR_DATA for an unknown word; err then lists
 * the known ones, and nothing has changed. */
int log_configure(const char *words, struct error *err);

/* Does BERTH_LOG enable any module? */
bool log_is_on(void);

/* Is text a line that log_info or log_debug wrote in another process? */
bool log_is_line(const char *text);

/* Write such a line (text lacks the newline) as if this process had logged it. */
void log_relay(const char *line);

/* Write a decision, or a message sent or received. Arguments are evaluated only if the module
 * writes such lines. Keeps errno. A line has at most PIPE_BUF bytes, so lines of several processes
 * do not mix in a pipe. A slow reader of stderr delays the caller, unless log_set_writer redirects
 * the lines. */
#define log_info(module, ...)                                                                      \
	do {                                                                                       \
		if (log_details[module] >= LOG_INFO)                                               \
			log_write(module, LOG_INFO, __VA_ARGS__);                                  \
	} while (0)
#define log_debug(module, ...)                                                                     \
	do {                                                                                       \
		if (log_details[module] >= LOG_MESSAGES)                                           \
			log_write(module, LOG_MESSAGES, __VA_ARGS__);                              \
	} while (0)
void log_write(enum log_module module, enum log_detail detail, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
