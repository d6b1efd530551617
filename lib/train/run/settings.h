/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of a run: complete, fitting each other, and the same on all ranks. */
#ifndef BERTH_TRAIN_RUN_SETTINGS_H
#define BERTH_TRAIN_RUN_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/comm/comm.h"
#include "train/device/device.h"
#include "train/model/graph.h"
#include "train/model/schedule.h"

struct train_setup;

enum save_unit { SAVE_NEVER, SAVE_STEPS, SAVE_EPOCHS, SAVE_TIME };

/* What the user asked for; strings are borrowed. train_defaults fills in the model's defaults. */
struct train_options {
	const char *model, *data, *device, *comm;
	enum model_stem stem;
	const struct env *env;	 /* for the rendezvous of ranks on GPUs; borrowed, or NULL */
	bool allow_shared_gpu;	 /* several ranks on one GPU are tried */
	const char *module_path; /* base/module.h's search path, or NULL */
	struct checkpoint_options checkpoint;
	const char *augment;   /* see data/augment.h; NULL: the format's own */
	const char *init;      /* a model file to begin from, or NULL */
	bool new_head;	       /* of init: all but the last layer */
	const char *metrics;   /* directory, or NULL */
	int64_t epochs, steps; /* steps 0: as many as the epochs have; else where to stop */
	int batch;	       /* of a rank, at once */
	int accumulate;	       /* batches of each rank that make one update, which is a step */
	double lr, momentum, weight_decay;
	bool nesterov;
	bool decay_vectors;			    /* weight decay on biases and batch norm, too */
	struct schedule schedule;		    /* its lr and epochs are not the options' */
	bool schedule_set;			    /* else the model's own */
	double smoothing;			    /* of labels, in training */
	bool direct, tf32, deterministic, no_graph; /* executor_request's */
	enum precision precision;
	enum loss_kind loss;
	bool loss_set; /* else chosen by the data: mse for one class */
	uint64_t seed;
	int64_t log_every; /* steps */
	enum save_unit save_unit;
	int64_t save_every; /* steps, epochs or milliseconds */
	bool save_set;
	bool keep_set;	       /* checkpoint.keep */
	const char *log_order; /* directory for the sample numbers as they are taken, or NULL */
	bool nan_continues;    /* a loss that is not finite does not end it */
	int image_size;	       /* of files of any size; 0: 224 */
	bool strict_data;      /* a sample that cannot be decoded ends it */
	int workers;	       /* threads that make batches; negative: what fits the data */
	int cores;	       /* of this rank; 0: not known */
	int timeout_ms;	       /* of every wait for other ranks */
	bool evaluate;
	const char *stop_file; /* BERTH_STOP_FILE: the run stops once it exists; or NULL */
	int64_t end_time;      /* of the job, Unix seconds; 0: not known */
};

/* Fill in the model's own batch, epochs, rate... where the value is 0 or negative, and check
 * whether the options fit each other: everything that can be known without reading data, before
 * ranks are started. -ERR_USAGE. */
int train_defaults(struct train_options *options, struct error *err);

/* -ERR_DATA names an option that is not the same on all ranks. Reads setup's options, data sets,
 * loss and graph. Collective. */
int train_compare(const struct train_setup *setup, struct error *err);

#endif
