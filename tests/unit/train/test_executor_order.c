/* SPDX-License-Identifier: BSD-3-Clause */
/* The default executor on a stand-in device that computes nothing but records what each range of
 * memory holds. It checks that every op gets the right inputs: values that were not overwritten,
 * gradients with all their parts, statistics of the same op. Its comm checks that each bucket is
 * reduced once, complete, in order, and as soon as it is ready. */
#include "../rows.h"

#include <stdbool.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/executor/executor.h"
#include "train/model/graph.h"

#include "../../reference/reference.h"
#include "op_check.h"

enum holds { VALUE, GRADIENT, TARGET, LOSSES, PLACES, SAVED_MEAN, SAVED_INVSTD };

/* What the memory from begin to end holds: the kind, its value or op, and how many parts were
 * summed. */
struct content {
	const char *begin, *end;
	enum holds holds;
	int index, parts;
};

#define CONTENTS 4096

struct recorder {
	struct device device;
	struct device_queue queue;
	struct comm comm;
	struct executor_request request;
	const struct graph *graph;
	struct buckets buckets;
	int *readers;	  /* of each value, including the loss */
	int *written;	  /* parts that were added to each value's gradient */
	int *param_parts; /* runs that each parameter's gradient includes */

	struct content contents[CONTENTS];
	int content_count;

	int count; /* samples of this run */
	bool first, last;
	int runs;    /* of this update, including this one */
	int calls;   /* op calls of this run */
	int last_op; /* of the graph that have run backward */
	size_t bucket, updated;
	int finished;
};

static struct recorder *now;

/* ---- memory ---- */

static size_t bytes(const struct tensor *tensor)
{
	return (size_t)tensor_count(tensor) * element_size(tensor->type);
}

static bool overlap(const struct tensor *a, const struct tensor *b)
{
	const char *a_begin = a->data, *b_begin = b->data;

	return a_begin && b_begin && a_begin < b_begin + bytes(b) && b_begin < a_begin + bytes(a);
}

static void put(const struct tensor *tensor, enum holds holds, int index, int parts)
{
	const char *begin = tensor->data, *end = begin + bytes(tensor);
	int kept = 0;

	for (int i = 0; i < now->content_count; i++)
		if (now->contents[i].end <= begin || end <= now->contents[i].begin)
			now->contents[kept++] = now->contents[i];
	now->content_count = kept;
	assert_true(kept < CONTENTS);
	now->contents[now->content_count++] = (struct content){begin, end, holds, index, parts};
}

/* The number of parts that tensor's contents have. Fails if it holds something else, or only part
 * of it. */
static int get(const struct tensor *tensor, enum holds holds, int index, const char *what)
{
	const char *begin = tensor->data, *end = begin + bytes(tensor);

	for (int i = 0; i < now->content_count; i++) {
		const struct content *content = &now->contents[i];

		if (content->begin == begin && content->end == end && content->holds == holds &&
		    content->index == index)
			return content->parts;
	}
	fail_msg("%s, call %d: %s (%d) is not in its memory", now->graph->model, now->calls, what,
		 index);
	return 0;
}

/* ---- ops ---- */

static void is_shaped(const struct tensor *tensor, int value)
{
	const struct shape *shape = &now->graph->values[value];

	assert_int_equal(tensor->shape[0], now->count);
	assert_int_equal(tensor_count(tensor), now->count * shape_count(shape));
}

static void is_param(const struct tensor *tensor, const float *flat, int param)
{
	if (param < 0) {
		assert_null(tensor->data);
		return;
	}
	assert_ptr_equal(tensor->data, flat + now->buckets.offsets[param]);
	assert_int_equal(tensor_count(tensor), now->graph->params[param].count);
}

static void is_buffer(const struct tensor *tensor, int buffer)
{
	if (buffer < 0) {
		assert_null(tensor->data);
		return;
	}
	assert_ptr_equal(tensor->data, now->request.buffers + now->graph->buffers[buffer].offset);
	assert_int_equal(tensor_count(tensor), now->graph->buffers[buffer].count);
}

static void forward_op(const struct op_call *call, int index)
{
	const struct graph_op *op = &now->graph->ops[index];
	bool norm = op->kind == OP_BATCHNORM, train = now->request.train;

	assert_int_equal(call->kind, op->kind);
	assert_int_equal(call->pass, OP_FORWARD);
	assert_memory_equal(&call->attributes, &op->attributes, sizeof op->attributes);
	is_shaped(&call->x, op->input);
	is_shaped(&call->y, op->output);
	get(&call->x, VALUE, op->input, "x");
	if (op->input2 >= 0)
		get(&call->x2, VALUE, op->input2, "x2");
	if (overlap(&call->y, &call->x2) || overlap(&call->y, &call->x))
		fail_msg("op %d (%s) overwrites its own input", index, op_name(op->kind));
	is_param(&call->w, now->request.weights, op->weight);
	is_param(&call->b, now->request.weights, op->bias);
	is_buffer(&call->mean, op->mean);
	is_buffer(&call->variance, op->variance);
	put(&call->y, VALUE, op->output, 1);
	if (!norm)
		return;
	assert_int_equal(call->batchnorm.training, train);
	assert_true(call->batchnorm.eps == op->eps && call->batchnorm.momentum == op->momentum);
	if (train) {
		put(&call->saved_mean, SAVED_MEAN, index, 1);
		put(&call->saved_invstd, SAVED_INVSTD, index, 1);
	}
}

static void loss_op(const struct op_call *call, enum op_kind kind, enum op_pass pass)
{
	int output = now->graph->output;

	assert_int_equal(call->kind, kind);
	assert_int_equal(call->pass, pass);
	assert_int_equal(call->x.shape[0], now->count);
	assert_int_equal(call->x.shape[1], now->graph->classes);
	get(&call->x, VALUE, output, "the logits");
	get(&call->target, TARGET, 0, "the labels");
	if (kind == OP_CROSS_ENTROPY)
		assert_true(call->smoothing == now->request.smoothing);
	if (pass == OP_FORWARD) {
		put(&call->y, kind == OP_LABEL_RANK ? PLACES : LOSSES, 0, 1);
		return;
	}
	assert_true(call->scale == 0.125f);
	assert_false(call->add_dx || overlap(&call->dx, &call->x));
	assert_int_equal(now->written[output], 0);
	put(&call->dx, GRADIENT, output, ++now->written[output]);
}

/* Write dx or dx2 of value: its first part, or an additional one. */
static void gradient_of(const struct tensor *dx, bool add, int value, const struct op_call *call)
{
	if (!value) {
		assert_null(dx->data);
		return;
	}
	assert_non_null(dx->data);
	is_shaped(dx, value);
	if (add)
		assert_int_equal(get(dx, GRADIENT, value, "the gradient so far"),
				 now->written[value]);
	if (add != (now->written[value] > 0))
		fail_msg("%s of the gradient of value %d %s",
			 add ? "a later part" : "the first part", value,
			 add ? "without a first part" : "although there is one already");
	if (overlap(dx, &call->x) || overlap(dx, &call->y) || overlap(dx, &call->saved_mean) ||
	    overlap(dx, &call->dy))
		fail_msg("the gradient of value %d overwrites an input of the op", value);
	now->written[value]++;
}

static void param_gradient(const struct op_call *call, const struct tensor *tensor, int param)
{
	is_param(tensor, now->request.gradients, param);
	if (param < 0)
		return;
	assert_int_equal(call->add_dw, !now->first);
	now->param_parts[param] = call->add_dw ? now->param_parts[param] + 1 : 1;
	assert_int_equal(now->param_parts[param], now->runs);
}

static void backward_op(const struct op_call *call, int index)
{
	const struct graph_op *op = &now->graph->ops[index];

	assert_int_equal(call->kind, op->kind);
	assert_int_equal(call->pass, OP_BACKWARD);
	assert_memory_equal(&call->attributes, &op->attributes, sizeof op->attributes);
	is_shaped(&call->dy, op->output);
	is_shaped(&call->x, op->input);
	if (get(&call->dy, GRADIENT, op->output, "dy") != now->readers[op->output])
		fail_msg("op %d (%s) gets a gradient of %d parts, but its value has %d readers",
			 index, op_name(op->kind), now->written[op->output],
			 now->readers[op->output]);
	get(&call->x, VALUE, op->input, "x");
	get(&call->y, VALUE, op->output, "y");
	if (op->kind == OP_BATCHNORM) {
		get(&call->saved_mean, SAVED_MEAN, index, "the mean");
		get(&call->saved_invstd, SAVED_INVSTD, index, "the deviation");
	}
	is_param(&call->w, now->request.weights, op->weight);
	gradient_of(&call->dx, call->add_dx, op->input, call);
	if (op->input2 >= 0)
		gradient_of(&call->dx2, call->add_dx2, op->input2, call);
	assert_false(overlap(&call->dx, &call->dx2));
	if (op->input)
		put(&call->dx, GRADIENT, op->input, now->written[op->input]);
	if (op->input2 >= 0)
		put(&call->dx2, GRADIENT, op->input2, now->written[op->input2]);
	param_gradient(call, &call->dw, op->weight);
	param_gradient(call, &call->db, op->bias);
	now->last_op = index;
}

/* Updates cover the layout from beginning to end, each parameter with its own decay. */
static void update_op(const struct op_call *call)
{
	size_t begin = now->updated, end = begin + (size_t)tensor_count(&call->w);

	assert_int_equal(call->kind, OP_SGD);
	assert_true(now->last && now->finished);
	assert_ptr_equal(call->w.data, now->request.weights + begin);
	assert_ptr_equal(call->dw.data, now->request.gradients + begin);
	assert_ptr_equal(call->state.data, now->request.momentum + begin);
	assert_true(call->sgd.lr == 0.25f && call->sgd.momentum == now->request.sgd.momentum);
	for (int p = 0; p < now->graph->param_count; p++) {
		const struct graph_param *param = &now->graph->params[p];
		size_t at = now->buckets.offsets[p];
		bool decays = now->request.decay_vectors || param->rank > 1;

		if (at + (size_t)param->count <= begin || at >= end)
			continue;
		if (at < begin || at + (size_t)param->count > end)
			fail_msg("%s is updated in two parts", param->name);
		if (call->sgd.weight_decay != (decays ? now->request.sgd.weight_decay : 0))
			fail_msg("%s is updated with weight decay %g", param->name,
				 (double)call->sgd.weight_decay);
	}
	now->updated = end;
}

static int run(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	int n = now->graph->op_count, at = now->calls++;
	int rc = op_check(call, err);

	if (rc)
		fail_msg("%s", err->text);
	if (at < n)
		forward_op(call, at);
	else if (at == n)
		loss_op(call, OP_CROSS_ENTROPY, OP_FORWARD);
	else if (at == n + 1)
		loss_op(call, OP_LABEL_RANK, OP_FORWARD);
	else if (!now->request.train)
		fail_msg("an evaluation continued after the loss");
	else if (at == n + 2)
		loss_op(call, OP_CROSS_ENTROPY, OP_BACKWARD);
	else if (at < 2 * n + 3)
		backward_op(call, 2 * n + 2 - at);
	else
		update_op(call);
	return 0;
}

/* ---- the rest of the device, and comm ---- */

static int memory_new(struct device *device, size_t size_bytes, void **out, struct error *err)
{
	/* Only its addresses are used. */
	*out = malloc(size_bytes + 64);
	return *out ? 0 : error_memory(err, "a test");
}

static void memory_free(struct device *device, void *memory)
{
	free(memory);
}

static int copy_in(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		   struct error *err)
{
	int64_t floats = (int64_t)size_bytes / 4;
	bool target = floats == now->count;
	struct tensor tensor = tensor_make(to, ELEMENT_F32, 1, &floats);

	put(&tensor, target ? TARGET : VALUE, 0, 1);
	return 0;
}

static int copy_out(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		    struct error *err)
{
	memset(to, 0, size_bytes);
	return 0;
}

static const struct op_device_ops stand_in = {
	.device =
		{
			.name = "stand-in",
			.memory_new = memory_new,
			.memory_free = memory_free,
			.copy_in = copy_in,
			.copy_out = copy_out,
			.executor = &op_executor,
		},
	.run = run,
};

static int all_reduce(struct comm *comm, struct device_queue *queue, void *data, size_t count,
		      enum element_type type, enum comm_reduce reduce, struct error *err)
{
	const struct graph_op *op = &now->graph->ops[now->last_op];
	const struct bucket *bucket = &now->buckets.list[now->bucket];
	bool just_ready = false;

	if (!now->last || now->finished)
		fail_msg("a bucket was reduced in run %d of the update", now->runs);
	assert_true(now->bucket < now->buckets.bucket_count);
	assert_ptr_equal(data, now->request.gradients + bucket->offset);
	assert_int_equal(count, bucket->count);
	assert_int_equal(type, ELEMENT_F32);
	assert_int_equal(reduce, COMM_SUM);
	for (int p = 0; p < now->graph->param_count; p++) {
		if (now->buckets.bucket_of[p] != now->bucket)
			continue;
		if (now->param_parts[p] != now->runs)
			fail_msg("bucket %zu was reduced before %s was ready", now->bucket,
				 now->graph->params[p].name);
		just_ready = just_ready || p == op->weight || p == op->bias;
	}
	if (!just_ready)
		fail_msg("bucket %zu was ready before op %d", now->bucket, now->last_op);
	now->bucket++;
	return 0;
}

static int progress(struct comm *comm, struct error *err)
{
	return 0;
}

static int finish(struct comm *comm, struct device_queue *queue, struct error *err)
{
	now->finished++;
	return 0;
}

static const struct comm_ops beside = {
	.name = "beside", .all_reduce = all_reduce, .progress = progress, .finish = finish};

/* ---- rows ---- */

struct row {
	const char *model;
	int side, batch;
	enum model_stem stem;
	bool train, decay_vectors;
	int runs; /* an update */
	size_t first_bytes, cap_bytes;
	const char *why;
};

#define PYTORCH DDP_FIRST_BYTES, DDP_CAP_BYTES

static const struct row rows[] = {
	{"convnet", 28, 4, STEM_DEFAULT, true, true, 1, PYTORCH, "no forks, no norms"},
	{"forked", 16, 4, STEM_DEFAULT, true, false, 2, 1, 1,
	 "ReLUs of values that other ops read"},
	{"forked", 16, 4, STEM_DEFAULT, false, true, 1, PYTORCH, "the same in evaluation"},
	{"resnet18", 64, 4, STEM_DEFAULT, true, true, 1, PYTORCH, "basic blocks"},
	{"resnet18", 32, 3, STEM_CIFAR, true, false, 1, PYTORCH, "small stem, norms do not decay"},
	{"resnet34", 64, 2, STEM_DEFAULT, true, true, 2, PYTORCH, "two runs per update"},
	{"resnet50", 64, 4, STEM_DEFAULT, true, false, 3, PYTORCH, "bottlenecks, three runs"},
	{"resnet50", 224, 2, STEM_DEFAULT, true, true, 1, 1, 1, "one bucket per parameter"},
	{"resnet152", 64, 1, STEM_DEFAULT, true, true, 1, PYTORCH, "the deepest"},
	{"resnet18", 64, 4, STEM_DEFAULT, false, true, 1, PYTORCH, "evaluation"},
	{"resnet50", 64, 4, STEM_DEFAULT, false, true, 1, PYTORCH, "evaluation of bottlenecks"},
};

/* Values read by a ReLU and by other ops, one value by three; and a ReLU of the input. */
static struct graph *forked(const struct shape *shape)
{
	struct graph *graph = graph_new("forked", shape, 10);
	int a = graph_conv2d(graph, "a", graph_relu(graph, 0), 8, 3, 1, 1, true);
	int b = graph_conv2d(graph, "b", graph_relu(graph, a), 8, 3, 1, 1, false);
	int c = graph_add(graph, graph_batchnorm(graph, "n", b), a);
	int d = graph_add(graph, graph_relu(graph, c), c);
	int e = graph_add(graph, c, graph_relu(graph, graph_relu(graph, d)));

	graph_linear(graph, "fc", graph_maxpool2d(graph, graph_relu(graph, e), 3, 2, 1), 10);
	return graph;
}

static struct graph *build(const struct row *row)
{
	const struct shape shape = {row->model[0] == 'c' ? 1 : 3, row->side, row->side};
	struct error err = {0};
	struct graph *graph;

	if (row->model[0] == 'f')
		graph = forked(&shape);
	else
		assert_int_equal(model_build(row->model, &shape, 10, row->stem, &graph, &err), 0);
	assert_int_equal(graph->error.code, 0);
	return graph;
}

static float *untouched(int64_t count)
{
	float *memory = malloc((size_t)count * sizeof *memory + 1);

	assert_non_null(memory);
	return memory;
}

static void begin(struct recorder *recorder, const struct row *row)
{
	struct graph *graph = build(row);
	struct error err = {0};

	*recorder = (struct recorder){.device = {&stand_in.device}, .comm = {&beside, 0, 2}};
	recorder->queue.device = &recorder->device;
	assert_int_equal(
		buckets_make(graph, row->first_bytes, row->cap_bytes, &recorder->buckets, &err), 0);
	recorder->graph = graph;
	recorder->readers = calloc((size_t)graph->value_count, sizeof *recorder->readers);
	recorder->written = calloc((size_t)graph->value_count, sizeof *recorder->written);
	recorder->param_parts = calloc((size_t)graph->param_count, sizeof *recorder->param_parts);
	for (int i = 0; i < graph->op_count; i++) {
		recorder->readers[graph->ops[i].input]++;
		if (graph->ops[i].input2 >= 0)
			recorder->readers[graph->ops[i].input2]++;
	}
	recorder->readers[graph->output]++;
	recorder->request = (struct executor_request){
		.graph = graph,
		.batch = row->batch,
		.train = row->train,
		.buckets = &recorder->buckets,
		.comm = &recorder->comm,
		.weights = untouched(graph->weight_count),
		.gradients = row->train ? untouched(graph->weight_count + 1) : NULL,
		.momentum = row->train ? untouched(graph->weight_count) : NULL,
		.buffers = graph->buffer_total ? untouched(graph->buffer_total) : NULL,
		.sgd = {.momentum = 0.9f, .weight_decay = 0.01f},
		.decay_vectors = row->decay_vectors,
		.smoothing = 0.1f,
	};
	now = recorder;
}

static void end(struct recorder *recorder)
{
	free(recorder->request.weights);
	free(recorder->request.gradients);
	free(recorder->request.momentum);
	free(recorder->request.buffers);
	free(recorder->readers);
	free(recorder->written);
	free(recorder->param_parts);
	buckets_free(&recorder->buckets);
	graph_free((struct graph *)recorder->graph);
}

static void run_once(struct recorder *recorder, struct device_executor *executor,
		     const struct row *row, int run_index, int count, const float *x,
		     const int32_t *labels)
{
	int n = recorder->graph->op_count;
	struct executor_input input = {.x = x,
				       .target = labels,
				       .count = count,
				       .global_count = 8,
				       .lr = 0.25f,
				       .first = run_index == 0,
				       .last = run_index == row->runs - 1};
	struct error err = {0};

	memset(recorder->written, 0, (size_t)recorder->graph->value_count * sizeof(int));
	recorder->calls = 0;
	recorder->count = count;
	recorder->first = input.first;
	recorder->last = input.last;
	recorder->runs = run_index + 1;
	recorder->bucket = recorder->updated = 0;
	recorder->finished = 0;
	assert_int_equal(device_executor_run(executor, &input, &err), 0);
	if (!row->train) {
		assert_int_equal(recorder->calls, n + 2);
		return;
	}
	assert_true(recorder->calls >= 2 * n + 3);
	if (!input.last) {
		assert_int_equal(recorder->calls, 2 * n + 3);
		return;
	}
	assert_int_equal(recorder->bucket, recorder->buckets.bucket_count);
	assert_int_equal(recorder->updated, recorder->buckets.total);
}

static void steps(void **state)
{
	struct recorder *recorder = malloc(sizeof *recorder);

	for (size_t r = 0; r < ROWS(rows); r++) {
		struct device_executor *executor;
		struct error err = {0};

		print_message("%s %d: %s\n", rows[r].model, rows[r].side, rows[r].why);
		begin(recorder, &rows[r]);

		size_t x_count = (size_t)shape_count(&recorder->graph->values[0]);
		float *x = calloc((size_t)rows[r].batch * x_count, sizeof *x);
		int32_t *labels = calloc((size_t)rows[r].batch, sizeof *labels);

		assert_int_equal(
			device_executor_new(&recorder->queue, &recorder->request, &executor, &err),
			0);
		/* Full batches, and a smaller one in the same memory. */
		for (int update = 0; update < 2; update++)
			for (int i = 0; i < rows[r].runs; i++)
				run_once(recorder, executor, &rows[r], i,
					 update && rows[r].batch > 1 ? rows[r].batch - 1
								     : rows[r].batch,
					 x, labels);
		device_executor_free(executor);
		free(x);
		free(labels);
		end(recorder);
	}
	free(recorder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
