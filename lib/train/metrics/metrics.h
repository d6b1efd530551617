/* SPDX-License-Identifier: BSD-3-Clause */
/* DIR/metrics.jsonl for programs: one JSON object per line, with the time of its writing in seconds
 * since 1970 (UTC). DIR/train and DIR/val hold the same for
 * TensorBoard (tensorboard.h), which overlays the two. */
#ifndef BERTH_TRAIN_METRICS_METRICS_H
#define BERTH_TRAIN_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/data/dataset.h"

struct gpu_reading;

struct metrics; /* opaque; NULL: metrics are off, and all calls do nothing */

struct metrics_row {
	enum split split;
	int64_t step, epoch; /* epoch from 1, as people count */
	double loss;	     /* mean over samples; written as null in metrics.jsonl if not finite */
	double lr;	     /* at that step */
	double images_per_s; /* over all ranks */
	double data_wait_ms; /* per step (val: per batch), on the slowest rank */
	const struct gpu_reading *gpu; /* train: over all ranks; NULL: not on a GPU */
	/* With gpu: host time that the thread which launches steps computes, per step, on the
	 * slowest rank. */
	double host_ms;
	bool overlap;			      /* train: rank 0 measured the next two */
	double comm_busy_ms, comm_exposed_ms; /* for the newest step's reductions: see comm.h */
	double acc1, acc5;		      /* val, per cent; negative: none (regression) */
};

/* A checkpoint's row: "split":"checkpoint", in metrics.jsonl only. */
struct metrics_checkpoint {
	int64_t step, epoch; /* epoch from 1 */
	double stall_ms;     /* how long the training stood still for it */
	double write_ms;     /* how long the write took in the background */
	uint64_t size_bytes;
};

/* Open the files of directory, which is created if missing. Rows after resumed_step are dropped,
 * because the run writes them again: a new file is renamed into place, and TensorBoard purges its
 * rows when it reads. A negative resumed_step means a new run: an old metrics.jsonl is kept as
 * metrics.jsonl.1 or the next free number. validates: there will be rows of val. Return 0,
 * -ERR_OUTPUT or -ERR_IO. */
int metrics_open(const char *directory, int64_t resumed_step, bool validates, struct metrics **out,
		 struct error *err);
/* Write a row, with one write(2) per file. A val row for a step that existed when a resumed run
 * began is left out, because that evaluation was repeated. Return 0 or -ERR_IO. */
int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct error *err);
int metrics_write_checkpoint(struct metrics *metrics, const struct metrics_checkpoint *row,
			     struct error *err);
const char *metrics_path(const struct metrics *metrics); /* of metrics.jsonl; not for NULL */
void metrics_close(struct metrics *metrics);

#endif
