/* SPDX-License-Identifier: BSD-3-Clause */
/* From a graph to nodes: what is fused, the layouts of values, and where they are at which time. */
#include <stdlib.h>
#include <string.h>

#include "train/device/cpu/cpu.h"

/* What compiling needs besides the result. */
struct compile {
	struct compiled_graph *compiled;
	const struct graph *graph;
	int *readers;	     /* per value: how many ops read it, plus the loss */
	struct parts *parts; /* for each value's gradient */
	int *claims;	     /* per slot: how many gradients it is a part of */
	struct error *err;
};

/* The slots of the parts of a value's gradient, one per reader. */
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

static int make_nodes(struct compile *compile)
{
	struct compiled_graph *compiled = compile->compiled;
	struct fused *list;
	int rc = fuse_graph(compile->graph, &list, &compiled->node_count, compile->err);

	for (int i = 0; !rc && i < compiled->node_count; i++)
		compiled->nodes[i].fused = list[i];
	if (!rc)
		free(list);
	return rc;
}

/* ---- layers and layouts ---- */

static bool is_training(const struct compile *compile)
{
	return compile->compiled->request->train;
}

static int add_slot(struct compile *compile, size_t size_bytes, int time)
{
	struct compiled_graph *compiled = compile->compiled;

	compiled->slots[compiled->slot_count] = (struct memory_item){size_bytes, time, time, 0};
	return compiled->slot_count++;
}

static int value_slot(struct compile *compile, const struct layout *layout, int time)
{
	return add_slot(compile, layout_count(layout) * sizeof(float), time);
}

static void extend_lifetime(struct compile *compile, int slot, int time)
{
	if (slot == NO_SLOT)
		return;

	struct memory_item *in = &compile->compiled->slots[slot];

	in->last = time > in->last ? time : in->last;
}

/* Make the copies between a value's layout and the one that node needs (preferred). */
static int make_copies(struct compile *compile, struct node *node, const struct layout *value,
		       bool wants_gradient)
{
	struct dnnl_context *dnnl = compile->compiled->cpu->dnnl;
	int rc = 0;

	if (!layout_equal(value, &node->preferred))
		rc = cpu_reorder_new(dnnl, value, &node->preferred, &node->copy_in, compile->err);
	if (!rc && wants_gradient && !layout_equal(value, &node->preferred_dx))
		rc = cpu_reorder_new(dnnl, &node->preferred_dx, value, &node->copy_out,
				     compile->err);
	return rc;
}

/* The batch norm kernels need blocks that divide a vector. */
static bool has_norm(const struct graph *graph)
{
	for (int i = 0; i < graph->op_count; i++)
		if (graph->ops[i].kind == OP_BATCHNORM)
			return true;
	return false;
}

static int make_conv(struct compile *compile, struct node *node)
{
	const struct executor_request *request = compile->compiled->request;
	struct cpu_conv_request wanted = {
		.x = node->x,
		.outputs = (int)request->graph->params[node->fused.op->weight].shape[0],
		.window = node->fused.op->attributes,
		.bias = node->fused.op->bias >= 0,
		.backward = request->train,
		.dx = request->train && node->fused.input,
		.direct = request->direct,
		.nhwc = !has_norm(compile->graph),
	};
	struct cpu_conv_choice choice;
	int rc = cpu_conv_new(compile->compiled->cpu->dnnl, &wanted, &node->conv, &choice,
			      compile->err);

	if (rc)
		return rc;
	node->preferred = choice.x;
	node->preferred_dx = choice.dx;
	node->y = choice.y;
	node->scratch = choice.scratch;
	return make_copies(compile, node, &node->x, wanted.dx);
}

static int make_linear(struct compile *compile, struct node *node)
{
	const struct executor_request *request = compile->compiled->request;
	const struct graph_param *w = &request->graph->params[node->fused.op->weight];
	int rc = cpu_linear_new(compile->compiled->cpu->dnnl, node->x.n, (int)w->shape[1],
				(int)w->shape[0], node->fused.op->bias >= 0, request->train,
				&node->linear, &node->scratch, compile->err);

	if (rc)
		return rc;
	node->preferred = node->x;
	node->preferred.block = 1;
	node->preferred_dx = node->preferred;
	node->y = (struct layout){node->x.n, (int)w->shape[0], 1, 1, 1};
	return make_copies(compile, node, &node->x, request->train && node->fused.input);
}

static int make_norm_memory(struct compile *compile, struct node *node)
{
	const struct planes planes = planes_of(&node->x);

	if (is_training(compile) && planes.n * planes.height * planes.width == 1)
		return error_set(
			compile->err, ERR_DATA,
			"in training, batch norm needs at least two values per channel, but a "
			"batch of one 1x1 image has only one. Use larger images or another --batch "
			"(an epoch's last batch may hold a single sample)");
	node->saved = calloc(2 * planes.channels, sizeof *node->saved);
	node->lanes = calloc(norm_lanes(&planes), sizeof *node->lanes);
	return node->saved && node->lanes ? 0 : error_memory(compile->err, "a layer");
}

/* Make the node's layer, and determine its result's layout. */
static int make_layer(struct compile *compile, struct node *node)
{
	struct compiled_graph *compiled = compile->compiled;
	const struct shape *y = &compile->graph->values[node->fused.output];
	int rc = 0;

	node->x = compiled->layouts[node->fused.input];
	node->y = (struct layout){compiled->count, y->channels, y->height, y->width, node->x.block};
	if (node->fused.kind == OP_CONV2D)
		rc = make_conv(compile, node);
	else if (node->fused.kind == OP_LINEAR)
		rc = make_linear(compile, node);
	else if (node->fused.kind == OP_AVGPOOL)
		node->y.block = 1;
	else if (node->fused.kind == OP_BATCHNORM)
		rc = make_norm_memory(compile, node);
	if (!rc && node->fused.input2 >= 0) {
		node->preferred = node->preferred_dx = node->x;
		rc = make_copies(compile, node, &compiled->layouts[node->fused.input2],
				 is_training(compile) && node->fused.input2);
	}
	compiled->layouts[node->fused.output] = node->y;
	return rc;
}

/* ---- slots: forward ---- */

static void touch_value(struct compile *compile, int value, int time)
{
	extend_lifetime(compile, compile->compiled->value_slots[value], time);
}

static void place_forward(struct compile *compile, int time)
{
	struct compiled_graph *compiled = compile->compiled;
	struct node *node = &compiled->nodes[time];
	int *slots = compiled->value_slots;

	touch_value(compile, node->fused.input, time);
	if (node->fused.input2 >= 0)
		touch_value(compile, node->fused.input2, time);
	if (node->copy_in)
		node->preferred_slot = value_slot(compile, &node->preferred, time);
	if (node->fused.kind == OP_MAXPOOL2D)
		node->argmax_slot =
			add_slot(compile, layout_count(&node->y) * sizeof(uint16_t), time);
	/* A ReLU that is the only reader of a value works in its slot: no gradient needs the old
	 * contents. */
	if (node->fused.kind == OP_RELU && node->fused.input &&
	    compile->readers[node->fused.input] == 1)
		slots[node->fused.output] = slots[node->fused.input];
	else
		slots[node->fused.output] = value_slot(compile, &node->y, time);
}

/* ---- slots: backward ---- */

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

/* Make the parts of the gradient of node's result the node's own, at most max of them to be read
 * directly. */
static int collect_parts(struct compile *compile, struct node *node, int max, int time)
{
	struct parts *parts = &compile->parts[node->fused.output];

	if (!parts->count)
		return error_set(compile->err, ERR_INTERNAL,
				 "model %s: nothing reads the result of op %s",
				 compile->graph->model, op_name(node->fused.op->kind));
	node->dy_count = parts->count;
	for (int i = 0; i < parts->count; i++) {
		node->dy[i] = parts->slots[i];
		compile->claims[parts->slots[i]]--;
		extend_lifetime(compile, parts->slots[i], time);
	}
	if (parts->count > max)
		node->sum_slot = is_free(compile, node->dy[0])
					 ? node->dy[0]
					 : value_slot(compile, &node->y, time);
	return 0;
}

/* The slot of dy after summation. */
static int dy_slot(const struct node *node)
{
	return node->sum_slot == NO_SLOT ? node->dy[0] : node->sum_slot;
}

/* The gradient of node's input is in slot, or where copy_out puts it. */
static void provide_input_gradient(struct compile *compile, struct node *node, int slot, int time)
{
	node->dx_slot = slot;
	if (node->copy_out) {
		node->preferred_dx_slot = slot;
		node->dx_slot = value_slot(compile, &node->x, time);
	}
	add_part(compile, node->fused.input, node->dx_slot);
}

/* The same of input2. */
static void provide_input2_gradient(struct compile *compile, struct node *node, int slot, int time)
{
	node->dz_slot = node->dx2_slot = slot;
	if (node->copy_out)
		node->dx2_slot =
			value_slot(compile, &compile->compiled->layouts[node->fused.input2], time);
	add_part(compile, node->fused.input2, node->dx2_slot);
}

/* Gradients reuse the slots of the gradients they are made from, if no other node reads these. */
static void place_norm(struct compile *compile, struct node *node, int time)
{
	bool two = node->sum_slot == NO_SLOT && node->dy_count == 2;
	int first = dy_slot(node), dx;
	bool first_free = is_free(compile, first);

	if (node->fused.input2 > 0) {
		provide_input2_gradient(compile, node,
					first_free ? first : value_slot(compile, &node->y, time),
					time);
		first_free = false;
	}
	if (!node->fused.input)
		return;
	if (first_free)
		dx = first;
	else if (two && is_free(compile, node->dy[1]))
		dx = node->dy[1];
	else
		dx = value_slot(compile, &node->x, time);
	node->dx_slot = dx;
	add_part(compile, node->fused.input, dx);
}

static int place_backward(struct compile *compile, int index)
{
	struct compiled_graph *compiled = compile->compiled;
	struct node *node = &compiled->nodes[index];
	int time = 2 * compiled->node_count - index;
	int rc = collect_parts(compile, node, node->fused.kind == OP_BATCHNORM ? 2 : 1, time), dy;

	if (rc)
		return rc;
	dy = dy_slot(node);
	switch (node->fused.kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		extend_lifetime(compile,
				node->copy_in ? node->preferred_slot
					      : compiled->value_slots[node->fused.input],
				time);
		if (node->fused.input)
			provide_input_gradient(compile, node,
					       value_slot(compile, &node->preferred_dx, time),
					       time);
		return 0;
	case OP_BATCHNORM:
		touch_value(compile, node->fused.input, time);
		if (node->fused.input2 >= 0 && node->fused.relu)
			touch_value(compile, node->fused.output, time);
		place_norm(compile, node, time);
		return 0;
	case OP_RELU:
		touch_value(compile, node->fused.output, time);
		if (node->fused.input)
			provide_input_gradient(
				compile, node,
				is_free(compile, dy) ? dy : value_slot(compile, &node->x, time),
				time);
		return 0;
	case OP_ADD:
		/* Both inputs get the incoming gradient: one slot serves both. */
		if (node->fused.input)
			add_part(compile, node->fused.input, dy);
		if (node->fused.input2)
			provide_input2_gradient(compile, node, dy, time);
		return 0;
	default:
		extend_lifetime(compile, node->argmax_slot, time);
		if (node->fused.input)
			provide_input_gradient(compile, node, value_slot(compile, &node->x, time),
					       time);
		return 0;
	}
}

static int place(struct compile *compile)
{
	struct compiled_graph *compiled = compile->compiled;
	int n = compiled->node_count, output = compile->graph->output, rc = 0;
	size_t scratch = 0, sums = 0;

	for (int i = 0; i < n; i++) {
		const struct node *node = &compiled->nodes[i];
		const struct planes planes = planes_of(&node->x);

		place_forward(compile, i);
		scratch = node->scratch > scratch ? node->scratch : scratch;
		if (node->fused.kind == OP_BATCHNORM && norm_sums(&planes) > sums)
			sums = norm_sums(&planes);
	}
	touch_value(compile, output, n);
	if (is_training(compile)) {
		compiled->loss_gradient = value_slot(compile, &compiled->layouts[output], n);
		add_part(compile, output, compiled->loss_gradient);
		for (int i = n - 1; !rc && i >= 0; i--)
			rc = place_backward(compile, i);
	}
	if (rc)
		return rc;
	compiled->scratch_slot = add_slot(compile, (scratch + 16) * sizeof(float), 0);
	compiled->sums_slot = add_slot(compile, (sums + 8) * sizeof(double), 0);
	extend_lifetime(compile, compiled->scratch_slot, 2 * n);
	extend_lifetime(compile, compiled->sums_slot, 2 * n);
	return memory_plan(compiled->slots, (size_t)compiled->slot_count, 64,
			   &compiled->arena_bytes, compile->err);
}

/* ---- the whole graph ---- */

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
	struct compiled_graph *compiled = compile->compiled;
	const struct shape *x = &compile->graph->values[0];
	int rc = check_graph(compile);

	if (!rc)
		rc = make_nodes(compile);
	compiled->layouts[0] =
		(struct layout){compiled->count, x->channels, x->height, x->width, 1};
	for (int i = 0; !rc && i < compiled->node_count; i++)
		rc = make_layer(compile, &compiled->nodes[i]);
	if (!rc && compiled->layouts[compile->graph->output].block != 1)
		rc = error_set(compile->err, ERR_INTERNAL, "the output of model %s is not a vector",
			       compile->graph->model);
	return rc ? rc : place(compile);
}

int compiled_graph_new(struct cpu *cpu, const struct executor_request *request, int count,
		       struct compiled_graph **out, struct error *err)
{
	const struct graph *graph = request->graph;
	size_t ops = (size_t)graph->op_count + 1, values = (size_t)graph->value_count;
	size_t slots = 8 * ops + 8; /* a node makes at most 5 */
	struct compiled_graph *compiled = calloc(1, sizeof *compiled);
	struct compile compile = {
		.compiled = compiled,
		.graph = graph,
		.readers = fuse_readers(graph),
		.parts = calloc(values, sizeof(struct parts)),
		.claims = calloc(slots, sizeof(int)),
		.err = err,
	};
	int rc;

	if (compiled)
		*compiled = (struct compiled_graph){
			.cpu = cpu,
			.request = request,
			.count = count,
			.nodes = calloc(ops, sizeof *compiled->nodes),
			.slots = calloc(slots, sizeof *compiled->slots),
			.layouts = calloc(values, sizeof *compiled->layouts),
			.value_slots = calloc(values, sizeof *compiled->value_slots),
			.slot_count = NO_SLOT + 1,
		};
	if (!compiled || !compiled->nodes || !compiled->slots || !compiled->layouts ||
	    !compiled->value_slots || !compile.readers || !compile.parts || !compile.claims)
		rc = error_memory(err, "a training step");
	else
		rc = compile_all(&compile);
	free(compile.readers);
	free(compile.parts);
	free(compile.claims);
	if (rc)
		compiled_graph_free(compiled);
	else
		*out = compiled;
	return rc;
}

void compiled_graph_free(struct compiled_graph *compiled)
{
	if (!compiled)
		return;
	for (int i = 0; compiled->nodes && i < compiled->node_count; i++) {
		struct node *node = &compiled->nodes[i];

		cpu_conv_free(node->conv);
		cpu_linear_free(node->linear);
		cpu_reorder_free(node->copy_in);
		cpu_reorder_free(node->copy_out);
		free(node->saved);
		free(node->lanes);
	}
	free(compiled->nodes);
	free(compiled->slots);
	free(compiled->layouts);
	free(compiled->value_slots);
	free(compiled);
}
