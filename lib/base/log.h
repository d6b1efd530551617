/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages on stderr, one write(2) each: log lines, "berth: host rank level module: text", and
 * messages for the user, "berth: level: text". */
#ifndef BERTH_BASE_LOG_H
#define BERTH_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARNING, LOG_NOTE, LOG_DEBUG };

/* Process-wide state: the host and rank at the start of each line, and the most detailed level
 * written (initially LOG_NOTE). host is copied. Rank -1 shows no rank. */
void log_set_identity(const char *host, int rank);
void log_set_level(enum log_level limit);

/* Write one line. module is the stage ("agent"). Keeps errno. */
void log_line(enum log_level level, const char *module, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* "error", "warning", "note" or "debug". */
const char *log_level_name(enum log_level level);

/* Write "berth: LEVEL: text" for the user, whatever the limit is. Longer text than a struct error's
 * is cut. */
void log_user(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
