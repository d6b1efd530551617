/* SPDX-License-Identifier: BSD-3-Clause */
/* Decides whether a run must stop early, with a checkpoint: because of a signal, the stop file, or
 * the job's time limit.
 *
 * A rank that wants to stop votes for it in the reduction of its next step (executor.h,
 * executor_request.vote), and all ranks stop after that step. */
#ifndef BERTH_TRAIN_RUN_STOP_H
#define BERTH_TRAIN_RUN_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* If ranks stop for several causes, the largest is reported. */
enum stop_cause { STOP_NOT, STOP_TIME, STOP_FILE, STOP_USR1, STOP_INT, STOP_TERM };

struct stop {
	bool enabled;	      /* there is a checkpoint directory */
	bool polls_file;      /* this rank checks for file (one rank per node does) */
	bool stale_file;      /* file already existed when training started */
	const char *file;     /* BERTH_STOP_FILE, or NULL; borrowed */
	const char *end_file; /* BERTH_END_TIME_FILE, or NULL: this rank does not watch it */
	double end_s; /* monotonic time of the job's end; INFINITY: unknown, or another rank watches
			 it */
	double step_s, save_s, eval_s; /* the longest so far, or estimates */
	double polled_s;	       /* when file was last checked */
	double end_polled_s;	       /* likewise end_file */
	int64_t end_time;	       /* end_s in Unix seconds; 0: unknown */
	bool warned;		       /* about a file of another user */
	enum stop_cause cause;
};

/* From now on, record SIGTERM, SIGINT and SIGUSR1 of this process; stop_wanted finds them between
 * two steps. A separate thread takes the signals. The calling thread blocks them, and so do threads
 * that it starts later. Exception: if file (BERTH_STOP_FILE; may be NULL; borrowed until the
 * process ends) holds "failed", another rank has failed and the ranks can agree on nothing any
 * longer. SIGTERM then ends the process. */
void stop_catch_signals(const char *file);

/* end_time: Unix seconds, 0: unknown. Setting the system's clock later changes nothing. end_file: a
 * file that may hold another end time later, or NULL; borrowed. */
void stop_init(struct stop *stop, const char *file, bool polls_file, int64_t end_time,
	       const char *end_file);

/* Does this rank want to stop after the next step? more_s: the time of other work before the next
 * chance to stop (an evaluation). Checks the clock, and twice a second the file. Once true, it
 * stays true; cause is the reason. */
bool stop_wanted(struct stop *stop, double more_s);

/* How many seconds before the job's end the run must stop. */
double stop_reserve(const struct stop *stop);
/* Record a duration. longest: step_s, save_s or eval_s of a struct stop. */
void stop_record(double *longest, double seconds);

/* "received SIGTERM" if a signal was recorded, else NULL. */
const char *stop_signal(void);

/* Describe the cause for the user: "received SIGTERM". */
void stop_text(const struct stop *stop, enum stop_cause cause, char *text, size_t size);

#endif
