/* SPDX-License-Identifier: BSD-3-Clause */
/* From what weights and at which step a run begins, and where it ends. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "train/checkpoint/directory.h"
#include "train/run/loop_internal.h"

/* Weights from the seed, or from --init's file. */
static int initialise_variables(struct train *train, struct variables *variables, struct error *err)
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
static void note_changed_options(const struct train *train)
{
	const struct train_options *options = train->options;
	struct train_state today;

	if (!train_state_data(&today, options->data, NULL) && strcmp(train->state.data, today.data))
		train_note(train, "note: the checkpoint's data was %s, now it is %s",
			   train->state.data, today.data);
	if (train->state.seed != options->seed)
		train_note(train,
			   "note: the checkpoint's seed was %" PRIu64
			   ", and orders and augmentation go on with it; "
			   "--seed is %" PRIu64,
			   train->state.seed, options->seed);
}

/* How an update is made of batches. With the options of the checkpoint an update stays what it was,
 * on however many ranks: each takes smaller batches, or more of them. */
static void choose_update_size(struct train *train)
{
	const struct train_options *options = train->options;
	const struct train_state *state = &train->state;
	int64_t own = (int64_t)options->batch * options->accumulate, world = train->comm->size;

	train->batch = options->batch;
	train->update = own * world;
	if (!train->result.resumed || state->update == train->update)
		return;
	if (state->batch != own) {
		train_note(train,
			   "note: an update was of %" PRId64 " samples, now it is of %" PRId64,
			   state->update, train->update);
		return;
	}
	int64_t max = (state->update + world - 1) / world; /* of a rank in an update */
	int64_t batches = (max + options->batch - 1) / options->batch;

	train->update = state->update;
	train->batch = (int)((max + batches - 1) / batches);
	train_note(train,
		   "note: an update stays at the checkpoint's %" PRId64 " samples: on %" PRId64
		   " rank%s %" PRId64 " batch%s of at most %d sample%s each",
		   train->update, world, world == 1 ? "" : "s", batches, batches == 1 ? "" : "es",
		   train->batch, train->batch == 1 ? "" : "s");
}

/* The epoch that was begun goes on with the entries that are left of its order. */
static void note_changed_world(const struct train *train)
{
	const struct train_state *state = &train->state;
	int64_t total = (train->data->count + state->world - 1) / state->world * state->world;

	if (train->result.resumed && state->position && state->position < total &&
	    state->world != train->comm->size)
		train_note(train,
			   "note: epoch %" PRId64 " was begun by %d ranks; the %" PRId64
			   " entries left of its order go to the %d of now",
			   state->epoch + 1, state->world, total - state->position,
			   train->comm->size);
}

/* The run's end: --steps, or the last step of the last epoch. */
static void find_last_step(struct train *train)
{
	const struct train_options *options = train->options;
	int64_t world = train->comm->size;
	int64_t global = train->update;
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

static int open_metrics(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	const struct metrics_request metrics = {
		.directory = options->metrics,
		.resumed_step = train->result.resumed ? train->state.step : -1,
		.validates = options->evaluate,
	};

	return options->metrics && !train->comm->rank ? metrics_open(&metrics, &train->metrics, err)
						      : 0;
}

/* The root's numbers to all. Collective. */
static int broadcast(struct train *train, void *data, size_t size_bytes, struct error *err)
{
	return comm_broadcast_on_host(train->comm, train->queue, data, size_bytes, train->root,
				      err);
}

static int broadcast_state(struct train *train, struct variables *variables, struct error *err)
{
	size_t weights = variables->weight_count * sizeof(float);
	int rc = broadcast(train, variables->weights, weights, err);

	if (!rc)
		rc = broadcast(train, variables->momentum, weights, err);
	if (!rc)
		rc = broadcast(train, variables->buffers, variables->buffer_count * sizeof(float),
			       err);
	if (!rc)
		rc = broadcast(train, &train->state, sizeof train->state, err);
	if (!rc)
		rc = broadcast(train, &train->result.resumed, sizeof train->result.resumed, err);
	return rc;
}

/* All ranks: what is known once the checkpoint is. */
static int prepare_resumed_run(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	bool from_ckpt = train->result.resumed && !strcmp(options->resume, "auto");
	int rc;

	/* It lies where the next one would: a finished run does not save it again. */
	if (from_ckpt)
		train->saved_step = train->state.step;
	if (from_ckpt && !train->comm->rank && train->writes &&
	    checkpoint_dir_best(options->ckpt, &train->best_acc1) < 0)
		train->best_acc1 = -1;
	train->best_saved = train->best_acc1;
	rc = comm_broadcast_on_host(train->comm, train->queue, &train->best_acc1,
				    sizeof train->best_acc1, 0, err);
	if (from_ckpt && !train->comm->rank && train->resumed_from) {
		train->result.checkpoint = strdup(train->resumed_from);
		if (!train->result.checkpoint)
			rc = error_memory(err, "a name");
	}
	/* Orders and augmentation follow the checkpoint's seed: they are its epoch's second half.
	 */
	train->sampler.seed = train->state.seed;
	train->data->augment_seed = train->state.seed;
	choose_update_size(train);
	note_changed_world(train);
	feed_set_update_size(train->feed, train->batch, train->update);
	if (!rc)
		rc = train_state_data(&train->state, options->data, err);
	/* Copies on several nodes are the same to the last byte. */
	return rc ? rc
		  : comm_broadcast_on_host(train->comm, train->queue, train->state.data,
					   sizeof train->state.data, 0, err);
}

/* Weights of a checkpoint, or new ones, on all ranks. Collective. */
static int load_variables(struct train *train, struct variables *variables, struct error *err)
{
	int rc = train_load_weights(train, variables, err);

	if (rc)
		return rc;
	if (train->comm->rank == train->root) {
		train->result.resumed = train->resumed_from;
		if (!train->resumed_from)
			rc = initialise_variables(train, variables, err);
	}
	rc = train_ready(train, rc, err);
	if (!rc)
		rc = broadcast_state(train, variables, err);
	if (!rc)
		rc = optim_load(&train->optim, variables, err);
	if (!rc && train->state.scale > 0 && train->options->precision == PRECISION_F16)
		rc = device_executor_grad_scaler(
			train->executor,
			&(struct grad_scaler_state){.scale = (float)train->state.scale,
						    .growth_tracker =
							    (int32_t)train->state.growth_tracker},
			NULL, err);
	if (rc)
		return rc;
	if (train->resumed_from) {
		train_note(train,
			   "resuming from %s: step %" PRId64 ", epoch %" PRId64
			   ", position %" PRId64,
			   train->resumed_from, train->state.step, train->state.epoch + 1,
			   train->state.position);
		note_changed_options(train);
	}
	return 0;
}

/* A run that was killed between its last checkpoint and model.safetensors saves both again: that
 * file is missing, or older. Collective. */
static int finish_model(struct train *train, struct error *err)
{
	double missing[1] = {
		!train->comm->rank && train->result.checkpoint &&
		!checkpoint_dir_model_is_newer(train->options->ckpt, train->state.step)};
	int rc = comm_reduce_on_host(train->comm, train->queue, missing, 1, COMM_MAX, err);

	if (missing[0] > 0)
		train->saved_step = -1;
	return rc;
}

int train_begin(struct train *train, struct error *err)
{
	struct variables variables = {0};
	int rc = variables_new(train->graph, &train->buckets, &variables, err);

	rc = train_ready(train, rc, err);
	if (!rc && train->options->ckpt) {
		rc = train_find_writers(train, err);
		if (!rc)
			rc = train_ready(train, train_open_checkpoint_dir(train, err), err);
	}
	if (!rc)
		rc = load_variables(train, &variables, err);
	variables_free(&variables);
	if (!rc)
		rc = prepare_resumed_run(train, err);
	if (!rc)
		rc = open_metrics(train, err);
	if (!rc)
		rc = train_sample_log_open(train, err);
	rc = train_ready(train, rc, err);
	if (rc)
		return rc;
	find_last_step(train);
	if (train->state.step >= train->last_step)
		train_note(train,
			   "nothing to train: %" PRId64
			   " steps are done and the end is step %" PRId64
			   "; raise --epochs or --steps to go on",
			   train->state.step, train->last_step);
	return train->state.step >= train->last_step ? finish_model(train, err) : 0;
}
