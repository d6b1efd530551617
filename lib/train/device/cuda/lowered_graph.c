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
	int *readers, *value_slots, *gradient_slots; /* per value */
	struct error *err;
};

/* ---- shapes and weights ---- */

static bool is_layer(const struct lowered_node *node)
{
	return node->fused.kind == OP_CONV2D || node->fused.kind == OP_LINEAR;
}

/* Only convolutions and linear layers can handle channels that are padding. */
static int input_channels(const struct lowering *lowering)
{
	const struct lowered_graph *lowered = lowering->lowered;
	int channels = lowering->graph->values[0].channels;

	for (int i = 0; i < lowered->node_count; i++)
		if ((!lowered->nodes[i].fused.input || !lowered->nodes[i].fused.input2) &&
		    !is_layer(&lowered->nodes[i]))
			return channels;
	return padded_channels(channels, lowered->number != NUMBER_F32);
}

static void infer_shapes(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;

	lowered->input_channels = input_channels(lowering);
	for (int i = 0; i < lowered->node_count; i++) {
		struct lowered_node *node = &lowered->nodes[i];

		node->x_shape = lowering->graph->values[node->fused.input];
		node->y_shape = lowering->graph->values[node->fused.output];
		if (!node->fused.input)
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
	const struct graph_op *op = node->fused.op;
	struct lowered_weight *weight = &node->weight;
	const struct shape *x = &lowering->graph->values[node->fused.input];
	bool conv = node->fused.kind == OP_CONV2D, same, aligned;
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

static int lower_parameters(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;

	for (int i = 0; i < lowered->node_count; i++) {
		struct lowered_node *node = &lowered->nodes[i];
		const struct shape *x = &node->x_shape;

		node->weight.param = -1;
		if (is_layer(node))
			lower_weight(lowering, node);
		if (node->fused.kind != OP_BATCHNORM)
			continue;
		/* Each starts at a multiple of 16 bytes. */
		node->saved = lowered->saved_floats;
		lowered->saved_floats +=
			((node->fused_conv >= 0 ? SAVED_ROWS : SAVED_APPLY) * (size_t)x->channels +
			 3) /
			4 * 4;
		if (lowering->request->train && lowered->batch * x->height * x->width == 1)
			return error_set(lowering->err, ERR_DATA,
					 "in training, batch norm needs at least two values per "
					 "channel, but a batch of one 1x1 image has only one. Use "
					 "a larger --batch or larger images");
	}
	return 0;
}

/* A convolution may compute the sums for a batch norm of its result, if nothing is added in
 * between. cuDNN supports that for 16-bit numbers and channels in groups of 8. */
static void pair_norm_sums(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;

	for (int i = 0; i < lowered->node_count; i++)
		lowered->nodes[i].norm = lowered->nodes[i].sums_conv =
			lowered->nodes[i].fused_norm = lowered->nodes[i].fused_conv = -1;
	if (!lowering->request->train || lowered->number == NUMBER_F32)
		return;
	for (int i = 0; i < lowered->node_count; i++) {
		struct lowered_node *norm = &lowered->nodes[i];

		for (int k = 0; norm->fused.kind == OP_BATCHNORM && k < i; k++) {
			struct lowered_node *conv = &lowered->nodes[k];

			if (conv->fused.kind != OP_CONV2D || conv->norm >= 0 ||
			    conv->fused.output != norm->fused.input || conv->fused.op->bias >= 0 ||
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

	for (int i = 0; i < lowered->node_count; i++) {
		struct lowered_node *conv = &lowered->nodes[i];

		for (int k = 0; conv->norm >= 0 && k < i; k++) {
			struct lowered_node *norm = &lowered->nodes[k];

			if (norm->fused.kind != OP_BATCHNORM || !norm->fused.relu ||
			    norm->fused.input2 >= 0 || norm->fused.output != conv->fused.input ||
			    lowering->readers[conv->fused.input] != 1 || norm->x_shape.channels % 8)
				continue;
			conv->fused_norm = k;
			norm->fused_conv = i;
		}
	}
}

/* ---- slots ---- */

static int add_slot(struct lowering *lowering, size_t size_bytes, int time)
{
	struct lowered_graph *lowered = lowering->lowered;

	lowered->slots[lowered->slot_count] = (struct memory_item){size_bytes, time, time, 0};
	return lowered->slot_count++;
}

static void extend_lifetime(struct lowering *lowering, int slot, int time)
{
	if (slot != NO_SLOT && time > lowering->lowered->slots[slot].last)
		lowering->lowered->slots[slot].last = time;
}

/* Of a value, in the graph's type. */
static size_t value_bytes(const struct lowering *lowering, int value)
{
	struct shape shape = lowering->graph->values[value];

	if (!value)
		shape.channels = lowering->lowered->input_channels;
	return (size_t)shape_count(&shape) * (size_t)lowering->lowered->batch *
	       (lowering->lowered->number == NUMBER_F32 ? 4 : 2);
}

static int value_slot(struct lowering *lowering, int value, int time)
{
	return add_slot(lowering, value_bytes(lowering, value), time);
}

static void place_forward(struct lowering *lowering, int time)
{
	struct lowered_node *node = &lowering->lowered->nodes[time];
	int *slots = lowering->value_slots, x = node->fused.input, y = node->fused.output;

	node->x = slots[x];
	extend_lifetime(lowering, node->x, time);
	node->z = NO_SLOT;
	if (node->fused.input2 >= 0) {
		node->z = slots[node->fused.input2];
		extend_lifetime(lowering, node->z, time);
	}
	/* A ReLU that is the only reader of a value works in its slot: its gradient needs only the
	 * result. */
	if (node->fused.kind == OP_RELU && x && lowering->readers[x] == 1)
		slots[y] = slots[x];
	else
		slots[y] = value_slot(lowering, y, time);
	node->y = slots[y];
	extend_lifetime(lowering, node->y, time);
	node->argmax = NO_SLOT;
	if (node->fused.kind == OP_MAXPOOL2D && lowering->request->train)
		node->argmax = add_slot(lowering,
					(size_t)shape_count(&node->y_shape) *
						(size_t)lowering->lowered->batch,
					time);
}

/* The slot for the gradient of value: the existing one if it is added to, else a new one. like: a
 * slot that it may share, or NO_SLOT. */
static int gradient_slot(struct lowering *lowering, int value, int like, int time, bool *add,
			 bool *shared)
{
	int *slot = &lowering->gradient_slots[value];

	*add = *shared = false;
	if (!value)
		return NO_SLOT; /* the input's gradient is not needed */
	*add = *slot != NO_SLOT;
	*shared = !*add && like != NO_SLOT;
	if (!*add)
		*slot = *shared ? like : value_slot(lowering, value, time);
	extend_lifetime(lowering, *slot, time);
	return *slot;
}

static int place_backward(struct lowering *lowering, int index)
{
	struct lowered_graph *lowered = lowering->lowered;
	struct lowered_node *node = &lowered->nodes[index];
	int time = 2 * lowered->node_count - index;
	enum op_kind kind = node->fused.kind;
	bool elementwise = kind == OP_RELU || kind == OP_ADD;

	node->dy = lowering->gradient_slots[node->fused.output];
	if (node->dy == NO_SLOT)
		return error_set(lowering->err, ERR_INTERNAL,
				 "model %s: nothing reads the result of op %s",
				 lowering->graph->model, op_name(kind));
	extend_lifetime(lowering, node->dy, time);
	if (kind == OP_CONV2D || kind == OP_LINEAR || kind == OP_BATCHNORM)
		extend_lifetime(lowering, node->x, time);
	if (kind == OP_RELU || (kind == OP_BATCHNORM && node->fused.input2 >= 0))
		extend_lifetime(lowering, node->y, time);
	extend_lifetime(lowering, node->argmax, time);
	node->dz = NO_SLOT;
	if (node->fused.input2 >= 0)
		node->dz = gradient_slot(lowering, node->fused.input2,
					 kind == OP_BATCHNORM ? node->dy : NO_SLOT, time,
					 &node->add_dz, &node->dz_is_dy);
	node->dx = gradient_slot(lowering, node->fused.input, elementwise ? node->dy : NO_SLOT,
				 time, &node->add_dx, &node->dx_is_dy);
	return 0;
}

/* Scratch that one node at a time uses; it lives throughout. */
static void place_scratch(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;
	size_t sums = 0, gradient = 0;
	int last = 2 * lowered->node_count + 1;

	for (int i = 0; lowering->request->train && i < lowered->node_count; i++) {
		const struct lowered_node *node = &lowered->nodes[i];
		const struct shape *y = &node->y_shape;
		const struct lowered_weight *weight = &node->weight;
		size_t bytes = weight_bytes(lowered, weight);
		int64_t rows = (int64_t)lowered->batch * y->height * y->width;
		size_t floats = 2 * (size_t)y->channels *
				(size_t)kernel_parts(lowering->multiprocessors, rows, y->channels);

		if ((node->fused.kind == OP_BATCHNORM || is_layer(node)) && floats > sums)
			sums = floats;
		if (weight->param >= 0 && !weight->gradient_in_place && bytes > gradient)
			gradient = bytes;
	}
	lowered->sums = add_slot(lowering, (sums + 64) * sizeof(float), 0);
	lowered->weight_gradient = add_slot(lowering, gradient + 64, 0);
	extend_lifetime(lowering, lowered->sums, last);
	extend_lifetime(lowering, lowered->weight_gradient, last);
}

static int place(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;
	int n = lowered->node_count, output = lowering->graph->output, rc = 0;

	for (int i = 0; i < lowering->graph->value_count; i++)
		lowering->value_slots[i] = lowering->gradient_slots[i] = NO_SLOT;
	lowered->input = lowering->value_slots[0] = value_slot(lowering, 0, 0);
	for (int i = 0; i < n; i++)
		place_forward(lowering, i);
	lowered->output = lowering->value_slots[output];
	extend_lifetime(lowering, lowered->output, n);
	lowered->output_gradient = NO_SLOT;
	if (lowering->request->train) {
		lowered->output_gradient = lowering->gradient_slots[output] =
			value_slot(lowering, output, n);
		for (int i = n - 1; !rc && i >= 0; i--)
			rc = place_backward(lowering, i);
	}
	if (rc)
		return rc;
	place_scratch(lowering);
	return memory_plan(lowered->slots, (size_t)lowered->slot_count, LOWERED_ALIGNMENT,
			   &lowered->arena_bytes, lowering->err);
}

/* ---- the whole graph ---- */

static int lower_all(struct lowering *lowering)
{
	struct lowered_graph *lowered = lowering->lowered;
	struct fused *list = NULL;
	int rc = fuse_graph(lowering->graph, &list, &lowered->node_count, lowering->err);

	if (rc)
		return rc;
	/* A node makes at most 4. */
	lowered->nodes = calloc((size_t)lowered->node_count + 1, sizeof *lowered->nodes);
	lowered->slots = calloc(4 * (size_t)lowered->node_count + 8, sizeof *lowered->slots);
	if (lowered->nodes && lowered->slots) {
		for (int i = 0; i < lowered->node_count; i++)
			lowered->nodes[i].fused = list[i];
		infer_shapes(lowering);
		pair_norm_sums(lowering);
		pair_fused_norms(lowering);
		rc = lower_parameters(lowering);
		if (!rc)
			rc = place(lowering);
	} else {
		rc = error_memory(lowering->err, "a training step");
	}
	free(list);
	return rc;
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
	size_t values = (size_t)request->graph->value_count;
	struct lowered_graph lowered = {.number = number_of(request->precision),
					.batch = request->batch};
	struct lowering lowering = {.lowered = &lowered,
				    .request = request,
				    .graph = request->graph,
				    .multiprocessors = multiprocessors,
				    .readers = fuse_readers(request->graph),
				    .value_slots = calloc(values, sizeof(int)),
				    .gradient_slots = calloc(values, sizeof(int)),
				    .err = err};
	int rc;

	if (lowering.readers && lowering.value_slots && lowering.gradient_slots)
		rc = lower_all(&lowering);
	else
		rc = error_memory(err, "a training step");
	free(lowering.readers);
	free(lowering.value_slots);
	free(lowering.gradient_slots);
	if (rc)
		lowered_graph_free(&lowered);
	else
		*out = lowered;
	return rc;
}

void lowered_graph_free(struct lowered_graph *lowered)
{
	free(lowered->nodes);
	free(lowered->slots);
	*lowered = (struct lowered_graph){0};
}
