/* SPDX-License-Identifier: BSD-3-Clause */
/* What a run opens once, before its first step, and closes after its last. */
#ifndef BERTH_TRAIN_RUN_SETUP_H
#define BERTH_TRAIN_RUN_SETUP_H

#include "base/error.h"
#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/comm/meeting.h"
#include "train/comm/rank_group.h"
#include "train/data/dataset.h"
#include "train/data/feed.h"
#include "train/data/sampler.h"
#include "train/device/cuda/gpu_meter.h"
#include "train/model/graph.h"
#include "train/run/loop.h"
#include "train/run/optim.h"

/* The val_* members are NULL without evaluation. The struct must not move while it is open, because
 * its parts borrow others. */
struct train_setup {
	/* borrowed */
	const struct train_options *options;
	const struct ranks_place *place;
	const struct train_sink *sink;

	struct device *device;
	struct device_queue *queue;
	struct comm *comm;
	struct ranks *ranks;	 /* where they met; NULL: a single rank */
	struct meeting *meeting; /* its outcome */
	char ranks_text[96];	 /* "; 2 ranks over gloo (...)", for a message; "" for one rank */
	struct rank_group group; /* the ranks of comm */
	struct graph *graph;
	struct buckets buckets;
	struct optim optim;
	enum loss_kind loss_kind;
	struct gpu_meter *meter; /* or NULL */
	struct sampler sampler;
	struct dataset *data, *val;
	void *resident, *val_resident; /* the data sets in device memory, or NULL */
	struct device_executor *executor, *val_executor;
	struct feed *feed, *val_feed;
};

/* Open data, device and comm; build the network; allocate memory; compare the options of all ranks.
 * Except for its borrowed members, setup must be zero. Call train_setup_close also after a failure.
 * Collective. */
int train_setup_open(struct train_setup *setup, struct error *err);
/* written: what saver_close returned. If it is false, what the writer borrows stays. */
void train_setup_close(struct train_setup *setup, bool written);

#endif
