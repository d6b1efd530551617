/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/device/cpu/cpu.h"

/* One run of a compiled graph. */
struct run {
	struct compiled_graph *compiled;
	char *arena;
	const float *x; /* the input, owned by the caller */
	bool add;
	struct executor_common *common; /* see compiled_graph_backward */
};

static float *at(const struct run *run, int slot)
{
	return slot == NO_SLOT ? NULL
			       : (float *)(run->arena + run->compiled->plan.slots[slot].offset);
}

/* In a slot of the forward pass; the input has none. */
static const float *value(const struct run *run, int slot)
{
	return slot == NO_SLOT ? run->x : at(run, slot);
}

static float *param(const struct run *run, float *flat, int index)
{
	return index < 0 || !flat ? NULL : flat + run->compiled->request->buckets->offsets[index];
}

static float *buffer(const struct run *run, int index)
{
	const struct executor_request *request = run->compiled->request;

	return index < 0 ? NULL : request->buffers + request->graph->buffers[index].offset;
}

/* What node reads in its own layout: the copy, or the value itself. */
static const float *preferred(const struct run *run, const struct cpu_node *node, int slot)
{
	return node->copy_in ? at(run, node->step->copy) : value(run, slot);
}

static struct layer_memory layer_memory(const struct run *run, const struct cpu_node *node)
{
	const struct executor_request *request = run->compiled->request;

	return (struct layer_memory){
		.x = preferred(run, node, node->step->x),
		.w = param(run, request->weights, node->step->op->weight),
		.b = param(run, request->weights, node->step->op->bias),
		.y = at(run, node->step->y),
		.dw = param(run, request->gradients, node->step->op->weight),
		.db = param(run, request->gradients, node->step->op->bias),
		.scratch = at(run, run->compiled->plan.scratch[SCRATCH_LAYER]),
		.add_dw = run->add,
	};
}

static struct norm_call norm_call(const struct run *run, const struct cpu_node *node)
{
	const struct executor_request *request = run->compiled->request;
	const struct graph_op *op = node->step->op;

	return (struct norm_call){
		.planes = planes_of(&node->x),
		.eps = op->eps,
		.momentum = op->momentum,
		.training = request->train,
		.relu = node->step->relu,
		.add_dw = run->add,
		.x = value(run, node->step->x),
		.residual = node->step->input2 < 0 ? NULL : preferred(run, node, node->step->z),
		.w = param(run, request->weights, op->weight),
		.b = param(run, request->weights, op->bias),
		.y = at(run, node->step->y),
		.mean = buffer(run, op->mean),
		.variance = buffer(run, op->variance),
		.saved_mean = node->saved,
		.saved_invstd = node->saved + node->x.channels,
		.dw = param(run, request->gradients, op->weight),
		.db = param(run, request->gradients, op->bias),
		.sums = (double *)at(run, run->compiled->plan.scratch[SCRATCH_SUMS]),
		.lanes = node->lanes,
	};
}

static uint16_t *argmax(const struct run *run, const struct cpu_node *node)
{
	return (uint16_t *)at(run, node->step->kept);
}

static int copy_in(const struct run *run, const struct cpu_node *node, struct error *err)
{
	int from = node->step->input2 >= 0 ? node->step->z : node->step->x;

	if (!node->copy_in)
		return 0;
	return cpu_reorder_run(node->copy_in, value(run, from), at(run, node->step->copy), err);
}

static int node_forward(const struct run *run, const struct cpu_node *node, struct error *err)
{
	const struct kernels *kernels = run->compiled->cpu->kernels;
	const struct layer_memory memory = layer_memory(run, node);
	const struct planes planes = planes_of(&node->x);
	const float *x = value(run, node->step->x);
	int rc = copy_in(run, node, err);

	if (rc)
		return rc;
	switch (node->step->kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return cpu_conv_forward(node->conv, &memory, err);
	case OP_BATCHNORM: {
		const struct norm_call call = norm_call(run, node);

		kernels->norm_forward(&call);
		return 0;
	}
	case OP_RELU:
		kernels->relu_forward(x, memory.y, layout_count(&node->y));
		return 0;
	case OP_ADD:
		kernels->add(x, preferred(run, node, node->step->z), memory.y,
			     layout_count(&node->y));
		return 0;
	case OP_MAXPOOL2D:
		kernels->maxpool_forward(&planes, &node->step->op->attributes, x, memory.y,
					 argmax(run, node));
		return 0;
	case OP_AVGPOOL:
		kernels->avgpool_forward(&planes, x, memory.y);
		return 0;
	default:
		return error_set(err, ERR_INTERNAL, "a node has an unknown kind");
	}
}

int compiled_graph_forward(struct compiled_graph *compiled, char *arena, const float *x,
			   struct error *err)
{
	const struct run run = {compiled, arena, x, false, NULL};
	int rc = 0;

	for (int i = 0; !rc && i < compiled->plan.node_count; i++)
		rc = node_forward(&run, &compiled->nodes[i], err);
	return rc;
}

const float *compiled_graph_output(const struct compiled_graph *compiled, char *arena)
{
	return (const float *)(arena + compiled->plan.slots[compiled->plan.output].offset);
}

float *compiled_graph_output_gradient(const struct compiled_graph *compiled, char *arena)
{
	return (float *)(arena + compiled->plan.slots[compiled->plan.output_gradient].offset);
}

/* ---- backward ---- */

/* The gradient of node's result, summed if it has more parts than node reads. */
static const float *gradient(const struct run *run, const struct cpu_node *node)
{
	const float *first = at(run, node->step->dy[0]);
	float *sum = at(run, node->step->sum);

	if (!sum)
		return first;
	for (int i = 1; i < node->step->dy_count; i++) {
		run->compiled->cpu->kernels->add(first, at(run, node->step->dy[i]), sum,
						 layout_count(&node->y));
		first = sum;
	}
	return sum;
}

static int params_ready(const struct run *run, const struct cpu_node *node, struct error *err)
{
	return run->common ? executor_common_op_ready(run->common, node->step->op, err) : 0;
}

/* Parameters first: their bucket can be reduced while the rest is computed. */
static int layer_backward(const struct run *run, const struct cpu_node *node, const float *dy,
			  struct error *err)
{
	struct layer_memory memory = layer_memory(run, node);
	int rc;

	memory.dy = dy;
	memory.dx = at(run, node->step->dx);
	rc = cpu_conv_backward_weights(node->conv, &memory, err);
	if (!rc)
		rc = params_ready(run, node, err);
	if (!rc && memory.dx)
		rc = cpu_conv_backward_input(node->conv, &memory, err);
	if (!rc && node->copy_out)
		rc = cpu_reorder_run(node->copy_out, memory.dx, at(run, node->step->copy_out), err);
	return rc;
}

static int norm_backward(const struct run *run, const struct cpu_node *node, const float *dy,
			 struct error *err)
{
	struct norm_call call = norm_call(run, node);

	call.dy = dy;
	if (node->step->sum == NO_SLOT && node->step->dy_count == 2)
		call.dy2 = at(run, node->step->dy[1]);
	call.dz = at(run, node->step->dz);
	call.dx = at(run, node->step->dx);
	run->compiled->cpu->kernels->norm_backward(&call);
	return params_ready(run, node, err);
}

static int node_backward(const struct run *run, const struct cpu_node *node, struct error *err)
{
	const struct kernels *kernels = run->compiled->cpu->kernels;
	const struct planes planes = planes_of(&node->x);
	const float *dy = gradient(run, node), *y = at(run, node->step->y);
	float *dx = at(run, node->step->dx);
	int rc = 0;

	switch (node->step->kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return layer_backward(run, node, dy, err);
	case OP_BATCHNORM:
		rc = norm_backward(run, node, dy, err);
		break;
	case OP_RELU:
		if (dx)
			kernels->relu_backward(y, dy, dx, layout_count(&node->y));
		break;
	case OP_MAXPOOL2D:
		if (dx)
			kernels->maxpool_backward(&planes, &node->step->op->attributes,
						  argmax(run, node), dy, dx);
		break;
	case OP_AVGPOOL:
		if (dx)
			kernels->avgpool_backward(&planes, dy, dx);
		break;
	case OP_ADD: /* both gradients are dy itself */
		break;
	default:
		return error_set(err, ERR_INTERNAL, "a node has an unknown kind");
	}
	if (!rc && node->copy_out)
		rc = cpu_reorder_run(node->copy_out, at(run, node->step->dz),
				     at(run, node->step->copy_out), err);
	return rc;
}

int compiled_graph_backward(struct compiled_graph *compiled, char *arena, const float *x, bool add,
			    struct executor_common *common, struct error *err)
{
	const struct run run = {compiled, arena, x, add, common};
	int rc = 0;

	for (int i = compiled->plan.node_count - 1; !rc && i >= 0; i--)
		rc = node_backward(&run, &compiled->nodes[i], err);
	return rc;
}
