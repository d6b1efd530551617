/* SPDX-License-Identifier: BSD-3-Clause */
/* What follows a stop signal (SIGTERM, SIGINT, SIGHUP, SIGQUIT), and when the ranks are warned of
 * one. Pure: no I/O, no clock.
 *
 * Every rank has the same time to save, however the others end. Where the scheduler sent the
 * signal, it kills by itself, and berth leaves that to it. */
#ifndef BERTH_CONTROLLER_STOP_H
#define BERTH_CONTROLLER_STOP_H

#include <stdbool.h>
#include <stdint.h>

/* Times after the signal, in ms; -1: never. */
struct stop_times {
	int64_t kill_ms;   /* berth kills the ranks that still run */
	int64_t report_ms; /* berth names them and writes the report, shortly before the scheduler
			      kills everything */
};

/* by_scheduler: the scheduler sent the signal. kill_wait_ms: how long it then waits before it
 * kills. grace_ms: --stop-grace. */
struct stop_times stop_times(int signal, bool by_scheduler, int64_t kill_wait_ms, int64_t grace_ms);

/* Does the signal end a job? Not SIGUSR1, SIGUSR2. */
bool stop_is_signal(int signal);

/* How the ranks have ended since the signal. */
struct stop_ends {
	int done;   /* code 0 */
	int saved;  /* code 75 */
	int others; /* another code, killed by the signal, killed by berth, or still running */
	int crash;  /* the exit code of the first rank that crashed; 0: none did */
};

/* Is an end with that signal (0: none) a crash, although the rank had been told to stop? */
bool stop_is_crash(int rank_signal, int stop_signal);

/* The job's exit code: the crash's, 75 if every rank saved or was done, else 128 + signal. */
int stop_code(int signal, const struct stop_ends *ends);

/* When to look next whether the ranks are to be warned that the time limit is near; 0: no need.
 * warn_ms: when to warn; 0: not at all, or they were. recheck_ms: until then the warning waits for
 * the scheduler, which is asked again; 0: it was not asked. */
int64_t stop_warning_due(int64_t warn_ms, int64_t recheck_ms);

#endif
