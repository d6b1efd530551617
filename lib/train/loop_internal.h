/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a run, shared by loop.c (what happens when), setup.c (what it needs), begin.c (where
 * it begins and ends) and settings.c (what the options must be). */
#ifndef BERTH_TRAIN_LOOP_INTERNAL_H
#define BERTH_TRAIN_LOOP_INTERNAL_H

#include "train/checkpoint.h"
#include "train/comm/comm.h"
#include "train/data/dataset.h"
#include "train/ddp.h"
#include "train/eval.h"
#include "train/feed.h"
#include "train/loop.h"
#include "train/metrics.h"
#include "train/model/graph.h"
#include "train/optim.h"
#include "train/sampler.h"

struct train {
	const struct train_options *options;
	const struct ranks_place *place;
	const struct train_sink *sink;

	struct device *device;
	struct device_queue *queue;
	struct comm *comm;
	struct dataset *data, *val;
	struct graph *graph;
	struct buckets buckets;
	struct optim optim;
	struct device_step *step, *val_step;
	struct sampler sampler;
	struct schedule schedule;
	struct metrics *metrics; /* rank 0 */
	enum loss_kind loss_kind;
	struct feed *feed, *val_feed;

	struct train_state state;
	int64_t last_step, last_epoch; /* where it ends; last_epoch from 1 */
	int64_t first_bad, saved_step;
	double saved_at_s; /* rank 0: when the last checkpoint was begun; begins with the run */
	bool time_is_up;   /* for the next one, by rank 0's clock; the same on all ranks */
	bool bad_told;
	double loss;

	/* since the last report */
	double interval_begin_s, wait_s;
	int64_t interval_samples, interval_steps;
	/* all reports together */
	double busy_s;
	int64_t busy_samples;
	struct train_result result;
};

double train_now_s(void); /* monotonic */
void train_interval_begin(struct train *train);
/* For a rank that fails only because another did: wait a second. Whoever started the ranks calls
 * the first one that ends the cause, and that must be the one which knows why. Blocks. */
void train_let_first_end(void);
void train_note(const struct train *train, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* settings.c: -ERR_DATA names an option that is not the same on all ranks. Collective. */
int train_compare(struct train *train, struct error *err);
/* Open data, device, comm; build the network; reserve memory. */
int train_open(struct train *train, struct error *err);
/* Every rank says whether it is ready (rc 0), so that one with a missing file stops all at once and
 * nobody waits for it in the first reduction. rc, or the code of the lowest rank that is not ready:
 * then err says which. Collective. */
int train_ready(struct train *train, int rc, struct error *err);
/* begin.c: weights from the seed or a checkpoint, equal on all ranks; where to end; metrics. */
int train_begin(struct train *train, struct error *err);
/* Write a checkpoint, at the end of a run model.safetensors too; rank 0 alone. */
int train_save(struct train *train, bool last, struct error *err);
void train_close(struct train *train);

#endif
