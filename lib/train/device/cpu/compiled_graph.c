/* SPDX-License-Identifier: BSD-3-Clause */
/* From a graph to nodes: what is fused, how values lie, and where they are when. */
#include <stdlib.h>
#include <string.h>

#include "train/device/cpu/cpu.h"
#include "train/executor/fuse.h"

/* What compiling needs beside the program. */
struct compile {
	struct program *program;
	const struct graph *graph;
	int *readers;	     /* of each value: how many ops, and the loss */
	struct parts *parts; /* of each value's gradient */
	int *claims;	     /* of each slot: how many gradients it is a part of */
	struct error *err;
};

/* Where the parts of a value's gradient are, one a reader. */
struct parts {
	int slots[MAX_READERS], count;
};

struct planes planes_of(const struct layout *layout)
{
	size_t block = (size_t)layout->block;

	return (struct planes){(size_t)layout->n,
			       (size_t)layout->channels,
			       ((size_t)layout->channels + block - 1) / block,
			       block,
			       (size_t)layout->height,
			       (size_t)layout->width};
}

/* ---- nodes ---- */

static enum node_kind node_kind(enum op_kind kind)
{
	switch (kind) {
	case OP_CONV2D:
		return NODE_CONV;
	case OP_LINEAR:
		return NODE_LINEAR;
	case OP_BATCHNORM:
		return NODE_NORM;
	case OP_ADD:
		return NODE_ADD;
	case OP_MAXPOOL2D:
		return NODE_MAXPOOL;
	case OP_AVGPOOL:
		return NODE_AVGPOOL;
	default: /* what else fuse_graph lets through */
		return NODE_RELU;
	}
}

static int make_nodes(struct compile *compile)
{
	struct program *program = compile->program;
	struct fused *list;
	int rc = fuse_graph(compile->graph, &list, &program->node_count, compile->err);

	for (int i = 0; !rc && i < program->node_count; i++)
		program->nodes[i] = (struct node){
			.kind = node_kind(list[i].kind),
			.op = list[i].op,
			.input = list[i].input,
			.input2 = list[i].input2,
			.output = list[i].output,
			.relu = list[i].relu,
			.own_slot = NO_SLOT,
			.places_slot = NO_SLOT,
			.sum_slot = NO_SLOT,
			.dx_slot = NO_SLOT,
			.own_dx_slot = NO_SLOT,
			.dz_slot = NO_SLOT,
			.dx2_slot = NO_SLOT,
		};
	if (!rc)
		free(list);
	return rc;
}

/* ---- layers and layouts ---- */

static bool train(const struct compile *compile)
{
	return compile->program->request->train;
}

static int add_slot(struct compile *compile, size_t size_bytes, int time)
{
	struct program *program = compile->program;

	program->slots[program->slot_count] = (struct memory_item){size_bytes, time, time, 0};
	return program->slot_count++;
}

static int value_slot(struct compile *compile, const struct layout *layout, int time)
{
	return add_slot(compile, layout_count(layout) * sizeof(float), time);
}

static void touch(struct compile *compile, int slot, int time)
{
	if (slot == NO_SLOT)
		return;

	struct memory_item *in = &compile->program->slots[slot];

	in->last = time > in->last ? time : in->last;
}

/* The copies between a value as it lies and as node wants it (node->own). */
static int make_copies(struct compile *compile, struct node *node, const struct layout *value,
		       bool wants_gradient)
{
	struct engine *engine = compile->program->cpu->engine;
	int rc = 0;

	if (!layout_equal(value, &node->own))
		rc = copy_new(engine, value, &node->own, &node->copy_in, compile->err);
	if (!rc && wants_gradient && !layout_equal(value, &node->own_dx))
		rc = copy_new(engine, &node->own_dx, value, &node->copy_out, compile->err);
	return rc;
}

/* The kernels of batch norm want blocks that divide a vector. */
static bool has_norm(const struct graph *graph)
{
	for (int i = 0; i < graph->op_count; i++)
		if (graph->ops[i].kind == OP_BATCHNORM)
			return true;
	return false;
}

static int make_conv(struct compile *compile, struct node *node)
{
	const struct step_request *request = compile->program->request;
	struct conv_request wanted = {
		.x = node->x,
		.outputs = (int)request->graph->params[node->op->weight].shape[0],
		.window = node->op->attributes,
		.bias = node->op->bias >= 0,
		.backward = request->train,
		.dx = request->train && node->input,
		.direct = request->direct,
		.nhwc = !has_norm(compile->graph),
	};
	struct conv_plan plan;
	int rc;

	rc = conv_new(compile->program->cpu->engine, &wanted, &node->conv, &plan, compile->err);
	if (rc)
		return rc;
	node->own = plan.x;
	node->own_dx = plan.dx;
	node->y = plan.y;
	node->scratch = plan.scratch;
	return make_copies(compile, node, &node->x, wanted.dx);
}

static int make_linear(struct compile *compile, struct node *node)
{
	const struct step_request *request = compile->program->request;
	const struct graph_param *w = &request->graph->params[node->op->weight];
	int rc = linear_new(compile->program->cpu->engine, node->x.n, (int)w->shape[1],
			    (int)w->shape[0], node->op->bias >= 0, request->train, &node->linear,
			    &node->scratch, compile->err);

	if (rc)
		return rc;
	node->own = node->x;
	node->own.block = 1;
	node->own_dx = node->own;
	node->y = (struct layout){node->x.n, (int)w->shape[0], 1, 1, 1};
	return make_copies(compile, node, &node->x, request->train && node->input);
}

static int make_norm_memory(struct compile *compile, struct node *node)
{
	const struct planes planes = planes_of(&node->x);

	if (train(compile) && planes.n * planes.height * planes.width == 1)
		return error_set(compile->err, ERR_DATA,
				 "batch norm needs two values a channel in training, and a batch "
				 "of one sample with images of 1x1 has one: take larger images, or "
				 "another --batch (an epoch's last one may be of one sample)");
	node->saved = calloc(2 * planes.channels, sizeof *node->saved);
	node->lanes = calloc(norm_lanes(&planes), sizeof *node->lanes);
	return node->saved && node->lanes ? 0 : error_memory(compile->err, "a layer");
}

/* Its layers, and how its result lies. */
static int make_layer(struct compile *compile, struct node *node)
{
	struct program *program = compile->program;
	const struct shape *y = &compile->graph->values[node->output];
	int rc = 0;

	node->x = program->layouts[node->input];
	node->y = (struct layout){program->count, y->channels, y->height, y->width, node->x.block};
	if (node->kind == NODE_CONV)
		rc = make_conv(compile, node);
	else if (node->kind == NODE_LINEAR)
		rc = make_linear(compile, node);
	else if (node->kind == NODE_AVGPOOL)
		node->y.block = 1;
	else if (node->kind == NODE_NORM)
		rc = make_norm_memory(compile, node);
	if (!rc && node->input2 >= 0) {
		node->own = node->own_dx = node->x;
		rc = make_copies(compile, node, &program->layouts[node->input2],
				 train(compile) && node->input2);
	}
	program->layouts[node->output] = node->y;
	return rc;
}

/* ---- places: forward ---- */

static void touch_value(struct compile *compile, int value, int time)
{
	touch(compile, compile->program->value_slots[value], time);
}

static void place_forward(struct compile *compile, int time)
{
	struct program *program = compile->program;
	struct node *node = &program->nodes[time];
	int *slots = program->value_slots;

	touch_value(compile, node->input, time);
	if (node->input2 >= 0)
		touch_value(compile, node->input2, time);
	if (node->copy_in)
		node->own_slot = value_slot(compile, &node->own, time);
	if (node->kind == NODE_MAXPOOL)
		node->places_slot =
			add_slot(compile, layout_count(&node->y) * sizeof(uint16_t), time);
	/* A ReLU that alone reads a value takes its place: nobody's gradient needs what was there.
	 */
	if (node->kind == NODE_RELU && node->input && compile->readers[node->input] == 1)
		slots[node->output] = slots[node->input];
	else
		slots[node->output] = value_slot(compile, &node->y, time);
}

/* ---- places: backward ---- */

static void add_part(struct compile *compile, int value, int slot)
{
	struct parts *parts = &compile->parts[value];

	parts->slots[parts->count++] = slot;
	compile->claims[slot]++;
}

static bool is_free(const struct compile *compile, int slot)
{
	return !compile->claims[slot];
}

/* The parts of the gradient of node's result become node's; *parts of them are read at once. */
static int take_parts(struct compile *compile, struct node *node, int most, int time)
{
	struct parts *parts = &compile->parts[node->output];

	if (!parts->count)
		return error_set(compile->err, ERR_INTERNAL,
				 "model %s: nothing reads the result of op %s",
				 compile->graph->model, op_name(node->op->kind));
	node->dy_count = parts->count;
	for (int i = 0; i < parts->count; i++) {
		node->dy[i] = parts->slots[i];
		compile->claims[parts->slots[i]]--;
		touch(compile, parts->slots[i], time);
	}
	if (parts->count > most)
		node->sum_slot = is_free(compile, node->dy[0])
					 ? node->dy[0]
					 : value_slot(compile, &node->y, time);
	return 0;
}

/* The one slot where dy is once it is added up. */
static int whole(const struct node *node)
{
	return node->sum_slot == NO_SLOT ? node->dy[0] : node->sum_slot;
}

/* The gradient of node's input, found in slot, or where copy_out puts it. */
static void give_input(struct compile *compile, struct node *node, int slot, int time)
{
	node->dx_slot = slot;
	if (node->copy_out) {
		node->own_dx_slot = slot;
		node->dx_slot = value_slot(compile, &node->x, time);
	}
	add_part(compile, node->input, node->dx_slot);
}

/* The same of input2. */
static void give_input2(struct compile *compile, struct node *node, int slot, int time)
{
	node->dz_slot = node->dx2_slot = slot;
	if (node->copy_out)
		node->dx2_slot =
			value_slot(compile, &compile->program->layouts[node->input2], time);
	add_part(compile, node->input2, node->dx2_slot);
}

/* Gradients go where those that they are made of were, if nobody else reads these. */
static void place_norm(struct compile *compile, struct node *node, int time)
{
	bool two = node->sum_slot == NO_SLOT && node->dy_count == 2;
	int first = whole(node), dx = NO_SLOT;
	bool first_free = is_free(compile, first);

	if (node->input2 > 0) {
		give_input2(compile, node, first_free ? first : value_slot(compile, &node->y, time),
			    time);
		first_free = false;
	}
	if (!node->input)
		return;
	if (first_free)
		dx = first;
	else if (two && is_free(compile, node->dy[1]))
		dx = node->dy[1];
	else
		dx = value_slot(compile, &node->x, time);
	node->dx_slot = dx;
	add_part(compile, node->input, dx);
}

static int place_backward(struct compile *compile, int index)
{
	struct program *program = compile->program;
	struct node *node = &program->nodes[index];
	int time = 2 * program->node_count - index;
	int rc = take_parts(compile, node, node->kind == NODE_NORM ? 2 : 1, time), dy;

	if (rc)
		return rc;
	dy = whole(node);
	switch (node->kind) {
	case NODE_CONV:
	case NODE_LINEAR:
		touch(compile, node->copy_in ? node->own_slot : program->value_slots[node->input],
		      time);
		if (node->input)
			give_input(compile, node, value_slot(compile, &node->own_dx, time), time);
		return 0;
	case NODE_NORM:
		touch_value(compile, node->input, time);
		if (node->input2 >= 0 && node->relu)
			touch_value(compile, node->output, time);
		place_norm(compile, node, time);
		return 0;
	case NODE_RELU:
		touch_value(compile, node->output, time);
		if (node->input)
			give_input(compile, node,
				   is_free(compile, dy) ? dy : value_slot(compile, &node->x, time),
				   time);
		return 0;
	case NODE_ADD:
		/* Both get what comes in: one place for both. */
		if (node->input)
			add_part(compile, node->input, dy);
		if (node->input2)
			give_input2(compile, node, dy, time);
		return 0;
	default:
		touch(compile, node->places_slot, time);
		if (node->input)
			give_input(compile, node, value_slot(compile, &node->x, time), time);
		return 0;
	}
}

static int place(struct compile *compile)
{
	struct program *program = compile->program;
	int n = program->node_count, output = compile->graph->output, rc = 0;
	size_t scratch = 0, sums = 0;

	for (int i = 0; i < n; i++) {
		const struct node *node = &program->nodes[i];
		const struct planes planes = planes_of(&node->x);

		place_forward(compile, i);
		scratch = node->scratch > scratch ? node->scratch : scratch;
		if (node->kind == NODE_NORM && norm_sums(&planes) > sums)
			sums = norm_sums(&planes);
	}
	touch_value(compile, output, n);
	if (train(compile)) {
		program->loss_gradient = value_slot(compile, &program->layouts[output], n);
		add_part(compile, output, program->loss_gradient);
		for (int i = n - 1; !rc && i >= 0; i--)
			rc = place_backward(compile, i);
	}
	if (rc)
		return rc;
	program->scratch_slot = add_slot(compile, (scratch + 16) * sizeof(float), 0);
	program->sums_slot = add_slot(compile, (sums + 8) * sizeof(double), 0);
	touch(compile, program->scratch_slot, 2 * n);
	touch(compile, program->sums_slot, 2 * n);
	return memory_plan(program->slots, (size_t)program->slot_count, 64, &program->arena_bytes,
			   compile->err);
}

/* ---- all of it ---- */

static int check_graph(const struct compile *compile)
{
	const struct graph *graph = compile->graph;

	for (int i = 0; i < graph->value_count; i++)
		if (compile->readers[i] < 1 || compile->readers[i] > MAX_READERS)
			return error_set(compile->err, ERR_INTERNAL,
					 "model %s: value %d is read %d times", graph->model, i,
					 compile->readers[i]);
	return 0;
}

static int compile_all(struct compile *compile)
{
	struct program *program = compile->program;
	const struct shape *x = &compile->graph->values[0];
	int rc;

	rc = check_graph(compile);
	if (!rc)
		rc = make_nodes(compile);
	for (int i = 0; i < compile->graph->value_count; i++)
		program->value_slots[i] = NO_SLOT;
	program->layouts[0] = (struct layout){program->count, x->channels, x->height, x->width, 1};
	for (int i = 0; !rc && i < program->node_count; i++)
		rc = make_layer(compile, &program->nodes[i]);
	if (!rc && program->layouts[compile->graph->output].block != 1)
		rc = error_set(compile->err, ERR_INTERNAL, "model %s does not end in a vector",
			       compile->graph->model);
	return rc ? rc : place(compile);
}

int program_new(struct cpu *cpu, const struct step_request *request, int count,
		struct program **out, struct error *err)
{
	const struct graph *graph = request->graph;
	size_t ops = (size_t)graph->op_count + 1, values = (size_t)graph->value_count;
	size_t slots = 8 * ops + 8; /* a node makes 5 at the most */
	struct program *program = calloc(1, sizeof *program);
	struct compile compile = {
		.program = program,
		.graph = graph,
		.readers = fuse_readers(graph),
		.parts = calloc(values, sizeof(struct parts)),
		.claims = calloc(slots, sizeof(int)),
		.err = err,
	};
	int rc = -ERR_UNAVAILABLE;

	if (program) {
		*program = (struct program){
			.cpu = cpu,
			.request = request,
			.count = count,
			.nodes = calloc(ops, sizeof *program->nodes),
			.slots = calloc(slots, sizeof *program->slots),
			.layouts = calloc(values, sizeof *program->layouts),
			.value_slots = calloc(values, sizeof *program->value_slots),
			.loss_gradient = NO_SLOT,
		};
	}
	if (!program || !program->nodes || !program->slots || !program->layouts ||
	    !program->value_slots || !compile.readers || !compile.parts || !compile.claims)
		rc = error_memory(err, "a training step");
	else
		rc = compile_all(&compile);
	free(compile.readers);
	free(compile.parts);
	free(compile.claims);
	if (rc)
		program_free(program);
	else
		*out = program;
	return rc;
}

void program_free(struct program *program)
{
	if (!program)
		return;
	for (int i = 0; program->nodes && i < program->node_count; i++) {
		struct node *node = &program->nodes[i];

		conv_free(node->conv);
		linear_free(node->linear);
		copy_free(node->copy_in);
		copy_free(node->copy_out);
		free(node->saved);
		free(node->lanes);
	}
	free(program->nodes);
	free(program->slots);
	free(program->layouts);
	free(program->value_slots);
	free(program);
}
