/* SPDX-License-Identifier: BSD-3-Clause */
/* Prints and logs the steps and evaluations of a run: progress lines, metrics, and losses that are
 * not finite. Losses are read only where they are logged, weights are saved, or a rank has voted
 * that its loss is not finite, so that no step waits for one. */
#ifndef BERTH_TRAIN_RUN_REPORT_H
#define BERTH_TRAIN_RUN_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/metrics/metrics.h"
#include "train/run/begin.h"
#include "train/run/eval.h"
#include "train/run/loop.h"
#include "train/run/setup.h"

/* Zero-initialised: not open. */
struct train_report {
	/* Since the last report. The loop adds the updates of all ranks, and its waits for data. */
	int64_t samples, steps;
	double wait_s;

	/* private to report.c */
	const struct train_setup *setup;
	const struct train_progress *progress;
	struct metrics *metrics; /* rank 0 only; or NULL */
	double begin_s, begin_cpu_s;
	/* over all reports */
	double busy_s;
	int64_t busy_samples;

	double loss; /* of the last report; NaN before the first */
	int64_t first_nonfinite_step;
	bool nonfinite_reported;
};

/* Open the metrics files (--metrics). Borrows setup and progress. resumed: the run resumes from
 * progress's step. */
int train_report_open(struct train_report *report, const struct train_setup *setup,
		      const struct train_progress *progress, bool resumed, struct error *err);
void train_report_close(struct train_report *report);

/* Show what the run does now (activity: a constant), and the steps done so far. */
void train_report_status(const struct train_report *report, const char *activity);

/* Start a new interval: steps, samples and times count from here. */
void train_report_begin_interval(struct train_report *report);
/* Samples per second over all ranks and reports; 0 before the first report. */
double train_report_rate(const struct train_report *report);

/* Print and log the updates since the last report. *save_is_due: has rank 0's clock reached
 * save_at_s (base/clock.h) after the device has finished these updates? The same reduction shares
 * this with all ranks. Collective. */
int train_report_interval(struct train_report *report, double save_at_s, bool *save_is_due,
			  struct error *err);
/* Return -ERR_DATA if a loss of the interval reported last is not finite and --on-nan is not
 * continue. */
int train_report_check_loss(struct train_report *report, struct error *err);
/* Print and log an evaluation of the present weights; store it in out. Return -ERR_DATA if its loss
 * is not finite and --on-nan is not continue. */
int train_report_evaluation(struct train_report *report, const struct eval_result *result,
			    struct train_result *out, struct error *err);
/* Print and log a saved checkpoint. Called on rank 0. */
int train_report_checkpoint(struct train_report *report, const struct metrics_checkpoint *row,
			    struct error *err);
/* Fill in the samples, rate, loss and metrics file of the whole run. */
void train_report_result(const struct train_report *report, struct train_result *out);

#endif
