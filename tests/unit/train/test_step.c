/* SPDX-License-Identifier: BSD-3-Clause */
/* Whole steps of a device with an executor of its own (cpu: oneDNN's; cuda: a GPU's, or that of
 * tests/train/fake-cuda) in a given precision, compared with the default executor on the reference
 * device. Both start from the same weights and get the same batches. Compared are losses, all
 * gradients, the updated weights, the momentum and the running statistics; with partial batches,
 * several runs per update, no samples, and a repetition that must give the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../rows.h"
#include "random_graph.h"
#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/executor/executor.h"
#include "train/model/graph.h"

/* One update. counts: samples of its runs, terminated by -1. */
struct update {
	int counts[4];
};

struct row {
	const char *model;
	enum model_stem stem;
	struct shape shape;
	int batch, classes;
	bool mse, nesterov, decay_vectors;
	float momentum, smoothing;
	int update_count;
	struct update updates[2];
	/* How far tensors may be from the reference's, relative to their norm, with direct
	 * convolutions and with those that oneDNN chooses. */
	double direct, winograd;
	const char *why;
};

/* A value near 0 that rounding puts on the other side of a ReLU changes all gradients below it, by
 * 1e-3 in a network of these sizes. That happens by chance in one batch, whereas a defect shows in
 * every batch. So of TRIES starting points one must be within the row's bound, and all within this
 * one. */
#define SWITCHED 0.3
#define TRIES 8
#define RANDOM_NETWORKS 20

static const struct row rows[] = {
	{"linear",
	 STEM_DEFAULT,
	 {20, 1, 1},
	 8,
	 1,
	 true,
	 false,
	 true,
	 0,
	 0,
	 2,
	 {{{8, -1}}, {{5, -1}}},
	 1e-6,
	 1e-6,
	 "mse, no momentum, a partial batch"},
	{"convnet",
	 STEM_DEFAULT,
	 {1, 28, 28},
	 8,
	 10,
	 false,
	 false,
	 true,
	 0.9f,
	 0,
	 2,
	 {{{8, -1}}, {{3, -1}}},
	 1e-5,
	 1e-5,
	 "biases, pooling, ReLU without batch norm"},
	{"convnet",
	 STEM_DEFAULT,
	 {1, 28, 28},
	 8,
	 10,
	 false,
	 true,
	 false,
	 0.9f,
	 0.1f,
	 2,
	 {{{8, 7, -1}}, {{0, -1}}},
	 1e-5,
	 1e-5,
	 "several runs, Nesterov, smoothing, no samples"},
	{"resnet18",
	 STEM_CIFAR,
	 {3, 8, 8},
	 8,
	 10,
	 false,
	 false,
	 true,
	 0.9f,
	 0,
	 1,
	 {{{8, -1}}},
	 1e-4,
	 1e-4,
	 "batch norm, forks, shortcuts"},
	{"resnet18",
	 STEM_CIFAR,
	 {3, 8, 8},
	 8,
	 10,
	 false,
	 false,
	 true,
	 0.9f,
	 0,
	 1,
	 {{{5, -1}}},
	 1e-4,
	 1e-4,
	 "the same, a partial batch"},
	{"resnet18",
	 STEM_DEFAULT,
	 {3, 48, 48},
	 3,
	 7,
	 false,
	 true,
	 false,
	 0.9f,
	 0.1f,
	 1,
	 {{{3, 2, -1}}},
	 1e-4,
	 1e-4,
	 "7x7 stem and overlapping pooling; two runs per update"},
	{"resnet50",
	 STEM_DEFAULT,
	 {3, 48, 48},
	 4,
	 10,
	 false,
	 false,
	 true,
	 0.9f,
	 0,
	 1,
	 {{{4, -1}}},
	 0.1,
	 0.1,
	 "bottlenecks; so deep that some ReLU always switches, so the running statistics are the "
	 "better check"},
	{"wide",
	 STEM_DEFAULT,
	 {3, 32, 32},
	 16,
	 10,
	 false,
	 false,
	 true,
	 0.9f,
	 0,
	 1,
	 {{{16, -1}}},
	 2e-3,
	 5e-3,
	 "large enough for Winograd, and for a few ReLU switches"},
};

/* The effect of 16-bit numbers on a network's gradients, whichever device computes them. It is the
 * worst tensor's distance from float64, measured with PyTorch 1.13, which computed in float64 and
 * rounded each layer's result, weight and gradient. The batch had 8 synthetic samples, the loss was
 * scaled by 64, and the bias was added to a rounded product. Listed are the median and the largest
 * of 12 starting points of convnet, 8 of resnet18 --stem cifar with 8x8, and 200 of linear with
 * mse, with two batches each. Nearly all of the distance comes from ReLUs and poolings that
 * rounding switches, most of it from batch norms of few samples. One try must be within 1.25 times
 * the median, and each within 1.5 times the largest. */
static const struct sixteen {
	const char *model;
	enum precision precision;
	double median, largest;
} sixteens[] = {
	/* A bias gradient near zero has a large relative error. */
	{"linear", PRECISION_F16, 0.00063, 0.128}, {"linear", PRECISION_BF16, 0.0048, 0.244},
	{"convnet", PRECISION_F16, 0.028, 0.054},  {"convnet", PRECISION_BF16, 0.143, 0.207},
	{"resnet18", PRECISION_F16, 0.172, 0.200}, {"resnet18", PRECISION_BF16, 0.492, 0.569},
};
#define MEDIAN_TIMES 1.25
#define LARGEST_TIMES 1.5
#define FORWARD_ROUNDINGS 16

/* The arguments of the program: what is tested. */
static const char *tested = "cpu";
static enum precision precision = PRECISION_F32;
/* Half the distance between neighbours of 1 in the 16-bit format; 0 for float32. */
static double rounding;
static bool no_graph, all_rows;

static bool on_gpu(void)
{
	return !strcmp(tested, "cuda");
}

/* Convolutions of a size for which Winograd is chosen, with their surrounding layers. */
static void build_wide(const struct row *row, struct graph **out)
{
	struct graph *graph = graph_new("wide", &row->shape, row->classes);
	int value, fork;

	assert_non_null(graph);
	value = graph_relu(graph, graph_conv2d(graph, "conv1", 0, 64, 3, 1, 1, true));
	fork = graph_relu(graph,
			  graph_batchnorm(graph, "bn2",
					  graph_conv2d(graph, "conv2", value, 64, 3, 1, 1, false)));
	value = graph_add(graph, graph_conv2d(graph, "conv3", fork, 64, 3, 1, 1, true), fork);
	graph_linear(graph, "fc", graph_avgpool(graph, value), row->classes);
	assert_int_equal(graph->error.code, 0);
	*out = graph;
}

/* Batch norm of planes with one value. */
static void build_dots(const struct row *row, struct graph **out)
{
	struct graph *graph = graph_new("dots", &row->shape, row->classes);
	int value = graph_conv2d(graph, "conv", 0, 8, 1, 1, 0, false);

	graph_linear(graph, "fc", graph_batchnorm(graph, "bn", value), row->classes);
	assert_int_equal(graph->error.code, 0);
	*out = graph;
}

/* Of the network named "random". */
static uint64_t random_seed;

#define STATES 4

/* A model ready to train on one device. */
struct rig {
	struct device *device;
	struct device_queue *queue;
	struct comm *comm;
	struct graph *graph;
	struct buckets buckets;
	/* Host copies of the device's memory: filled by the last pull, sent by the next push. */
	float *weights, *gradients, *momentum, *buffers;
	float *there[STATES];
	struct executor_request request;
	struct device_executor *executor;
};

static void good(int rc, const struct error *err)
{
	if (rc)
		fail_msg("%s (%d)", err->text, rc);
}

static float *state_of(const struct rig *rig, int i)
{
	float *const all[STATES] = {rig->weights, rig->gradients, rig->momentum, rig->buffers};

	return all[i];
}

static size_t state_bytes(const struct rig *rig, int i)
{
	/* The gradients end with the vote. */
	return sizeof(float) *
		       (i < STATES - 1 ? rig->buckets.total : (size_t)rig->graph->buffer_total) +
	       sizeof(float);
}

static void push(struct rig *rig)
{
	struct error err = {0};

	for (int i = 0; i < STATES; i++)
		good(rig->device->ops->copy_in(rig->queue, rig->there[i], state_of(rig, i),
					       state_bytes(rig, i), &err),
		     &err);
}

static void pull(struct rig *rig)
{
	struct error err = {0};

	for (int i = 0; i < STATES; i++)
		good(rig->device->ops->copy_out(rig->queue, state_of(rig, i), rig->there[i],
						state_bytes(rig, i), &err),
		     &err);
}

static void make_room(struct rig *rig)
{
	float **const all[STATES] = {&rig->weights, &rig->gradients, &rig->momentum, &rig->buffers};
	struct error err = {0};

	for (int i = 0; i < STATES; i++) {
		void *memory;

		*all[i] = calloc(1, state_bytes(rig, i));
		assert_non_null(*all[i]);
		good(rig->device->ops->memory_new(rig->device, state_bytes(rig, i), &memory, &err),
		     &err);
		rig->there[i] = memory;
	}
}

static void rig_begin(struct rig *rig, const struct row *row, const char *device, bool direct,
		      bool train)
{
	struct comm_request alone = {.rank = 0, .size = 1, .timeout_ms = 1000};
	struct error err = {0};

	*rig = (struct rig){0};
	good(device_find(device, 0, getenv("BERTH_MODULE_PATH"), &rig->device, NULL, &err), &err);
	assert_string_equal(rig->device->ops->name, device);
	good(rig->device->ops->queue_new(rig->device, &rig->queue, &err), &err);
	good(comm_self.open(&alone, &rig->comm, &err), &err);
	if (!strcmp(row->model, "wide"))
		build_wide(row, &rig->graph);
	else if (!strcmp(row->model, "dots"))
		build_dots(row, &rig->graph);
	else if (!strcmp(row->model, "random"))
		rig->graph = random_graph(random_seed, &row->shape, row->classes, 24);
	else
		good(model_build(row->model, &row->shape, row->classes, row->stem, &rig->graph,
				 &err),
		     &err);
	good(buckets_make(rig->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &rig->buckets, &err), &err);
	make_room(rig);
	good(graph_initialise(rig->graph, 5, rig->buckets.offsets, rig->weights, &err), &err);
	graph_initialise_buffers(rig->graph, rig->buffers);
	/* Fill the gradients, so that any that are not overwritten show. */
	memset(rig->gradients, 0xff, rig->buckets.total * sizeof(float));
	push(rig);
	rig->request = (struct executor_request){
		.graph = rig->graph,
		.batch = row->batch,
		.loss = row->mse ? LOSS_MSE : LOSS_CROSS_ENTROPY,
		.train = train,
		.buckets = &rig->buckets,
		.comm = rig->comm,
		.weights = rig->there[0],
		.gradients = train ? rig->there[1] : NULL,
		.momentum = train ? rig->there[2] : NULL,
		.buffers = rig->graph->buffer_total ? rig->there[3] : NULL,
		.sgd = {.momentum = row->momentum,
			.weight_decay = 5e-4f,
			.nesterov = row->nesterov},
		.decay_vectors = row->decay_vectors,
		.smoothing = row->smoothing,
		.direct = direct,
		.precision = strcmp(device, tested) ? PRECISION_F32 : precision,
		.no_graph = no_graph,
		/* Deterministic if bits are compared: a GPU's fastest sums have no fixed order. */
		.deterministic = on_gpu() && !direct,
	};
	good(device_executor_new(rig->queue, &rig->request, &rig->executor, &err), &err);
	/* With PyTorch's first scale the gradients of these few samples are not finite in fp16. */
	if (train && rig->request.precision == PRECISION_F16)
		good(device_executor_grad_scaler(
			     rig->executor, &(struct grad_scaler_state){.scale = 64}, NULL, &err),
		     &err);
}

static void rig_end(struct rig *rig)
{
	device_executor_free(rig->executor);
	for (int i = 0; i < STATES; i++) {
		rig->device->ops->memory_free(rig->device, rig->there[i]);
		free(state_of(rig, i));
	}
	buckets_free(&rig->buckets);
	graph_free(rig->graph);
	rig->comm->ops->close(rig->comm);
	rig->device->ops->queue_free(rig->queue);
	rig->device->ops->close(rig->device);
}

static float number(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (float)(*state >> 40) * 0x1p-23f - 1;
}

/* One run of count samples, generated from the run's number. */
static void run_once(struct rig *rig, const struct row *row, int index, int count, int64_t global,
		     bool first, bool last, bool full)
{
	size_t x_count = (size_t)(count * shape_count(&row->shape)) + 1;
	float *x = malloc(x_count * sizeof *x);
	void *target = malloc((size_t)count * sizeof(float) + 1);
	uint64_t state = (uint64_t)index * 977 + 13;
	struct error err = {0};
	struct executor_input input = {.x = x,
				       .target = target,
				       .count = count,
				       .global_count = global,
				       .step = index + 1,
				       .lr = 0.05f,
				       .first = first,
				       .last = last,
				       .full = full};

	assert_true(x && target);
	for (size_t i = 0; i < x_count; i++)
		x[i] = number(&state);
	for (int i = 0; i < count; i++) {
		if (row->mse)
			((float *)target)[i] = number(&state);
		else
			((int32_t *)target)[i] = (i * 3 + index) % row->classes;
	}
	good(device_executor_run(rig->executor, &input, &err), &err);
	free(x);
	free(target);
}

/* The first update counts as a full one: a GPU replays it as a graph when it comes again. */
static void update_once(struct rig *rig, const struct row *row, int index, int try)
{
	const int *counts = row->updates[index % row->update_count].counts;
	int runs = 0;
	int64_t global = 0;

	for (; counts[runs] >= 0; runs++)
		global += counts[runs];
	for (int i = 0; i < runs; i++)
		run_once(rig, row, try * 64 + index * 4 + i, counts[i], global ? global : 1, !i,
			 i + 1 == runs, index % row->update_count == 0);
}

/* The bound that one try must meet, and the bound that no try may exceed. */
struct bounds {
	double one, each;
};

static struct bounds bounds_of(const struct row *row, bool direct)
{
	const struct bounds f32 = {direct ? row->direct : row->winograd, SWITCHED};

	if (!(rounding > 0))
		return f32;
	for (size_t i = 0; i < ROWS(sixteens); i++)
		if (!strcmp(sixteens[i].model, row->model) && sixteens[i].precision == precision)
			return (struct bounds){MEDIAN_TIMES * sixteens[i].median,
					       LARGEST_TIMES * sixteens[i].largest};
	fail_msg("%s has no bound for 16 bits", row->model);
	return f32;
}

/* Bounds for sums of the forward pass (losses and running statistics), in which a single ReLU
 * switch has little weight. */
static double forward_bound(void)
{
	return 1e-4 + FORWARD_ROUNDINGS * rounding;
}

/* The distance of two tensors relative to the norm of the reference's. */
static double distance(const float *a, const float *reference, size_t count)
{
	double off = 0, size = 0;

	for (size_t i = 0; i < count; i++) {
		double d = (double)a[i] - (double)reference[i];

		off += d * d;
		size += (double)reference[i] * (double)reference[i];
	}
	if (isnan(off))
		return INFINITY;
	return off == 0 ? 0 : sqrt(off / size);
}

/* The largest distance in one comparison. */
static void compare(const char *what, const char *name, const float *a, const float *reference,
		    size_t count, double bound, double *worst)
{
	double off = distance(a, reference, count);

	*worst = off > *worst ? off : *worst;
	if (!(off <= bound))
		fail_msg("%s of %s is off by %.2e, allowed %.1e", what, name, off, bound);
}

/* Everything that a step writes. In a random network some gradients and means are 0 except for
 * rounding, such as those of a constant before a batch norm: there, all count as one. */
static double compare_all(const struct rig *rig, const struct rig *reference, double each)
{
	bool random = !strcmp(rig->graph->model, "random");
	double worst = 0;

	if (random) {
		compare("gradients", "random", rig->gradients, reference->gradients,
			rig->buckets.total, each, &worst);
		compare("statistics", "random", rig->buffers, reference->buffers,
			(size_t)rig->graph->buffer_total, forward_bound(), &worst);
	}
	for (int i = 0; !random && i < rig->graph->param_count; i++) {
		const struct graph_param *param = &rig->graph->params[i];
		size_t at = rig->buckets.offsets[i], count = (size_t)param->count;

		compare("gradient", param->name, rig->gradients + at, reference->gradients + at,
			count, each, &worst);
		compare("momentum", param->name, rig->momentum + at, reference->momentum + at,
			count, each, &worst);
		compare("weights", param->name, rig->weights + at, reference->weights + at, count,
			each, &worst);
	}
	for (int i = 0; !random && i < rig->graph->buffer_count; i++) {
		const struct graph_buffer *buffer = &rig->graph->buffers[i];

		/* They depend on no gradient: they are sums of the forward pass. */
		compare("statistics", buffer->name, rig->buffers + buffer->offset,
			reference->buffers + buffer->offset, (size_t)buffer->count, forward_bound(),
			&worst);
	}
	return worst;
}

/* Start both from the same state, so that errors of earlier steps do not add up. */
static void copy_state(struct rig *to, const struct rig *from)
{
	size_t bytes = from->buckets.total * sizeof(float);

	memcpy(to->weights, from->weights, bytes);
	memcpy(to->momentum, from->momentum, bytes);
	memcpy(to->buffers, from->buffers, (size_t)from->graph->buffer_total * sizeof(float));
	push(to);
}

static void compare_totals(struct rig *rig, struct rig *reference, double bound)
{
	struct executor_totals a, b;
	struct error err = {0};

	good(device_executor_read(rig->executor, &a, &err), &err);
	good(device_executor_read(reference->executor, &b, &err), &err);
	assert_int_equal(a.samples, b.samples);
	assert_int_equal(a.last_samples, b.last_samples);
	assert_int_equal(a.first_nonfinite_step, b.first_nonfinite_step);
	if (fabs(a.loss_sum - b.loss_sum) > bound * fabs(b.loss_sum) ||
	    fabs(a.last_loss_sum - b.last_loss_sum) > bound * fabs(b.last_loss_sum))
		fail_msg("the sum of the losses is %.9g, the reference's %.9g", a.loss_sum,
			 b.loss_sum);
	/* Two nearly equal logits may swap their order. */
	if (!(rounding > 0))
		assert_true(llabs(a.top1 - b.top1) <= 1 && llabs(a.top5 - b.top5) <= 1);
}

/* Gradients in fp16 are multiplied by the loss scale until they are used. */
static void unscale(struct rig *rig)
{
	struct grad_scaler_state scale;
	struct error err = {0};

	good(device_executor_grad_scaler(rig->executor, NULL, &scale, &err), &err);
	assert_int_equal(scale.skipped, 0);
	for (size_t i = 0; i < rig->buckets.total; i++)
		rig->gradients[i] /= scale.scale;
}

/* One try: the worst distance of all updates. */
static double try_once(const struct row *row, bool direct, int try)
{
	struct rig rig, reference;
	double worst = 0;

	rig_begin(&rig, row, tested, direct, true);
	rig_begin(&reference, row, "cpu-reference", true, true);
	/* The bounds of 16 bits are for so many updates. */
	int updates = row->update_count + (on_gpu() && !(rounding > 0));

	for (int i = 0; i < updates; i++) {
		update_once(&rig, row, i, try);
		update_once(&reference, row, i, try);
		compare_totals(&rig, &reference, forward_bound());
		pull(&rig);
		pull(&reference);
		unscale(&rig);

		double off = compare_all(&rig, &reference, bounds_of(row, direct).each);

		worst = off > worst ? off : worst;
		copy_state(&rig, &reference);
	}
	rig_end(&rig);
	rig_end(&reference);
	return worst;
}

static void beside_reference(const struct row *row, bool direct)
{
	double bound = bounds_of(row, direct).one, worst = INFINITY;
	int tries = 0;

	while (tries < TRIES && !(worst <= bound))
		worst = try_once(row, direct, tries++);
	printf("%s, %s: off by %.1e, allowed %.1e, try %d (%s)\n", row->model,
	       direct ? "direct" : "auto", worst, bound, tries, row->why);
	if (!(worst <= bound))
		fail_msg("%s is off by more than %.1e in each of %d tries", row->model, bound,
			 TRIES);
}

/* On the fake GPU the later ones take minutes. */
static size_t row_count(void)
{
	return on_gpu() && !all_rows ? 4 : ROWS(rows);
}

static void direct_steps(void **state)
{
	for (size_t i = 0; i < row_count(); i++)
		beside_reference(&rows[i], true);
}

/* Networks that no model has: forks into three, sums of sums, ReLUs in all places. */
static void random_steps(void **state)
{
	for (random_seed = 0; !(rounding > 0) && random_seed < RANDOM_NETWORKS; random_seed++) {
		const struct row row = {
			.model = "random",
			.shape = {random_seed % 2 ? 3 : 8, 6, 6},
			.batch = 4,
			.classes = 5,
			.momentum = 0.9f,
			.update_count = 1,
			.updates = {{{4, 3, -1}}},
			.direct = 1e-5,
			.why = "two runs of one update",
		};

		printf("seed %d: ", (int)random_seed);
		beside_reference(&row, true);
	}
}

static void winograd_steps(void **state)
{
	for (size_t i = 0; !on_gpu() && i < ROWS(rows); i++)
		beside_reference(&rows[i], false);
}

/* Evaluation: only the totals are written. */
static void evaluations(void **state)
{
	for (size_t i = 0; i < row_count(); i++) {
		struct rig rig, reference;

		rig_begin(&rig, &rows[i], tested, true, false);
		rig_begin(&reference, &rows[i], "cpu-reference", true, false);
		for (int j = 0; j < 3; j++) {
			int left_out = j % 2;

			run_once(&rig, &rows[i], j, rows[i].batch - left_out, 1, true, true,
				 !left_out);
			run_once(&reference, &rows[i], j, rows[i].batch - left_out, 1, true, true,
				 !left_out);
		}
		compare_totals(&rig, &reference, forward_bound());
		pull(&rig);
		pull(&reference);
		assert_memory_equal(rig.weights, reference.weights,
				    rig.buckets.total * sizeof(float));
		assert_memory_equal(rig.buffers, reference.buffers,
				    (size_t)rig.graph->buffer_total * sizeof(float));
		rig_end(&rig);
		rig_end(&reference);
	}
}

/* Two executors must give the same bits, also with more batch sizes than an executor keeps
 * compiled. */
static void same_bits(void **state)
{
	const struct row *row = &rows[on_gpu() ? 1 : 3];
	struct rig a, b;

	rig_begin(&a, row, tested, false, true);
	rig_begin(&b, row, tested, false, true);
	for (int i = 0; i < 12; i++) {
		run_once(&a, row, i, 2 + i % (row->batch - 1), 4, true, true, false);
		run_once(&b, row, i, 2 + i % (row->batch - 1), 4, true, true, false);
	}
	struct executor_totals totals;
	struct error err = {0};

	/* They wait for work in progress. */
	good(device_executor_read(a.executor, &totals, &err), &err);
	good(device_executor_read(b.executor, &totals, &err), &err);
	pull(&a);
	pull(&b);
	assert_memory_equal(a.weights, b.weights, a.buckets.total * sizeof(float));
	assert_memory_equal(a.buffers, b.buffers, (size_t)a.graph->buffer_total * sizeof(float));
	rig_end(&a);
	rig_end(&b);
}

static int finishes;

static int counted_finish(struct comm *comm, struct device_queue *queue, struct error *err)
{
	finishes++;
	return comm_self.finish(comm, queue, err);
}

/* Each update tells comm where its collectives end, also when a graph is replayed. */
static void ended_steps(void **state)
{
	const struct row *row = &rows[1];
	struct comm_ops counted = comm_self;
	struct rig rig;

	counted.finish = counted_finish;
	rig_begin(&rig, row, tested, false, true);
	rig.comm->ops = &counted;
	for (int i = 0; i < 4; i++) {
		finishes = 0;
		run_once(&rig, row, i, row->batch, row->batch, true, true, true);
		assert_true(finishes > 0);
	}
	rig_end(&rig);
}

/* PyTorch scales the mean over a rank's own batch, of which our gradients are a share: so that they
 * keep as many bits, they are larger on more ranks, and the reported scale is PyTorch's. */
static void scaled_by_ranks(void **state)
{
	const struct row *row = &rows[1];
	struct grad_scaler_state scale = {0};
	float *single = NULL;

	if (precision != PRECISION_F16)
		skip();
	for (int ranks = 1; ranks <= 4; ranks += 3) {
		struct error err = {0};
		struct device_executor *executor;
		struct rig rig;

		rig_begin(&rig, row, tested, true, true);
		rig.comm->size = ranks;
		device_executor_free(rig.executor);
		good(device_executor_new(rig.queue, &rig.request, &executor, &err), &err);
		rig.executor = executor;
		run_once(&rig, row, 0, row->batch, 32, true, true, true);
		good(device_executor_grad_scaler(executor, NULL, &scale, &err), &err);
		assert_true(scale.scale == 65536);
		pull(&rig);
		for (size_t i = 0; single && i < rig.buckets.total; i++)
			assert_true(rig.gradients[i] == 4 * single[i]);
		if (!single)
			single = memcpy(malloc(rig.buckets.total * sizeof *single), rig.gradients,
					rig.buckets.total * sizeof *single);
		rig.comm->size = 1;
		rig_end(&rig);
	}
	free(single);
}

/* A network that cannot be trained is refused with the reason. */
static void refused(void **state)
{
	const struct row *row = &rows[3];
	struct rig rig;
	struct error err = {0};
	float x[9 * 3 * 8 * 8] = {0};
	int32_t target[9] = {0};
	struct executor_input input = {.x = x,
				       .target = target,
				       .count = 9,
				       .global_count = 9,
				       .first = true,
				       .last = true};

	rig_begin(&rig, row, tested, true, true);
	assert_int_equal(device_executor_run(rig.executor, &input, &err), -ERR_INTERNAL);
	input.count = 2;
	target[0] = 10;
	if (on_gpu()) {
		struct executor_totals totals;

		/* That device does not wait for a step: the loss of such a label is NaN. */
		input.step = 7;
		good(device_executor_run(rig.executor, &input, &err), &err);
		good(device_executor_read(rig.executor, &totals, &err), &err);
		assert_int_equal(totals.first_nonfinite_step, 7);
		rig_end(&rig);
		return;
	}
	assert_int_equal(device_executor_run(rig.executor, &input, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "label 10"));
	rig_end(&rig);
}

/* Batch norm cannot train on one value: neither on such a batch nor on one that is an epoch's
 * rest. */
static void one_value(void **state)
{
	const struct row row = {.model = "dots", .shape = {3, 1, 1}, .classes = 4, .batch = 2};
	struct rig rig;
	struct error err = {0};
	float x[2 * 3] = {1, 2, 3, 4, 5, 6};
	int32_t target[2] = {0, 1};
	struct executor_input input = {.x = x,
				       .target = target,
				       .count = 1,
				       .global_count = 1,
				       .first = true,
				       .last = true};
	struct device_executor *single;

	rig_begin(&rig, &row, tested, true, true);
	assert_int_equal(device_executor_run(rig.executor, &input, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "--batch"));
	input.count = input.global_count = 2;
	good(device_executor_run(rig.executor, &input, &err), &err);
	rig.request.batch = 1;
	assert_int_equal(device_executor_new(rig.queue, &rig.request, &single, &err), -ERR_DATA);
	rig.request.train = false;
	good(device_executor_new(rig.queue, &rig.request, &single, &err), &err);
	device_executor_free(single);
	rig_end(&rig);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(direct_steps),	   cmocka_unit_test(random_steps),
		cmocka_unit_test(winograd_steps),  cmocka_unit_test(evaluations),
		cmocka_unit_test(same_bits),	   cmocka_unit_test(ended_steps),
		cmocka_unit_test(scaled_by_ranks), cmocka_unit_test(refused),
		cmocka_unit_test(one_value),
	};
	struct error err = {0};
	struct device *device;

	if (argc > 1)
		tested = argv[1];
	if (argc > 2 && strcmp(argv[2], "f32")) {
		precision = strcmp(argv[2], "fp16") ? PRECISION_BF16 : PRECISION_F16;
		rounding = precision == PRECISION_F16 ? 0x1p-11 : 0x1p-8;
	}
	no_graph = argc > 3 && !strcmp(argv[3], "no-graph");
	all_rows = argc > 3 && !strcmp(argv[3], "all");
	if (device_find(tested, 0, getenv("BERTH_MODULE_PATH"), &device, NULL, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	bool there = !strcmp(device->ops->name, tested);

	device->ops->close(device);
	if (!there) {
		printf("skipped: device-%s.so is missing\n", tested);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
