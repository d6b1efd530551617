/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/begin.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "train/checkpoint/directory.h"
#include "train/data/resident.h"

/* Weights from the seed, or from --init's file. */
static int initialise_variables(const struct train_setup *setup, struct train_state *state,
				struct variables *variables, struct error *err)
{
	const struct train_options *options = setup->options;
	int rc = graph_initialise(setup->graph, options->seed, setup->buckets.offsets,
				  variables->weights, err);

	graph_initialise_buffers(setup->graph, variables->buffers);
	state->seed = options->seed;
	state->world = setup->comm->size;
	if (rc || !options->init)
		return rc;
	rc = checkpoint_init(options->init, options->new_head, state, variables, err);
	if (!rc)
		rank_group_note(&setup->group, "initial weights from %s%s", options->init,
				options->new_head ? ", with a newly initialized last layer" : "");
	return rc;
}

/* Report which options differ from those with which the checkpoint was saved. */
static void note_changed_options(const struct train_setup *setup, const struct train_state *state)
{
	const struct train_options *options = setup->options;
	struct train_state today;

	if (!train_state_data(&today, options->data, NULL) && strcmp(state->data, today.data))
		rank_group_note(&setup->group,
				"note: the checkpoint was trained on %s; this run trains on %s",
				state->data, today.data);
	if (state->seed != options->seed)
		rank_group_note(
			&setup->group,
			"note: shuffling, augmentation and synthetic data keep the checkpoint's "
			"seed %" PRIu64 ", not --seed %" PRIu64,
			state->seed, options->seed);
	if (state->lr > 0 && state->lr != options->lr)
		rank_group_note(&setup->group,
				"note: this run uses --lr %g; the checkpoint was trained with %g",
				options->lr, state->lr);
}

/* Choose how an update is split into batches: set progress->update and return the largest batch of
 * a rank. If batch size and accumulation are those of the checkpoint, an update keeps its number of
 * samples on any number of ranks: each rank then takes smaller batches, or more of them. */
static int choose_update_size(const struct train_setup *setup, bool resumed,
			      struct train_progress *progress)
{
	const struct train_options *options = setup->options;
	const struct train_state *state = &progress->state;
	int64_t own = (int64_t)options->batch * options->accumulate, world = setup->comm->size;

	progress->update = own * world;
	if (!resumed || state->update == progress->update)
		return options->batch;
	if (state->batch != own) {
		rank_group_note(&setup->group,
				"note: the global batch size changes from %" PRId64
				" samples to %" PRId64,
				state->update, progress->update);
		return options->batch;
	}
	int64_t max = (state->update + world - 1) / world; /* per rank and update */
	int64_t batches = (max + options->batch - 1) / options->batch;
	int batch = (int)((max + batches - 1) / batches);

	progress->update = state->update;
	rank_group_note(&setup->group,
			"note: the global batch size stays at the checkpoint's %" PRId64
			" samples: %" PRId64 " rank%s, %" PRId64
			" batch%s of at most %d sample%s each",
			progress->update, world, world == 1 ? "" : "s", batches,
			batches == 1 ? "" : "es", batch, batch == 1 ? "" : "s");
	return batch;
}

/* Report the settings that result from the model's defaults, the options and the checkpoint. */
static void report_settings(const struct train_setup *setup, int64_t update)
{
	const struct train_options *options = setup->options;
	bool kept = update != (int64_t)options->batch * options->accumulate * setup->comm->size;
	char many[32] = "", ranks[32] = "";

	if (options->accumulate > 1 && !kept)
		snprintf(many, sizeof many, "%d x ", options->accumulate);
	if (setup->comm->size > 1)
		snprintf(ranks, sizeof ranks, kept ? " over %d ranks" : " on each of %d ranks",
			 setup->comm->size);
	rank_group_note(&setup->group,
			"batch %s%" PRId64 "%s, lr %g, momentum %g, weight decay %g, schedule %s",
			many, kept ? update : options->batch, ranks, options->lr, options->momentum,
			options->weight_decay, schedule_name(options->schedule.kind));
	if (setup->data->detected)
		rank_group_note(&setup->group,
				"note: --data %s holds %s: %" PRId64
				" training samples of %dx%dx%d",
				options->data, setup->data->format->name, setup->data->count,
				setup->data->shape.channels, setup->data->shape.height,
				setup->data->shape.width);
	if (!options->checkpoint.directory)
		rank_group_note(&setup->group,
				"note: no checkpoints will be saved; set --ckpt to save them");
}

/* An epoch that has started continues with the rest of its order. */
static void note_changed_world(const struct train_setup *setup, bool resumed,
			       const struct train_state *state)
{
	int64_t total = sampler_total_of(setup->data->count, state->world);

	if (resumed && state->position && state->position < total &&
	    state->world != setup->comm->size)
		rank_group_note(&setup->group,
				"note: epoch %" PRId64
				" started on %d rank%s; its remaining %" PRId64
				" sample%s will run on %d",
				state->epoch + 1, state->world, state->world == 1 ? "" : "s",
				total - state->position, total - state->position == 1 ? "" : "s",
				setup->comm->size);
}

/* Send root's variables and state to all ranks. Collective. */
static int broadcast_state(const struct rank_group *group, int root, struct variables *variables,
			   struct train_state *state, bool *resumed, struct error *err)
{
	const struct {
		void *data;
		size_t size_bytes;
	} parts[] = {
		{variables->weights, variables->weight_count * sizeof(float)},
		{variables->momentum, variables->weight_count * sizeof(float)},
		{variables->buffers, variables->buffer_count * sizeof(float)},
		{state, sizeof *state},
		{resumed, sizeof *resumed},
	};
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof parts / sizeof *parts; i++)
		rc = rank_group_broadcast(group, parts[i].data, parts[i].size_bytes, root, err);
	return rc;
}

/* resident: the copy in device memory, or NULL. */
static int reseed(struct train_setup *setup, struct dataset *data, void *resident, uint64_t seed,
		  struct error *err)
{
	dataset_reseed(data, seed);
	return resident && data->format->reseed ? resident_fill(setup->queue, data, resident, err)
						: 0;
}

/* Apply what follows from the choice of the checkpoint, on all ranks. path: the checkpoint, or
 * NULL. */
static int prepare_resumed_run(struct train_setup *setup, struct saver *saver, const char *path,
			       struct train_progress *progress, struct train_result *result,
			       struct error *err)
{
	const struct train_options *options = setup->options;
	struct train_state *state = &progress->state;
	bool from_ckpt = result->resumed && !strcmp(options->checkpoint.resume, "auto");
	int rc, batch;

	/* The checkpoint is where the next one would be saved, so a finished run does not save it
	 * again. */
	progress->saved_step = from_ckpt ? state->step : -1;
	rc = saver_load_best(saver, from_ckpt, err);
	if (from_ckpt && !setup->comm->rank && path) {
		result->checkpoint = strdup(path);
		if (!result->checkpoint)
			rc = error_memory(err, "a file name");
	}
	/* Data and shuffling keep the checkpoint's seed, because they continue its epoch. */
	setup->sampler.seed = state->seed;
	if (state->seed != options->seed) {
		rc = reseed(setup, setup->data, setup->resident, state->seed, err);
		if (!rc && setup->val)
			rc = reseed(setup, setup->val, setup->val_resident, state->seed, err);
		rc = rank_group_ready(&setup->group, rc, err);
		if (rc)
			return rc;
	}
	batch = choose_update_size(setup, result->resumed, progress);
	note_changed_world(setup, result->resumed, state);
	report_settings(setup, progress->update);
	feed_set_update_size(setup->feed, batch, progress->update);
	if (!rc)
		rc = train_state_data(state, options->data, err);
	/* Copies on several nodes must be identical to the last byte. */
	return rc ? rc
		  : rank_group_broadcast(&setup->group, state->data, sizeof state->data, 0, err);
}

static int restore_grad_scaler(const struct train_setup *setup, const struct train_state *state,
			       struct error *err)
{
	const struct grad_scaler_state scaler = {.scale = (float)state->scale,
						 .growth_tracker = (int32_t)state->growth_tracker};

	return state->scale > 0 && setup->options->precision == PRECISION_F16
		       ? device_executor_grad_scaler(setup->executor, &scaler, NULL, err)
		       : 0;
}

/* Load the weights of a checkpoint, or initialise new ones, on all ranks. *path is malloced: the
 * checkpoint, if this rank knows its name, or NULL. Collective. */
static int load_variables(struct train_setup *setup, struct saver *saver,
			  struct variables *variables, struct train_state *state, bool *resumed,
			  char **path, struct error *err)
{
	int root, rc = saver_resume(saver, state, variables, path, &root, err);

	if (rc)
		return rc;
	if (setup->comm->rank == root) {
		log_info(LOG_RESUME, "--resume %s, --ckpt %s: %s%s",
			 setup->options->checkpoint.resume,
			 setup->options->checkpoint.directory ? setup->options->checkpoint.directory
							      : "none",
			 *path ? "resuming from " : "new weights", *path ? *path : "");
		*resumed = *path;
		if (!*path)
			rc = initialise_variables(setup, state, variables, err);
	}
	rc = rank_group_ready(&setup->group, rc, err);
	if (!rc)
		rc = broadcast_state(&setup->group, root, variables, state, resumed, err);
	if (!rc)
		rc = optim_load(&setup->optim, variables, err);
	if (!rc)
		rc = restore_grad_scaler(setup, state, err);
	if (rc || !*path)
		return rc;
	rank_group_note(&setup->group,
			"note: resuming from %s: step %" PRId64 ", epoch %" PRId64
			", position %" PRId64,
			*path, state->step, state->epoch + 1, state->position);
	note_changed_options(setup, state);
	return 0;
}

int train_begin(struct train_setup *setup, struct saver *saver, struct train_progress *progress,
		struct train_result *result, struct error *err)
{
	struct variables variables = {0};
	char *path = NULL;
	int rc = variables_new(setup->graph, &setup->buckets, &variables, err);

	rc = rank_group_ready(&setup->group, rc, err);
	if (!rc && setup->options->checkpoint.directory)
		rc = saver_open(saver, err);
	if (!rc)
		rc = load_variables(setup, saver, &variables, &progress->state, &result->resumed,
				    &path, err);
	if (!saver->stalled)
		variables_free(&variables);
	if (!rc)
		rc = prepare_resumed_run(setup, saver, path, progress, result, err);
	free(path);
	progress->first_step = progress->state.step;
	return rc;
}

/* ---- the end ---- */

/* If a run was killed between its last checkpoint and model.safetensors, that file is missing or
 * older than the checkpoint. Both are then saved again. Collective. */
static int finish_model(const struct train_setup *setup, const char *checkpoint,
			struct train_progress *progress, struct error *err)
{
	double missing[1] = {!setup->comm->rank && checkpoint &&
			     !checkpoint_dir_model_is_newer(setup->options->checkpoint.directory,
							    progress->state.step)};
	int rc = rank_group_reduce(&setup->group, missing, 1, COMM_MAX, err);

	if (missing[0] > 0)
		progress->saved_step = -1;
	return rc;
}

/* Find the run's end: --steps, or the last step of the last epoch. */
static void find_last_step(const struct train_setup *setup, struct train_progress *progress)
{
	const struct train_options *options = setup->options;
	const struct train_state *state = &progress->state;
	int64_t update = progress->update, samples = setup->data->count, all = state->step;
	int64_t total = sampler_total_of(samples, setup->comm->size);
	int64_t begun = state->position ? sampler_total_of(samples, state->world) : total;
	int64_t left = begun - state->position;			    /* samples left in this epoch */
	int64_t here = left > 0 ? (left + update - 1) / update : 0, /* steps left in it */
		per_epoch = (total + update - 1) / update;

	if (options->epochs > state->epoch)
		all += here + (options->epochs - state->epoch - 1) * per_epoch;
	progress->last_step = options->steps > 0 && options->steps < all ? options->steps : all;
	progress->last_epoch = options->epochs;
	if (options->steps > 0 && options->epochs >= INT32_MAX) {
		/* The epoch in which --steps ends; it is the same if a run resumes within an epoch.
		 */
		int64_t later = progress->last_step - state->step - here;

		progress->last_epoch = state->epoch + 1;
		if (later > 0)
			progress->last_epoch += (later + per_epoch - 1) / per_epoch;
	}
	progress->schedule = options->schedule;
	progress->schedule.lr = options->lr;
	progress->schedule.epochs = progress->last_epoch;
}

/* Of all schedules, only cosine depends on the number of epochs. */
static void note_changed_schedule(const struct train_setup *setup,
				  const struct train_progress *progress)
{
	const struct train_state *state = &progress->state;
	struct schedule before = progress->schedule;

	before.epochs = state->epochs;
	if (before.kind == SCHEDULE_COSINE && state->epochs &&
	    state->epochs != progress->schedule.epochs)
		rank_group_note(&setup->group,
				"note: schedule cosine now spans %" PRId64
				" epochs instead of %" PRId64
				": the learning rate of epoch %" PRId64 " is %g instead of %g",
				progress->schedule.epochs, state->epochs, state->epoch + 1,
				schedule_lr(&progress->schedule, state->epoch, state->step),
				schedule_lr(&before, state->epoch, state->step));
}

int train_find_end(const struct train_setup *setup, const struct train_result *result,
		   struct train_progress *progress, struct error *err)
{
	int64_t step = progress->state.step;

	find_last_step(setup, progress);
	if (step < progress->last_step) {
		note_changed_schedule(setup, progress);
		return 0;
	}
	rank_group_note(&setup->group,
			"note: nothing to train: step %" PRId64
			" is done and the last step is %" PRId64
			"; raise --epochs or --steps to continue",
			step, progress->last_step);
	return finish_model(setup, result->checkpoint, progress, err);
}
