/* SPDX-License-Identifier: BSD-3-Clause */
/* What a run needs before its first step, and what is given back after its last. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "train/loop_internal.h"

double train_now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void train_interval_begin(struct train *train)
{
	train->interval_begin_s = train_now_s();
	train->wait_s = 0;
	train->interval_samples = train->interval_steps = 0;
}

void train_let_first_end(void)
{
	nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}

/* ---- open ---- */

/* The network is built for the training samples, and buffers with it. */
static int same_samples(const struct train *train, struct error *err)
{
	const struct shape *one = &train->data->shape, *two = &train->val->shape;

	if (memcmp(one, two, sizeof *one))
		return error_set(
			err, ERR_DATA,
			"%s: samples to evaluate are %dx%dx%d, those to train on %dx%dx%d; "
			"are the files of one data set? --no-eval trains without the others",
			train->options->data, two->channels, two->height, two->width, one->channels,
			one->height, one->width);
	return 0;
}

static int open_data(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	struct dataset_request request = {
		.spec = options->data,
		.split = SPLIT_TRAIN,
		.seed = options->seed,
		.augment = options->augment,
		.image_size = options->image_size,
		.module_path = options->module_path,
		.strict = options->strict_data,
	};
	int rc = dataset_open(&request, &train->data, err);

	request.split = SPLIT_VAL;
	if (!rc && options->evaluate)
		rc = dataset_open(&request, &train->val, err);
	if (rc)
		return rc;
	rc = train->val ? same_samples(train, err) : 0;
	if (rc)
		return rc;
	train->loss_kind = options->loss_said	       ? options->loss
			   : train->data->classes == 1 ? LOSS_MSE
						       : LOSS_CROSS_ENTROPY;
	if (train->loss_kind == LOSS_MSE && train->data->classes != 1)
		return error_set(err, ERR_USAGE,
				 "--loss mse is for data with one target a sample; "
				 "%s has %d classes: use --loss ce",
				 options->data, train->data->classes);
	if (train->loss_kind == LOSS_CROSS_ENTROPY && train->data->classes < 2)
		return error_set(err, ERR_USAGE,
				 "--loss ce is for classes; %s has a number a sample: "
				 "use --loss mse",
				 options->data);
	if (train->loss_kind == LOSS_MSE && options->smoothing > 0)
		return error_set(err, ERR_USAGE,
				 "--label-smoothing is for classes; %s has a number a sample",
				 options->data);
	sampler_init(&train->sampler, options->seed, train->data->count, true);
	return 0;
}

/* Of several ranks with one reason the first alone says it: *err is cleared on the others. */
static int say_once(struct train *train, int first, int rc, struct error *err)
{
	struct error said = {0};
	struct error *own = rc ? err : NULL;

	if (own && first == train->comm->rank)
		said = *own;
	if (comm_share(train->comm, train->queue, &said, sizeof said, first, NULL))
		return rc;
	if (!own || first == train->comm->rank)
		return rc;
	if (strcmp(own->text, said.text))
		return rc;
	train_let_first_end();
	own->text[0] = 0;
	return rc;
}

/* Every rank says whether it is ready, so that one with a missing file stops all at once and
 * nobody waits for it in the first reduction. */
static int all_ready(struct train *train, int rc, struct error *err)
{
	/* The largest code, and of those that failed the lowest rank. */
	double said[2] = {-(double)rc, rc ? train->comm->size - train->comm->rank : 0};
	struct error why = {0};
	int agreed = comm_agree(train->comm, train->queue, said, 2, COMM_MAX, &why);

	if (agreed && !rc)
		*err = why;
	if (agreed || said[0] <= 0)
		return rc ? rc : agreed;

	int first = train->comm->size - (int)said[1];

	rc = say_once(train, first, rc, err);
	if (rc)
		return rc;
	train_let_first_end();
	return error_set(err, (int)said[0], "rank %d could not begin; its own message says why",
			 first);
}

/* What computes: the fastest there is, or why it is not that. */
static void name_device(struct train *train)
{
	const struct device *device = train->device;
	const char *wanted = train->options->device;
	char text[128] = "";

	if (device->ops->describe)
		device->ops->describe(device, text, sizeof text);
	if (*text)
		train_note(train, "computing on %s", text);
	else if (strcmp(wanted, device->ops->name))
		train_note(train,
			   "computing on %s, which is slow: the module %s.so or its library is "
			   "not there; install oneDNN 2 (Debian: libdnnl-dev) and build berth anew",
			   device->ops->name, DEVICE_CPU_MODULE);
}

static int open_comm(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	const struct ranks_place *place = train->place;
	struct comm_request request = {
		.rank = place->rank,
		.size = place->size,
		.local_rank = place->local_rank,
		.address = place->address,
		.port = place->port,
		.timeout_ms = options->timeout_ms,
	};
	int rc = device_open(options->device, place->local_rank, options->module_path,
			     &train->device, err);

	if (!rc)
		rc = train->device->ops->queue_new(train->device, &train->queue, err);
	return rc ? rc
		  : comm_open(options->comm, &request, options->module_path, &train->comm, err);
}

/* On any rank: each sees other samples. */
static void say_fault(void *context, const char *text)
{
	const struct train *train = context;
	char line[1200];

	snprintf(line, sizeof line, "rank %d: %s", train->comm->rank, text);
	train->sink->note(train->sink->context, train->comm->size > 1 ? line : text);
}

/* Files are worth a thread a core; what lies in memory is not. */
static int open_feeds(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	bool files = train->data->format->files;
	struct feed_request request = {
		.loader = {.dataset = train->data,
			   .batch = options->batch,
			   .threads = options->workers >= 0 ? options->workers
				      : files		    ? loader_threads(options->cores)
							    : 0,
			   .timeout_ms = options->timeout_ms},
		.sampler = &train->sampler,
		.rank = train->comm->rank,
		.world = train->comm->size,
		.fault = say_fault,
		.context = train,
	};
	int rc = feed_new(&request, &train->feed, err);

	if (train->data->others)
		train_note(train,
			   "note: %" PRId64 " files of train are not .jpg or .jpeg and are "
			   "left out",
			   train->data->others);
	request.loader.dataset = train->val;
	request.sampler = NULL;
	return rc || !train->val ? rc : feed_new(&request, &train->val_feed, err);
}

static int build(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	int rc = model_build(options->model, &train->data->shape, train->data->classes,
			     options->stem, &train->graph, err);

	if (!rc)
		rc = buckets_plan(train->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &train->buckets,
				  err);
	if (!rc)
		rc = optim_new(train->queue, train->graph, &train->buckets, &train->optim, err);
	if (rc)
		return rc;
	rc = open_feeds(train, err);
	if (rc)
		return rc;
	struct step_request request = {
		.graph = train->graph,
		.batch = options->batch,
		.loss = train->loss_kind,
		.train = true,
		.buckets = &train->buckets,
		.comm = train->comm,
		.weights = train->optim.weights,
		.gradients = train->optim.gradients,
		.momentum = train->optim.momentum,
		.buffers = train->optim.buffers,
		.sgd = {.momentum = (float)options->momentum,
			.weight_decay = (float)options->weight_decay,
			.nesterov = options->nesterov},
		.decay_vectors = options->decay_vectors,
		.smoothing = (float)options->smoothing,
		.direct = options->direct,
	};

	rc = device_step_new(train->queue, &request, &train->step, err);
	request.train = false;
	request.smoothing = 0; /* what is measured does not depend on how it was trained */
	request.gradients = request.momentum = NULL;
	if (!rc && train->val)
		rc = device_step_new(train->queue, &request, &train->val_step, err);
	return rc;
}

int train_open(struct train *train, struct error *err)
{
	/* Before MPI: what is wrong on every rank is said at once by all. */
	int data = open_data(train, err), rc;
	struct error late = {0};

	if (data && train->place->size == 1)
		return data;
	rc = open_comm(train, data ? &late : err);
	if (rc)
		return data ? data : rc;
	rc = data ? data : build(train, err);
	rc = all_ready(train, rc, err);
	if (rc)
		return rc;
	rc = train_compare(train, err);
	if (rc == -ERR_DATA)
		rc = say_once(train, 0, rc, err);
	if (!rc)
		name_device(train);
	return rc;
}

/* ---- begin ---- */

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

/* Rank 0: weights and state from a checkpoint if there is one, else from the seed. */
static int find_weights(struct train *train, struct variables *variables, struct error *err)
{
	const struct train_options *options = train->options;
	const struct checkpoint_sink sink = {train, passed_over};
	struct train_state today;
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
	rc = all_ready(train, rc, err);
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

/* ---- save, close ---- */

int train_save(struct train *train, bool last, struct error *err)
{
	const struct train_options *options = train->options;
	struct variables variables;
	char *path = NULL, *model = NULL, *kept = NULL;
	int rc = variables_new(train->graph, &train->buckets, &variables, err);

	if (!rc)
		rc = optim_store(&train->optim, &variables, err);
	train->state.batch = options->batch * options->accumulate;
	if (!rc)
		rc = train_state_data(&train->state, options->data, err);
	/* At an epoch's edge the next one begins with today's ranks. */
	if (!train->state.position)
		train->state.world = train->comm->size;
	if (!rc)
		rc = checkpoint_keep_foreign(options->ckpt, train->graph, train->state.step, &kept,
					     err);
	if (kept)
		train_note(train, "note: a checkpoint that is not this run's is kept as %s", kept);
	free(kept);
	if (!rc)
		rc = checkpoint_save(options->ckpt, train->graph, &train->buckets, &train->state,
				     &variables, &path, err);
	if (!rc && last)
		rc = checkpoint_save_model(options->ckpt, train->graph, &train->buckets,
					   &train->state, &variables, &model, err);
	variables_free(&variables);
	free(model);
	if (rc) {
		free(path);
		return rc;
	}
	free(train->result.checkpoint);
	train->result.checkpoint = path;
	return 0;
}

void train_close(struct train *train)
{
	metrics_close(train->metrics);
	device_step_free(train->step);
	device_step_free(train->val_step);
	optim_free(&train->optim);
	buckets_free(&train->buckets);
	graph_free(train->graph);
	if (train->comm)
		train->comm->ops->close(train->comm);
	if (train->queue)
		train->device->ops->queue_free(train->queue);
	if (train->device)
		train->device->ops->close(train->device);
	bool data_free = feed_free(train->feed), val_free = feed_free(train->val_feed);

	sampler_free(&train->sampler);
	/* A thread that hangs may read on. */
	if (data_free)
		dataset_close(train->data);
	if (val_free)
		dataset_close(train->val);
}
