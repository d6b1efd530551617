/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/stop.h"

#include <signal.h>

#include "base/error.h"

#define REPORT_MS 4000 /* enough to ask the scheduler why, and to write the report */

bool stop_is_signal(int signal)
{
	return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

struct stop_times stop_times(int signal, bool by_scheduler, int64_t kill_wait_ms, int64_t grace_ms)
{
	struct stop_times times = {-1, -1};

	if (!stop_is_signal(signal))
		return times;
	if (by_scheduler)
		times.report_ms =
			kill_wait_ms > 2 * REPORT_MS ? kill_wait_ms - REPORT_MS : kill_wait_ms / 2;
	else
		times.kill_ms = grace_ms;
	return times;
}

/* A program that handles no signal dies of it. Python's KeyboardInterrupt ends in SIGINT, a rank
 * whose peer has gone in SIGPIPE, and SIGKILL is berth's or the scheduler's. */
bool stop_is_crash(int rank_signal, int stop_signal)
{
	return rank_signal && rank_signal != stop_signal && rank_signal != SIGKILL &&
	       rank_signal != SIGPIPE && !stop_is_signal(rank_signal);
}

int stop_code(int signal, const struct stop_ends *ends)
{
	if (ends->crash)
		return ends->crash;
	if (ends->others)
		return 128 + signal;
	return ends->saved ? ERR_STOPPED : 0;
}

int64_t stop_warning_due(int64_t warn_ms, int64_t recheck_ms)
{
	return warn_ms && recheck_ms ? recheck_ms : warn_ms;
}
