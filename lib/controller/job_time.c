/* SPDX-License-Identifier: BSD-3-Clause */
/* The job's time: how much is left, and the warning before it is over. The scheduler's end is a
 * time of day; from the job's start on it is counted by the monotonic clock, which nobody sets. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "controller/job_internal.h"

void job_time_begin(struct job *job)
{
	const struct job_request *request = job->request;

	if (!request->launch->alloc->end_time)
		return;
	job->end_ms =
		clock_now_ms() + request->launch->alloc->end_time * 1000 - clock_wall_us() / 1000;
	if (request->warn_before_ms)
		job->warn_ms = job->end_ms - request->warn_before_ms;
	if (!job->warn_ms)
		job->warn_ms = -1; /* 0 says that there is none */
}

int64_t job_time_due(const struct job *job)
{
	/* Ranks that do not run yet would die of a signal; their start says so by itself. */
	bool runs = job->phase == JOB_PHASE_RUN && job->started == job->node_count;

	return job->request->warn_before_ms && job->warn_ms && runs ? job->warn_ms : 0;
}

static const char *signal_name(int number)
{
	const char *name = sigabbrev_np(number);

	return name ? name : strsignal(number);
}

void job_request_stop(struct job *job, int number, const char *why)
{
	controller_send(job->controller, MESSAGE_SIGNAL, WIRE_ALL, 0, 0,
			json_pack("{s:i, s:o}", "signal", number, "stop", json_text(why)), NULL, 0,
			NULL);
}

void job_time_check(struct job *job, int64_t now)
{
	int64_t due = job_time_due(job);
	int number = job->request->warn_signal;
	long left = (long)((job->end_ms - now) / 1000);

	if (!due || now < due)
		return;
	job->warn_ms = 0;
	job->result->warned = true;
	job_request_stop(job, number, "warning");
	job_note(job, LOG_NOTE, "the job's time is over in %ld s: the ranks are told by %s%s%s",
		 left < 0 ? 0 : left, number ? "SIG" : "", number ? signal_name(number) : "",
		 number ? " and their stop file" : "their stop file");
}

void job_time_record_left(struct job *job)
{
	struct job_result *result = job->result;

	result->time_left_known = job->end_ms != 0;
	result->time_left_ms = job->end_ms - clock_now_ms();
}
