/* SPDX-License-Identifier: BSD-3-Clause */
/* Evaluation: every sample exactly once, over all ranks. */
#ifndef BERTH_TRAIN_RUN_EVAL_H
#define BERTH_TRAIN_RUN_EVAL_H

#include "base/error.h"
#include "train/run/setup.h"
#include "train/run/stop.h"

/* The result over all ranks, the same on each. top1, top5: numbers of correct samples; 0 with
 * LOSS_MSE. */
struct eval_result {
	double loss; /* mean over samples */
	int64_t samples, top1, top5;
	int64_t left_out; /* samples that could not be decoded */
	double seconds;
	double data_wait_ms; /* per batch, on the slowest rank */
	bool stopped;	     /* a rank stopped evaluating: the rest is meaningless */
};

/* Evaluate with setup's val_feed. It has no sampler, so rank r takes samples r, r + W, ...; one
 * reduction sums the counts. Before each batch, stop decides whether to stop evaluating. Return
 * -ERR_DATA if no sample could be decoded. Collective. */
int eval_run(const struct train_setup *setup, struct stop *stop, struct eval_result *out,
	     struct error *err);

#endif
