/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/model/graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/random.h"

/* No network has weights or activations beyond this; products of sizes stay far from overflow. */
#define MAX_COUNT ((int64_t)1 << 36)

int64_t shape_count(const struct shape *shape)
{
	return (int64_t)shape->channels * shape->height * shape->width;
}

/* Arrays grow one by one: networks have hundreds of ops at the most. */
static void *grow(struct graph *graph, void *array, int count, size_t size)
{
	void *grown = realloc(array, ((size_t)count + 1) * size);

	if (!grown) {
		if (!graph->error.code)
			error_memory(&graph->error, "the network");
		return NULL;
	}
	memset((char *)grown + (size_t)count * size, 0, size);
	return grown;
}

static int add_value(struct graph *graph, struct shape shape)
{
	struct shape *values = grow(graph, graph->values, graph->value_count, sizeof *values);

	if (!values)
		return 0;
	graph->values = values;
	values[graph->value_count] = shape;
	return graph->value_count++;
}

static int add_param(struct graph *graph, const char *module, const char *kind, int rank,
		     const int64_t *shape, int64_t fan_in)
{
	struct graph_param *params = grow(graph, graph->params, graph->param_count, sizeof *params);

	if (!params)
		return -1;
	graph->params = params;

	struct graph_param *param = &params[graph->param_count];

	snprintf(param->name, sizeof param->name, "%s%s%s", module, *module ? "." : "", kind);
	param->rank = rank;
	param->count = 1;
	for (int i = 0; i < rank; i++) {
		param->shape[i] = shape[i];
		if (shape[i] < 1 || param->count > MAX_COUNT / shape[i]) {
			if (!graph->error.code)
				error_set(&graph->error, ERR_USAGE,
					  "layer %s has %lld outputs and "
					  "%lld inputs, more than can be trained",
					  param->name, (long long)shape[0], (long long)fan_in);
			return -1;
		}
		param->count *= shape[i];
	}
	param->fan_in = fan_in;
	graph->weight_count += param->count;
	return graph->param_count++;
}

static int add_op(struct graph *graph, enum op_kind kind, struct op_attributes attributes,
		  int input, struct shape shape, int weight, int bias)
{
	struct graph_op *ops = grow(graph, graph->ops, graph->op_count, sizeof *ops);

	if (!ops)
		return 0;
	graph->ops = ops;

	int output = add_value(graph, shape);

	ops[graph->op_count++] = (struct graph_op){.kind = kind,
						   .attributes = attributes,
						   .input = input,
						   .output = output,
						   .weight = weight,
						   .bias = bias};
	graph->output = output;
	return output;
}

/* The shape after a window; latches an error where it does not fit. */
static struct shape slide(struct graph *graph, const char *what, struct shape in, int channels,
			  const struct op_attributes *attributes)
{
	struct shape out = {channels, (int)op_side(in.height, attributes),
			    (int)op_side(in.width, attributes)};

	if (out.height < 1 || out.width < 1) {
		if (!graph->error.code)
			error_set(
				&graph->error, ERR_USAGE,
				"model %s: %s with a %dx%d window does not fit an image of %dx%d; "
				"take larger images or model linear",
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
			  "samples of %dx%dx%d in %d classes cannot be trained", input->channels,
			  input->height, input->width, classes);
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
	free(graph);
}

int graph_conv2d(struct graph *graph, const char *name, int value, int channels, int kernel,
		 int stride, int pad)
{
	if (graph->error.code)
		return 0;

	struct op_attributes attributes = {kernel, stride, pad};
	struct shape in = graph->values[value];
	int64_t shape[4] = {channels, in.channels, kernel, kernel};
	int64_t fan_in = (int64_t)in.channels * kernel * kernel;
	int weight = add_param(graph, name, "weight", 4, shape, fan_in);
	int bias = add_param(graph, name, "bias", 1, shape, fan_in);

	return add_op(graph, OP_CONV2D, attributes, value,
		      slide(graph, name, in, channels, &attributes), weight, bias);
}

int graph_relu(struct graph *graph, int value)
{
	if (graph->error.code)
		return 0;
	return add_op(graph, OP_RELU, (struct op_attributes){0}, value, graph->values[value], -1,
		      -1);
}

int graph_maxpool2d(struct graph *graph, int value, int kernel, int stride, int pad)
{
	if (graph->error.code)
		return 0;

	struct op_attributes attributes = {kernel, stride, pad};
	struct shape in = graph->values[value];

	return add_op(graph, OP_MAXPOOL2D, attributes, value,
		      slide(graph, "pooling", in, in.channels, &attributes), -1, -1);
}

int graph_linear(struct graph *graph, const char *name, int value, int outputs)
{
	if (graph->error.code)
		return 0;

	int64_t inputs = shape_count(&graph->values[value]);
	int64_t shape[2] = {outputs, inputs};
	int weight = add_param(graph, name, "weight", 2, shape, inputs);
	int bias = add_param(graph, name, "bias", 1, shape, inputs);

	return add_op(graph, OP_LINEAR, (struct op_attributes){0}, value,
		      (struct shape){outputs, 1, 1}, weight, bias);
}

/* ---- the table of models ---- */

static const struct model *const models[] = {&model_convnet, &model_linear, NULL};

const struct model *model_find(const char *name)
{
	for (size_t i = 0; models[i]; i++)
		if (!strcmp(name, models[i]->name))
			return models[i];
	return NULL;
}

const char *model_names(char *text, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; models[i] && used < size; i++)
		used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
					 models[i]->name);
	return text;
}

int model_build(const char *name, const struct shape *input, int classes, struct graph **out,
		struct error *err)
{
	const struct model *model = model_find(name);
	char known[256];

	if (!model)
		return error_set(err, ERR_USAGE, "there is no model '%s'; the models are: %s", name,
				 model_names(known, sizeof known));

	struct graph *graph = graph_new(name, input, classes);

	if (!graph)
		return error_memory(err, "the network");
	if (!graph->error.code)
		model->build(graph);
	if (graph->error.code) {
		int code = graph->error.code;

		if (err)
			*err = graph->error;
		graph_free(graph);
		return -code;
	}
	*out = graph;
	return 0;
}

void graph_initialise(const struct graph *graph, uint64_t seed, const size_t *offsets, float *flat)
{
	struct mt19937 generator;

	mt19937_seed(&generator, seed);
	for (int i = 0; i < graph->param_count; i++) {
		const struct graph_param *param = &graph->params[i];
		/* kaiming_uniform_(a = sqrt(5)) in PyTorch's own steps, so that rounding agrees;
		 * the bias takes 1/sqrt(fan_in) directly. */
		double fan_in = (double)param->fan_in;
		double bound = param->rank > 1 ? sqrt(3.0) * (sqrt(2.0 / (1 + 5.0)) / sqrt(fan_in))
					       : 1 / sqrt(fan_in);

		for (int64_t k = 0; k < param->count; k++)
			flat[offsets[i] + (size_t)k] =
				mt19937_uniform(&generator, (float)-bound, (float)bound);
	}
}
