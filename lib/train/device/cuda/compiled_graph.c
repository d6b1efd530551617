/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/compiled_graph.h"

#include <stdlib.h>

#include "train/device/cuda/tuning/tuning_cache.h"

#define WIDEST_POOL 15 /* positions are bytes */

/* A node with a weight has one of the two, other nodes have none. */
struct layer {
	struct convolution *conv;
	struct cuda_linear *linear;
};

struct compiled_graph {
	struct cuda *cuda;
	const struct executor_request *request;
	const struct lowered_graph *lowered;
	int count;
	struct layer *layers; /* per node */
	size_t workspace;
	struct node_observer observer;
};

/* One node in one run of a compiled graph. */
struct node_run {
	const struct compiled_graph *compiled;
	const struct compiled_graph_memory *memory;
	const struct lowered_node *node;
	const struct layer *layer;
	struct kernel_config config;
	bool add; /* to the gradients of the parameters */
	/* The node's slots; NULL: it has none. Gradients are only valid in training. */
	void *x, *z, *y, *dy, *dx, *dz;
};

/* ---- begin ---- */

static int layer_new(struct compiled_graph *compiled, int index, bool tune, struct error *err)
{
	const struct executor_request *request = compiled->request;
	const struct lowered_node *node = &compiled->lowered->nodes[index];
	const struct op_attributes *window = &node->step->op->attributes;
	const struct lowered_weight *weight = &node->weight;
	const struct layer_rules rules = {
		.number = compiled->lowered->number,
		.tf32 = request->tf32,
		.direct = request->direct,
		.deterministic = request->deterministic,
		.tune = tune,
		.train = request->train,
		.dx = request->train && node->step->input,
		.add_dx = node->step->add_dx,
		.sums = node->norm >= 0,
		.fused_norm = node->fused_norm >= 0,
	};
	const char *name;

	if (node->step->kind == OP_MAXPOOL2D && window->kernel > WIDEST_POOL)
		return error_set(err, ERR_UNAVAILABLE,
				 "a %dx%d pooling window is too large: the cuda device supports at "
				 "most %dx%d",
				 window->kernel, window->kernel, WIDEST_POOL, WIDEST_POOL);
	if (weight->param < 0)
		return 0;
	name = request->graph->params[weight->param].name;
	if (node->step->kind == OP_CONV2D) {
		const struct conv_shape shape = {
			compiled->count,      node->x_shape.channels,
			node->x_shape.height, node->x_shape.width,
			weight->outputs,      window->kernel,
			window->stride,	      window->pad,
		};

		return convolution_new(compiled->cuda, name, &shape, &rules,
				       &compiled->layers[index].conv, err);
	}

	size_t place = request->buckets->offsets[weight->param] * sizeof(float);
	const struct cuda_linear_shape shape = {
		.n = compiled->count,
		.inputs = weight->inner * weight->padded,
		.outputs = weight->outputs,
		.dw_f32 = weight->gradient_in_place,
		.dw_alignment = weight->gradient_in_place && place % 16 ? 4 : 16,
	};

	return cuda_linear_new(compiled->cuda, name, &shape, &rules,
			       &compiled->layers[index].linear, err);
}

int compiled_graph_new(struct cuda *cuda, const struct executor_request *request,
		       const struct lowered_graph *lowered, int count, bool tune,
		       struct compiled_graph **out, struct error *err)
{
	struct compiled_graph *compiled = calloc(1, sizeof *compiled);
	int rc = 0;

	if (!compiled)
		return error_memory(err, "a training step");
	*compiled = (struct compiled_graph){
		.cuda = cuda,
		.request = request,
		.lowered = lowered,
		.count = count,
		.layers = calloc((size_t)lowered->plan.node_count + 1, sizeof *compiled->layers)};
	if (!compiled->layers)
		rc = error_memory(err, "a training step");
	for (int i = 0; !rc && i < lowered->plan.node_count; i++) {
		size_t wanted = 0;

		rc = layer_new(compiled, i, tune, err);
		if (!rc && compiled->layers[i].conv)
			wanted = convolution_workspace(compiled->layers[i].conv);
		else if (!rc && compiled->layers[i].linear)
			wanted = LINEAR_WORKSPACE;
		compiled->workspace = wanted > compiled->workspace ? wanted : compiled->workspace;
		/* Save after each choice, so that the choices of a run that is killed meanwhile are
		 * not lost. */
		tuning_cache_save(cuda->tuning_cache);
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
	for (int i = 0; compiled->layers && i < compiled->lowered->plan.node_count; i++) {
		convolution_free(compiled->layers[i].conv);
		cuda_linear_free(compiled->layers[i].linear);
	}
	free(compiled->layers);
	free(compiled);
}

void compiled_graph_set_observer(struct compiled_graph *compiled,
				 const struct node_observer *observer)
{
	compiled->observer = *observer;
}

size_t compiled_graph_workspace(const struct compiled_graph *compiled)
{
	return compiled->workspace;
}

/* ---- addresses ---- */

static void *slot_address(const struct node_run *run, int slot)
{
	return slot == NO_SLOT
		       ? NULL
		       : run->memory->arena + run->compiled->lowered->plan.slots[slot].offset;
}

static struct node_run node_run_of(const struct compiled_graph *compiled,
				   const struct compiled_graph_memory *memory, cudaStream_t stream,
				   bool add, int index)
{
	const struct lowered_node *node = &compiled->lowered->nodes[index];
	struct node_run run = {
		.compiled = compiled,
		.memory = memory,
		.node = node,
		.layer = &compiled->layers[index],
		.config = {stream, compiled->lowered->number, compiled->cuda->multiprocessors},
		.add = add,
	};

	run.x = slot_address(&run, node->step->x);
	run.z = slot_address(&run, node->step->z);
	run.y = slot_address(&run, node->step->y);
	run.dy = slot_address(&run, node->step->dy[0]);
	run.dx = slot_address(&run, node->step->dx);
	run.dz = slot_address(&run, node->step->dz);
	return run;
}

static float *param(const struct node_run *run, float *flat, int index)
{
	return index < 0 || !flat ? NULL : flat + run->compiled->request->buckets->offsets[index];
}

static float *buffer(const struct node_run *run, int index)
{
	const struct executor_request *request = run->compiled->request;

	return index < 0 ? NULL : request->buffers + request->graph->buffers[index].offset;
}

/* The weight as the layer reads it. */
static const void *weight(const struct node_run *run)
{
	const struct lowered_weight *weight = &run->node->weight;

	return weight->in_place
		       ? (const void *)param(run, run->compiled->request->weights, weight->param)
		       : run->memory->copies + weight->copy;
}

/* The number of pixels of a value, and of its elements. */
static int64_t rows(const struct node_run *run, const struct shape *shape)
{
	return (int64_t)run->compiled->count * shape->height * shape->width;
}

static size_t elements(const struct node_run *run, const struct shape *shape)
{
	return (size_t)run->compiled->count * (size_t)shape_count(shape);
}

/* Where a convolution leaves the sums for a batch norm: behind that norm's own statistics. */
static float *sums_of(const struct node_run *run, const struct lowered_node *norm)
{
	return run->memory->saved + norm->saved + SAVED_SUMS * (size_t)norm->x_shape.channels;
}

/* The batch norm whose input this convolution may read instead, in *space; NULL: there is none. */
static const struct conv_source *source_of(const struct node_run *run, struct conv_source *space)
{
	const struct lowered_node *norm;

	if (run->node->fused_norm < 0)
		return NULL;
	norm = &run->compiled->lowered->nodes[run->node->fused_norm];
	*space = (struct conv_source){slot_address(run, norm->step->x),
				      run->memory->saved + norm->saved};
	return space;
}

static struct kernel_norm norm_call(const struct node_run *run)
{
	const struct executor_request *request = run->compiled->request;
	const struct lowered_node *node = run->node;
	const struct graph_op *op = node->step->op;
	const struct layer *layers = run->compiled->layers;
	bool summed = node->sums_conv >= 0 && convolution_makes_sums(layers[node->sums_conv].conv);
	/* The convolution that may take over this batch norm's work. */
	const struct convolution *conv =
		node->fused_conv < 0 ? NULL : layers[node->fused_conv].conv;
	bool fused_norm = conv && convolution_fuses_norm(conv);
	bool back_sums = conv && convolution_makes_back_sums(conv);
	float *saved = run->memory->saved + node->saved;
	size_t c = (size_t)node->x_shape.channels;

	return (struct kernel_norm){
		.rows = rows(run, &node->x_shape),
		.c = node->x_shape.channels,
		.eps = op->eps,
		.momentum = op->momentum,
		.training = request->train,
		.relu = node->step->relu,
		.x = run->x,
		.z = run->z,
		.y = fused_norm ? NULL : run->y,
		.w = param(run, request->weights, op->weight),
		.b = param(run, request->weights, op->bias),
		.mean = buffer(run, op->mean),
		.variance = buffer(run, op->variance),
		.saved = saved,
		.apply_params = fused_norm || back_sums ? saved + SAVED_APPLY * c : NULL,
		.back_sums = back_sums ? sums_of(run, node) : NULL,
		.sums = summed ? sums_of(run, node) : NULL,
		.scratch = slot_address(run, run->compiled->lowered->plan.scratch[SCRATCH_SUMS]),
		.z_added = run->z,
		.add_dx = node->step->add_dx,
		.add_dz = node->step->add_dz,
		.add_dw = run->add,
		.dy = run->dy,
		.dx = run->dx,
		.dz = run->dz,
		.dw = param(run, request->gradients, op->weight),
		.db = param(run, request->gradients, op->bias),
	};
}

static struct kernel_pool pool_call(const struct node_run *run)
{
	const struct lowered_node *node = run->node;
	const struct op_attributes *window = &node->step->op->attributes;

	return (struct kernel_pool){
		.n = run->compiled->count,
		.h = node->x_shape.height,
		.w = node->x_shape.width,
		.c = node->x_shape.channels,
		.out_h = node->y_shape.height,
		.out_w = node->y_shape.width,
		.kernel = window->kernel,
		.stride = window->stride,
		.pad = window->pad,
		.x = run->x,
		.y = run->y,
		.dy = run->dy,
		.dx = run->dx,
		.argmax = slot_address(run, node->step->kept),
		.add = node->step->add_dx,
	};
}

/* ---- forward ---- */

static int layer_forward(const struct node_run *run, struct error *err)
{
	const struct compiled_graph *compiled = run->compiled;
	const struct lowered_node *node = run->node;
	const struct layer *layer = run->layer;
	float *bias = param(run, compiled->request->weights, node->step->op->bias);
	float *sums = node->norm < 0 ? NULL : sums_of(run, &compiled->lowered->nodes[node->norm]);
	void *workspace = run->memory->workspace;
	struct conv_source source;
	int rc;

	if (layer->conv)
		rc = convolution_forward(layer->conv, run->config.stream, run->x, weight(run),
					 run->y, sums, source_of(run, &source), workspace, err);
	else
		rc = cuda_linear_forward(layer->linear, run->config.stream, run->x, weight(run),
					 run->y, workspace, err);
	if (!rc && bias)
		kernel_bias(&run->config, run->y, bias, rows(run, &node->y_shape),
			    node->y_shape.channels);
	return rc;
}

static void norm_forward(const struct node_run *run)
{
	const struct kernel_norm call = norm_call(run);

	if (call.y)
		kernel_norm(&run->config, &call);
	else
		kernel_norm_moments(&run->config, &call);
}

static void pool_forward(const struct node_run *run)
{
	const struct kernel_pool call = pool_call(run);

	if (run->node->step->kind == OP_MAXPOOL2D)
		kernel_maxpool(&run->config, &call);
	else
		kernel_avgpool(&run->config, &call);
}

static int node_forward(const struct node_run *run, struct error *err)
{
	const struct lowered_node *node = run->node;
	size_t count = elements(run, &node->y_shape);

	switch (node->step->kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return layer_forward(run, err);
	case OP_BATCHNORM:
		norm_forward(run);
		return 0;
	case OP_RELU:
		kernel_relu(&run->config, run->x, run->y, count);
		return 0;
	case OP_ADD:
		kernel_sum(&run->config, run->x, run->z, run->y, count);
		return 0;
	case OP_MAXPOOL2D:
	case OP_AVGPOOL:
		pool_forward(run);
		return 0;
	default:
		return error_set(err, ERR_INTERNAL, "unexpected op %s in a compiled graph",
				 op_name(node->step->kind));
	}
}

/* ---- backward ---- */

/* Write the gradient into the bucket, through scratch if the layer's order or type differs. */
static int weight_backward(const struct node_run *run, struct error *err)
{
	const struct compiled_graph *compiled = run->compiled;
	const struct lowered_weight *weight = &run->node->weight;
	float *bucket = param(run, compiled->request->gradients, weight->param);
	bool direct = weight->gradient_in_place, add = direct && run->add;
	void *scratch = slot_address(run, compiled->lowered->plan.scratch[SCRATCH_WEIGHT_GRADIENT]);
	void *dw = direct ? bucket : scratch, *workspace = run->memory->workspace;
	struct conv_source source;
	int rc;

	if (run->layer->conv)
		rc = convolution_back_weights(run->layer->conv, run->config.stream, run->x, run->dy,
					      dw, add, source_of(run, &source), workspace, err);
	else
		rc = cuda_linear_back_weights(run->layer->linear, run->config.stream, run->x,
					      run->dy, dw, add, workspace, err);
	if (!rc && !direct)
		kernel_weight_gradient(&run->config, scratch, bucket, weight->outputs,
				       weight->channels, weight->inner, weight->padded, run->add);
	return rc;
}

/* Parameters first: their bucket can be reduced while the rest is computed. */
static int layer_backward(const struct node_run *run, const struct gradient_sink *sink,
			  struct error *err)
{
	const struct compiled_graph *compiled = run->compiled;
	const struct lowered_node *node = run->node;
	float *db = param(run, compiled->request->gradients, node->step->op->bias);
	void *workspace = run->memory->workspace;
	struct conv_source source;
	int rc = weight_backward(run, err);

	if (!rc && db)
		kernel_bias_back(&run->config, run->dy, db, rows(run, &node->y_shape),
				 node->y_shape.channels, run->add,
				 slot_address(run, compiled->lowered->plan.scratch[SCRATCH_SUMS]));
	if (!rc)
		rc = sink->ready(sink->context, node->step->op, err);
	if (rc || !run->dx)
		return rc;
	if (run->layer->conv)
		return convolution_back_input(run->layer->conv, run->config.stream, weight(run),
					      run->dy, run->dx, node->step->add_dx,
					      source_of(run, &source), workspace, err);
	return cuda_linear_back_input(run->layer->linear, run->config.stream, weight(run), run->dy,
				      run->dx, node->step->add_dx, workspace, err);
}

static int norm_backward(const struct node_run *run, const struct gradient_sink *sink,
			 struct error *err)
{
	const struct kernel_norm call = norm_call(run);

	kernel_norm_back(&run->config, &call);
	return sink->ready(sink->context, run->node->step->op, err);
}

static void pool_backward(const struct node_run *run)
{
	const struct kernel_pool call = pool_call(run);

	if (!run->dx)
		return;
	if (run->node->step->kind == OP_MAXPOOL2D)
		kernel_maxpool_back(&run->config, &call);
	else
		kernel_avgpool_back(&run->config, &call);
}

static int node_backward(const struct node_run *run, const struct gradient_sink *sink,
			 struct error *err)
{
	const struct lowered_node *node = run->node;
	size_t count = elements(run, &node->y_shape);

	switch (node->step->kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return layer_backward(run, sink, err);
	case OP_BATCHNORM:
		return norm_backward(run, sink, err);
	case OP_RELU:
		if (run->dx)
			kernel_relu_back(&run->config, run->y, run->dy, run->dx, count,
					 node->step->add_dx);
		return 0;
	case OP_ADD:
		if (run->dz)
			kernel_copy(&run->config, run->dy, run->dz, count, node->step->add_dz);
		if (run->dx && run->dx != run->dy)
			kernel_copy(&run->config, run->dy, run->dx, count, node->step->add_dx);
		return 0;
	case OP_MAXPOOL2D:
	case OP_AVGPOOL:
		pool_backward(run);
		return 0;
	default:
		return error_set(err, ERR_INTERNAL, "unexpected op %s in a compiled graph",
				 op_name(node->step->kind));
	}
}

/* ---- all nodes ---- */

int compiled_graph_run(const struct compiled_graph *compiled,
		       const struct compiled_graph_memory *memory, cudaStream_t stream, bool add,
		       const struct gradient_sink *sink, struct error *err)
{
	const struct node_observer *observer = &compiled->observer;
	int nodes = compiled->lowered->plan.node_count, rc = 0;

	for (int i = 0; !rc && i < nodes; i++) {
		int index = sink ? nodes - 1 - i : i;
		const struct node_run run = node_run_of(compiled, memory, stream, add, index);

		rc = sink ? node_backward(&run, sink, err) : node_forward(&run, err);
		if (!rc)
			rc = cuda_launched(op_name(run.node->step->kind), err);
		if (observer->passed)
			observer->passed(observer->context, index, sink);
	}
	return rc;
}
