/* SPDX-License-Identifier: BSD-3-Clause */
/* From what weights and at which step a run begins, and where it ends. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "train/loop_internal.h"

static void passed_over(void *context, const char *text)
{
	train_note(context, "%s", text);
}

/* Weights from the seed, or from --init's file. */
static int begin_anew(struct train *train, struct variables *variables, struct error *err)
{
	const struct train_options *options = train->options;
	int rc = graph_initialise(train->graph, options->seed, train->buckets.offsets,
				  variables->weights, err);

	graph_initialise_buffers(train->graph, variables->buffers);
	train->state.seed = options->seed;
	train->state.world = train->comm->size;
	if (rc || !options->init)
		return rc;
	rc = checkpoint_init(options->init, train->graph, &train->buckets, options->new_head,
			     &train->state, variables, err);
	if (!rc)
		train_note(train, "initial weights from %s%s", options->init,
			   options->new_head ? ", the last layer anew" : "");
	return rc;
}

/* What is not as it was when the checkpoint was saved. */
static void say_changes(const struct train *train)
{
	const struct train_options *options = train->options;
	struct train_state today;

	if (!train_state_data(&today, options->data, NULL) && strcmp(train->state.data, today.data))
		train_note(train, "note: the checkpoint's data was %s, now it is %s",
			   train->state.data, today.data);
	int64_t was = train->state.batch * (int64_t)train->state.world;
	int64_t now = (int64_t)options->batch * options->accumulate * train->comm->size;

	if (was != now)
		train_note(train,
			   "note: an update was of %" PRId64 " samples, now it is of %" PRId64, was,
			   now);
	if (train->state.seed != options->seed)
		train_note(train,
			   "note: the checkpoint's seed was %" PRIu64
			   ", and orders and augmentation go on with it; "
			   "--seed is %" PRIu64,
			   train->state.seed, options->seed);
}

/* Rank 0: weights and state from a checkpoint if there is one, else from the seed. */
static int find_weights(struct train *train, struct variables *variables, struct error *err)
{
	const struct train_options *options = train->options;
	const struct checkpoint_sink sink = {train, passed_over};
	char *path = NULL;
	int rc = 0;

	if (!strcmp(options->resume, "auto")) {
		if (options->ckpt)
			rc = checkpoint_resume(options->ckpt, train->graph, &train->buckets, &sink,
					       &train->state, variables, &path, err);
	} else if (strcmp(options->resume, "never")) {
		path = strdup(options->resume);
		rc = path ? checkpoint_load(path, train->graph, &train->buckets, &train->state,
					    variables, err)
			  : error_memory(err, "a name");
	}
	if (rc) {
		free(path);
		return rc;
	}
	if (!path)
		return begin_anew(train, variables, err);
	train->result.resumed = true;
	if (!strcmp(options->resume, "auto")) {
		/* It lies where the next one would: a finished run does not save it again. */
		train->saved_step = train->state.step;
		train->result.checkpoint = path;
	}
	train_note(train,
		   "resuming from %s: step %" PRId64 ", epoch %" PRId64 ", position %" PRId64, path,
		   train->state.step, train->state.epoch + 1, train->state.position);
	say_changes(train);
	if (!train->result.checkpoint)
		free(path);
	return 0;
}

/* The run's end: --steps, or the last step of the last epoch. */
static void plan_end(struct train *train)
{
	const struct train_options *options = train->options;
	int64_t world = train->comm->size;
	int64_t global = (int64_t)options->batch * options->accumulate * world;
	int64_t total = (train->data->count + world - 1) / world * world;
	int64_t per_epoch = (total + global - 1) / global;
	int64_t epochs =
		options->epochs > train->state.epoch ? options->epochs - train->state.epoch : 0;
	int64_t all = train->state.step, begun = total, here;

	if (train->state.position)
		begun = (train->data->count + train->state.world - 1) / train->state.world *
			train->state.world;
	begun -= train->state.position;
	here = begun > 0 ? (begun + global - 1) / global : 0; /* steps left of this epoch */
	if (epochs > 0)
		all += here + (epochs - 1) * per_epoch;
	train->last_step = options->steps > 0 && options->steps < all ? options->steps : all;
	train->last_epoch = options->epochs;
	if (options->steps > 0 && options->epochs >= INT32_MAX) {
		/* The epoch in which --steps ends, the same for a run that begins within one. */
		int64_t later = train->last_step - train->state.step - here;

		train->last_epoch = train->state.epoch + 1;
		if (later > 0)
			train->last_epoch += (later + per_epoch - 1) / per_epoch;
	}
	train->schedule = options->schedule;
	train->schedule.lr = options->lr;
	train->schedule.epochs = train->last_epoch;
}

static int open_outputs(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	const struct metrics_request metrics = {
		.folder = options->metrics,
		.resumed_step = train->result.resumed ? train->state.step : -1,
		.validates = options->evaluate,
	};
	int rc = 0;

	if (options->ckpt)
		rc = file_make_dirs(options->ckpt, err);
	if (!rc && options->ckpt && access(options->ckpt, W_OK | X_OK))
		rc = error_set(err, ERR_OUTPUT, "--ckpt %s cannot be written: %s", options->ckpt,
			       strerror(errno));
	if (!rc && options->metrics)
		rc = metrics_open(&metrics, &train->metrics, err);
	return rc;
}

/* Rank 0's numbers to all. Collective. */
static int share(struct train *train, float *numbers, size_t count, struct error *err)
{
	return comm_share(train->comm, train->queue, numbers, count * sizeof *numbers, 0, err);
}

int train_begin(struct train *train, struct error *err)
{
	struct variables variables = {0};
	bool head = !train->comm->rank;
	int rc = variables_new(train->graph, &train->buckets, &variables, err);

	if (!rc && head)
		rc = find_weights(train, &variables, err);
	if (!rc && head)
		rc = open_outputs(train, err);
	rc = train_ready(train, rc, err);
	if (!rc)
		rc = share(train, variables.weights, variables.weight_count, err);
	if (!rc)
		rc = share(train, variables.momentum, variables.weight_count, err);
	if (!rc)
		rc = share(train, variables.buffers, variables.buffer_count, err);
	if (!rc)
		rc = comm_share(train->comm, train->queue, &train->state, sizeof train->state, 0,
				err);
	if (!rc)
		rc = comm_share(train->comm, train->queue, &train->saved_step,
				sizeof train->saved_step, 0, err);
	if (!rc)
		rc = comm_share(train->comm, train->queue, &train->result.resumed,
				sizeof train->result.resumed, 0, err);
	if (!rc)
		rc = optim_load(&train->optim, &variables, err);
	variables_free(&variables);
	if (rc)
		return rc;
	/* Orders and augmentation follow the checkpoint's seed: they are its epoch's second half.
	 */
	train->sampler.seed = train->state.seed;
	train->data->augment_seed = train->state.seed;
	plan_end(train);
	if (train->state.step >= train->last_step)
		train_note(train,
			   "nothing to train: %" PRId64
			   " steps are done and the end is step %" PRId64
			   "; raise --epochs or --steps to go on",
			   train->state.step, train->last_step);
	return 0;
}
