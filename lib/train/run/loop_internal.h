/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a run, shared by loop.c (what happens when), setup.c (what it needs), begin.c (where
 * it begins and ends), resume.c (from which checkpoint), writers.c (who saves), save.c (how) and
 * settings.c (what the options must be). */
#ifndef BERTH_TRAIN_RUN_LOOP_INTERNAL_H
#define BERTH_TRAIN_RUN_LOOP_INTERNAL_H

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/owner.h"
#include "train/checkpoint/writer.h"
#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/data/dataset.h"
#include "train/data/feed.h"
#include "train/data/sampler.h"
#include "train/device/cuda/gpu_meter.h"
#include "train/metrics/metrics.h"
#include "train/model/graph.h"
#include "train/run/eval.h"
#include "train/run/loop.h"
#include "train/run/optim.h"
#include "train/run/stop.h"

struct train {
	const struct train_options *options;
	const struct ranks_place *place;
	const struct train_sink *sink;

	struct device *device;
	struct error no_gpu; /* why --device auto passed one over; empty text: it did not */
	struct device_queue *queue;
	struct comm *comm;
	struct dataset *data, *val;
	struct graph *graph;
	struct buckets buckets;
	struct optim optim;
	struct device_executor *executor, *val_executor;
	struct sampler sampler;
	struct schedule schedule;
	struct metrics *metrics; /* rank 0 */
	struct gpu_meter *meter; /* or NULL */
	enum loss_kind loss_kind;
	struct feed *feed, *val_feed;
	void *resident, *val_resident; /* device memory: the data sets, or NULL */

	struct train_state state;
	int64_t first_step; /* where it began */
	struct stop stop;
	bool stopped;		       /* all ranks have agreed to stop here */
	bool gave_up;		       /* all ranks have agreed that one of them could not begin */
	int64_t last_step, last_epoch; /* where it ends; last_epoch from 1 */
	int batch; /* of a rank, at once; the options' unless a checkpoint's updates are kept */
	int64_t update; /* samples of an update, over all ranks */
	int64_t first_nonfinite_step, saved_step;
	double saved_at_s; /* rank 0: when the last checkpoint was begun; begins with the run */
	bool save_is_due;  /* for the next one, by rank 0's clock; the same on all ranks */
	bool nonfinite_reported;
	double loss;

	bool writes; /* this rank keeps checkpoints; of several nodes without a common folder */
	int writers; /* one each */
	int root;    /* the rank that has what the run begins with */
	struct owner *owner;   /* of ranks that write */
	struct writer *writer; /* the same */
	char *resumed_from;    /* where root read it; NULL: nowhere */
	double best_acc1;  /* of what was saved or is being, by this run and those before; negative:
			    * none. Rank 0's counts, as it alone knows of a write that failed. */
	double best_saved; /* of what was saved */
	int64_t evaluated_step;		     /* what result's acc1 is of; -1: none */
	double stall_s, snapshot_s, write_s; /* the last save: all that training stood still; of
					      * that what there is always; the write beside it */
	struct error save_error;	     /* of the last write, code 0: it is well */
	struct error skip_error;	     /* why the last save was not begun, code 0: it was */
	bool save_wait_reported, save_ends;
	int sample_log_fd; /* --log-order; -1: none */

	/* since the last report */
	double interval_begin_s, interval_begin_cpu_s, wait_s;
	int64_t interval_samples, interval_steps;
	/* all reports together */
	double busy_s;
	int64_t busy_samples;
	struct train_result result;
};

double train_cpu_s(void); /* what the calling thread has computed */
void train_interval_begin(struct train *train);
/* For a rank that fails only because another did: wait a second. Whoever started the ranks calls
 * the first one that ends the cause, and that must be the one which knows why. Blocks. */
void train_let_failed_rank_end_first(void);
void train_note(const struct train *train, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* report.c: the rate of the update before which steps updates were done. */
double train_lr(const struct train *train, int64_t steps);
/* Log and tell what was done since the last time: metrics, progress, what became of a write.
 * -ERR_DATA: a loss is not finite, and --on-nan does not say continue. Collective. */
int train_report(struct train *train, struct error *err);
/* Evaluate, log and tell it; the same of a loss that is not finite. train->stopped: it was broken
 * off. Collective. */
int train_evaluate(struct train *train, struct error *err);

/* settings.c: -ERR_DATA names an option that is not the same on all ranks. Collective. */
int train_compare(struct train *train, struct error *err);
/* Open data, device, comm; build the network; reserve memory. */
int train_open(struct train *train, struct error *err);
/* Every rank says whether it is ready (rc 0), so that one with a missing file stops all at once and
 * nobody waits for it in the first reduction. rc, or the code of the lowest rank that is not ready:
 * then err says which. Collective, until it has failed once: from then on it gives back rc, as the
 * rank that knows why has left. */
int train_ready(struct train *train, int rc, struct error *err);
/* begin.c: weights from the seed or a checkpoint, equal on all ranks; where to end; metrics. */
int train_begin(struct train *train, struct error *err);
/* Find out which ranks write: sets writes and writers. Makes the folder. Collective. */
int train_find_writers(struct train *train, struct error *err);
/* Ranks that write: make the folder, own it, tidy it up, start what writes. The others wait for
 * them, however long it takes. Collective. */
int train_open_checkpoint_dir(struct train *train, struct error *err);
/* Load what the run goes on from, on root: sets root, resumed_from and state. Collective. */
int train_load_weights(struct train *train, struct variables *variables, struct error *err);
/* --log-order: open this rank's file; write what it takes of the count entries at position. */
int train_sample_log_open(struct train *train, struct error *err);
int train_sample_log_write(struct train *train, int64_t position, int64_t count, struct error *err);

/* Is this step to be kept as the best one, whenever saves are due? With --keep alone: without it
 * nothing is saved that was not asked for. The same on all ranks. */
bool train_is_best(const struct train *train);
/* Begin a checkpoint of this step (last: model.safetensors, too): takes the snapshot, the writing
 * goes on beside the training. A write that fails is told by train_report_finished_save and keeps
 * the checkpoint before; the run goes on. Every rank calls it; waits for a write that is still
 * under way. */
int train_save(struct train *train, bool last, struct error *err);
/* Tell what became of a write, if one has ended. -ERR_OUTPUT: the folder is another job's now. */
int train_report_finished_save(struct train *train, struct error *err);
/* All is written, or why not: for the end, and before whoever started the ranks is told that all is
 * saved. Waits. Collective. */
int train_wait_for_saves(struct train *train, struct error *err);
/* Waits for a write that is under way, gives the folder back. False: a write hangs. */
bool train_close_checkpoint_dir(struct train *train);
void train_close(struct train *train);

#endif
