/* SPDX-License-Identifier: BSD-3-Clause */
/* DIR/metrics.jsonl: one JSON object a line, for programs. */
#ifndef BERTH_TRAIN_METRICS_H
#define BERTH_TRAIN_METRICS_H

#include <stdint.h>

#include "base/error.h"
#include "train/data/dataset.h"

struct metrics; /* opaque; NULL is a file that nobody asked for: all calls do nothing */

struct metrics_row {
	enum split split;
	int64_t step, epoch; /* epoch from 1, as people count */
	double loss;	     /* a mean over samples; not finite: null in the file */
	double lr;	     /* train */
	double images_per_s; /* over all ranks */
	double data_wait_ms; /* train: a step, of the slowest rank */
	double acc1, acc5;   /* val, per cent; negative: none (regression) */
};

/* Open folder/metrics.jsonl, making the folder. resumed_step: rows past that step are dropped,
 * since they will be written again (by a new file renamed into place); negative: a new run, an
 * old file is kept as metrics.jsonl.1 or the next number that is free. -ERR_OUTPUT, -ERR_IO. */
int metrics_open(const char *folder, int64_t resumed_step, struct metrics **out, struct error *err);
/* One write(2) a row. -ERR_IO. */
int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct error *err);
const char *metrics_path(const struct metrics *metrics); /* "" for NULL */
void metrics_close(struct metrics *metrics);

#endif
