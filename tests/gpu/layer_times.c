/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the time of a training step goes.
 *
 *     layer_times [--floor] MODEL SIDE BATCH bf16|fp16|f32 [TB/S TFLOP/S]
 *
 * Prints one JSON object per line: nodes, then types with the largest gap first, then all together.
 * Events on the stream time each node of the lowered graph (train/device/cuda/lowered_graph.h),
 * forward and backward. Next to the time is the node's floor: the larger of its operations and of
 * the bytes that a kernel of its own must move, with fused batch norms counted as one kernel each
 * way, and nothing in the cache. A node's backward time includes all its passes.
 *
 * The default rates are an H200's: 4.3 TB/s, and 790 TFLOP/s, or 67 for f32. SIDE below 64 selects
 * the stem for small images. The nodes are launched one by one, behind work that keeps the GPU
 * busy. If they are shorter than a launch takes (small images), the times are those of launches.
 * The step itself, with its graph, is timed before.
 *
 * --floor prints floors and memory only, and needs no GPU. Exits with code 77 if there is none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "layer_floor.h"
#include "step_cost.h"
#include "train/comm/comm.h"
#include "train/device/cuda/compiled_graph.h"
#include "train/device/cuda/executor_memory.h"

extern const struct device_ops device_cuda;

#define ROUNDS 7
#define STEPS 20
#define CLASSES 1000

struct times {
	struct device *device;
	struct device_queue *queue;
	struct comm *comm;
	struct graph *graph;
	struct buckets buckets;
	void *flat[4]; /* weights, gradients, momentum, buffers */
	struct executor_request request;
	struct floor_rates rates;
	struct lowered_graph lowered;
	struct executor_common common;
	struct executor_memory memory;
	struct compiled_graph *compiled;
	cudaEvent_t *events; /* one before each pass, one after each node */
	int next;
	double step_ms;
};

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static cudaStream_t stream_of(const struct times *t)
{
	return ((struct cuda_queue *)t->queue)->stream;
}

static struct kernel_config config_of(const struct times *t)
{
	const struct cuda *cuda = (const struct cuda *)t->device;

	return (struct kernel_config){stream_of(t), t->rates.number, cuda->multiprocessors};
}

/* ---- begin ---- */

static enum precision precision_of(const char *amp)
{
	return !strcmp(amp, "bf16")   ? PRECISION_BF16
	       : !strcmp(amp, "fp16") ? PRECISION_F16
				      : PRECISION_F32;
}

static int make_network(struct times *t, const char *model, int side, struct error *err)
{
	const struct shape shape = {3, side, side};
	int rc = model_build(model, &shape, CLASSES, side < 64 ? STEM_CIFAR : STEM_DEFAULT,
			     &t->graph, err);

	if (rc)
		rc = model_build(model, &shape, CLASSES, STEM_DEFAULT, &t->graph, err);
	return rc ? rc : buckets_make(t->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &t->buckets, err);
}

/* The state, with initial weights. */
static int make_state(struct times *t, struct error *err)
{
	const size_t count = t->buckets.total, buffers = (size_t)t->graph->buffer_total;
	const size_t sizes[4] = {count, count + 1, count, buffers + 1};
	size_t max = count > buffers ? count : buffers;
	float *host = calloc(max + 1, sizeof *host);
	int rc = host ? 0 : error_memory(err, "the weights");

	for (int i = 0; !rc && i < 4; i++) {
		size_t bytes = sizes[i] * sizeof(float);

		memset(host, 0, max * sizeof *host);
		if (i == 0)
			rc = graph_initialise(t->graph, 1, t->buckets.offsets, host, err);
		if (i == 3)
			graph_initialise_buffers(t->graph, host);
		if (!rc)
			rc = t->device->ops->memory_new(t->device, bytes, &t->flat[i], err);
		if (!rc)
			rc = t->device->ops->copy_in(t->queue, t->flat[i], host, bytes, err);
	}
	free(host);
	return rc;
}

static int begin(struct times *t, char **argv, struct error *err)
{
	const struct comm_request alone = {.rank = 0, .size = 1, .timeout_ms = 10000};
	const char *amp = argv[4];
	int rc = device_cuda.open(0, &t->device, err);

	if (rc) {
		printf("skipped: %s\n", err->text);
		exit(77);
	}
	rc = t->device->ops->queue_new(t->device, &t->queue, err);
	if (!rc)
		rc = comm_self.open(&alone, &t->comm, err);
	if (!rc)
		rc = make_network(t, argv[1], atoi(argv[2]), err);
	if (!rc)
		rc = make_state(t, err);
	t->request = (struct executor_request){
		.graph = t->graph,
		.batch = atoi(argv[3]),
		.precision = precision_of(amp),
		.loss = LOSS_CROSS_ENTROPY,
		.train = true,
		.buckets = &t->buckets,
		.comm = t->comm,
		.weights = t->flat[0],
		.gradients = t->flat[1],
		.momentum = t->flat[2],
		.buffers = t->graph && t->graph->buffer_total ? t->flat[3] : NULL,
		.sgd = {.momentum = 0.9f},
	};
	return rc;
}

/* ---- the step as it is trained ---- */

/* Samples that reside on the GPU, so that no time is spent waiting for them. */
static int time_steps(struct times *t, struct error *err)
{
	int batch = t->request.batch, rc;
	size_t count = (size_t)batch * (size_t)shape_count(&t->graph->values[0]);
	uint32_t *indices = calloc((size_t)batch, sizeof *indices);
	int32_t *target = calloc((size_t)batch, sizeof *target);
	struct kernel_config config = config_of(t);
	struct device_executor *executor = NULL;
	struct executor_totals totals;
	void *resident = NULL;
	double since = 0;

	config.number = NUMBER_F32;
	rc = indices && target ? 0 : error_memory(err, "a batch");
	for (int i = 0; !rc && i < batch; i++) {
		indices[i] = (uint32_t)i;
		target[i] = i % CLASSES;
	}
	if (!rc)
		rc = t->device->ops->memory_new(t->device, count * 4, &resident, err);
	if (!rc) {
		kernel_fill(&config, resident, count, 1);
		rc = device_executor_new(t->queue, &t->request, &executor, err);
	}
	for (int i = 0; !rc && i < STEPS + 3; i++) {
		const struct executor_input input = {.resident = resident,
						     .indices = indices,
						     .target = target,
						     .count = batch,
						     .global_count = batch,
						     .step = i + 1,
						     .lr = 1e-6f,
						     .first = true,
						     .last = true,
						     .full = true};

		rc = device_executor_run(executor, &input, err);
		if (!rc && i == 2)
			rc = device_executor_read(executor, &totals, err);
		if (i == 2)
			since = now_ms();
	}
	if (!rc)
		rc = device_executor_read(executor, &totals, err);
	t->step_ms = (now_ms() - since) / STEPS;
	device_executor_free(executor);
	t->device->ops->memory_free(t->device, resident);
	free(indices);
	free(target);
	return rc;
}

/* ---- the nodes ---- */

static void passed(void *context, int node, bool backward)
{
	struct times *t = context;

	(void)node;
	(void)backward;
	cudaEventRecord(t->events[t->next++], stream_of(t));
}

static int nothing(void *context, const struct graph_op *op, struct error *err)
{
	(void)context;
	(void)op;
	(void)err;
	return 0;
}

static int make_program(struct times *t, struct error *err)
{
	struct cuda *cuda = (struct cuda *)t->device;
	const struct node_observer observer = {t, passed};
	int rc = executor_common_new(&t->request, t->queue, &t->common, err);

	if (!rc)
		rc = lowered_graph_make(&t->request, cuda->multiprocessors, &t->lowered, err);
	if (!rc)
		rc = executor_memory_new(cuda, &t->request, &t->lowered, &t->common, &t->memory,
					 err);
	if (!rc)
		rc = compiled_graph_new(cuda, &t->request, &t->lowered, t->request.batch, true,
					&t->compiled, err);
	if (!rc)
		rc = executor_memory_reserve_workspace(&t->memory,
						       compiled_graph_workspace(t->compiled), err);
	if (!rc)
		compiled_graph_set_observer(t->compiled, &observer);
	return rc;
}

/* The first event, forward; another one, backward, so that gradients are not zero. */
static int round_once(struct times *t, struct error *err)
{
	const struct gradient_sink sink = {t, nothing};
	const struct kernel_config config = config_of(t);
	const struct memory_item *slots = t->lowered.plan.slots;
	char *arena = t->memory.graph_memory.arena;
	size_t size = number_size(t->rates.number);
	size_t input = slots[t->lowered.plan.input].size_bytes / size;
	size_t output = (size_t)t->request.batch * CLASSES;
	int rc;

	t->next = 0;
	kernel_weights(&config, t->memory.weights, t->memory.weight_count);
	kernel_fill(&config, arena + slots[t->lowered.plan.input].offset, input, 2);
	cudaEventRecord(t->events[t->next++], stream_of(t));
	rc = compiled_graph_run(t->compiled, &t->memory.graph_memory, stream_of(t), false, NULL,
				err);
	if (rc)
		return rc;
	kernel_fill(&config, arena + slots[t->lowered.plan.output_gradient].offset, output, 3);
	cudaEventRecord(t->events[t->next++], stream_of(t));
	return compiled_graph_run(t->compiled, &t->memory.graph_memory, stream_of(t), false, &sink,
				  err);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* ms: [2 node_count] medians, forward and then backward of each node. */
static int time_nodes(struct times *t, double *ms, struct error *err)
{
	int n = t->lowered.plan.node_count, events = 2 * n + 2, rc = 0;
	double(*all)[ROUNDS] = calloc((size_t)events, sizeof *all);

	if (!all)
		return error_memory(err, "the times");
	for (int round = 0; !rc && round < ROUNDS; round++) {
		/* Work that keeps the GPU busy while the next pass is launched; its events are
		 * overwritten. */
		rc = round_once(t, err);
		if (!rc)
			rc = round_once(t, err);
		if (!rc)
			rc = cuda_wait(stream_of(t), CUDA_WAIT_MS, err);
		for (int i = 1; !rc && i < events; i++) {
			float one = 0;

			rc = cuda_check(cudaEventElapsedTime(&one, t->events[i - 1], t->events[i]),
					"reading an event's time", err);
			all[i][round] = (double)one;
		}
	}
	for (int i = 1; i < events; i++)
		qsort(all[i], ROUNDS, sizeof(double), compare);
	/* The backward pass starts with the last node. */
	for (int i = 0; i < n; i++) {
		ms[i] = all[1 + i][ROUNDS / 2];
		ms[n + i] = all[n + 2 + (n - 1 - i)][ROUNDS / 2];
	}
	free(all);
	return rc;
}

/* ---- output ---- */

struct type {
	enum op_kind kind;
	bool backward;
	double ms, floor_ms;
};

static int by_gap(const void *a, const void *b)
{
	const struct type *x = a, *y = b;
	double one = x->ms - x->floor_ms, two = y->ms - y->floor_ms;

	/* Unused types come last. */
	if (!(x->floor_ms > 0) || !(y->floor_ms > 0))
		return (y->floor_ms > 0) - (x->floor_ms > 0);
	return one > two ? -1 : one < two;
}

static void tell_node(const struct times *t, int i, bool backward, double ms, double floor_ms)
{
	const struct lowered_node *node = &t->lowered.nodes[i];
	const struct shape *x = &node->x_shape, *y = &node->y_shape;
	const struct op_attributes *window = &node->step->op->attributes;
	char name[32];

	step_node_name(node->step, name, sizeof name);
	printf("{\"node\": %d, \"op\": \"%s\", \"pass\": \"%s\", \"x\": \"%dx%dx%d\", "
	       "\"y\": \"%dx%dx%d\", \"kernel\": %d, \"stride\": %d, \"ms\": %.4f, "
	       "\"floor_ms\": %.4f}\n",
	       i, name, backward ? "backward" : "forward", x->height, x->width, x->channels,
	       y->height, y->width, y->channels, window->kernel, window->stride, ms, floor_ms);
}

static void tell(const struct times *t, const double *ms)
{
	struct type types[2 * OP_KINDS] = {{0}};
	double all = 0, all_floor = 0;
	int n = t->lowered.plan.node_count;

	for (int i = 0; i < 2 * n; i++) {
		const struct lowered_node *node = &t->lowered.nodes[i % n];
		bool backward = i >= n;
		double floor_ms = node_floor(&t->lowered, node, backward, &t->rates);
		struct type *type = &types[2 * node->step->kind + backward];

		type->kind = node->step->kind;
		type->backward = backward;
		type->ms += ms[i];
		type->floor_ms += floor_ms;
		all += ms[i];
		all_floor += floor_ms;
		tell_node(t, i % n, backward, ms[i], floor_ms);
	}
	qsort(types, 2 * OP_KINDS, sizeof *types, by_gap);
	for (int i = 0; i < 2 * OP_KINDS; i++)
		if (types[i].floor_ms > 0)
			printf("{\"type\": \"%s %s\", \"ms\": %.4f, \"floor_ms\": %.4f, "
			       "\"gap_ms\": %.4f}\n",
			       op_name(types[i].kind), types[i].backward ? "backward" : "forward",
			       types[i].ms, types[i].floor_ms, types[i].ms - types[i].floor_ms);
	printf("{\"step_ms\": %.4f, \"nodes_ms\": %.4f, \"floor_ms\": %.4f, \"largest_gap\": \"%s "
	       "%s\", \"gap_ms\": %.4f, \"arena_bytes\": %zu, \"tb_s\": %g, \"tflop_s\": %g}\n",
	       t->step_ms, all, all_floor, op_name(types[0].kind),
	       types[0].backward ? "backward" : "forward", types[0].ms - types[0].floor_ms,
	       t->lowered.plan.arena_bytes, t->rates.bytes_s / 1e12, t->rates.flop_s / 1e12);
}

/* The most that is live at one time, a lower bound for the arena. */
static size_t most_live(const struct lowered_graph *lowered)
{
	size_t max = 0;

	for (int i = 0; i < lowered->plan.slot_count; i++) {
		size_t live = 0;

		for (int k = 0; k < lowered->plan.slot_count; k++)
			if (lowered->plan.slots[k].first <= lowered->plan.slots[i].first &&
			    lowered->plan.slots[i].first <= lowered->plan.slots[k].last)
				live += lowered->plan.slots[k].size_bytes;
		max = live > max ? live : max;
	}
	return max;
}

#define MULTIPROCESSORS 132 /* an H200's */
static int tell_floor(struct times *t, char **argv, struct error *err)
{
	int rc = make_network(t, argv[1], atoi(argv[2]), err);
	double sum = 0;

	t->request = (struct executor_request){.graph = t->graph,
					       .batch = atoi(argv[3]),
					       .precision = precision_of(argv[4]),
					       .train = true,
					       .buckets = &t->buckets};
	if (!rc)
		rc = lowered_graph_make(&t->request, MULTIPROCESSORS, &t->lowered, err);
	for (int i = 0; !rc && i < 2 * t->lowered.plan.node_count; i++) {
		bool backward = i >= t->lowered.plan.node_count;
		int node = i % t->lowered.plan.node_count;
		double floor_ms =
			node_floor(&t->lowered, &t->lowered.nodes[node], backward, &t->rates);

		tell_node(t, node, backward, 0, floor_ms);
		sum += floor_ms;
	}
	if (!rc)
		printf("{\"floor_ms\": %.4f, \"arena_bytes\": %zu, \"live_bytes\": %zu}\n", sum,
		       t->lowered.plan.arena_bytes, most_live(&t->lowered));
	return rc;
}

static int measure(struct times *t, struct error *err)
{
	int rc = make_program(t, err), events;
	double *ms;

	if (rc)
		return rc;
	events = 2 * t->lowered.plan.node_count + 2;
	t->events = calloc((size_t)events, sizeof(cudaEvent_t));
	ms = calloc((size_t)events, sizeof *ms);
	if (!ms || !t->events)
		rc = error_memory(err, "the times");
	for (int i = 0; !rc && i < events; i++)
		rc = cuda_check(cudaEventCreateWithFlags(&t->events[i], cudaEventDefault),
				"an event", err);
	if (!rc)
		rc = time_nodes(t, ms, err);
	if (!rc)
		tell(t, ms);
	for (int i = 0; t->events && i < events; i++)
		if (t->events[i])
			cudaEventDestroy(t->events[i]);
	free(t->events);
	free(ms);
	return rc;
}

static void end(struct times *t)
{
	compiled_graph_free(t->compiled);
	executor_memory_free(&t->memory);
	executor_common_free(&t->common);
	lowered_graph_free(&t->lowered);
	for (int i = 0; t->device && i < 4; i++)
		t->device->ops->memory_free(t->device, t->flat[i]);
	buckets_free(&t->buckets);
	graph_free(t->graph);
	if (t->comm)
		t->comm->ops->close(t->comm);
	if (t->device) {
		t->device->ops->queue_free(t->queue);
		t->device->ops->close(t->device);
	}
}

int main(int argc, char **argv)
{
	struct times t = {0};
	struct error err = {0};
	bool floor_alone = argc > 1 && !strcmp(argv[1], "--floor");
	int rc;

	argc -= floor_alone;
	argv += floor_alone;
	if (argc != 5 && argc != 7) {
		fprintf(stderr,
			"layer_times [--floor] MODEL SIDE BATCH bf16|fp16|f32 [TB/S TFLOP/S]\n");
		return 64;
	}
	t.rates.number = !strcmp(argv[4], "bf16")   ? NUMBER_BF16
			 : !strcmp(argv[4], "fp16") ? NUMBER_F16
						    : NUMBER_F32;
	t.rates.bytes_s = 1e12 * (argc > 5 ? atof(argv[5]) : 4.3);
	t.rates.flop_s = 1e12 * (argc > 5 ? atof(argv[6]) : t.rates.number ? 790 : 67);
	rc = floor_alone ? tell_floor(&t, argv, &err) : begin(&t, argv, &err);
	if (!rc && !floor_alone)
		rc = time_steps(&t, &err);
	if (!rc && !floor_alone)
		rc = measure(&t, &err);
	if (rc)
		fprintf(stderr, "layer_times: %s\n", err.text);
	end(&t);
	return rc ? 1 : 0;
}
