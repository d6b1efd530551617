/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of a run: adds defaults, checks that they are consistent, and that all ranks have the
 * same. */
#ifndef BERTH_TRAIN_RUN_SETTINGS_H
#define BERTH_TRAIN_RUN_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/comm/meeting.h"
#include "train/executor/executor.h"
#include "train/model/graph.h"
#include "train/model/schedule.h"

struct train_setup;

enum save_unit { SAVE_NEVER, SAVE_STEPS, SAVE_EPOCHS, SAVE_TIME };

/* What the user asked for; strings are borrowed. train_defaults fills in the model's defaults. */
struct train_options {
	const char *model, *data, *device, *comm;
	enum model_stem stem;
	const struct env *env;	 /* for the rendezvous of ranks on GPUs; borrowed, or NULL */
	bool allow_shared_gpu;	 /* allow several ranks on one GPU */
	const char *module_path; /* base/module.h's search path, or NULL */
	struct checkpoint_options checkpoint;
	const char *augment;   /* see data/augment.h; NULL: the format's own */
	const char *init;      /* a model file to start from, or NULL */
	bool new_head;	       /* of init, take all but the last layer */
	const char *metrics;   /* directory, or NULL */
	int64_t epochs, steps; /* steps: where to stop; 0: at the end of the epochs */
	int batch;	       /* samples per batch of a rank */
	int accumulate;	       /* batches of each rank per update, which is a step */
	double lr, momentum, weight_decay;
	bool nesterov;
	bool decay_vectors;	  /* also apply weight decay to biases and batch norm */
	struct schedule schedule; /* its lr and epochs are unused: see those here */
	bool schedule_set;	  /* else the model's default */
	double smoothing;	  /* label smoothing in training */
	bool direct, tf32, deterministic, no_graph; /* see executor_request */
	enum precision precision;
	enum loss_kind loss;
	bool loss_set; /* else chosen by the data: mse for one class */
	uint64_t seed;
	int64_t log_every; /* steps */
	enum save_unit save_unit;
	int64_t save_every; /* steps, epochs or milliseconds */
	bool save_set;
	bool keep_set;	       /* checkpoint.keep */
	const char *log_order; /* directory for the numbers of the samples in the order taken, or
				  NULL */
	bool nan_continues;    /* a loss that is not finite does not end the run */
	int image_size;	       /* of files of any size; 0: 224 */
	bool strict_data;      /* a sample that cannot be decoded ends the run */
	int workers;	       /* threads that prepare batches; negative: chosen by the data */
	int cores;	       /* of this rank; 0: unknown */
	int timeout_ms;	       /* limit of every wait for other ranks */
	bool evaluate;
	const char *stop_file; /* BERTH_STOP_FILE: the run stops once it exists; or NULL */
	int64_t end_time;      /* of the job, Unix seconds; 0: unknown */
	const char *end_file;  /* BERTH_END_TIME_FILE, or NULL */
};

/* Fill in the model's defaults (batch, epochs, learning rate ...) for values that are 0 or
 * negative, and check that the options are consistent. It checks everything that needs no data, so
 * that errors show before ranks start. Return 0 or -ERR_USAGE. */
int train_defaults(struct train_options *options, struct error *err);

/* What must be the same on all ranks: setup's options, data sets, loss and graph. Return how many.
 */
size_t train_settings(const struct train_setup *setup,
		      struct meeting_setting out[MEETING_SETTINGS]);

#endif
