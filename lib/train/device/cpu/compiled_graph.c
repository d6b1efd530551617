/* SPDX-License-Identifier: BSD-3-Clause */
/* From a graph to nodes: the layers, and the layouts of values. */
#include <stdlib.h>
#include <string.h>

#include "train/device/cpu/cpu.h"

/* What compiling needs besides the result. */
struct compile {
	struct compiled_graph *compiled;
	struct error *err;
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

/* ---- layers and layouts ---- */

/* Make the copies between a value's layout and the one that node needs (preferred). */
static int make_copies(struct compile *compile, struct cpu_node *node, const struct layout *value,
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

/* A convolution or a linear layer, whose x and y are dense. */
static int make_conv(struct compile *compile, struct cpu_node *node)
{
	const struct executor_request *request = compile->compiled->request;
	const struct graph_param *w = &request->graph->params[node->step->op->weight];
	bool linear = node->step->kind == OP_LINEAR;
	int outputs = (int)w->shape[0];
	struct cpu_conv_request wanted = {
		.x = node->x,
		.outputs = outputs,
		.window = node->step->op->attributes,
		.bias = node->step->op->bias >= 0,
		.backward = request->train,
		.dx = request->train && node->step->input,
		.winograd = request->direct ? NULL : compile->compiled->cpu->kernels->winograd,
		.nhwc = !has_norm(request->graph),
		.rows = linear,
	};
	struct cpu_conv_choice choice;
	int rc;

	if (linear) {
		wanted.x = (struct layout){1, (int)w->shape[1], node->x.n, 1, 0};
		wanted.window = (struct op_attributes){.kernel = 1, .stride = 1};
	}
	rc = cpu_conv_new(compile->compiled->cpu->dnnl, &wanted, &node->conv, &choice,
			  compile->err);
	if (rc)
		return rc;
	if (linear) {
		choice.x = node->x;
		choice.x.block = 1;
		choice.dx = choice.x;
		choice.y = (struct layout){node->x.n, outputs, 1, 1, 1};
	}
	node->preferred = choice.x;
	node->preferred_dx = choice.dx;
	node->y = choice.y;
	node->scratch = choice.scratch;
	return make_copies(compile, node, &node->x, wanted.dx);
}

static int make_norm_memory(struct compile *compile, struct cpu_node *node)
{
	const struct planes planes = planes_of(&node->x);

	node->saved = calloc(2 * planes.channels, sizeof *node->saved);
	node->lanes = calloc(norm_lanes(&planes), sizeof *node->lanes);
	return node->saved && node->lanes ? 0 : error_memory(compile->err, "a layer");
}

/* Make a node's layer, and determine its result's layout. */
static int make_layer(struct compile *compile, int index)
{
	struct compiled_graph *compiled = compile->compiled;
	struct cpu_node *node = &compiled->nodes[index];
	const struct step_node *step = &compiled->plan.nodes[index];
	const struct shape *y = &compiled->plan.graph->values[step->output];
	int rc = 0;

	node->step = step;
	node->x = compiled->layouts[step->input];
	node->y = (struct layout){compiled->count, y->channels, y->height, y->width, node->x.block};
	if (step_node_is_layer(step))
		rc = make_conv(compile, node);
	else if (step->kind == OP_AVGPOOL)
		node->y.block = 1;
	else if (step->kind == OP_BATCHNORM)
		rc = make_norm_memory(compile, node);
	if (!rc && step->input2 >= 0) {
		node->preferred = node->preferred_dx = node->x;
		rc = make_copies(compile, node, &compiled->layouts[step->input2],
				 compiled->request->train && step->input2);
	}
	compiled->layouts[step->output] = node->y;
	return rc;
}

/* ---- places ---- */

static size_t layout_bytes(const struct layout *layout)
{
	return layout_count(layout) * sizeof(float);
}

static struct step_size size_of(const struct cpu_node *node)
{
	return (struct step_size){
		.copy = node->copy_in ? layout_bytes(&node->preferred) : 0,
		.copy_out = node->copy_out ? layout_bytes(&node->preferred_dx) : 0,
		.kept = node->step->kind == OP_MAXPOOL2D ? layout_count(&node->y) * sizeof(uint16_t)
							 : 0,
	};
}

static int place(struct compile *compile)
{
	struct compiled_graph *compiled = compile->compiled;
	int n = compiled->plan.node_count, values = compiled->plan.graph->value_count, rc;
	size_t *value_bytes = calloc((size_t)values, sizeof *value_bytes);
	struct step_size *sizes = calloc((size_t)n + 1, sizeof *sizes);
	size_t scratch = 0, sums = 0;

	if (!value_bytes || !sizes) {
		free(value_bytes);
		free(sizes);
		return error_memory(compile->err, "a training step");
	}
	/* The input is the caller's. */
	for (int i = 0; i < n; i++) {
		const struct cpu_node *node = &compiled->nodes[i];
		const struct planes planes = planes_of(&node->x);

		sizes[i] = size_of(node);
		value_bytes[node->step->output] = layout_bytes(&node->y);
		scratch = node->scratch > scratch ? node->scratch : scratch;
		if (node->step->kind == OP_BATCHNORM && norm_sums(&planes) > sums)
			sums = norm_sums(&planes);
	}

	const struct step_rules rules = {
		.alignment = 64,
		.value_bytes = value_bytes,
		.sizes = sizes,
		.scratch_bytes = {[SCRATCH_LAYER] = (scratch + 16) * sizeof(float),
				  [SCRATCH_SUMS] = (sums + 8) * sizeof(double)},
	};

	rc = step_plan_place(&compiled->plan, &rules, compile->err);
	free(value_bytes);
	free(sizes);
	return rc;
}

/* ---- the whole graph ---- */

static int compile_all(struct compile *compile)
{
	struct compiled_graph *compiled = compile->compiled;
	const struct shape *x = &compiled->plan.graph->values[0];
	int rc = 0;

	compiled->layouts[0] =
		(struct layout){compiled->count, x->channels, x->height, x->width, 1};
	for (int i = 0; !rc && i < compiled->plan.node_count; i++)
		rc = make_layer(compile, i);
	return rc ? rc : place(compile);
}

int compiled_graph_new(struct cpu *cpu, const struct executor_request *request, int count,
		       struct compiled_graph **out, struct error *err)
{
	const struct graph *graph = request->graph;
	struct compiled_graph *compiled = calloc(1, sizeof *compiled);
	struct compile compile = {compiled, err};
	int rc;

	if (!compiled)
		return error_memory(err, "a training step");
	compiled->cpu = cpu;
	compiled->request = request;
	compiled->count = count;
	rc = step_plan_make(graph, request->train, &compiled->plan, err);
	if (!rc) {
		compiled->nodes =
			calloc((size_t)compiled->plan.node_count + 1, sizeof *compiled->nodes);
		compiled->layouts = calloc((size_t)graph->value_count, sizeof *compiled->layouts);
		rc = compiled->nodes && compiled->layouts ? compile_all(&compile)
							  : error_memory(err, "a training step");
	}
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
	for (int i = 0; compiled->nodes && i < compiled->plan.node_count; i++) {
		struct cpu_node *node = &compiled->nodes[i];

		cpu_conv_free(node->conv);
		cpu_reorder_free(node->copy_in);
		cpu_reorder_free(node->copy_out);
		free(node->saved);
		free(node->lanes);
	}
	free(compiled->nodes);
	free(compiled->layouts);
	step_plan_free(&compiled->plan);
	free(compiled);
}
