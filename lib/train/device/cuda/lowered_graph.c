/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/lowered_graph.h"

#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/kernels/element.h"

struct lowering {
	struct lowered_graph *lowered;
	const struct executor_request *request;
	const struct graph *graph; /* request's */
	int multiprocessors;
	struct error *err;
};

/* ---- shapes and weights ---- */

/* Only convolutions and linear layers can handle channels that are padding. */
static int input_channels(const struct lowering *lowering)
{
	const struct lowered_graph *lowered = lowering->lowered;
	int channels = lowering->graph->values[0].channels;

	for (int i = 0; i < lowered->plan.node_count; i++)
		if ((!lowered->nodes[i].step->input || !lowered->nodes[i].step->input2) &&
		    !step_node_is_layer(lowered->nodes[i].step))
			return channels;
	return padded_channels(channels, lowered->number != NUMBER_F32);
}

static void infer_shapes(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;

	lowered->input_channels = input_channels(lowering);
	for (int i = 0; i < lowered->plan.node_count; i++) {
		struct lowered_node *node = &lowered->nodes[i];

		node->x_shape = lowering->graph->values[node->step->input];
		node->y_shape = lowering->graph->values[node->step->output];
		if (!node->step->input)
			node->x_shape.channels = lowered->input_channels;
	}
}

/* As its library reads it. */
static size_t weight_bytes(const struct lowered_graph *lowered, const struct lowered_weight *weight)
{
	return (size_t)weight->outputs * (size_t)weight->inner * (size_t)weight->padded *
	       (lowered->number == NUMBER_F32 ? 4 : 2);
}

static void lower_weight(struct lowering *lowering, struct lowered_node *node)
{
	struct lowered_graph *lowered = lowering->lowered;
	const struct graph_op *op = node->step->op;
	struct lowered_weight *weight = &node->weight;
	const struct shape *x = &lowering->graph->values[node->step->input];
	bool conv = node->step->kind == OP_CONV2D, same, aligned;
	size_t bytes;

	*weight = (struct lowered_weight){
		.param = op->weight,
		.outputs = (int)lowering->graph->params[op->weight].shape[0],
		.channels = x->channels,
		.inner =
			conv ? op->attributes.kernel * op->attributes.kernel : x->height * x->width,
		.padded = node->x_shape.channels,
	};
	same = weight->padded == weight->channels && (weight->inner == 1 || weight->channels == 1);
	aligned = lowering->request->buckets->offsets[op->weight] % 4 == 0;

	weight->in_place = same && aligned && lowered->number == NUMBER_F32;
	/* cuBLASLt writes float32 gradients of 16-bit numbers, at any address. */
	weight->gradient_in_place = conv ? weight->in_place : same;
	if (weight->in_place)
		return;
	bytes = weight_bytes(lowered, weight);
	weight->copy = lowered->copies_bytes;
	lowered->copies_bytes +=
		(bytes + LOWERED_ALIGNMENT - 1) / LOWERED_ALIGNMENT * LOWERED_ALIGNMENT;
}

static void lower_parameters(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;

	for (int i = 0; i < lowered->plan.node_count; i++) {
		struct lowered_node *node = &lowered->nodes[i];
		const struct shape *x = &node->x_shape;

		node->weight.param = -1;
		if (step_node_is_layer(node->step))
			lower_weight(lowering, node);
		if (node->step->kind != OP_BATCHNORM)
			continue;
		/* Each starts at a multiple of 16 bytes. */
		node->saved = lowered->saved_floats;
		lowered->saved_floats +=
			((node->fused_conv >= 0 ? SAVED_ROWS : SAVED_APPLY) * (size_t)x->channels +
			 3) /
			4 * 4;
	}
}

/* A convolution may compute the sums for a batch norm of its result, if nothing is added in
 * between. cuDNN supports that for 16-bit numbers and channels in groups of 8. */
static void pair_norm_sums(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;

	for (int i = 0; i < lowered->plan.node_count; i++)
		lowered->nodes[i].norm = lowered->nodes[i].sums_conv =
			lowered->nodes[i].fused_norm = lowered->nodes[i].fused_conv = -1;
	if (!lowering->request->train || lowered->number == NUMBER_F32)
		return;
	for (int i = 0; i < lowered->plan.node_count; i++) {
		struct lowered_node *norm = &lowered->nodes[i];

		for (int k = 0; norm->step->kind == OP_BATCHNORM && k < i; k++) {
			struct lowered_node *conv = &lowered->nodes[k];

			if (conv->step->kind != OP_CONV2D || conv->norm >= 0 ||
			    conv->step->output != norm->step->input || conv->step->op->bias >= 0 ||
			    norm->x_shape.channels % 8)
				continue;
			conv->norm = i;
			norm->sums_conv = k;
		}
	}
}

/* A convolution that is the only reader of a batch norm's ReLU may apply both itself. cuDNN
 * supports that for convolutions that also sum their own result. */
static void pair_fused_norms(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;

	for (int i = 0; i < lowered->plan.node_count; i++) {
		struct lowered_node *conv = &lowered->nodes[i];

		for (int k = 0; conv->norm >= 0 && k < i; k++) {
			struct lowered_node *norm = &lowered->nodes[k];

			if (norm->step->kind != OP_BATCHNORM || !norm->step->relu ||
			    norm->step->input2 >= 0 || norm->step->output != conv->step->input ||
			    lowered->plan.readers[conv->step->input] != 1 ||
			    norm->x_shape.channels % 8)
				continue;
			conv->fused_norm = k;
			norm->fused_conv = i;
		}
	}
}

/* ---- places ---- */

/* Of a value, in the graph's type. */
static size_t value_bytes(const struct lowering *lowering, int value)
{
	struct shape shape = lowering->graph->values[value];

	if (!value)
		shape.channels = lowering->lowered->input_channels;
	return (size_t)shape_count(&shape) * (size_t)lowering->lowered->batch *
	       (lowering->lowered->number == NUMBER_F32 ? 4 : 2);
}

/* What one node at a time uses: floats for sums, and bytes for a weight's gradient. */
static void add_scratch(const struct lowering *lowering, const struct lowered_node *node,
			size_t bytes[STEP_SCRATCHES])
{
	const struct shape *y = &node->y_shape;
	int64_t rows = (int64_t)lowering->lowered->batch * y->height * y->width;
	size_t sums = 2 * sizeof(float) * (size_t)y->channels *
		      (size_t)kernel_parts(lowering->multiprocessors, rows, y->channels);
	size_t gradient = weight_bytes(lowering->lowered, &node->weight);

	if ((node->step->kind == OP_BATCHNORM || step_node_is_layer(node->step)) &&
	    sums > bytes[SCRATCH_SUMS])
		bytes[SCRATCH_SUMS] = sums;
	if (node->weight.param >= 0 && !node->weight.gradient_in_place &&
	    gradient > bytes[SCRATCH_WEIGHT_GRADIENT])
		bytes[SCRATCH_WEIGHT_GRADIENT] = gradient;
}

static int place(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;
	int n = lowered->plan.node_count, values = lowering->graph->value_count, rc;
	bool train = lowering->request->train;
	size_t *bytes = calloc((size_t)values, sizeof *bytes);
	struct step_size *sizes = calloc((size_t)n + 1, sizeof *sizes);
	struct step_rules rules = {
		.alignment = LOWERED_ALIGNMENT, .value_bytes = bytes, .sizes = sizes, .adds = true};

	for (int i = 0; bytes && i < values; i++)
		bytes[i] = value_bytes(lowering, i);
	for (int i = 0; sizes && train && i < n; i++) {
		const struct lowered_node *node = &lowered->nodes[i];

		if (node->step->kind == OP_MAXPOOL2D)
			sizes[i].kept =
				(size_t)shape_count(&node->y_shape) * (size_t)lowered->batch;
		add_scratch(lowering, node, rules.scratch_bytes);
	}
	rules.scratch_bytes[SCRATCH_SUMS] += 64 * sizeof(float);
	rules.scratch_bytes[SCRATCH_WEIGHT_GRADIENT] += 64;
	rc = bytes && sizes ? step_plan_place(&lowered->plan, &rules, lowering->err)
			    : error_memory(lowering->err, "a training step");
	free(bytes);
	free(sizes);
	return rc;
}

/* ---- the whole graph ---- */

static int lower_all(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;
	int n = lowered->plan.node_count;

	lowered->nodes = calloc((size_t)n + 1, sizeof *lowered->nodes);
	if (!lowered->nodes)
		return error_memory(lowering->err, "a training step");
	for (int i = 0; i < n; i++)
		lowered->nodes[i].step = &lowered->plan.nodes[i];
	infer_shapes(lowering);
	pair_norm_sums(lowering);
	pair_fused_norms(lowering);
	lower_parameters(lowering);
	return place(lowering);
}

static enum number number_of(enum precision precision)
{
	return precision == PRECISION_F16    ? NUMBER_F16
	       : precision == PRECISION_BF16 ? NUMBER_BF16
					     : NUMBER_F32;
}

int lowered_graph_make(const struct executor_request *request, int multiprocessors,
		       struct lowered_graph *out, struct error *err)
{
	struct lowered_graph lowered = {.number = number_of(request->precision),
					.batch = request->batch};
	struct lowering lowering = {&lowered, request, request->graph, multiprocessors, err};
	int rc = step_plan_make(request->graph, request->train, &lowered.plan, err);

	if (!rc)
		rc = lower_all(&lowering);
	if (rc)
		lowered_graph_free(&lowered);
	else
		*out = lowered;
	return rc;
}

void lowered_graph_free(struct lowered_graph *lowered)
{
	free(lowered->nodes);
	step_plan_free(&lowered->plan);
	*lowered = (struct lowered_graph){0};
}
