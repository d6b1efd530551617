/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/setup.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "train/data/resident.h"

/* ---- open ---- */

/* The network and its buffers are built for the shape of the training samples; validation samples
 * must have the same. */
static int same_samples(const struct train_setup *setup, struct error *err)
{
	const struct shape *one = &setup->data->shape, *two = &setup->val->shape;

	if (memcmp(one, two, sizeof *one))
		return error_set(
			err, ERR_DATA,
			"%s: validation samples are %dx%dx%d, but training samples are %dx%dx%d. "
			"Use the files of one data set, or --no-eval to train without evaluation",
			setup->options->data, two->channels, two->height, two->width, one->channels,
			one->height, one->width);
	return 0;
}

static int open_data(struct train_setup *setup, struct error *err)
{
	const struct train_options *options = setup->options;
	struct dataset_request request = {
		.spec = options->data,
		.split = SPLIT_TRAIN,
		.seed = options->seed,
		.augment = options->augment,
		.image_size = options->image_size,
		.module_path = options->module_path,
		.strict = options->strict_data,
	};
	int rc = dataset_open(&request, &setup->data, err);

	request.split = SPLIT_VAL;
	if (!rc && options->evaluate)
		rc = dataset_open(&request, &setup->val, err);
	if (rc)
		return rc;
	rc = setup->val ? same_samples(setup, err) : 0;
	if (rc)
		return rc;
	setup->loss_kind = options->loss_set	       ? options->loss
			   : setup->data->classes == 1 ? LOSS_MSE
						       : LOSS_CROSS_ENTROPY;
	if (setup->loss_kind == LOSS_MSE && setup->data->classes != 1)
		return error_set(err, ERR_USAGE,
				 "--loss mse requires data with one numeric target per sample, but "
				 "%s has %d classes: use --loss ce",
				 options->data, setup->data->classes);
	if (setup->loss_kind == LOSS_CROSS_ENTROPY && setup->data->classes < 2)
		return error_set(err, ERR_USAGE,
				 "--loss ce requires data with classes, but %s has one numeric "
				 "target per sample: use --loss mse",
				 options->data);
	if (setup->loss_kind == LOSS_MSE && options->smoothing > 0)
		return error_set(err, ERR_USAGE,
				 "--label-smoothing requires data with classes, but %s has one "
				 "numeric target per sample",
				 options->data);
	sampler_init(&setup->sampler, options->seed, setup->data->count, true);
	return 0;
}

/* Report the device, and why a faster one is not used. */
static void report_device(const struct train_setup *setup, const struct error *no_gpu)
{
	const struct device *device = setup->device;
	const struct train_options *options = setup->options;
	char text[384] = "";

	if (device->ops->describe)
		device->ops->describe(device, text, sizeof text);
	if (*no_gpu->text)
		rank_group_note(&setup->group, "note: not using a GPU: %s", no_gpu->text);
	if (*text)
		rank_group_note(&setup->group, "computing on %s%s%s", text,
				options->precision == PRECISION_BF16		   ? ", bf16"
				: options->precision == PRECISION_F16		   ? ", fp16"
				: options->tf32 && device_executor_reduced(device) ? ", TF32"
										   : "",
				setup->ranks_text);
}

/* Meet the other ranks. own: why this one cannot take part, or zeros. */
static int meet(struct train_setup *setup, struct comm_request *request,
		const struct comm_choice *choice, const char *no_gpu, const struct error *own,
		struct error *err)
{
	const struct train_options *options = setup->options;
	struct meeting_setting settings[MEETING_SETTINGS];
	struct meeting_rules rules = {.settings = settings,
				      .setting_count =
					      own->code ? 0 : train_settings(setup, settings),
				      .allow_shared_gpu = options->allow_shared_gpu};
	struct meeting_facts facts = {.err = *own};
	int rc = ranks_join_store(options->env, &setup->ranks, err);

	if (rc)
		return rc;
	snprintf(facts.instead, sizeof facts.instead, "%s", no_gpu);
	meeting_describe(choice, request, &rules, &facts);
	rc = meeting_hold(setup->ranks, &facts, &rules, options->timeout_ms, &setup->meeting, err);

	int first = setup->meeting   ? setup->meeting->first
		    : facts.err.code ? request->rank
				     : 0; /* which names who did not come */

	if (rc && first != request->rank)
		rank_group_let_failed_rank_end_first();
	request->ranks = setup->ranks;
	request->meeting = setup->meeting;
	return rc;
}

/* *own: why this rank cannot take part, or zeros. *no_gpu: why --device auto did not use a GPU;
 * empty text: it did. */
static int open_comm(struct train_setup *setup, struct error *own, struct error *no_gpu,
		     struct error *err)
{
	const struct train_options *options = setup->options;
	const struct ranks_place *place = setup->place;
	struct comm_request request = {
		.rank = place->rank,
		.size = place->size,
		.local_rank = place->local_rank,
		.address = place->address,
		.timeout_ms = options->timeout_ms,
		.env = options->env,
		.lost = setup->sink->lost,
		.context = setup->sink->context,
	};
	struct comm_choice choice;
	int rc = own->code ? -own->code
			   : device_find(options->device, place->local_rank, options->module_path,
					 &setup->device, no_gpu, own);

	if (!rc)
		rc = setup->device->ops->queue_new(setup->device, &setup->queue, own);
	request.queue = setup->queue;
	if (!rc)
		rc = comm_choose(options->comm, &request, options->module_path, &choice, own);
	/* Any comm but comm_self works with a meeting's outcome, for a single rank, too. */
	if (place->size > 1 || (!rc && choice.ops != &comm_self))
		rc = meet(setup, &request, &choice, no_gpu->text, own, err);
	else if (rc)
		*err = *own;
	if (!rc)
		rc = choice.ops->open(&request, &setup->comm, err);
	if (rc)
		return rc;
	const char *why = choice.why;

	if (place->size > 1)
		snprintf(setup->ranks_text, sizeof setup->ranks_text, "; %d ranks over %s%s%s%s",
			 place->size, setup->comm->ops->name, why ? " (" : "", why ? why : "",
			 why ? ")" : "");
	if (!setup->comm->ops->on_stream && setup->device->ops->queue_native(setup->queue)) {
		struct comm *staged = comm_stage(setup->comm);

		if (!staged)
			return error_memory(err, "communication");
		setup->comm = staged;
	}
	setup->group =
		rank_group_make(setup->comm, setup->queue, setup->sink->note, setup->sink->context);
	return 0;
}

/* Open the GPU meter, if a GPU trains and metrics are written. */
static void open_meter(struct train_setup *setup)
{
	const struct device_ops *ops = setup->device->ops;
	char uuid[48] = "";

	if (!setup->options->metrics || !ops->uuid)
		return;
	ops->uuid(setup->device, uuid);
	setup->meter = *uuid ? gpu_meter_open(uuid, NULL) : NULL;
	if (!setup->meter)
		rank_group_note(&setup->group, "warning: NVML does not find this GPU: the metrics "
					       "will lack its utilization, memory and power");
}

/* Called on any rank, because each rank reads other samples. */
static void note_fault(void *context, const char *text)
{
	const struct rank_group *group = context;

	if (rank_group_size(group) > 1)
		rank_group_note_here(group, "warning: rank %d: %s", rank_group_rank(group), text);
	else
		rank_group_note_here(group, "warning: %s", text);
}

/* Decoding files is worth one thread per core; samples in memory need no threads. */
static int open_feeds(struct train_setup *setup, struct error *err)
{
	const struct train_options *options = setup->options;
	bool files = setup->data->format->files;
	struct feed_request request = {
		.loader = {.dataset = setup->data,
			   .batch = options->batch,
			   .threads = options->workers >= 0 ? options->workers
				      : files		    ? loader_threads(options->cores)
							    : 0,
			   .raw = device_executor_accepts_raw(setup->device),
			   .bare = setup->resident,
			   .timeout_ms = options->timeout_ms},
		.sampler = &setup->sampler,
		.rank = setup->comm->rank,
		.world = setup->comm->size,
		.fault = note_fault,
		.context = &setup->group,
	};
	int rc = feed_new(&request, &setup->feed, err);

	if (setup->data->skipped_files)
		rank_group_note(&setup->group,
				"warning: training files left out: %" PRId64
				" (neither .jpg nor .jpeg)",
				setup->data->skipped_files);
	request.loader.dataset = setup->val;
	request.loader.bare = setup->val_resident;
	request.sampler = NULL;
	return rc || !setup->val ? rc : feed_new(&request, &setup->val_feed, err);
}

/* Call this after the executors have their memory: the data set may use a share of the rest. */
static int make_resident(struct train_setup *setup, struct error *err)
{
	int rc = 0;

	if (!device_executor_accepts_raw(setup->device))
		return 0;
	rc = resident_new(setup->queue, setup->data, &setup->resident, err);
	if (!rc && setup->val)
		rc = resident_new(setup->queue, setup->val, &setup->val_resident, err);
	if (!rc && setup->resident && !setup->comm->rank)
		rank_group_note(&setup->group, "the data set (%zu MiB) is kept in GPU memory",
				(resident_bytes(setup->data) >> 20) + 1);
	return rc;
}

static int build_graph(struct train_setup *setup, struct error *err)
{
	int rc = model_build(setup->options->model, &setup->data->shape, setup->data->classes,
			     setup->options->stem, &setup->graph, err);

	return rc ? rc
		  : buckets_make(setup->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &setup->buckets,
				 err);
}

/* ---- tuning ---- */

static int open_executors(struct train_setup *setup, struct executor_request *request,
			  struct error *err)
{
	int rc = device_executor_new(setup->queue, request, &setup->executor, err);

	if (rc || !setup->val)
		return rc;
	request->train = request->evaluates = false;
	request->smoothing = 0; /* the validation loss must not depend on training options */
	request->gradients = request->momentum = NULL;
	request->vote_nonfinite = false;
	request->warn = NULL; /* training has said it */
	request->crop_pad = 0;
	request->table = setup->val->table ? setup->val->table[0] : NULL;
	return device_executor_new(setup->queue, request, &setup->val_executor, err);
}

#define KEY_MODEL "berth.train.model"
#define KEY_TUNED "berth.train.tuned"
#define TUNING_MS 600000

/* Which rank tunes for this one's model of GPU: the lowest that has it. */
static int find_tuner(const struct train_setup *setup, int *tuner, struct error *err)
{
	int own = setup->place->rank, rc;
	char model[128], *other;
	bool same = false;
	size_t size;

	setup->device->ops->tuned_model(setup->device, model);
	rc = ranks_put(setup->ranks, KEY_MODEL, model, strlen(model), err);
	for (*tuner = 0; !rc && *tuner < own; ++*tuner) {
		rc = ranks_get(setup->ranks, *tuner, KEY_MODEL, TUNING_MS, (void **)&other, &size,
			       err);
		if (rc)
			break;
		same = !strcmp(other, model);
		free(other);
		if (same)
			break;
	}
	return rc;
}

/* *failed: the tuner has, and reports why. */
static int take_tuned(const struct train_setup *setup, int tuner, bool *failed, struct error *err)
{
	size_t size;
	char *text;
	int rc = ranks_get(setup->ranks, tuner, KEY_TUNED, TUNING_MS, (void **)&text, &size, err);

	if (rc)
		return error_prefix(err, "waiting for rank %d on %s to tune for this GPU", tuner,
				    setup->meeting->hosts[tuner]);
	*failed = !size;
	setup->device->ops->take_tuned(setup->device, text);
	free(text);
	return 0;
}

/* With its NUL; nothing if this rank has failed. */
static int give_tuned(const struct train_setup *setup, bool failed, struct error *err)
{
	char *text = failed ? NULL : setup->device->ops->tuned(setup->device);
	int rc = ranks_put(setup->ranks, KEY_TUNED, text ? text : "", text ? strlen(text) + 1 : 0,
			   err);

	free(text);
	return rc;
}

/* One rank per model of GPU measures which algorithms are fastest, and the others take its choices:
 * they start sooner, and all compute in the same way. It takes longer than a collective may, so
 * none begins before all ranks have passed the barrier. */
static int open_tuned(struct train_setup *setup, struct executor_request *request,
		      struct error *err)
{
	bool shared = setup->comm->size > 1 && setup->device->ops->tuned_model, failed = false;
	int own = setup->place->rank, tuner = own, met = 0;
	int rc = shared ? find_tuner(setup, &tuner, err) : 0;

	if (!rc && tuner != own)
		rc = take_tuned(setup, tuner, &failed, err);
	if (!rc && !failed)
		rc = open_executors(setup, request, err);
	if (shared && tuner == own)
		met = give_tuned(setup, rc, rc ? NULL : err);
	if (shared && !met)
		met = ranks_barrier(setup->ranks, TUNING_MS, rc ? NULL : err);
	return rc ? rc : met;
}

/* Collective: its first call is. */
static int build(struct train_setup *setup, struct error *err)
{
	const struct train_options *options = setup->options;
	int rc = optim_new(setup->queue, setup->graph, &setup->buckets, setup->comm, &setup->optim,
			   err);

	if (rc)
		return rc;
	struct executor_request request = {
		.graph = setup->graph,
		.batch = options->batch,
		.loss = setup->loss_kind,
		.train = true,
		.evaluates = setup->val,
		.buckets = &setup->buckets,
		.comm = setup->comm,
		.timeout_ms = options->timeout_ms,
		.weights = setup->optim.weights,
		.gradients = setup->optim.gradients,
		.vote_nonfinite = !options->nan_continues,
		.momentum = setup->optim.momentum,
		.buffers = setup->optim.buffers,
		.sgd = {.momentum = (float)options->momentum,
			.weight_decay = (float)options->weight_decay,
			.nesterov = options->nesterov},
		.decay_vectors = options->decay_vectors,
		.smoothing = (float)options->smoothing,
		.direct = options->direct,
		.precision = options->precision,
		.tf32 = options->tf32,
		.deterministic = options->deterministic,
		.no_graph = options->no_graph,
		.warn = rank_group_note_from_rank,
		.context = &setup->group,
		.table = setup->data->table ? setup->data->table[0] : NULL,
		.crop_pad = setup->data->augment.crop_pad,
	};

	rc = open_tuned(setup, &request, err);
	if (!rc && setup->executor)
		rc = make_resident(setup, err);
	return rc ? rc : open_feeds(setup, err);
}

static void show(const struct train_setup *setup, const char *activity)
{
	setup->sink->status(setup->sink->context, NULL, activity);
}

int train_setup_open(struct train_setup *setup, struct error *err)
{
	struct error own = {0}, no_gpu = {0};
	int rc;

	show(setup, "opening the data");
	if (!open_data(setup, &own))
		build_graph(setup, &own);
	show(setup, "connecting the ranks");
	rc = open_comm(setup, &own, &no_gpu, err);
	if (rc)
		return rc;
	open_meter(setup);
	show(setup, "building the network");
	rc = rank_group_ready(&setup->group, build(setup, err), err);
	if (rc)
		return rc;
	log_info(LOG_TRAIN,
		 "data %s, model %s, device %s, communicator %s of %d ranks, %zu buckets",
		 setup->options->data, setup->options->model, setup->device->ops->name,
		 setup->comm->ops->name, setup->comm->size, setup->buckets.bucket_count);
	report_device(setup, &no_gpu);
	return 0;
}

/* ---- close ---- */

void train_setup_close(struct train_setup *setup, bool written)
{
	gpu_meter_close(setup->meter);
	device_executor_free(setup->executor);
	device_executor_free(setup->val_executor);
	if (setup->device) {
		setup->device->ops->memory_free(setup->device, setup->resident);
		setup->device->ops->memory_free(setup->device, setup->val_resident);
	}
	optim_free(&setup->optim);
	/* A writer that hangs in a file system may still read these, so they stay. */
	if (written) {
		buckets_free(&setup->buckets);
		graph_free(setup->graph);
	}
	if (!setup->comm || setup->comm->ops->close(setup->comm)) {
		ranks_leave(setup->ranks);
		free(setup->meeting);
	}
	if (setup->queue)
		setup->device->ops->queue_free(setup->queue);
	if (setup->device)
		setup->device->ops->close(setup->device);
	bool data_free = feed_free(setup->feed), val_free = feed_free(setup->val_feed);

	sampler_free(&setup->sampler);
	/* A loader thread that hangs may read this likewise. */
	if (data_free)
		dataset_close(setup->data);
	if (val_free)
		dataset_close(setup->val);
}
