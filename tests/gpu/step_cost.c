/* SPDX-License-Identifier: BSD-3-Clause */
#include "step_cost.h"

#include <stdio.h>

/* One node with the bytes of its values. */
struct costing {
	const struct step_plan *plan;
	const struct step_node *node;
	double samples, element, x, y;
};

static double bytes_of(const struct costing *costing, int value)
{
	return (double)shape_count(&costing->plan->graph->values[value]) * costing->samples *
	       costing->element;
}

static struct step_cost layer_cost(const struct costing *costing, enum step_pass pass)
{
	const struct step_node *node = costing->node;
	const struct shape *y = &costing->plan->graph->values[node->output];
	double count = (double)costing->plan->graph->params[node->op->weight].count;
	double places = node->kind == OP_CONV2D ? (double)y->height * y->width : 1;
	double x = costing->x;
	struct step_cost cost = {.flop = 2 * costing->samples * places * count};

	if (pass == STEP_WEIGHTS)
		cost.bytes = x + costing->y + count * sizeof(float);
	else if (pass == STEP_FORWARD)
		cost.bytes = x + costing->y + count * costing->element;
	else if (node->dx == NO_SLOT)
		cost.flop = 0;
	else
		cost.bytes = costing->y + count * costing->element + (node->add_dx ? 2 * x : x);
	return cost;
}

/* An addition's gradients are copies of dy, unless they lie in its place. */
static double copy_bytes(const struct costing *costing, int slot, bool add)
{
	bool there = slot == NO_SLOT || slot == step_node_dy(costing->node);

	return there ? 0 : (add ? 3 : 2) * costing->y;
}

/* Reads and writes of x and y. */
static double elementwise_bytes(const struct costing *costing, bool backward)
{
	const struct step_node *node = costing->node;
	double x = costing->x, y = costing->y, z = node->input2 >= 0 ? x : 0;
	/* Writing a gradient of the input's size, and reading what it is added to. */
	double dx = node->dx == NO_SLOT ? 0 : node->add_dx ? 2 * x : x;
	double dz = node->dz == NO_SLOT ? 0 : node->add_dz ? 2 * x : x;

	switch (node->kind) {
	case OP_BATCHNORM: /* statistics, then the result; sums, then the gradient */
		return backward ? 4 * x + dx + dz : 2 * x + y + z;
	case OP_RELU:
		return !backward ? x + y : node->dx == NO_SLOT ? 0 : 2 * y + dx;
	case OP_ADD:
		return backward ? copy_bytes(costing, node->dx, node->add_dx) +
					  copy_bytes(costing, node->dz, node->add_dz)
				: 2 * x + y;
	case OP_MAXPOOL2D: /* and the positions, as bytes */
		return (backward ? dx : x) + y + y / costing->element;
	default:
		return (backward ? dx : x) + y;
	}
}

struct step_cost step_node_cost(const struct step_plan *plan, const struct step_node *node,
				enum step_pass pass, int samples, size_t element)
{
	struct costing costing = {plan, node, samples, (double)element, 0, 0};

	costing.x = bytes_of(&costing, node->input);
	costing.y = bytes_of(&costing, node->output);
	if (pass != STEP_FORWARD && !plan->train)
		return (struct step_cost){0};
	if (step_node_is_layer(node))
		return layer_cost(&costing, pass);
	if (pass == STEP_WEIGHTS)
		return (struct step_cost){0};
	return (struct step_cost){.bytes = elementwise_bytes(&costing, pass == STEP_INPUT)};
}

void step_node_name(const struct step_node *node, char *text, size_t size)
{
	snprintf(text, size, "%s%s%s", op_name(node->kind),
		 node->kind == OP_BATCHNORM && node->input2 >= 0 ? "+add" : "",
		 node->kind != OP_RELU && node->relu ? "+relu" : "");
}
