/* SPDX-License-Identifier: BSD-3-Clause */
/* Log lines on stderr, one write(2) each.
 *
 * log_user writes messages for the user: "berth: level: text".
 * log_line writes errors, warnings and notes: "berth: host rank level module: text".
 * log_info and log_debug write what BERTH_LOG selects, nothing by default:
 * "berth: 2026-11-23T04:55:35.123Z host rank 3 debug pmix: text". */
#ifndef BERTH_BASE_LOG_H
#define BERTH_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum log_level { LOG_ERROR, LOG_WARNING, LOG_NOTE, LOG_DEBUG };

/* Process-wide state: the host and rank at the start of each line, and the most detailed level
 * written (initially LOG_NOTE). host is copied. Rank -1 shows no rank. */
void log_set_identity(const char *host, int rank);
void log_set_level(enum log_level limit);

/* Write one line. module is the stage ("agent"). Keeps errno. */
void log_line(enum log_level level, const char *module, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Write "berth: LEVEL: text" for the user, whatever the limit is. */
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

/* Does any module write? */
bool log_is_on(void);

/* Is text a line of log_info or log_debug, which another process has written? */
bool log_is_line(const char *text);

/* Write a decision, or a message sent or received. Arguments are evaluated only if the module
 * writes such lines. Keeps errno. A line has at most PIPE_BUF bytes, so lines of several processes
 * do not mix in a pipe. A slow reader of stderr delays the caller. */
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
