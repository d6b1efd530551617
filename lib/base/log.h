/* SPDX-License-Identifier: BSD-3-Clause */
/* Log lines: one write(2) each to stderr: "berth: host rank level module: text". */
#ifndef BERTH_BASE_LOG_H
#define BERTH_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARNING, LOG_NOTE, LOG_DEBUG };

/* The state of the log is this process's: host and rank that lines begin with and the level up
 * to which lines are written (LOG_NOTE at first). host is copied; rank -1: none shown. */
void log_set_identity(const char *host, int rank);
void log_set_level(enum log_level limit);
/* "error", "warning", "note", "debug"; -1 when unknown. */
int log_level_parse(const char *text);

/* One line. module: the stage ("agent"). Keeps errno. */
void log_line(enum log_level level, const char *module, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
