/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth run prints while the job runs: the ranks' output, berth's notes, a progress line. */
#ifndef BERTH_BIN_RUN_CONSOLE_H
#define BERTH_BIN_RUN_CONSOLE_H

#include "base/log.h"
#include "controller/job.h"
#include "run/run_options.h"

struct console; /* opaque */

/* From now on, log lines and notes go to it. progress: rank 0 draws a progress line on this
 * terminal, and berth one before. options are borrowed. */
int console_open(const struct run_options *options, bool progress, struct console **out,
		 struct error *err);
/* That of a role, or of the only program (0). */
struct job_sink console_sink(struct console *console, size_t role);
/* A note of the level that the user wants to see; context is the console. */
void console_note(void *context, enum log_level level, const char *text);
/* Wait until everything is written, but not for long after an interrupt, and free the console.
 * problem receives why output of the ranks could not be written, or "". Return true if the end of
 * what was printed shows result's output_tail. */
bool console_close(struct console *console, const struct job_result *result, char *problem,
		   size_t size);

#endif
