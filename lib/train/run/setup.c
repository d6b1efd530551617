/* SPDX-License-Identifier: BSD-3-Clause */
/* What a run needs before its first step, what it saves, and what is given back after its last. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "train/data/resident.h"
#include "train/run/loop_internal.h"

double train_cpu_s(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void train_interval_begin(struct train *train)
{
	train->interval_begin_s = clock_now_s();
	train->interval_begin_cpu_s = train_cpu_s();
	train->wait_s = 0;
	train->interval_samples = train->interval_steps = 0;
}

void train_let_failed_rank_end_first(void)
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
	train->loss_kind = options->loss_set	       ? options->loss
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
static int drop_duplicate_error(struct train *train, int first, int rc, struct error *err)
{
	struct error reported = {0};
	struct error *own = rc ? err : NULL;

	if (own && first == train->comm->rank)
		reported = *own;
	if (comm_broadcast_on_host(train->comm, train->queue, &reported, sizeof reported, first,
				   NULL))
		return rc;
	if (!own || first == train->comm->rank)
		return rc;
	if (strcmp(own->text, reported.text))
		return rc;
	train_let_failed_rank_end_first();
	own->text[0] = 0;
	return rc;
}

int train_ready(struct train *train, int rc, struct error *err)
{
	/* The largest code, and of those that failed the lowest rank. */
	double reported[2] = {-(double)rc, rc ? train->comm->size - train->comm->rank : 0};
	struct error why = {0};

	if (train->gave_up)
		return rc;

	int agreed = comm_reduce_on_host(train->comm, train->queue, reported, 2, COMM_MAX, &why);

	if (agreed && !rc)
		*err = why;
	if (agreed || reported[0] <= 0)
		return rc ? rc : agreed;

	int first = train->comm->size - (int)reported[1];

	train->gave_up = true;
	rc = drop_duplicate_error(train, first, rc, err);
	if (rc)
		return rc;
	train_let_failed_rank_end_first();
	return error_set(err, (int)reported[0], "rank %d could not begin; its own message says why",
			 first);
}

/* What computes: the fastest there is, or why it is not that. */
static void report_device(struct train *train)
{
	const struct device *device = train->device;
	const struct train_options *options = train->options;
	const char *wanted = options->device;
	char text[384] = "";

	if (device->ops->describe)
		device->ops->describe(device, text, sizeof text);
	if (*train->no_gpu.text)
		train_note(train, "note: no GPU is taken: %s", train->no_gpu.text);
	if (*text)
		train_note(train, "computing on %s%s", text,
			   options->precision == PRECISION_BF16	   ? ", bf16"
			   : options->precision == PRECISION_F16   ? ", fp16"
			   : options->tf32 && device->ops->reduced ? ", TF32"
								   : "");
	else if (strcmp(wanted, device->ops->name))
		train_note(train,
			   "computing on %s, which is slow: the module %s.so or its library is "
			   "not there; install oneDNN 2 (Debian: libdnnl-dev) and build berth anew",
			   device->ops->name, DEVICE_CPU_MODULE);
}

/* What is done with the model's defaults and the options together. */
static void report_settings(const struct train *train)
{
	const struct train_options *options = train->options;
	char many[32] = "", ranks[32] = "";

	if (options->accumulate > 1)
		snprintf(many, sizeof many, "%d times ", options->accumulate);
	if (train->place->size > 1)
		snprintf(ranks, sizeof ranks, " on each of %d ranks", train->place->size);
	train_note(train, "batch %s%d%s, lr %g, momentum %g, weight decay %g, schedule %s", many,
		   options->batch, ranks, options->lr, options->momentum, options->weight_decay,
		   schedule_name(options->schedule.kind));
	if (!options->ckpt)
		train_note(train, "note: without --ckpt nothing is saved");
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
		.env = options->env,
		.allow_shared_gpu = options->allow_shared_gpu,
		.lost = train->sink->lost,
		.context = train->sink->context,
	};
	int rc = device_find(options->device, place->local_rank, options->module_path,
			     &train->device, &train->no_gpu, err);

	if (!rc)
		rc = train->device->ops->queue_new(train->device, &train->queue, err);
	request.queue = train->queue;
	if (!rc)
		rc = comm_open(options->comm, &request, options->module_path, &train->comm, err);
	if (rc || train->comm->ops->on_stream || !train->device->ops->queue_native(train->queue))
		return rc;

	struct comm *staged = comm_stage(train->comm);

	if (!staged)
		return error_memory(err, "the communication");
	train->comm = staged;
	return 0;
}

/* Where a GPU trains and metrics are wanted. */
static void open_meter(struct train *train)
{
	const struct device_ops *ops = train->device->ops;
	char uuid[48] = "";

	if (!train->options->metrics || !ops->uuid)
		return;
	ops->uuid(train->device, uuid);
	train->meter = *uuid ? gpu_meter_open(uuid, NULL) : NULL;
	if (!train->meter)
		train_note(train, "note: NVML does not know this GPU: metrics have no use, memory "
				  "and power of it");
}

/* On any rank: each sees other samples. */
static void note_fault(void *context, const char *text)
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
			   .raw = train->device->ops->accepts_raw,
			   .bare = train->resident,
			   .timeout_ms = options->timeout_ms},
		.sampler = &train->sampler,
		.rank = train->comm->rank,
		.world = train->comm->size,
		.fault = note_fault,
		.context = train,
	};
	int rc = feed_new(&request, &train->feed, err);

	if (train->data->skipped_files)
		train_note(train,
			   "note: %" PRId64 " files of train are not .jpg or .jpeg and are "
			   "left out",
			   train->data->skipped_files);
	request.loader.dataset = train->val;
	request.loader.bare = train->val_resident;
	request.sampler = NULL;
	return rc || !train->val ? rc : feed_new(&request, &train->val_feed, err);
}

/* By what is left once the steps have their memory. */
static int make_resident(struct train *train, struct error *err)
{
	int rc = resident_new(train->queue, train->data, &train->resident, err);

	if (!rc && train->val)
		rc = resident_new(train->queue, train->val, &train->val_resident, err);
	if (!rc && train->resident && !train->comm->rank)
		train_note(train, "the data set, %zu MiB, lives in the GPU's memory",
			   (resident_bytes(train->data) >> 20) + 1);
	return rc;
}

static int build_graph(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	int rc = model_build(options->model, &train->data->shape, train->data->classes,
			     options->stem, &train->graph, err);

	return rc ? rc
		  : buckets_make(train->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &train->buckets,
				 err);
}

/* Collective at its beginning. */
static int build(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	int rc = optim_new(train->queue, train->graph, &train->buckets, train->comm, &train->optim,
			   err);

	if (rc)
		return rc;
	struct executor_request request = {
		.graph = train->graph,
		.batch = options->batch,
		.loss = train->loss_kind,
		.train = true,
		.evaluates = train->val,
		.buckets = &train->buckets,
		.comm = train->comm,
		.weights = train->optim.weights,
		.gradients = train->optim.gradients,
		.vote = true,
		.momentum = train->optim.momentum,
		.buffers = train->optim.buffers,
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
		.table = train->data->bytes ? train->data->table[0] : NULL,
		.crop_pad = train->data->augment.crop_pad,
	};

	rc = device_executor_new(train->queue, &request, &train->executor, err);
	request.train = request.evaluates = false;
	request.smoothing = 0; /* what is measured does not depend on how it was trained */
	request.gradients = request.momentum = NULL;
	request.vote = false;
	request.crop_pad = 0;
	if (train->val)
		request.table = train->val->bytes ? train->val->table[0] : NULL;
	if (!rc && train->val)
		rc = device_executor_new(train->queue, &request, &train->val_executor, err);
	if (!rc)
		rc = make_resident(train, err);
	return rc ? rc : open_feeds(train, err);
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
	open_meter(train);
	rc = train_ready(train, data ? data : build_graph(train, err), err);
	if (!rc)
		rc = train_ready(train, build(train, err), err);
	if (rc)
		return rc;
	rc = train_compare(train, err);
	if (rc == -ERR_DATA)
		rc = drop_duplicate_error(train, 0, rc, err);
	if (!rc) {
		report_device(train);
		report_settings(train);
	}
	return rc;
}

/* ---- close ---- */

void train_close(struct train *train)
{
	bool written = train_close_checkpoint_dir(train);

	metrics_close(train->metrics);
	if (train->sample_log_fd >= 0)
		close(train->sample_log_fd);
	gpu_meter_close(train->meter);
	device_executor_free(train->executor);
	device_executor_free(train->val_executor);
	if (train->device) {
		train->device->ops->memory_free(train->device, train->resident);
		train->device->ops->memory_free(train->device, train->val_resident);
	}
	optim_free(&train->optim);
	/* A thread that hangs in a file system may read on: these, too, stay then. */
	if (written) {
		buckets_free(&train->buckets);
		graph_free(train->graph);
	}
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
