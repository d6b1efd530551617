/* SPDX-License-Identifier: BSD-3-Clause */
/* The scheduler's end is a time of day; from the job's start on it is counted by the monotonic
 * clock, which nobody sets. */
#include "controller/job_time.h"

#include <string.h>

#include "base/clock.h"
#include "base/json.h"

void job_time_begin(struct job_time *time, int64_t end_time, int64_t warn_before_ms)
{
	if (!end_time)
		return;
	time->end_ms = clock_now_ms() + end_time * 1000 - clock_wall_us() / 1000;
	if (!warn_before_ms)
		return;
	time->warn_ms = time->end_ms - warn_before_ms;
	if (!time->warn_ms)
		time->warn_ms = -1; /* 0 says that there is none */
}

static const char *signal_name(int number)
{
	const char *name = sigabbrev_np(number);

	return name ? name : strsignal(number);
}

void job_time_request_stop(struct controller *controller, int number, const char *why)
{
	controller_send(controller, MESSAGE_SIGNAL, WIRE_ALL, 0, 0,
			json_pack("{s:i, s:o}", "signal", number, "stop", json_text(why)), NULL, 0,
			NULL);
}

bool job_time_warn(struct job_time *time, int64_t now_ms, int number, struct controller *controller,
		   const struct job_sink *sink)
{
	long left = (long)((time->end_ms - now_ms) / 1000);

	if (!time->warn_ms || now_ms < time->warn_ms)
		return false;
	time->warn_ms = 0;
	job_time_request_stop(controller, number, "warning");
	job_note(sink, LOG_NOTE, "the job's time is over in %ld s: the ranks are told by %s%s%s",
		 left < 0 ? 0 : left, number ? "SIG" : "", number ? signal_name(number) : "",
		 number ? " and their stop file" : "their stop file");
	return true;
}

bool job_time_left(const struct job_time *time, int64_t *left_ms)
{
	*left_ms = time->end_ms - clock_now_ms();
	return time->end_ms != 0;
}
