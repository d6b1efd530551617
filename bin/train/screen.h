/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth-train writes to stderr: lines that stay, and the status of the run.
 *
 * On a terminal the status is one line that a thread redraws every second, also while a step lasts
 * long. Under berth train the terminal belongs to berth: marked lines (progress.h) tell it what to
 * draw. Elsewhere the status becomes a line if nothing was written for a minute. It is repeated
 * only if it has changed: output of a rank that makes no step would hide that from --hang-timeout.
 */
#ifndef BERTH_BIN_TRAIN_SCREEN_H
#define BERTH_BIN_TRAIN_SCREEN_H

#include <pthread.h>
#include <stdbool.h>

#include "base/env.h"

/* Private to screen.c. The lock guards everything below it, and stderr. */
struct screen {
	bool terminal, marked, has_thread;
	bool quiet;    /* write nothing */
	double line_s; /* the longest time without a line, if there is no terminal */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool ends, dirty; /* dirty: the terminal's last line is the status */
	bool changed;	  /* the status, since the last line */
	double begin_s, written_s;
	const char *activity;
	char text[200];
};

/* Start to show the status. shows: this rank does; the others only write lines. */
void screen_open(struct screen *screen, const struct env *env, bool shows);
/* Stop, and remove the status line. */
void screen_close(struct screen *screen);
/* Remove the status line, and write a line that stays. */
void screen_line(struct screen *screen, const char *text);
/* A line that the next one may overwrite. */
void screen_progress(struct screen *screen, const char *text);
/* Set the status: text (NULL: as before) and the present activity, which is a constant. */
void screen_status(struct screen *screen, const char *text, const char *activity);

#endif
