/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/lowered_graph.h"

#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/kernels/element.h"

struct planning {
	struct plan *plan;
	const struct graph *graph;
	const struct buckets *buckets;
	bool train;
	int multiprocessors;
	int *readers, *value_slots, *gradient_slots; /* of each value */
	struct error *err;
};

/* ---- shapes and weights ---- */

static bool is_layer(const struct plan_node *node)
{
	return node->fused.kind == OP_CONV2D || node->fused.kind == OP_LINEAR;
}

/* Only convolutions and linear layers know what to do with channels that are padding. */
static int input_channels(const struct planning *planning)
{
	const struct plan *plan = planning->plan;
	int channels = planning->graph->values[0].channels;

	for (int i = 0; i < plan->node_count; i++)
		if ((!plan->nodes[i].fused.input || !plan->nodes[i].fused.input2) &&
		    !is_layer(&plan->nodes[i]))
			return channels;
	return padded_channels(channels, plan->number != NUMBER_F32);
}

static void plan_shapes(struct planning *planning)
{
	struct plan *plan = planning->plan;

	plan->input_channels = input_channels(planning);
	for (int i = 0; i < plan->node_count; i++) {
		struct plan_node *node = &plan->nodes[i];

		node->x_shape = planning->graph->values[node->fused.input];
		node->y_shape = planning->graph->values[node->fused.output];
		if (!node->fused.input)
			node->x_shape.channels = plan->input_channels;
	}
}

static void plan_weight(struct planning *planning, struct plan_node *node)
{
	struct plan *plan = planning->plan;
	const struct graph_op *op = node->fused.op;
	struct plan_weight *weight = &node->weight;
	const struct shape *x = &planning->graph->values[node->fused.input];
	bool conv = node->fused.kind == OP_CONV2D;
	size_t bytes;

	*weight = (struct plan_weight){
		.param = op->weight,
		.outputs = (int)planning->graph->params[op->weight].shape[0],
		.channels = x->channels,
		.inner = conv ? op->attributes.kernel * op->attributes.kernel
			      : x->height * x->width,
		.padded = node->x_shape.channels,
	};

	bool same = weight->padded == weight->channels &&
		    (weight->inner == 1 || weight->channels == 1);
	bool aligned = planning->buckets->offsets[op->weight] % 4 == 0;

	weight->in_place = same && aligned && plan->number == NUMBER_F32;
	/* cuBLASLt writes float32 gradients of 16-bit numbers, and to any place. */
	weight->gradient_in_place = conv ? weight->in_place : same;
	if (weight->in_place)
		return;
	bytes = (size_t)weight->outputs * (size_t)weight->inner * (size_t)weight->padded *
		(plan->number == NUMBER_F32 ? 4 : 2);
	weight->copy = plan->copies_bytes;
	plan->copies_bytes += (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

static int plan_parameters(struct planning *planning)
{
	struct plan *plan = planning->plan;

	for (int i = 0; i < plan->node_count; i++) {
		struct plan_node *node = &plan->nodes[i];
		const struct shape *x = &node->x_shape;

		node->weight.param = -1;
		if (is_layer(node))
			plan_weight(planning, node);
		if (node->fused.kind != OP_BATCHNORM)
			continue;
		/* Each begins at 16 bytes. */
		node->saved = plan->saved_floats;
		plan->saved_floats +=
			((node->taker >= 0 ? SAVED_ROWS : SAVED_TAKEN) * (size_t)x->channels + 3) /
			4 * 4;
		if (planning->train && plan->batch * x->height * x->width == 1)
			return error_set(planning->err, ERR_DATA,
					 "batch norm needs two values a channel in training, and a "
					 "batch of one sample with images of 1x1 has one: take a "
					 "larger --batch, or larger images");
	}
	return 0;
}

/* A convolution may sum up what a batch norm of its result needs, if nothing is added in between.
 * cuDNN does that for numbers of 16 bits and whole groups of 8 channels. */
static void plan_sums(struct planning *planning)
{
	struct plan *plan = planning->plan;

	for (int i = 0; i < plan->node_count; i++)
		plan->nodes[i].norm = plan->nodes[i].maker = plan->nodes[i].through =
			plan->nodes[i].taker = -1;
	if (!planning->train || plan->number == NUMBER_F32)
		return;
	for (int i = 0; i < plan->node_count; i++) {
		struct plan_node *norm = &plan->nodes[i];

		for (int k = 0; norm->fused.kind == OP_BATCHNORM && k < i; k++) {
			struct plan_node *conv = &plan->nodes[k];

			if (conv->fused.kind != OP_CONV2D || conv->norm >= 0 ||
			    conv->fused.output != norm->fused.input || conv->fused.op->bias >= 0 ||
			    norm->x_shape.channels % 8)
				continue;
			conv->norm = i;
			norm->maker = k;
		}
	}
}

/* A convolution that alone reads a batch norm's ReLU may do both on the way. cuDNN has that for
 * convolutions whose own result is summed up. */
static void plan_through(struct planning *planning)
{
	struct plan *plan = planning->plan;

	for (int i = 0; i < plan->node_count; i++) {
		struct plan_node *conv = &plan->nodes[i];

		for (int k = 0; conv->norm >= 0 && k < i; k++) {
			struct plan_node *norm = &plan->nodes[k];

			if (norm->fused.kind != OP_BATCHNORM || !norm->fused.relu ||
			    norm->fused.input2 >= 0 || norm->fused.output != conv->fused.input ||
			    planning->readers[conv->fused.input] != 1 ||
			    norm->x_shape.channels % 8)
				continue;
			conv->through = k;
			norm->taker = i;
		}
	}
}

/* ---- places ---- */

static int add_slot(struct planning *planning, size_t size_bytes, int time)
{
	struct plan *plan = planning->plan;

	plan->slots[plan->slot_count] = (struct memory_item){size_bytes, time, time, 0};
	return plan->slot_count++;
}

static void touch(struct planning *planning, int slot, int time)
{
	if (slot != NO_SLOT && time > planning->plan->slots[slot].last)
		planning->plan->slots[slot].last = time;
}

/* Of a value, in the plan's type. */
static size_t value_bytes(const struct planning *planning, int value)
{
	struct shape shape = planning->graph->values[value];

	if (!value)
		shape.channels = planning->plan->input_channels;
	return (size_t)shape_count(&shape) * (size_t)planning->plan->batch *
	       (planning->plan->number == NUMBER_F32 ? 4 : 2);
}

static int value_slot(struct planning *planning, int value, int time)
{
	return add_slot(planning, value_bytes(planning, value), time);
}

static void place_forward(struct planning *planning, int time)
{
	struct plan_node *node = &planning->plan->nodes[time];
	int *slots = planning->value_slots, x = node->fused.input, y = node->fused.output;

	node->x = slots[x];
	touch(planning, node->x, time);
	node->z = NO_SLOT;
	if (node->fused.input2 >= 0) {
		node->z = slots[node->fused.input2];
		touch(planning, node->z, time);
	}
	/* A ReLU that alone reads a value takes its place: its gradient needs the result alone. */
	if (node->fused.kind == OP_RELU && x && planning->readers[x] == 1)
		slots[y] = slots[x];
	else
		slots[y] = value_slot(planning, y, time);
	node->y = slots[y];
	touch(planning, node->y, time);
	node->places = NO_SLOT;
	if (node->fused.kind == OP_MAXPOOL2D && planning->train)
		node->places = add_slot(planning,
					(size_t)shape_count(&node->y_shape) *
						(size_t)planning->plan->batch,
					time);
}

/* The gradient of value: where it is added to what is there, or a place of its own. like: a slot
 * that it may share, or NO_SLOT. */
static int gradient_slot(struct planning *planning, int value, int like, int time, bool *add,
			 bool *shared)
{
	int *slot = &planning->gradient_slots[value];

	*add = *shared = false;
	if (!value)
		return NO_SLOT; /* nobody asks for the input's */
	if (*slot != NO_SLOT) {
		*add = true;
	} else if (like != NO_SLOT) {
		*slot = like;
		*shared = true;
	} else {
		*slot = value_slot(planning, value, time);
	}
	touch(planning, *slot, time);
	return *slot;
}

static int place_backward(struct planning *planning, int index)
{
	struct plan *plan = planning->plan;
	struct plan_node *node = &plan->nodes[index];
	int time = 2 * plan->node_count - index;
	enum op_kind kind = node->fused.kind;
	bool elementwise = kind == OP_RELU || kind == OP_ADD;

	node->dy = planning->gradient_slots[node->fused.output];
	if (node->dy == NO_SLOT)
		return error_set(planning->err, ERR_INTERNAL,
				 "model %s: nothing reads the result of op %s",
				 planning->graph->model, op_name(kind));
	touch(planning, node->dy, time);
	if (kind == OP_CONV2D || kind == OP_LINEAR || kind == OP_BATCHNORM)
		touch(planning, node->x, time);
	if (kind == OP_RELU || (kind == OP_BATCHNORM && node->fused.input2 >= 0))
		touch(planning, node->y, time);
	touch(planning, node->places, time);
	node->dz = NO_SLOT;
	if (node->fused.input2 >= 0)
		node->dz = gradient_slot(planning, node->fused.input2,
					 kind == OP_BATCHNORM ? node->dy : NO_SLOT, time,
					 &node->add_dz, &node->dz_is_dy);
	node->dx = gradient_slot(planning, node->fused.input, elementwise ? node->dy : NO_SLOT,
				 time, &node->add_dx, &node->dx_is_dy);
	return 0;
}

/* Scratch that one node at a time uses; it lives throughout. */
static void place_scratch(struct planning *planning)
{
	struct plan *plan = planning->plan;
	size_t sums = 0, gradient = 0;
	int last = 2 * plan->node_count + 1;

	for (int i = 0; planning->train && i < plan->node_count; i++) {
		const struct plan_node *node = &plan->nodes[i];
		const struct shape *y = &node->y_shape;
		const struct plan_weight *weight = &node->weight;
		size_t bytes = (size_t)weight->outputs * (size_t)weight->inner *
			       (size_t)weight->padded * (plan->number == NUMBER_F32 ? 4 : 2);
		int64_t rows = (int64_t)plan->batch * y->height * y->width;
		size_t floats = 2 * (size_t)y->channels *
				(size_t)kernel_parts(planning->multiprocessors, rows, y->channels);

		if ((node->fused.kind == OP_BATCHNORM || is_layer(node)) && floats > sums)
			sums = floats;
		if (weight->param >= 0 && !weight->gradient_in_place && bytes > gradient)
			gradient = bytes;
	}
	plan->sums = add_slot(planning, (sums + 64) * sizeof(float), 0);
	plan->weight_gradient = add_slot(planning, gradient + 64, 0);
	touch(planning, plan->sums, last);
	touch(planning, plan->weight_gradient, last);
}

static int place(struct planning *planning)
{
	struct plan *plan = planning->plan;
	int n = plan->node_count, output = planning->graph->output, rc = 0;

	for (int i = 0; i < planning->graph->value_count; i++)
		planning->value_slots[i] = planning->gradient_slots[i] = NO_SLOT;
	plan->input = planning->value_slots[0] = value_slot(planning, 0, 0);
	for (int i = 0; i < n; i++)
		place_forward(planning, i);
	plan->output = planning->value_slots[output];
	touch(planning, plan->output, n);
	plan->output_gradient = NO_SLOT;
	if (planning->train) {
		plan->output_gradient = planning->gradient_slots[output] =
			value_slot(planning, output, n);
		for (int i = n - 1; !rc && i >= 0; i--)
			rc = place_backward(planning, i);
	}
	if (rc)
		return rc;
	place_scratch(planning);
	return memory_plan(plan->slots, (size_t)plan->slot_count, PLAN_ALIGNMENT,
			   &plan->arena_bytes, planning->err);
}

/* ---- all of it ---- */

static int plan_all(struct planning *planning)
{
	struct plan *plan = planning->plan;
	struct fused *list = NULL;
	int rc = fuse_graph(planning->graph, &list, &plan->node_count, planning->err);

	if (rc)
		return rc;
	/* A node makes 4 at the most. */
	plan->nodes = calloc((size_t)plan->node_count + 1, sizeof *plan->nodes);
	plan->slots = calloc(4 * (size_t)plan->node_count + 8, sizeof *plan->slots);
	if (plan->nodes && plan->slots) {
		for (int i = 0; i < plan->node_count; i++)
			plan->nodes[i].fused = list[i];
		plan_shapes(planning);
		plan_sums(planning);
		plan_through(planning);
		rc = plan_parameters(planning);
		if (!rc)
			rc = place(planning);
	} else {
		rc = error_memory(planning->err, "a training step");
	}
	free(list);
	return rc;
}

int plan_make(const struct graph *graph, const struct buckets *buckets, int batch,
	      enum number number, bool train, int multiprocessors, struct plan *out,
	      struct error *err)
{
	size_t values = (size_t)graph->value_count;
	struct plan plan = {.number = number, .batch = batch};
	struct planning planning = {.plan = &plan,
				    .graph = graph,
				    .buckets = buckets,
				    .train = train,
				    .multiprocessors = multiprocessors,
				    .readers = fuse_readers(graph),
				    .value_slots = calloc(values, sizeof(int)),
				    .gradient_slots = calloc(values, sizeof(int)),
				    .err = err};
	int rc;

	if (planning.readers && planning.value_slots && planning.gradient_slots)
		rc = plan_all(&planning);
	else
		rc = error_memory(err, "a training step");
	free(planning.readers);
	free(planning.value_slots);
	free(planning.gradient_slots);
	if (rc)
		plan_free(&plan);
	else
		*out = plan;
	return rc;
}

void plan_free(struct plan *plan)
{
	free(plan->nodes);
	free(plan->slots);
	*plan = (struct plan){0};
}
