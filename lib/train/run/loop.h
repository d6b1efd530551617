/* SPDX-License-Identifier: BSD-3-Clause */
/* The train stage: trains a network, given the options and this process's place among the ranks. */
#ifndef BERTH_TRAIN_RUN_LOOP_H
#define BERTH_TRAIN_RUN_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "rendezvous/ranks.h"
#include "train/run/settings.h"

/* Receives what a run prints; except for errors, only on rank 0. Called from train_run's thread
 * unless noted. */
struct train_sink {
	void *context;
	/* A progress line. A terminal overwrites it with the next one. */
	void (*progress)(void *context, const char *text);
	/* A line that stays on the terminal: an evaluation, a checkpoint, a skipped file. */
	void (*note)(void *context, const char *text);
	/* What the run does now. text: epoch, step, loss, time left and rate, NULL if they are as
	 * before; activity: a constant. Called at every step, so it must be fast. */
	void (*status)(void *context, const char *text, const char *activity);
	/* Communication failed and train_run's thread hangs in a call that cannot be cancelled: end
	 * the process. Called from another thread, on any rank. May be NULL. */
	void (*lost)(void *context, const char *why);
	/* A checkpoint is complete. Called on rank 0; may be NULL. */
	void (*saved)(void *context, const char *path, int64_t step);
};

/* How the run ended: the same on all ranks, except for the paths, which only rank 0 has (malloced).
 */
struct train_result {
	int64_t steps, epochs, samples; /* samples: those trained on in this run, over all ranks */
	double loss;		    /* of the last evaluation, else of the last step, else NaN */
	bool evaluated, classified; /* classified: acc1 and acc5 are valid */
	double acc1, acc5;	    /* per cent */
	double images_per_s;	    /* over all ranks, without evaluations */
	bool resumed;
	bool stopped;		    /* stopped early, with a checkpoint */
	char stop_why[160];	    /* in rank 0's words */
	char *checkpoint, *metrics; /* or NULL */
};
void train_result_free(struct train_result *result);

/* Train. Collective over all ranks of place.
 *
 * Unless nan_continues is set, a loss that is not finite ends the run with -ERR_DATA, which names
 * the first such step, before anything is saved. A rank reports its loss with its vote to stop, so
 * no step waits for it: on a GPU the run ends at most 12 updates later. After an error the comm
 * makes the other ranks give up, if it can. err->text is empty if another rank reports the same
 * error.
 *
 * With a checkpoint directory the run stops early with a checkpoint (out->stopped) if any rank has
 * received a signal that stop_catch_signals catches, if stop_file exists, or if end_time is near.
 * It stops after a step or within an evaluation. */
int train_run(const struct train_options *options, const struct ranks_place *place,
	      const struct train_sink *sink, struct train_result *out, struct error *err);

#endif
