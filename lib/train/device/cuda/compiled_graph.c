/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/compiled_graph.h"

#include <stdlib.h>

#include "train/device/cuda/tuning/tuning_cache.h"

#define WIDEST_POOL 15 /* positions are bytes */

struct compiled_graph {
	struct cuda *cuda;
	const struct executor_request *request;
	const struct lowered_graph *lowered;
	int count;
	struct convolution **convs; /* per node, or NULL */
	struct cuda_linear **linears;
	size_t workspace;
	struct node_observer observer;
};

/* One run of a compiled graph, and one node of it. */
struct node_run {
	const struct compiled_graph *compiled;
	const struct compiled_graph_memory *memory;
	const struct lowered_node *node;
	struct kernel_config config;
	int index;
	bool add; /* to the gradients of the parameters */
};

/* ---- begin ---- */

static const char *param_name(const struct compiled_graph *compiled, int param)
{
	return compiled->request->graph->params[param].name;
}

static int layer_new(struct compiled_graph *compiled, int index, bool tune, struct error *err)
{
	const struct executor_request *request = compiled->request;
	const struct lowered_node *node = &compiled->lowered->nodes[index];
	const struct op_attributes *window = &node->fused.op->attributes;
	const struct lowered_weight *weight = &node->weight;
	const struct layer_rules rules = {
		.number = compiled->lowered->number,
		.tf32 = request->tf32,
		.direct = request->direct,
		.deterministic = request->deterministic,
		.tune = tune,
		.train = request->train,
		.dx = request->train && node->fused.input,
		.add_dx = node->add_dx,
		.sums = node->norm >= 0,
		.fused_norm = node->fused_norm >= 0,
	};
	const char *name;

	if (node->fused.kind == OP_MAXPOOL2D && window->kernel > WIDEST_POOL)
		return error_set(err, ERR_UNAVAILABLE, "a pooling of %dx%d: at most %dx%d on a GPU",
				 window->kernel, window->kernel, WIDEST_POOL, WIDEST_POOL);
	if (weight->param < 0)
		return 0;
	name = param_name(compiled, weight->param);
	if (node->fused.kind == OP_CONV2D) {
		const struct conv_shape shape = {
			compiled->count,      node->x_shape.channels,
			node->x_shape.height, node->x_shape.width,
			weight->outputs,      window->kernel,
			window->stride,	      window->pad,
		};

		return convolution_new(compiled->cuda, name, &shape, &rules,
				       &compiled->convs[index], err);
	}

	size_t place = request->buckets->offsets[weight->param] * sizeof(float);
	const struct cuda_linear_shape shape = {
		.n = compiled->count,
		.inputs = weight->inner * weight->padded,
		.outputs = weight->outputs,
		.dw_f32 = weight->gradient_in_place,
		.dw_alignment = weight->gradient_in_place && place % 16 ? 4 : 16,
	};

	return cuda_linear_new(compiled->cuda, name, &shape, &rules, &compiled->linears[index],
			       err);
}

int compiled_graph_new(struct cuda *cuda, const struct executor_request *request,
		       const struct lowered_graph *lowered, int count, bool tune,
		       struct compiled_graph **out, struct error *err)
{
	struct compiled_graph *compiled = calloc(1, sizeof *compiled);
	size_t nodes = (size_t)lowered->node_count;
	int rc = 0;

	if (!compiled)
		return error_memory(err, "a training step");
	*compiled =
		(struct compiled_graph){.cuda = cuda,
					.request = request,
					.lowered = lowered,
					.count = count,
					.convs = calloc(nodes + 1, sizeof *compiled->convs),
					.linears = calloc(nodes + 1, sizeof *compiled->linears)};
	if (!compiled->convs || !compiled->linears)
		rc = error_memory(err, "a training step");
	for (int i = 0; !rc && i < lowered->node_count; i++) {
		size_t wanted = 0;

		rc = layer_new(compiled, i, tune, err);
		if (!rc && compiled->convs[i])
			wanted = convolution_workspace(compiled->convs[i]);
		else if (!rc && compiled->linears[i])
			wanted = LINEAR_WORKSPACE;
		compiled->workspace = wanted > compiled->workspace ? wanted : compiled->workspace;
		/* Save after each choice, so that a run killed meanwhile has not searched in vain.
		 */
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
	for (int i = 0; i < compiled->lowered->node_count; i++) {
		if (compiled->convs)
			convolution_free(compiled->convs[i]);
		if (compiled->linears)
			cuda_linear_free(compiled->linears[i]);
	}
	free(compiled->convs);
	free(compiled->linears);
	free(compiled);
}

void compiled_graph_set_observer(struct compiled_graph *compiled,
				 const struct node_observer *observer)
{
	compiled->observer = *observer;
}

static void notify_observer(const struct node_run *node_run, bool backward)
{
	const struct node_observer *observer = &node_run->compiled->observer;

	if (observer->passed)
		observer->passed(observer->context, node_run->index, backward);
}

size_t compiled_graph_workspace(const struct compiled_graph *compiled)
{
	return compiled->workspace;
}

/* ---- addresses ---- */

static void *slot_address(const struct node_run *node_run, int slot)
{
	return slot == NO_SLOT
		       ? NULL
		       : node_run->memory->arena + node_run->compiled->lowered->slots[slot].offset;
}

static float *param(const struct node_run *node_run, float *flat, int index)
{
	return index < 0 || !flat ? NULL
				  : flat + node_run->compiled->request->buckets->offsets[index];
}

static float *buffer(const struct node_run *node_run, int index)
{
	const struct executor_request *request = node_run->compiled->request;

	return index < 0 ? NULL : request->buffers + request->graph->buffers[index].offset;
}

/* The weight as the layer reads it. */
static const void *weight(const struct node_run *node_run)
{
	const struct lowered_weight *weight = &node_run->node->weight;

	return weight->in_place
		       ? (const void *)param(node_run, node_run->compiled->request->weights,
					     weight->param)
		       : node_run->memory->copies + weight->copy;
}

static size_t elements(const struct node_run *node_run, const struct shape *shape)
{
	return (size_t)node_run->compiled->count * (size_t)shape_count(shape);
}

/* Where a convolution leaves the sums for the batch norm of node index: behind that norm's own
 * statistics. */
static float *sums_of(const struct node_run *node_run, int index)
{
	const struct lowered_node *norm = &node_run->compiled->lowered->nodes[index];

	return node_run->memory->saved + norm->saved + SAVED_SUMS * (size_t)norm->x_shape.channels;
}

/* The convolution that may take over this batch norm's work, or NULL. */
static const struct convolution *fused_conv_of(const struct node_run *node_run)
{
	const struct lowered_node *node = node_run->node;

	return node->fused.kind == OP_BATCHNORM && node->fused_conv >= 0
		       ? node_run->compiled->convs[node->fused_conv]
		       : NULL;
}

/* The batch norm whose input this convolution may read instead; false: there is none. */
static bool source_of(const struct node_run *node_run, struct conv_source *out)
{
	const struct lowered_node *norm;

	if (node_run->node->fused_norm < 0)
		return false;
	norm = &node_run->compiled->lowered->nodes[node_run->node->fused_norm];
	*out = (struct conv_source){slot_address(node_run, norm->x),
				    node_run->memory->saved + norm->saved};
	return true;
}

static struct kernel_norm norm_call(const struct node_run *node_run)
{
	const struct executor_request *request = node_run->compiled->request;
	const struct lowered_node *node = node_run->node;
	const struct graph_op *op = node->fused.op;
	bool summed = node->fused.kind == OP_BATCHNORM && node->sums_conv >= 0 &&
		      convolution_makes_sums(node_run->compiled->convs[node->sums_conv]);
	const struct convolution *fused_conv = fused_conv_of(node_run);
	float *saved = node_run->memory->saved + node->saved;
	size_t c = (size_t)node->x_shape.channels;
	bool fused_norm = fused_conv && convolution_fuses_norm(fused_conv);
	bool back_sums = fused_conv && convolution_makes_back_sums(fused_conv);

	return (struct kernel_norm){
		.rows = (int64_t)node_run->compiled->count * node->x_shape.height *
			node->x_shape.width,
		.c = node->x_shape.channels,
		.eps = op->eps,
		.momentum = op->momentum,
		.training = request->train,
		.relu = node->fused.relu,
		.x = slot_address(node_run, node->x),
		.z = slot_address(node_run, node->z),
		.y = fused_norm ? NULL : slot_address(node_run, node->y),
		.w = param(node_run, request->weights, op->weight),
		.b = param(node_run, request->weights, op->bias),
		.mean = buffer(node_run, op->mean),
		.variance = buffer(node_run, op->variance),
		.saved = saved,
		.apply_params = fused_norm || back_sums ? saved + SAVED_APPLY * c : NULL,
		.back_sums = back_sums ? saved + SAVED_SUMS * c : NULL,
		.sums = summed ? sums_of(node_run, node_run->index) : NULL,
		.scratch = slot_address(node_run, node_run->compiled->lowered->sums),
		.z_added = node->z != NO_SLOT,
		.add_dx = node->add_dx,
		.add_dz = node->add_dz,
		.add_dw = node_run->add,
		.dy = slot_address(node_run, node->dy),
		.dx = slot_address(node_run, node->dx),
		.dz = slot_address(node_run, node->dz),
		.dw = param(node_run, request->gradients, op->weight),
		.db = param(node_run, request->gradients, op->bias),
	};
}

static struct kernel_pool pool_call(const struct node_run *node_run)
{
	const struct lowered_node *node = node_run->node;
	const struct op_attributes *window = &node->fused.op->attributes;

	return (struct kernel_pool){
		.n = node_run->compiled->count,
		.h = node->x_shape.height,
		.w = node->x_shape.width,
		.c = node->x_shape.channels,
		.out_h = node->y_shape.height,
		.out_w = node->y_shape.width,
		.kernel = window->kernel,
		.stride = window->stride,
		.pad = window->pad,
		.x = slot_address(node_run, node->x),
		.y = slot_address(node_run, node->y),
		.dy = slot_address(node_run, node->dy),
		.dx = slot_address(node_run, node->dx),
		.argmax = slot_address(node_run, node->argmax),
		.add = node->add_dx,
	};
}

/* ---- forward ---- */

static int layer_forward(const struct node_run *node_run, struct error *err)
{
	const struct compiled_graph *compiled = node_run->compiled;
	const struct lowered_node *node = node_run->node;
	const struct shape *y = &node->y_shape;
	float *bias = param(node_run, compiled->request->weights, node->fused.op->bias);
	void *workspace = node_run->memory->workspace;
	struct conv_source source;
	bool fused_norm = source_of(node_run, &source);
	int rc;

	if (compiled->convs[node_run->index])
		rc = convolution_forward(compiled->convs[node_run->index], node_run->config.stream,
					 slot_address(node_run, node->x), weight(node_run),
					 slot_address(node_run, node->y),
					 node->norm >= 0 ? sums_of(node_run, node->norm) : NULL,
					 fused_norm ? &source : NULL, workspace, err);
	else
		rc = cuda_linear_forward(compiled->linears[node_run->index],
					 node_run->config.stream, slot_address(node_run, node->x),
					 weight(node_run), slot_address(node_run, node->y),
					 workspace, err);
	if (!rc && bias)
		kernel_bias(&node_run->config, slot_address(node_run, node->y), bias,
			    (int64_t)compiled->count * y->height * y->width, y->channels);
	return rc;
}

static int node_forward(const struct node_run *node_run, struct error *err)
{
	const struct lowered_node *node = node_run->node;
	const struct kernel_norm norm = norm_call(node_run);
	const struct kernel_pool pool = pool_call(node_run);
	size_t count = elements(node_run, &node->y_shape);

	switch (node->fused.kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return layer_forward(node_run, err);
	case OP_BATCHNORM:
		if (norm.y)
			kernel_norm(&node_run->config, &norm);
		else
			kernel_norm_moments(&node_run->config, &norm);
		return 0;
	case OP_RELU:
		kernel_relu(&node_run->config, slot_address(node_run, node->x),
			    slot_address(node_run, node->y), count);
		return 0;
	case OP_ADD:
		kernel_sum(&node_run->config, slot_address(node_run, node->x),
			   slot_address(node_run, node->z), slot_address(node_run, node->y), count);
		return 0;
	case OP_MAXPOOL2D:
		kernel_maxpool(&node_run->config, &pool);
		return 0;
	case OP_AVGPOOL:
		kernel_avgpool(&node_run->config, &pool);
		return 0;
	default:
		return error_set(err, ERR_INTERNAL, "a node of op %s", op_name(node->fused.kind));
	}
}

static struct node_run node_run_of(const struct compiled_graph *compiled,
				   const struct compiled_graph_memory *memory, cudaStream_t stream,
				   bool add)
{
	return (struct node_run){
		.compiled = compiled,
		.memory = memory,
		.config = {stream, compiled->lowered->number, compiled->cuda->multiprocessors},
		.add = add,
	};
}

int compiled_graph_forward(const struct compiled_graph *compiled,
			   const struct compiled_graph_memory *memory, cudaStream_t stream,
			   struct error *err)
{
	struct node_run node_run = node_run_of(compiled, memory, stream, false);
	int rc = 0;

	for (int i = 0; !rc && i < compiled->lowered->node_count; i++) {
		node_run.index = i;
		node_run.node = &compiled->lowered->nodes[i];
		rc = node_forward(&node_run, err);
		if (!rc)
			rc = cuda_launched(op_name(node_run.node->fused.kind), err);
		notify_observer(&node_run, false);
	}
	return rc;
}

/* ---- backward ---- */

/* Write the gradient into the bucket, through scratch if the layer's order or type differs. */
static int weight_backward(const struct node_run *node_run, struct error *err)
{
	const struct compiled_graph *compiled = node_run->compiled;
	const struct lowered_node *node = node_run->node;
	const struct lowered_weight *weight = &node->weight;
	float *bucket = param(node_run, compiled->request->gradients, weight->param);
	void *scratch = slot_address(node_run, compiled->lowered->weight_gradient);
	bool direct = weight->gradient_in_place;
	void *dw = direct ? bucket : scratch;
	struct conv_source source;
	bool fused_norm = source_of(node_run, &source);
	int rc;

	if (compiled->convs[node_run->index])
		rc = convolution_back_weights(
			compiled->convs[node_run->index], node_run->config.stream,
			slot_address(node_run, node->x), slot_address(node_run, node->dy), dw,
			direct && node_run->add, fused_norm ? &source : NULL,
			node_run->memory->workspace, err);
	else
		rc = cuda_linear_back_weights(
			compiled->linears[node_run->index], node_run->config.stream,
			slot_address(node_run, node->x), slot_address(node_run, node->dy), dw,
			direct && node_run->add, node_run->memory->workspace, err);
	if (!rc && !direct)
		kernel_weight_gradient(&node_run->config, scratch, bucket, weight->outputs,
				       weight->channels, weight->inner, weight->padded,
				       node_run->add);
	return rc;
}

/* Parameters first: their bucket can be reduced while the rest is computed. */
static int layer_backward(const struct node_run *node_run, const struct gradient_sink *sink,
			  struct error *err)
{
	const struct compiled_graph *compiled = node_run->compiled;
	const struct lowered_node *node = node_run->node;
	const struct shape *y = &node->y_shape;
	float *db = param(node_run, compiled->request->gradients, node->fused.op->bias);
	struct conv_source source;
	bool fused_norm = source_of(node_run, &source);
	int rc = weight_backward(node_run, err);

	if (!rc && db)
		kernel_bias_back(&node_run->config, slot_address(node_run, node->dy), db,
				 (int64_t)compiled->count * y->height * y->width, y->channels,
				 node_run->add, slot_address(node_run, compiled->lowered->sums));
	if (!rc)
		rc = sink->ready(sink->context, node->fused.op, err);
	if (rc || node->dx == NO_SLOT)
		return rc;
	if (compiled->convs[node_run->index])
		return convolution_back_input(
			compiled->convs[node_run->index], node_run->config.stream, weight(node_run),
			slot_address(node_run, node->dy), slot_address(node_run, node->dx),
			node->add_dx, fused_norm ? &source : NULL, node_run->memory->workspace,
			err);
	return cuda_linear_back_input(compiled->linears[node_run->index], node_run->config.stream,
				      weight(node_run), slot_address(node_run, node->dy),
				      slot_address(node_run, node->dx), node->add_dx,
				      node_run->memory->workspace, err);
}

static void add_backward(const struct node_run *node_run)
{
	const struct lowered_node *node = node_run->node;
	size_t count = elements(node_run, &node->y_shape);
	void *dy = slot_address(node_run, node->dy);

	if (node->dz != NO_SLOT)
		kernel_copy(&node_run->config, dy, slot_address(node_run, node->dz), count,
			    node->add_dz);
	if (node->dx != NO_SLOT && !node->dx_is_dy)
		kernel_copy(&node_run->config, dy, slot_address(node_run, node->dx), count,
			    node->add_dx);
}

static int node_backward(const struct node_run *node_run, const struct gradient_sink *sink,
			 struct error *err)
{
	const struct lowered_node *node = node_run->node;
	const struct kernel_norm norm = norm_call(node_run);
	const struct kernel_pool pool = pool_call(node_run);

	switch (node->fused.kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return layer_backward(node_run, sink, err);
	case OP_BATCHNORM:
		kernel_norm_back(&node_run->config, &norm);
		return sink->ready(sink->context, node->fused.op, err);
	case OP_RELU:
		if (node->dx != NO_SLOT)
			kernel_relu_back(&node_run->config, slot_address(node_run, node->y),
					 slot_address(node_run, node->dy),
					 slot_address(node_run, node->dx),
					 elements(node_run, &node->y_shape), node->add_dx);
		return 0;
	case OP_ADD:
		add_backward(node_run);
		return 0;
	case OP_MAXPOOL2D:
		if (node->dx != NO_SLOT)
			kernel_maxpool_back(&node_run->config, &pool);
		return 0;
	case OP_AVGPOOL:
		if (node->dx != NO_SLOT)
			kernel_avgpool_back(&node_run->config, &pool);
		return 0;
	default:
		return error_set(err, ERR_INTERNAL, "a node of op %s", op_name(node->fused.kind));
	}
}

int compiled_graph_backward(const struct compiled_graph *compiled,
			    const struct compiled_graph_memory *memory, cudaStream_t stream,
			    bool add, const struct gradient_sink *sink, struct error *err)
{
	struct node_run node_run = node_run_of(compiled, memory, stream, add);
	int rc = 0;

	for (int i = compiled->lowered->node_count - 1; !rc && i >= 0; i--) {
		node_run.index = i;
		node_run.node = &compiled->lowered->nodes[i];
		rc = node_backward(&node_run, sink, err);
		if (!rc)
			rc = cuda_launched(op_name(node_run.node->fused.kind), err);
		notify_observer(&node_run, true);
	}
	return rc;
}
