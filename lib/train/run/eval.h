/* SPDX-License-Identifier: BSD-3-Clause */
/* Evaluation: every sample exactly once, over all ranks. */
#ifndef BERTH_TRAIN_RUN_EVAL_H
#define BERTH_TRAIN_RUN_EVAL_H

#include "base/error.h"
#include "train/run/setup.h"
#include "train/run/stop.h"

/* Over all ranks, the same on each. top1, top5: samples that were right; 0 with LOSS_MSE. */
struct eval_result {
	double loss; /* mean over samples */
	int64_t samples, top1, top5;
	int64_t left_out; /* that could not be decoded */
	double seconds;
	double data_wait_ms; /* a batch, of the slowest rank */
	bool stopped;	     /* a rank stopped evaluating: the rest is meaningless */
};

/* Evaluate with setup's val_feed, which has no sampler, so that rank r takes samples r, r + W, ...;
 * one reduction adds the counts up. Collective. -ERR_DATA when no sample could be decoded. stop:
 * asked before each batch whether to stop evaluating. */
int eval_run(const struct train_setup *setup, struct stop *stop, struct eval_result *out,
	     struct error *err);

#endif
