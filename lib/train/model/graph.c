/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/model/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* No network has larger weights or activations, and products of sizes stay far from overflow. */
#define MAX_COUNT ((int64_t)1 << 36)

int64_t shape_count(const struct shape *shape)
{
	return (int64_t)shape->channels * shape->height * shape->width;
}

/* Add a zeroed entry to an array of the graph's; array_at is the address of its pointer. Arrays
 * grow by one entry: networks have at most hundreds of ops. */
static void *add_entry(struct graph *graph, void *array_at, int count, size_t size)
{
	size_t entries = (size_t)count;
	void *entry = array_add(array_at, &entries, size);

	if (!entry && !graph->error.code)
		error_memory(&graph->error, "the network");
	return entry;
}

static int add_value(struct graph *graph, struct shape shape)
{
	struct shape *value = add_entry(graph, &graph->values, graph->value_count, sizeof *value);

	if (!value)
		return 0;
	*value = shape;
	return graph->value_count++;
}

static int add_param(struct graph *graph, const char *module, const char *kind, int rank,
		     const int64_t *shape, int64_t fan_in)
{
	struct graph_param *param =
		add_entry(graph, &graph->params, graph->param_count, sizeof *param);

	if (!param)
		return -1;
	snprintf(param->name, sizeof param->name, "%s%s%s", module, *module ? "." : "", kind);
	param->rank = rank;
	param->count = 1;
	for (int i = 0; i < rank; i++) {
		param->shape[i] = shape[i];
		if (shape[i] < 1 || param->count > MAX_COUNT / shape[i]) {
			if (!graph->error.code)
				error_set(&graph->error, ERR_USAGE,
					  "layer %s has %lld outputs and %lld inputs, more than "
					  "berth supports",
					  param->name, (long long)shape[0], (long long)fan_in);
			return -1;
		}
		param->count *= shape[i];
	}
	param->fan_in = fan_in;
	param->constructed = 2 * graph->param_count;
	graph->weight_count += param->count;
	return graph->param_count++;
}

static int add_buffer(struct graph *graph, const char *module, const char *kind, int64_t count,
		      float initial)
{
	struct graph_buffer *buffer =
		add_entry(graph, &graph->buffers, graph->buffer_count, sizeof *buffer);

	if (!buffer)
		return -1;
	snprintf(buffer->name, sizeof buffer->name, "%s.%s", module, kind);
	buffer->count = count;
	buffer->offset = (size_t)graph->buffer_total;
	buffer->initial = initial;
	graph->buffer_total += count;
	return graph->buffer_count++;
}

/* op: everything except its output, whose shape is given. */
static int add_op(struct graph *graph, struct graph_op op, struct shape shape)
{
	struct graph_op *entry = add_entry(graph, &graph->ops, graph->op_count, sizeof *entry);

	if (!entry)
		return 0;
	op.output = graph->output = add_value(graph, shape);
	*entry = op;
	graph->op_count++;
	return op.output;
}

/* An op that reads value and has no parameters. */
static struct graph_op op_on(enum op_kind kind, int value)
{
	return (struct graph_op){.kind = kind,
				 .input = value,
				 .input2 = -1,
				 .weight = -1,
				 .bias = -1,
				 .mean = -1,
				 .variance = -1};
}

/* The shape after a window; sets graph->error if the window does not fit. */
static struct shape slide(struct graph *graph, const char *what, struct shape in, int channels,
			  const struct op_attributes *attributes)
{
	struct shape out = {channels, (int)op_side(in.height, attributes),
			    (int)op_side(in.width, attributes)};

	if (out.height < 1 || out.width < 1) {
		if (!graph->error.code)
			error_set(&graph->error, ERR_USAGE,
				  "model %s: %s with a %dx%d window does not fit an image of "
				  "%dx%d. Use larger images, or model linear",
				  graph->model, what, attributes->kernel, attributes->kernel,
				  in.height, in.width);
		out.height = out.width = 1;
	}
	return out;
}

struct graph *graph_new(const char *model, const struct shape *input, int classes)
{
	struct graph *graph = calloc(1, sizeof *graph);

	if (!graph)
		return NULL;
	snprintf(graph->model, sizeof graph->model, "%s", model);
	graph->classes = classes;
	if (input->channels < 1 || input->height < 1 || input->width < 1 || classes < 1 ||
	    (int64_t)input->channels * input->height > MAX_COUNT / input->width)
		error_set(&graph->error, ERR_USAGE,
			  "berth cannot train on samples of %dx%dx%d in %d classes",
			  input->channels, input->height, input->width, classes);
	add_value(graph, *input);
	return graph;
}

void graph_free(struct graph *graph)
{
	if (!graph)
		return;
	free(graph->values);
	free(graph->ops);
	free(graph->params);
	free(graph->buffers);
	free(graph);
}

int graph_conv2d(struct graph *graph, const char *name, int value, int channels, int kernel,
		 int stride, int pad, bool bias)
{
	if (graph->error.code)
		return 0;

	struct graph_op op = op_on(OP_CONV2D, value);
	struct shape in = graph->values[value];
	int64_t shape[4] = {channels, in.channels, kernel, kernel};
	int64_t fan_in = (int64_t)in.channels * kernel * kernel;

	op.attributes = (struct op_attributes){kernel, stride, pad};
	op.weight = add_param(graph, name, "weight", 4, shape, fan_in);
	if (bias)
		op.bias = add_param(graph, name, "bias", 1, shape, fan_in);
	return add_op(graph, op, slide(graph, name, in, channels, &op.attributes));
}

int graph_batchnorm(struct graph *graph, const char *name, int value)
{
	if (graph->error.code)
		return 0;

	struct graph_op op = op_on(OP_BATCHNORM, value);
	struct shape shape = graph->values[value];
	int64_t channels = shape.channels;

	op.eps = 1e-5f;
	op.momentum = 0.1f;
	op.weight = add_param(graph, name, "weight", 1, &channels, 1);
	op.bias = add_param(graph, name, "bias", 1, &channels, 1);
	op.mean = add_buffer(graph, name, "running_mean", channels, 0);
	op.variance = add_buffer(graph, name, "running_var", channels, 1);
	if (graph->error.code)
		return 0;
	graph->params[op.weight].init = INIT_ONE;
	graph->params[op.bias].init = INIT_ZERO;
	return add_op(graph, op, shape);
}

int graph_relu(struct graph *graph, int value)
{
	return graph->error.code ? 0 : add_op(graph, op_on(OP_RELU, value), graph->values[value]);
}

int graph_add(struct graph *graph, int value, int value2)
{
	if (graph->error.code)
		return 0;

	struct graph_op op = op_on(OP_ADD, value);

	op.input2 = value2;
	if (memcmp(&graph->values[value], &graph->values[value2], sizeof(struct shape)))
		error_set(&graph->error, ERR_INTERNAL, "model %s adds values of different shapes",
			  graph->model);
	return add_op(graph, op, graph->values[value]);
}

int graph_maxpool2d(struct graph *graph, int value, int kernel, int stride, int pad)
{
	if (graph->error.code)
		return 0;

	struct graph_op op = op_on(OP_MAXPOOL2D, value);
	struct shape in = graph->values[value];

	op.attributes = (struct op_attributes){kernel, stride, pad};
	return add_op(graph, op, slide(graph, "pooling", in, in.channels, &op.attributes));
}

int graph_avgpool(struct graph *graph, int value)
{
	if (graph->error.code)
		return 0;
	return add_op(graph, op_on(OP_AVGPOOL, value),
		      (struct shape){graph->values[value].channels, 1, 1});
}

int graph_linear(struct graph *graph, const char *name, int value, int outputs)
{
	if (graph->error.code)
		return 0;

	struct graph_op op = op_on(OP_LINEAR, value);
	int64_t inputs = shape_count(&graph->values[value]);
	int64_t shape[2] = {outputs, inputs};

	op.weight = add_param(graph, name, "weight", 2, shape, inputs);
	op.bias = add_param(graph, name, "bias", 1, shape, inputs);
	return add_op(graph, op, (struct shape){outputs, 1, 1});
}
