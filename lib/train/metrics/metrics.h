/* SPDX-License-Identifier: BSD-3-Clause */
/* DIR/metrics.jsonl: one JSON object a line, for programs; DIR/train and DIR/val: the same for
 * TensorBoard (tensorboard.h), which shows the two over each other. */
#ifndef BERTH_TRAIN_METRICS_METRICS_H
#define BERTH_TRAIN_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/data/dataset.h"

struct gpu_reading;

struct metrics; /* opaque; NULL is a file that nobody asked for: all calls do nothing */

struct metrics_row {
	enum split split;
	int64_t step, epoch;	       /* epoch from 1, as people count */
	double loss;		       /* a mean over samples; not finite: null in metrics.jsonl */
	double lr;		       /* of that step */
	double images_per_s;	       /* over all ranks */
	double data_wait_ms;	       /* a step, in val a batch, of the slowest rank */
	const struct gpu_reading *gpu; /* train: over all ranks; NULL: not on a GPU */
	double host_ms; /* where there is gpu: that the thread which launches steps computes, a
			 * step, of the slowest rank */
	bool overlap;	/* train: rank 0 measured the next two */
	double comm_busy_ms, comm_exposed_ms; /* the newest step's reductions, as comm.h says */
	double acc1, acc5;		      /* val, per cent; negative: none (regression) */
};

/* What is open besides the training's. */
struct metrics_request {
	const char *directory; /* made where it is missing */
	int64_t resumed_step;  /* rows past that step are dropped, since they will be written again
				* (by a new file renamed into place; TensorBoard purges them when it
				* reads). Negative: a new run, an old metrics.jsonl is kept as
				* metrics.jsonl.1 or the next number that is free */
	bool validates;	       /* there will be rows of val */
};

/* A checkpoint: "split":"checkpoint", in metrics.jsonl alone. */
struct metrics_checkpoint {
	int64_t step, epoch; /* epoch from 1 */
	double stall_ms;     /* that the training stood still for it */
	double write_ms;     /* that the write took beside the training */
	uint64_t size_bytes;
};

/* Open folder's files. -ERR_OUTPUT, -ERR_IO. */
int metrics_open(const struct metrics_request *request, struct metrics **out, struct error *err);
/* One write(2) a row and file. A row of val whose step was there when a resumed run began is left
 * out: that evaluation was repeated. -ERR_IO. */
int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct error *err);
int metrics_write_checkpoint(struct metrics *metrics, const struct metrics_checkpoint *row,
			     struct error *err);
const char *metrics_path(const struct metrics *metrics); /* "" for NULL */
void metrics_close(struct metrics *metrics);

#endif
