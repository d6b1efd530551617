/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#define POLL_S 0.5 /* seconds between two checks for the file */
#define MARGIN_S 3 /* seconds to finalize MPI, write the report and requeue the job */
#define FAILED "failed"

static atomic_int caught; /* written by the thread that takes the signals */
static const char *failed_file;

/* ---- signals ---- */

/* Uses only async-signal-safe calls. */
static bool another_rank_failed(void)
{
	char text[sizeof FAILED - 1];
	int fd = failed_file ? open(failed_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)sizeof text && !memcmp(text, FAILED, sizeof text);
}

static void handle_signal(int number)
{
	int saved = errno;

	if (number == SIGTERM && another_rank_failed()) {
		signal(SIGTERM, SIG_DFL);
		raise(SIGTERM); /* delivered when this returns */
	}

	enum stop_cause cause = number == SIGTERM  ? STOP_TERM
				: number == SIGINT ? STOP_INT
						   : STOP_USR1;

	if (caught < (int)cause)
		caught = cause;
	errno = saved;
}

static void *signal_thread(void *unused)
{
	for (;;)
		pause();
	return NULL;
}

/* A thread that does nothing else takes the signals. oneDNN's generated code uses the stack pointer
 * for other values, so a handler that interrupts it would write into the heap. */
void stop_catch_signals(const char *file)
{
	struct sigaction action = {.sa_handler = handle_signal, .sa_flags = SA_RESTART};
	pthread_t thread;
	sigset_t three;

	failed_file = file;
	sigemptyset(&three);
	sigaddset(&three, SIGTERM);
	sigaddset(&three, SIGINT);
	sigaddset(&three, SIGUSR1);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	/* Without a thread, the calling thread takes the signals. */
	if (pthread_create(&thread, NULL, signal_thread, NULL))
		return;
	pthread_detach(thread);
	pthread_sigmask(SIG_BLOCK, &three, NULL);
}

/* ---- when ---- */

static void set_end(struct stop *stop, int64_t end_time)
{
	stop->end_time = end_time;
	stop->end_s = end_time ? clock_now_s() + (double)end_time - clock_wall_s() : INFINITY;
}

/* berth run writes the file when it learns the end, or that it moved, after the ranks started. */
static void read_end_file(struct stop *stop)
{
	double now = clock_now_s();
	int64_t value;

	if (!stop->end_file || now - stop->end_polled_s < POLL_S)
		return;
	stop->end_polled_s = now;
	if (!file_read_number(stop->end_file, 1, INT64_MAX / 2, &value) && value != stop->end_time)
		set_end(stop, value);
}

void stop_init(struct stop *stop, const char *file, bool polls_file, int64_t end_time,
	       const char *end_file)
{
	*stop = (struct stop){
		.enabled = true,
		.file = file && *file ? file : NULL,
		.polls_file = polls_file,
		.end_file = end_file && *end_file ? end_file : NULL,
		.polled_s = -INFINITY,
		.end_polled_s = -INFINITY,
	};
	stop->stale_file = polls_file && stop->file && !access(stop->file, F_OK);
	set_end(stop, end_time);
}

double stop_reserve(const struct stop *stop)
{
	/* Time for the step that is about to start and for a slow one. A save may be slower than
	 * any before. */
	return 2 * stop->step_s + 1.5 * stop->save_s + MARGIN_S;
}

static bool stop_file_exists(struct stop *stop)
{
	double now = clock_now_s();
	struct error err;

	if (!stop->polls_file || !stop->file || now - stop->polled_s < POLL_S)
		return false;
	stop->polled_s = now;
	if (access(stop->file, F_OK))
		return false;
	if (!file_check_path(stop->file, &err))
		return true;
	if (!stop->warned)
		log_user(LOG_WARNING, "not stopping: %s", err.text);
	stop->warned = true;
	return false;
}

bool stop_wanted(struct stop *stop, double more_s)
{
	if (!stop->enabled)
		return false;
	enum stop_cause signalled = (enum stop_cause)caught;

	if (signalled > stop->cause)
		stop->cause = signalled;
	if (!stop->cause && stop_file_exists(stop))
		stop->cause = STOP_FILE;
	read_end_file(stop);
	if (!stop->cause && stop->end_s < INFINITY &&
	    clock_now_s() + stop_reserve(stop) + more_s >= stop->end_s)
		stop->cause = STOP_TIME;
	return stop->cause;
}

void stop_record(double *longest, double seconds)
{
	if (seconds > *longest)
		*longest = seconds;
}

static const char *signal_text(enum stop_cause cause)
{
	return cause == STOP_TERM   ? "received SIGTERM"
	       : cause == STOP_INT  ? "received SIGINT"
	       : cause == STOP_USR1 ? "received SIGUSR1"
				    : NULL;
}

const char *stop_signal(void)
{
	return signal_text((enum stop_cause)caught);
}

void stop_text(const struct stop *stop, enum stop_cause cause, char *text, size_t size)
{
	switch (cause) {
	case STOP_TERM:
	case STOP_INT:
	case STOP_USR1:
		snprintf(text, size, "%s", signal_text(cause));
		break;
	case STOP_FILE:
		snprintf(text, size,
			 stop->stale_file ? "the stop file %s already existed when training started"
					  : "the stop file appeared",
			 stop->file ? stop->file : "");
		break;
	case STOP_TIME:
		snprintf(text, size,
			 "the job's time limit is reached in %.0f s (a step takes %.2f s, a "
			 "checkpoint %.2f s)",
			 fmax(0, stop->end_s - clock_now_s()), stop->step_s, stop->save_s);
		break;
	default:
		snprintf(text, size, "unknown reason");
	}
}
