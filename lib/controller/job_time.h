/* SPDX-License-Identifier: BSD-3-Clause */
/* The job's time limit: how much is left, and the warning before it is over. */
#ifndef BERTH_CONTROLLER_JOB_TIME_H
#define BERTH_CONTROLLER_JOB_TIME_H

#include "controller/controller.h"
#include "controller/job.h"

/* For job_time.c; job.c reads warn_ms. Zero-initialise. */
struct job_time {
	int64_t end_ms;	 /* monotonic; 0: not known */
	int64_t warn_ms; /* monotonic; 0: no warning, or it was sent */
};

/* end_time: the allocation's, 0: unknown. warn_before_ms 0: no warning. */
void job_time_begin(struct job_time *time, int64_t end_time, int64_t warn_before_ms);
/* Warn the ranks by their stop file and a signal (0: none) if it is time to. True: it did. */
bool job_time_warn(struct job_time *time, int64_t now_ms, int number, struct controller *controller,
		   const struct job_sink *sink);
/* How much time is left, in *left_ms; false: the end is not known. */
bool job_time_left(const struct job_time *time, int64_t *left_ms);
/* The stop file appears on all nodes, with the word why in it; a signal to the ranks (0: none). */
void job_time_request_stop(struct controller *controller, int number, const char *why);

#endif
