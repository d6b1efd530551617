/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/step_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

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

/* ---- text ---- */

void step_node_name(const struct step_node *node, char *text, size_t size)
{
	snprintf(text, size, "%s%s%s", op_name(node->kind),
		 node->kind == OP_BATCHNORM && node->input2 >= 0 ? "+add" : "",
		 node->kind != OP_RELU && node->relu ? "+relu" : "");
}

static void write_op(FILE *out, const struct step_node *node)
{
	const struct op_attributes *window = &node->op->attributes;
	char text[64];

	step_node_name(node, text, sizeof text);
	if (node->kind == OP_CONV2D || node->kind == OP_MAXPOOL2D) {
		text_append(text, sizeof text, " %dx%d", window->kernel, window->kernel);
		if (window->stride > 1)
			text_append(text, sizeof text, "/%d", window->stride);
	}
	fprintf(out, " %-18s", text);
}

static void write_shape(FILE *out, const struct shape *shape)
{
	char text[32];

	snprintf(text, sizeof text, "%dx%dx%d", shape->channels, shape->height, shape->width);
	fprintf(out, " %-12s", text);
}

#define COLUMN_BYTES 64

/* Append a slot's number to a column. */
static void append(char *column, const char *before, int slot)
{
	char number[12] = "-";

	if (slot != NO_SLOT)
		snprintf(number, sizeof number, "%d", slot);
	text_append(column, COLUMN_BYTES, "%s%s", before, number);
}

/* "3+1 > 4": reads slots 3 and 1, writes slot 4. -: the input, which the caller keeps. */
static void write_slots(FILE *out, const struct step_node *node)
{
	char column[COLUMN_BYTES] = "";

	append(column, "", node->x);
	if (node->input2 >= 0)
		append(column, "+", node->z);
	append(column, " > ", node->y);
	fprintf(out, " %-12s", column);
}

/* "5+7=8 > 9,6": adds slots 5 and 7 in slot 8, and writes the gradients of the inputs to 9 and 6;
 * "+9": adds to it. */
static void write_gradient_slots(FILE *out, const struct step_node *node)
{
	char column[COLUMN_BYTES] = "";

	for (int i = 0; i < node->dy_count; i++)
		append(column, i ? "+" : "", node->dy[i]);
	if (node->sum != NO_SLOT)
		append(column, "=", node->sum);
	append(column, node->add_dx ? " > +" : " > ", node->dx);
	if (node->input2 >= 0)
		append(column, node->add_dz ? ",+" : ",", node->dz);
	fprintf(out, " %-14s", column);
}

static void write_cost(FILE *out, const struct step_cost *cost)
{
	fprintf(out, " %9.3f %9.3f", cost->flop / 1e9, cost->bytes / 1e6);
}

static void add_cost(struct step_cost *sum, const struct step_cost *cost)
{
	sum->flop += cost->flop;
	sum->bytes += cost->bytes;
}

static void write_node(FILE *out, const struct step_plan *plan, int index, int samples,
		       size_t element, struct step_cost sums[2])
{
	const struct step_node *node = &plan->nodes[index];
	struct step_cost costs[2] = {0};

	for (enum step_pass pass = STEP_FORWARD; pass < STEP_PASSES; pass++) {
		struct step_cost cost = step_node_cost(plan, node, pass, samples, element);

		add_cost(&costs[pass != STEP_FORWARD], &cost);
	}
	fprintf(out, "%4d", index);
	write_op(out, node);
	write_shape(out, &plan->graph->values[node->input]);
	write_shape(out, &plan->graph->values[node->output]);
	write_slots(out, node);
	write_cost(out, &costs[0]);
	if (plan->train) {
		write_gradient_slots(out, node);
		write_cost(out, &costs[1]);
	}
	fprintf(out, "\n");
	for (int i = 0; i < 2; i++)
		add_cost(&sums[i], &costs[i]);
}

static void write_memory(FILE *out, const struct step_plan *plan)
{
	double all = 0, scratch = 0;

	for (int i = 0; i < plan->slot_count; i++)
		all += (double)plan->slots[i].size_bytes;
	for (int i = 0; i < STEP_SCRATCHES; i++)
		scratch += (double)plan->slots[plan->scratch[i]].size_bytes;
	fprintf(out,
		"memory of the %d slots: %.3f MB, of which %.3f MB are scratch; %.3f MB if none "
		"shared a place\n",
		plan->slot_count, (double)plan->arena_bytes / 1e6, scratch / 1e6, all / 1e6);
}

char *step_plan_text(const struct step_plan *plan, const char *title, int samples, size_t element)
{
	struct step_cost sums[2] = {0};
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	bool failed;

	if (!out)
		return NULL;
	fprintf(out, "%s\n", title);
	fprintf(out, "node %-18s %-12s %-12s %-12s %9s %9s%s\n", "op", "x", "y", "slots", "GFLOP",
		"MB", plan->train ? " gradients          GFLOP        MB" : "");
	for (int i = 0; i < plan->node_count; i++)
		write_node(out, plan, i, samples, element, sums);
	fprintf(out, "%-62s", "sum");
	write_cost(out, &sums[0]);
	if (plan->train) {
		fprintf(out, " %-14s", "");
		write_cost(out, &sums[1]);
	}
	fprintf(out, "\n");
	write_memory(out, plan);
	failed = ferror(out);
	if (fclose(out) || failed) {
		free(text);
		return NULL;
	}
	return text;
}
