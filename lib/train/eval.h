/* SPDX-License-Identifier: BSD-3-Clause */
/* Evaluation: every sample exactly once, over all ranks. */
#ifndef BERTH_TRAIN_EVAL_H
#define BERTH_TRAIN_EVAL_H

#include "base/error.h"
#include "train/comm/comm.h"
#include "train/data/dataset.h"
#include "train/device/device.h"

/* Over all ranks, the same on each. top1, top5: samples that were right; 0 with LOSS_MSE. */
struct eval_result {
	double loss; /* mean over samples */
	int64_t samples, top1, top5;
	double seconds;
};

/* Rank r takes samples r, r + W, ...; one reduction adds the counts up. step: one without
 * training for batches of batch. Collective. */
int eval_run(struct dataset *dataset, struct device_step *step, int batch, struct comm *comm,
	     struct device_queue *queue, struct eval_result *out, struct error *err);

#endif
