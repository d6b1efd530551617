/* SPDX-License-Identifier: BSD-3-Clause */
/* Does a run have to stop before its end, with a checkpoint: a signal, a file, the job's time?
 *
 * A rank that wants to stop votes so in the reduction of its next step (device.h,
 * executor_request.vote), and all ranks stop after that step. */
#ifndef BERTH_TRAIN_RUN_STOP_H
#define BERTH_TRAIN_RUN_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* If ranks stop for several causes, the largest is reported. */
enum stop_cause { STOP_NOT, STOP_TIME, STOP_FILE, STOP_USR1, STOP_INT, STOP_TERM };

struct stop {
	bool enabled;	  /* there is a checkpoint directory */
	bool polls_file;  /* this rank looks for file (one per node does) */
	bool stale_file;  /* file was there when the training began */
	const char *file; /* BERTH_STOP_FILE, or NULL; borrowed */
	double end_s;	  /* monotonic time of the job's end; INFINITY: not known, or another rank's
			     matter */
	double step_s, save_s, eval_s; /* the longest so far; at first estimates */
	double polled_s;	       /* when file was looked for */
	enum stop_cause cause;
};

/* SIGTERM, SIGINT and SIGUSR1 are recorded from here on, for this process, and found between two
 * steps. A thread of its own takes them; the calling one and those that it begins from here on
 * block them. But where file (BERTH_STOP_FILE, may be NULL; must outlive the process) holds
 * "failed", another rank has failed and nothing can be agreed on any longer: then SIGTERM ends the
 * process as ever.
 */
void stop_catch_signals(const char *file);

/* end_time: Unix seconds, 0: not known. A clock that is set later on changes nothing. */
void stop_init(struct stop *stop, const char *file, bool polls_file, int64_t end_time);

/* Does this rank want to stop after the next step? more_s: what else must be done before the next
 * chance (an evaluation). Looks at the clock, and for the file twice a second. Once yes, always
 * yes; cause is the reason. */
bool stop_wanted(struct stop *stop, double more_s);

/* Seconds before the job's end at which it has to stop. */
double stop_reserve(const struct stop *stop);
/* Another one took that long. longest: step_s, save_s or eval_s of a struct stop. */
void stop_record(double *longest, double seconds);

/* "SIGTERM came"; for people. */
void stop_text(const struct stop *stop, enum stop_cause cause, char *text, size_t size);

#endif
