/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage train: from options and a place among the ranks to a trained network. */
#ifndef BERTH_TRAIN_RUN_LOOP_H
#define BERTH_TRAIN_RUN_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "rendezvous/ranks.h"
#include "train/run/settings.h"

/* Receives what a run prints; on rank 0 alone except for errors. Called from train_run's thread. */
struct train_sink {
	void *context;
	/* A line of progress: step is done, loss its mean over all ranks. */
	void (*progress)(void *context, const char *text);
	/* A line that stays: an evaluation, a checkpoint, something skipped. */
	void (*note)(void *context, const char *text);
	/* The communication failed and train_run's thread hangs in a call that cannot be cancelled:
	 * for ending the process. From another thread, on any rank. NULL is fine. */
	void (*lost)(void *context, const char *why);
	/* A checkpoint is complete, on rank 0; may be NULL. */
	void (*saved)(void *context, const char *path, int64_t step);
};

/* How it ended; the same on all ranks but for the paths, which rank 0 alone has (malloced). */
struct train_result {
	int64_t steps, epochs, samples; /* samples: trained in this run, over all ranks */
	double loss; /* of the evaluation, or of the last step without one; NaN without either */
	bool evaluated, classified; /* classified: acc1 and acc5 count */
	double acc1, acc5;	    /* per cent */
	double images_per_s;	    /* over all ranks, evaluations left out */
	bool resumed;
	bool stopped;		    /* before its end, with a checkpoint */
	char stop_why[160];	    /* as rank 0 puts it */
	char *checkpoint, *metrics; /* or NULL */
};
void train_result_free(struct train_result *result);

/* Train. Collective over all ranks of place. A loss that is not finite ends it with -ERR_DATA
 * naming the first such step, before anything is saved (unless nan_continues); losses are looked at
 * where they are logged or weights saved, so that no step waits for it. After an error the comm
 * makes the other ranks give up, if it can. err->text is empty if another rank reports the same.
 * With a checkpoint directory it stops with a checkpoint (out->stopped), after a step or within an
 * evaluation, when any rank has received a signal that stop_catch_signals catches, stop_file has
 * appeared, or end_time is near. */
int train_run(const struct train_options *options, const struct ranks_place *place,
	      const struct train_sink *sink, struct train_result *out, struct error *err);

#endif
