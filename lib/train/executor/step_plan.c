/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/step_plan.h"

#include <stdlib.h>

/* Slots of one node: y, copy, kept, sum, dx, dz, copy_out. */
#define NODE_SLOTS 7

/* ---- nodes ---- */

struct fusing {
	struct step_plan *plan;
	const struct graph *graph;	 /* the plan's */
	const struct graph_op **norm_of; /* per OP_ADD: the batch norm that performs it, or NULL */
	bool *done;			 /* per op */
};

static void count_readers(struct step_plan *plan)
{
	const struct graph *graph = plan->graph;

	plan->readers[graph->output]++;
	for (int i = 0; i < graph->op_count; i++) {
		plan->readers[graph->ops[i].input]++;
		if (graph->ops[i].input2 >= 0)
			plan->readers[graph->ops[i].input2]++;
	}
}

static int check_graph(const struct step_plan *plan, struct error *err)
{
	const struct graph *graph = plan->graph;

	for (int i = 0; i < graph->op_count; i++) {
		const struct graph_op *op = &graph->ops[i];
		int readers = plan->readers[op->output];

		if (op->input == op->input2)
			return error_set(err, ERR_INTERNAL,
					 "model %s: op %d (%s) reads one value twice", graph->model,
					 i, op_name(op->kind));
		if (op->kind > OP_AVGPOOL)
			return error_set(err, ERR_INTERNAL, "op %s cannot be part of a network",
					 op_name(op->kind));
		if (readers < 1 || readers > STEP_READERS_MAX)
			return error_set(err, ERR_INTERNAL,
					 "model %s: the result of op %d (%s) is read %d times, "
					 "expected 1 to %d",
					 graph->model, i, op_name(op->kind), readers,
					 STEP_READERS_MAX);
	}
	return 0;
}

/* The only op that reads value, if it is of this kind; else -1. */
static int only_reader(const struct fusing *fusing, int value, enum op_kind kind)
{
	const struct graph *graph = fusing->graph;

	for (int i = 0; fusing->plan->readers[value] == 1 && i < graph->op_count; i++)
		if (graph->ops[i].input == value || graph->ops[i].input2 == value)
			return graph->ops[i].kind == kind ? i : -1;
	return -1;
}

static struct step_node *node_new(struct fusing *fusing, const struct graph_op *op)
{
	struct step_node *node = &fusing->plan->nodes[fusing->plan->node_count++];

	*node = (struct step_node){
		.kind = op->kind,
		.op = op,
		.input = op->input,
		.input2 = op->input2,
		.output = op->output,
		.copy = NO_SLOT,
		.kept = NO_SLOT,
		.sum = NO_SLOT,
		.dx = NO_SLOT,
		.dz = NO_SLOT,
		.copy_out = NO_SLOT,
	};
	return node;
}

static void take_relu(struct fusing *fusing, struct step_node *node)
{
	int relu = only_reader(fusing, node->output, OP_RELU);

	if (relu < 0)
		return;
	node->relu = true;
	node->output = fusing->graph->ops[relu].output;
	fusing->done[relu] = true;
}

/* A batch norm whose result is only added to something must wait until that value exists. */
static void fuse_norm(struct fusing *fusing, int index)
{
	const struct graph_op *op = &fusing->graph->ops[index];
	int add = only_reader(fusing, op->output, OP_ADD);

	if (add >= 0 && !fusing->norm_of[add])
		fusing->norm_of[add] = op;
	else
		take_relu(fusing, node_new(fusing, op));
}

static void fuse_add(struct fusing *fusing, int index)
{
	const struct graph_op *op = &fusing->graph->ops[index], *norm = fusing->norm_of[index];
	struct step_node *node = node_new(fusing, norm ? norm : op);

	if (!norm)
		return;
	node->input2 = op->input == norm->output ? op->input2 : op->input;
	node->output = op->output;
	take_relu(fusing, node);
}

static void fuse(struct fusing *fusing)
{
	for (int i = 0; i < fusing->graph->op_count; i++) {
		const struct graph_op *op = &fusing->graph->ops[i];

		if (fusing->done[i])
			continue;
		if (op->kind == OP_BATCHNORM)
			fuse_norm(fusing, i);
		else if (op->kind == OP_ADD)
			fuse_add(fusing, i);
		else
			node_new(fusing, op);
	}
}

int step_plan_make(const struct graph *graph, bool train, struct step_plan *out, struct error *err)
{
	size_t ops = (size_t)graph->op_count + 1;
	struct step_plan plan = {
		.graph = graph,
		.train = train,
		.nodes = calloc(ops, sizeof *plan.nodes),
		.readers = calloc((size_t)graph->value_count, sizeof *plan.readers),
		.slots = calloc(NODE_SLOTS * ops + 2 + STEP_SCRATCHES, sizeof *plan.slots),
	};
	struct fusing fusing = {.plan = &plan,
				.graph = graph,
				.norm_of = calloc(ops, sizeof *fusing.norm_of),
				.done = calloc(ops, sizeof *fusing.done)};
	int rc;

	if (plan.nodes && plan.readers && plan.slots && fusing.norm_of && fusing.done) {
		count_readers(&plan);
		rc = check_graph(&plan, err);
	} else {
		rc = error_memory(err, "a training step");
	}
	if (!rc)
		fuse(&fusing);
	free(fusing.norm_of);
	free(fusing.done);
	if (rc)
		step_plan_free(&plan);
	else
		*out = plan;
	return rc;
}

void step_plan_free(struct step_plan *plan)
{
	free(plan->nodes);
	free(plan->readers);
	free(plan->slots);
	*plan = (struct step_plan){0};
}

/* ---- slots ---- */

/* The slots of the parts of a value's gradient. */
struct parts {
	int slots[STEP_READERS_MAX], count;
};

struct placing {
	struct step_plan *plan;
	const struct step_rules *rules;
	int *values;	     /* slot per value */
	struct parts *parts; /* per value */
	int *claims;	     /* per slot: how many gradients it is a part of */
};

static int add_slot(struct placing *placing, size_t size_bytes, int time)
{
	struct step_plan *plan = placing->plan;

	plan->slots[plan->slot_count] = (struct memory_item){size_bytes, time, time, 0};
	return plan->slot_count++;
}

static int add_slot_if(struct placing *placing, size_t size_bytes, int time)
{
	return size_bytes ? add_slot(placing, size_bytes, time) : NO_SLOT;
}

static int value_slot(struct placing *placing, int value, int time)
{
	return add_slot(placing, placing->rules->value_bytes[value], time);
}

static void extend_lifetime(struct placing *placing, int slot, int time)
{
	struct memory_item *slots = placing->plan->slots;

	if (slot != NO_SLOT && time > slots[slot].last)
		slots[slot].last = time;
}

/* ---- slots: forward ---- */

static void place_forward(struct placing *placing, int index)
{
	struct step_node *node = &placing->plan->nodes[index];
	const struct step_size *size = &placing->rules->sizes[index];
	int *values = placing->values;

	node->x = values[node->input];
	node->z = node->input2 < 0 ? NO_SLOT : values[node->input2];
	extend_lifetime(placing, node->x, index);
	extend_lifetime(placing, node->z, index);
	node->copy = add_slot_if(placing, size->copy, index);
	node->kept = add_slot_if(placing, size->kept, index);
	if (node->kind == OP_RELU && node->input && placing->plan->readers[node->input] == 1)
		node->y = node->x;
	else
		node->y = value_slot(placing, node->output, index);
	extend_lifetime(placing, node->y, index);
	values[node->output] = node->y;
}

/* ---- slots: backward ---- */

static bool is_free(const struct placing *placing, int slot)
{
	return slot != NO_SLOT && !placing->claims[slot];
}

static void add_part(struct placing *placing, int value, int slot)
{
	struct parts *parts = &placing->parts[value];

	parts->slots[parts->count++] = slot;
	placing->claims[slot]++;
}

/* Make the parts of the gradient of node's result the node's own. x + (x + z) makes one slot two
 * parts of x's gradient: their sum needs another slot. */
static void collect_parts(struct placing *placing, struct step_node *node, int time)
{
	struct parts *parts = &placing->parts[node->output];
	int max = node->kind == OP_BATCHNORM ? 2 : 1;
	bool once = true; /* is the first part no other part, too? */

	node->dy_count = parts->count;
	for (int i = 0; i < parts->count; i++) {
		node->dy[i] = parts->slots[i];
		placing->claims[node->dy[i]]--;
		extend_lifetime(placing, node->dy[i], time);
		once = once && (!i || node->dy[i] != node->dy[0]);
	}
	if (node->dy_count > max)
		node->sum = once && is_free(placing, node->dy[0])
				    ? node->dy[0]
				    : value_slot(placing, node->output, time);
}

int step_node_dy(const struct step_node *node)
{
	return node->sum == NO_SLOT ? node->dy[0] : node->sum;
}

bool step_node_is_layer(const struct step_node *node)
{
	return node->kind == OP_CONV2D || node->kind == OP_LINEAR;
}

/* What the backward pass reads of the forward pass. */
static void keep_values(struct placing *placing, const struct step_node *node, int time)
{
	if (step_node_is_layer(node))
		extend_lifetime(placing, node->copy == NO_SLOT ? node->x : node->copy, time);
	if (node->kind == OP_BATCHNORM)
		extend_lifetime(placing, node->x, time);
	if (node->kind == OP_RELU ||
	    (node->kind == OP_BATCHNORM && node->input2 >= 0 && node->relu))
		extend_lifetime(placing, node->y, time);
	extend_lifetime(placing, node->kept, time);
}

/* Where a node writes the gradient of value: to what is there, to like if that is a slot, or to one
 * of its own. */
static int gradient_slot(struct placing *placing, int value, int like, size_t own_bytes, int time,
			 bool *add)
{
	const struct parts *parts = &placing->parts[value];

	*add = placing->rules->adds && parts->count;
	if (!*add)
		return like != NO_SLOT ? like : add_slot(placing, own_bytes, time);
	extend_lifetime(placing, parts->slots[0], time);
	return parts->slots[0];
}

/* The gradient of value is in slot, or where copy_out puts it. */
static void provide(struct placing *placing, struct step_node *node, int value, int slot,
		    bool copies, int time)
{
	if (copies)
		slot = node->copy_out = value_slot(placing, value, time);
	add_part(placing, value, slot);
}

/* The slot of dy that dz may share. An addition's gradient is dy for both inputs, unless others
 * will add to it. */
static int like_of_dz(const struct placing *placing, const struct step_node *node)
{
	int dy = step_node_dy(node);

	if (node->kind == OP_ADD)
		return placing->rules->adds ? NO_SLOT : dy;
	return is_free(placing, dy) ? dy : NO_SLOT;
}

/* The slot of dy that dx may share, after dz has chosen. */
static int like_of_dx(const struct placing *placing, const struct step_node *node)
{
	int dy = step_node_dy(node);
	bool two = node->sum == NO_SLOT && node->dy_count == 2;

	switch (node->kind) {
	case OP_ADD:
		return dy;
	case OP_RELU:
		return is_free(placing, dy) ? dy : NO_SLOT;
	case OP_BATCHNORM:
		if (placing->rules->adds)
			return NO_SLOT;
		if (is_free(placing, dy) && node->dz != dy)
			return dy;
		return two && is_free(placing, node->dy[1]) ? node->dy[1] : NO_SLOT;
	default:
		return NO_SLOT;
	}
}

static void place_backward(struct placing *placing, int index)
{
	struct step_plan *plan = placing->plan;
	const size_t *bytes = placing->rules->value_bytes;
	struct step_node *node = &plan->nodes[index];
	size_t own = placing->rules->sizes[index].copy_out;
	int time = 2 * plan->node_count - index;

	collect_parts(placing, node, time);
	keep_values(placing, node, time);
	if (node->input2 > 0) {
		node->dz = gradient_slot(placing, node->input2, like_of_dz(placing, node),
					 own ? own : bytes[node->input2], time, &node->add_dz);
		if (!node->add_dz)
			provide(placing, node, node->input2, node->dz, own, time);
	}
	if (node->input) {
		bool copies = own && node->input2 < 0;

		node->dx = gradient_slot(placing, node->input, like_of_dx(placing, node),
					 copies ? own : bytes[node->input], time, &node->add_dx);
		if (!node->add_dx)
			provide(placing, node, node->input, node->dx, copies, time);
	}
}

static void place_all(struct placing *placing)
{
	struct step_plan *plan = placing->plan;
	int n = plan->node_count, output = plan->graph->output;

	plan->slot_count = 0;
	plan->input = add_slot_if(placing, placing->rules->value_bytes[0], 0);
	placing->values[0] = plan->input;
	for (int i = 0; i < n; i++)
		place_forward(placing, i);
	plan->output = placing->values[output];
	extend_lifetime(placing, plan->output, n);
	plan->output_gradient = NO_SLOT;
	if (plan->train) {
		plan->output_gradient = value_slot(placing, output, n);
		add_part(placing, output, plan->output_gradient);
		for (int i = n - 1; i >= 0; i--)
			place_backward(placing, i);
	}
	for (int i = 0; i < STEP_SCRATCHES; i++) {
		plan->scratch[i] = add_slot(placing, placing->rules->scratch_bytes[i], 0);
		extend_lifetime(placing, plan->scratch[i], 2 * n);
	}
}

int step_plan_place(struct step_plan *plan, const struct step_rules *rules, struct error *err)
{
	size_t values = (size_t)plan->graph->value_count;
	size_t slots = NODE_SLOTS * (size_t)plan->node_count + 2 + STEP_SCRATCHES;
	struct placing placing = {.plan = plan,
				  .rules = rules,
				  .values = calloc(values, sizeof *placing.values),
				  .parts = calloc(values, sizeof *placing.parts),
				  .claims = calloc(slots, sizeof *placing.claims)};
	int rc;

	if (placing.values && placing.parts && placing.claims) {
		place_all(&placing);
		rc = memory_plan(plan->slots, (size_t)plan->slot_count, rules->alignment,
				 &plan->arena_bytes, err);
	} else {
		rc = error_memory(err, "a training step");
	}
	free(placing.values);
	free(placing.parts);
	free(placing.claims);
	return rc;
}
