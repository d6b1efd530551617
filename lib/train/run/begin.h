/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a run begins and ends: weights from the seed or a checkpoint, and the last step. */
#ifndef BERTH_TRAIN_RUN_BEGIN_H
#define BERTH_TRAIN_RUN_BEGIN_H

#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/saver.h"
#include "train/model/schedule.h"
#include "train/run/loop.h"
#include "train/run/setup.h"

/* How far a run is. */
struct train_progress {
	struct train_state state;
	int64_t first_step;	       /* where it began */
	int64_t last_step, last_epoch; /* where it ends; last_epoch from 1 */
	int64_t update;		       /* samples of an update, over all ranks */
	int64_t saved_step;	       /* of the last checkpoint; -1: none that may stand for now */
	struct schedule schedule;
};

/* Open saver, and load the weights of a checkpoint or new ones on all ranks. Sets progress but for
 * its end, and result's resumed and checkpoint. Collective. */
int train_begin(struct train_setup *setup, struct saver *saver, struct train_progress *progress,
		struct train_result *result, struct error *err);
/* Find the run's end: --steps, or the last step of the last epoch. Collective. */
int train_find_end(const struct train_setup *setup, const struct train_result *result,
		   struct train_progress *progress, struct error *err);

#endif
