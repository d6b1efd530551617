/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a run starts and ends: with weights from the seed or from a checkpoint, and at which step.
 */
#ifndef BERTH_TRAIN_RUN_BEGIN_H
#define BERTH_TRAIN_RUN_BEGIN_H

#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/saver.h"
#include "train/model/schedule.h"
#include "train/run/loop.h"
#include "train/run/setup.h"

/* The progress of a run. */
struct train_progress {
	struct train_state state;
	int64_t first_step;	       /* the step at which this run started */
	int64_t last_step, last_epoch; /* where this run ends; last_epoch counts from 1 */
	int64_t update;		       /* samples per update, over all ranks */
	int64_t saved_step; /* step of the last checkpoint; -1: none that matches the present state
			     */
	struct schedule schedule;
};

/* Open saver, and load the weights of a checkpoint or initialise new ones on all ranks. Sets
 * progress except for its end, and result's resumed and checkpoint. Collective. */
int train_begin(struct train_setup *setup, struct saver *saver, struct train_progress *progress,
		struct train_result *result, struct error *err);
/* Find the run's end: --steps, or the last step of the last epoch. Collective. */
int train_find_end(const struct train_setup *setup, const struct train_result *result,
		   struct train_progress *progress, struct error *err);

#endif
