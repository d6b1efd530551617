/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage train: from options and a place among the ranks to a trained network. */
#ifndef BERTH_TRAIN_RUN_LOOP_H
#define BERTH_TRAIN_RUN_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "rendezvous/ranks.h"
#include "train/checkpoint/owner.h"
#include "train/device/device.h"
#include "train/model/graph.h"
#include "train/model/schedule.h"

enum save_unit { SAVE_NEVER, SAVE_STEPS, SAVE_EPOCHS, SAVE_TIME };

/* What the command line says; strings borrowed. train_defaults fills what the model knows best. */
struct train_options {
	const char *model, *data, *device, *comm;
	enum model_stem stem;
	const struct env *env;	 /* by which ranks on GPUs meet; borrowed; NULL: they cannot */
	bool allow_shared_gpu;	 /* several ranks on one GPU are tried */
	const char *module_path; /* base/module.h's search path, or NULL */
	const char *ckpt;	 /* folder, or NULL */
	const char *augment;	 /* as data/augment.h says; NULL: the format's own */
	const char *resume;	 /* "auto", "never" or a file */
	const char *init;	 /* a model file to begin from, or NULL */
	bool new_head;		 /* of init: all but the last layer */
	const char *metrics;	 /* folder, or NULL */
	int64_t epochs, steps;	 /* steps 0: as many as the epochs have; else where to stop */
	int batch;		 /* of a rank, at once */
	int accumulate;		 /* batches of each rank that make one update, which is a step */
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
	int64_t keep; /* newest checkpoints; 0: all */
	bool keep_set;
	bool take_over;			   /* ckpt, whoever owns it */
	const struct owner_identity *self; /* who we are; NULL: no job */
	const char *log_order; /* folder for the sample numbers as they are taken, or NULL */
	bool nan_continues;    /* a loss that is not finite does not end it */
	int image_size;	       /* of files of any size; 0: 224 */
	bool strict_data;      /* a sample that cannot be decoded ends it */
	int workers;	       /* threads that make batches; negative: what fits the data */
	int cores;	       /* of this rank, as far as somebody said; 0: not known */
	int timeout_ms;	       /* of every wait for other ranks */
	bool evaluate;
	const char *stop_file; /* BERTH_STOP_FILE: where it appears the run stops; or NULL */
	int64_t end_time;      /* of the job, Unix seconds; 0: not known */
};

/* Where a run's words go; on rank 0 alone but for errors. Called from train_run's thread. */
struct train_sink {
	void *context;
	/* A line of progress: step is done, loss its mean over all ranks. */
	void (*progress)(void *context, const char *text);
	/* A line that stays: an evaluation, a checkpoint, something passed over. */
	void (*note)(void *context, const char *text);
	/* The communication failed and train_run's thread hangs where nobody can call it back: for
	 * ending the process. From another thread, on any rank. NULL is fine. */
	void (*lost)(void *context, const char *why);
	/* A checkpoint is whole, on rank 0; may be NULL. */
	void (*saved)(void *context, const char *path, int64_t step);
};

/* How it ended; the same on all ranks but for the paths, which rank 0 alone has (malloced). */
struct train_result {
	int64_t steps, epochs, samples; /* samples: trained in this run, over all ranks */
	double loss; /* of the evaluation, or of the last step without one; NaN without either */
	bool evaluated, classified; /* classified: acc1 and acc5 count */
	double acc1, acc5;	    /* per cent */
	double images_per_s;	    /* over all ranks, evaluations left out */
	bool resumed;
	bool stopped;		    /* before its end, with a checkpoint */
	char stop_why[160];	    /* rank 0's word */
	char *checkpoint, *metrics; /* or NULL */
};
void train_result_free(struct train_result *result);

/* The model's own batch, epochs, rate... for what is 0 or negative, and whether the options fit
 * each other: all that can be known without reading data, for before ranks are started. -ERR_USAGE.
 */
int train_defaults(struct train_options *options, struct error *err);

/* Train. Collective over all ranks of place. A loss that is not finite ends it with -ERR_DATA
 * naming the first such step, before anything is saved (unless nan_continues); losses are looked at
 * where they are logged or weights saved, so that no step waits for it. After an error the other
 * ranks are told to give up where the comm can. err->text is empty where another rank has said the
 * same. Where there is a folder for checkpoints it stops with one (out->stopped), after a step or
 * within an evaluation, when a signal that stop_catch_signals caught has come to any rank,
 * stop_file has appeared, or end_time is near. */
int train_run(const struct train_options *options, const struct ranks_place *place,
	      const struct train_sink *sink, struct train_result *out, struct error *err);

#endif
