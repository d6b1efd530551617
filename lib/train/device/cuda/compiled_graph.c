/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/compiled_graph.h"

#include <stdlib.h>

#include "train/device/cuda/tuning/tuning_cache.h"

#define WIDEST_POOL 15 /* places are bytes */

struct program {
	struct cuda *cuda;
	const struct step_request *request;
	const struct plan *plan;
	int count;
	struct convolution **convs; /* of each node, or NULL */
	struct linear **linears;
	size_t workspace;
	struct program_watch watch;
};

/* One run of a program, and one node of it. */
struct turn {
	const struct program *program;
	const struct program_memory *memory;
	const struct plan_node *node;
	struct kernel_on on;
	int index;
	bool add; /* to the gradients of the parameters */
};

/* ---- begin ---- */

static const char *param_name(const struct program *program, int param)
{
	return program->request->graph->params[param].name;
}

static int layer_new(struct program *program, int index, bool tune, struct error *err)
{
	const struct step_request *request = program->request;
	const struct plan_node *node = &program->plan->nodes[index];
	const struct op_attributes *window = &node->fused.op->attributes;
	const struct plan_weight *weight = &node->weight;
	const struct layer_rules rules = {
		.number = program->plan->number,
		.tf32 = request->tf32,
		.direct = request->direct,
		.deterministic = request->deterministic,
		.tune = tune,
		.train = request->train,
		.dx = request->train && node->fused.input,
		.add_dx = node->add_dx,
		.sums = node->norm >= 0,
		.through = node->through >= 0,
	};
	const char *name;

	if (node->fused.kind == OP_MAXPOOL2D && window->kernel > WIDEST_POOL)
		return error_set(err, ERR_UNAVAILABLE, "a pooling of %dx%d: at most %dx%d on a GPU",
				 window->kernel, window->kernel, WIDEST_POOL, WIDEST_POOL);
	if (weight->param < 0)
		return 0;
	name = param_name(program, weight->param);
	if (node->fused.kind == OP_CONV2D) {
		const struct conv_shape shape = {
			program->count,	       node->x_shape.channels, node->x_shape.height,
			node->x_shape.width,   weight->outputs,	       window->kernel,
			window->stride,	       window->pad,
		};

		return convolution_new(program->cuda, name, &shape, &rules, &program->convs[index],
				       err);
	}

	size_t place = request->buckets->offsets[weight->param] * sizeof(float);
	const struct linear_shape shape = {
		.n = program->count,
		.inputs = weight->inner * weight->padded,
		.outputs = weight->outputs,
		.dw_f32 = weight->gradient_in_place,
		.dw_alignment = weight->gradient_in_place && place % 16 ? 4 : 16,
	};

	return linear_new(program->cuda, name, &shape, &rules, &program->linears[index], err);
}

int program_new(struct cuda *cuda, const struct step_request *request, const struct plan *plan,
		int count, bool tune, struct program **out, struct error *err)
{
	struct program *program = calloc(1, sizeof *program);
	size_t nodes = (size_t)plan->node_count;
	int rc = 0;

	if (!program)
		return error_memory(err, "a training step");
	*program = (struct program){.cuda = cuda,
				    .request = request,
				    .plan = plan,
				    .count = count,
				    .convs = calloc(nodes + 1, sizeof *program->convs),
				    .linears = calloc(nodes + 1, sizeof *program->linears)};
	if (!program->convs || !program->linears)
		rc = error_memory(err, "a training step");
	for (int i = 0; !rc && i < plan->node_count; i++) {
		size_t wanted = 0;

		rc = layer_new(program, i, tune, err);
		if (!rc && program->convs[i])
			wanted = convolution_workspace(program->convs[i]);
		else if (!rc && program->linears[i])
			wanted = LINEAR_WORKSPACE;
		program->workspace = wanted > program->workspace ? wanted : program->workspace;
		/* Each as it is chosen: a run that is ended meanwhile has not searched for nothing. */
		choices_save(cuda->choices);
	}
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
	for (int i = 0; i < program->plan->node_count; i++) {
		if (program->convs)
			convolution_free(program->convs[i]);
		if (program->linears)
			linear_free(program->linears[i]);
	}
	free(program->convs);
	free(program->linears);
	free(program);
}

void program_watch(struct program *program, const struct program_watch *watch)
{
	program->watch = *watch;
}

static void pass(const struct turn *turn, bool backward)
{
	const struct program_watch *watch = &turn->program->watch;

	if (watch->passed)
		watch->passed(watch->context, turn->index, backward);
}

size_t program_workspace(const struct program *program)
{
	return program->workspace;
}

/* ---- where things are ---- */

static void *at(const struct turn *turn, int slot)
{
	return slot == NO_SLOT ? NULL : turn->memory->arena + turn->program->plan->slots[slot].offset;
}

static float *param(const struct turn *turn, float *flat, int index)
{
	return index < 0 || !flat ? NULL
				  : flat + turn->program->request->buckets->offsets[index];
}

static float *buffer(const struct turn *turn, int index)
{
	const struct step_request *request = turn->program->request;

	return index < 0 ? NULL : request->buffers + request->graph->buffers[index].offset;
}

/* The weight as the layer reads it. */
static const void *weight(const struct turn *turn)
{
	const struct plan_weight *weight = &turn->node->weight;

	return weight->in_place
		       ? (const void *)param(turn, turn->program->request->weights, weight->param)
		       : turn->memory->copies + weight->copy;
}

static size_t elements(const struct turn *turn, const struct shape *shape)
{
	return (size_t)turn->program->count * (size_t)shape_count(shape);
}

/* Where a convolution leaves the sums for the batch norm of node index: behind its own statistics. */
static float *sums_of(const struct turn *turn, int index)
{
	const struct plan_node *norm = &turn->program->plan->nodes[index];

	return turn->memory->saved + norm->saved + SAVED_SUMS * (size_t)norm->x_shape.channels;
}

/* The convolution that may take this batch norm's work upon itself, or NULL. */
static const struct convolution *taker_of(const struct turn *turn)
{
	const struct plan_node *node = turn->node;

	return node->fused.kind == OP_BATCHNORM && node->taker >= 0
		       ? turn->program->convs[node->taker]
		       : NULL;
}

/* The batch norm that this convolution may read through. false: there is none. */
static bool source_of(const struct turn *turn, struct conv_source *out)
{
	const struct plan_node *norm;

	if (turn->node->through < 0)
		return false;
	norm = &turn->program->plan->nodes[turn->node->through];
	*out = (struct conv_source){at(turn, norm->x), turn->memory->saved + norm->saved};
	return true;
}

static struct kernel_norm norm_call(const struct turn *turn)
{
	const struct step_request *request = turn->program->request;
	const struct plan_node *node = turn->node;
	const struct graph_op *op = node->fused.op;
	bool summed = node->fused.kind == OP_BATCHNORM && node->maker >= 0 &&
		      convolution_sums(turn->program->convs[node->maker]);
	const struct convolution *taker = taker_of(turn);
	float *saved = turn->memory->saved + node->saved;
	size_t c = (size_t)node->x_shape.channels;
	bool through = taker && convolution_through(taker);
	bool back_sums = taker && convolution_back_sums(taker);

	return (struct kernel_norm){
		.rows = (int64_t)turn->program->count * node->x_shape.height * node->x_shape.width,
		.c = node->x_shape.channels,
		.eps = op->eps,
		.momentum = op->momentum,
		.training = request->train,
		.relu = node->fused.relu,
		.x = at(turn, node->x),
		.z = at(turn, node->z),
		.y = through ? NULL : at(turn, node->y),
		.w = param(turn, request->weights, op->weight),
		.b = param(turn, request->weights, op->bias),
		.mean = buffer(turn, op->mean),
		.variance = buffer(turn, op->variance),
		.saved = saved,
		.taken = through || back_sums ? saved + SAVED_TAKEN * c : NULL,
		.back_sums = back_sums ? saved + SAVED_SUMS * c : NULL,
		.sums = summed ? sums_of(turn, turn->index) : NULL,
		.scratch = at(turn, turn->program->plan->sums),
		.z_added = node->z != NO_SLOT,
		.add_dx = node->add_dx,
		.add_dz = node->add_dz,
		.add_dw = turn->add,
		.dy = at(turn, node->dy),
		.dx = at(turn, node->dx),
		.dz = at(turn, node->dz),
		.dw = param(turn, request->gradients, op->weight),
		.db = param(turn, request->gradients, op->bias),
	};
}

static struct kernel_pool pool_call(const struct turn *turn)
{
	const struct plan_node *node = turn->node;
	const struct op_attributes *window = &node->fused.op->attributes;

	return (struct kernel_pool){
		.n = turn->program->count,
		.h = node->x_shape.height,
		.w = node->x_shape.width,
		.c = node->x_shape.channels,
		.out_h = node->y_shape.height,
		.out_w = node->y_shape.width,
		.kernel = window->kernel,
		.stride = window->stride,
		.pad = window->pad,
		.x = at(turn, node->x),
		.y = at(turn, node->y),
		.dy = at(turn, node->dy),
		.dx = at(turn, node->dx),
		.places = at(turn, node->places),
		.add = node->add_dx,
	};
}

/* ---- forward ---- */

static int layer_forward(const struct turn *turn, struct error *err)
{
	const struct program *program = turn->program;
	const struct plan_node *node = turn->node;
	const struct shape *y = &node->y_shape;
	float *bias = param(turn, program->request->weights, node->fused.op->bias);
	void *workspace = turn->memory->workspace;
	struct conv_source source;
	bool through = source_of(turn, &source);
	int rc;

	if (program->convs[turn->index])
		rc = convolution_forward(program->convs[turn->index], turn->on.stream,
					 at(turn, node->x), weight(turn), at(turn, node->y),
					 node->norm >= 0 ? sums_of(turn, node->norm) : NULL,
					 through ? &source : NULL, workspace, err);
	else
		rc = linear_forward(program->linears[turn->index], turn->on.stream,
				    at(turn, node->x), weight(turn), at(turn, node->y), workspace,
				    err);
	if (!rc && bias)
		kernel_bias(&turn->on, at(turn, node->y), bias,
			    (int64_t)program->count * y->height * y->width, y->channels);
	return rc;
}

static int node_forward(const struct turn *turn, struct error *err)
{
	const struct plan_node *node = turn->node;
	const struct kernel_norm norm = norm_call(turn);
	const struct kernel_pool pool = pool_call(turn);
	size_t count = elements(turn, &node->y_shape);

	switch (node->fused.kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return layer_forward(turn, err);
	case OP_BATCHNORM:
		if (norm.y)
			kernel_norm(&turn->on, &norm);
		else
			kernel_norm_moments(&turn->on, &norm);
		return 0;
	case OP_RELU:
		kernel_relu(&turn->on, at(turn, node->x), at(turn, node->y), count);
		return 0;
	case OP_ADD:
		kernel_sum(&turn->on, at(turn, node->x), at(turn, node->z), at(turn, node->y),
			   count);
		return 0;
	case OP_MAXPOOL2D:
		kernel_maxpool(&turn->on, &pool);
		return 0;
	case OP_AVGPOOL:
		kernel_avgpool(&turn->on, &pool);
		return 0;
	default:
		return error_set(err, ERR_INTERNAL, "a node of op %s",
				 op_name(node->fused.kind));
	}
}

static struct turn turn_of(const struct program *program, const struct program_memory *memory,
			   cudaStream_t stream, bool add)
{
	return (struct turn){
		.program = program,
		.memory = memory,
		.on = {stream, program->plan->number, program->cuda->multiprocessors},
		.add = add,
	};
}

int program_forward(const struct program *program, const struct program_memory *memory,
		    cudaStream_t stream, struct error *err)
{
	struct turn turn = turn_of(program, memory, stream, false);
	int rc = 0;

	for (int i = 0; !rc && i < program->plan->node_count; i++) {
		turn.index = i;
		turn.node = &program->plan->nodes[i];
		rc = node_forward(&turn, err);
		if (!rc)
			rc = cuda_launched(op_name(turn.node->fused.kind), err);
		pass(&turn, false);
	}
	return rc;
}

/* ---- backward ---- */

/* Into the bucket, by way of scratch where the layer's order or type is another. */
static int weight_backward(const struct turn *turn, struct error *err)
{
	const struct program *program = turn->program;
	const struct plan_node *node = turn->node;
	const struct plan_weight *weight = &node->weight;
	float *bucket = param(turn, program->request->gradients, weight->param);
	void *scratch = at(turn, program->plan->weight_gradient);
	bool direct = weight->gradient_in_place;
	void *dw = direct ? bucket : scratch;
	struct conv_source source;
	bool through = source_of(turn, &source);
	int rc;

	if (program->convs[turn->index])
		rc = convolution_back_weights(program->convs[turn->index], turn->on.stream,
					      at(turn, node->x), at(turn, node->dy), dw,
					      direct && turn->add, through ? &source : NULL,
					      turn->memory->workspace, err);
	else
		rc = linear_back_weights(program->linears[turn->index], turn->on.stream,
					 at(turn, node->x), at(turn, node->dy), dw,
					 direct && turn->add, turn->memory->workspace, err);
	if (!rc && !direct)
		kernel_weight_gradient(&turn->on, scratch, bucket, weight->outputs,
				       weight->channels, weight->inner, weight->padded, turn->add);
	return rc;
}

/* Parameters first: their bucket may go out while the rest is computed. */
static int layer_backward(const struct turn *turn, const struct program_sink *sink,
			  struct error *err)
{
	const struct program *program = turn->program;
	const struct plan_node *node = turn->node;
	const struct shape *y = &node->y_shape;
	float *db = param(turn, program->request->gradients, node->fused.op->bias);
	struct conv_source source;
	bool through = source_of(turn, &source);
	int rc = weight_backward(turn, err);

	if (!rc && db)
		kernel_bias_back(&turn->on, at(turn, node->dy), db,
				 (int64_t)program->count * y->height * y->width, y->channels,
				 turn->add, at(turn, program->plan->sums));
	if (!rc)
		rc = sink->ready(sink->context, node->fused.op, err);
	if (rc || node->dx == NO_SLOT)
		return rc;
	if (program->convs[turn->index])
		return convolution_back_input(program->convs[turn->index], turn->on.stream,
					      weight(turn), at(turn, node->dy), at(turn, node->dx),
					      node->add_dx, through ? &source : NULL,
					      turn->memory->workspace, err);
	return linear_back_input(program->linears[turn->index], turn->on.stream, weight(turn),
				 at(turn, node->dy), at(turn, node->dx), node->add_dx,
				 turn->memory->workspace, err);
}

static void add_backward(const struct turn *turn)
{
	const struct plan_node *node = turn->node;
	size_t count = elements(turn, &node->y_shape);
	void *dy = at(turn, node->dy);

	if (node->dz != NO_SLOT)
		kernel_copy(&turn->on, dy, at(turn, node->dz), count, node->add_dz);
	if (node->dx != NO_SLOT && !node->dx_is_dy)
		kernel_copy(&turn->on, dy, at(turn, node->dx), count, node->add_dx);
}

static int node_backward(const struct turn *turn, const struct program_sink *sink,
			 struct error *err)
{
	const struct plan_node *node = turn->node;
	const struct kernel_norm norm = norm_call(turn);
	const struct kernel_pool pool = pool_call(turn);

	switch (node->fused.kind) {
	case OP_CONV2D:
	case OP_LINEAR:
		return layer_backward(turn, sink, err);
	case OP_BATCHNORM:
		kernel_norm_back(&turn->on, &norm);
		return sink->ready(sink->context, node->fused.op, err);
	case OP_RELU:
		if (node->dx != NO_SLOT)
			kernel_relu_back(&turn->on, at(turn, node->y), at(turn, node->dy),
					 at(turn, node->dx), elements(turn, &node->y_shape),
					 node->add_dx);
		return 0;
	case OP_ADD:
		add_backward(turn);
		return 0;
	case OP_MAXPOOL2D:
		if (node->dx != NO_SLOT)
			kernel_maxpool_back(&turn->on, &pool);
		return 0;
	case OP_AVGPOOL:
		if (node->dx != NO_SLOT)
			kernel_avgpool_back(&turn->on, &pool);
		return 0;
	default:
		return error_set(err, ERR_INTERNAL, "a node of op %s",
				 op_name(node->fused.kind));
	}
}

int program_backward(const struct program *program, const struct program_memory *memory,
		     cudaStream_t stream, bool add, const struct program_sink *sink,
		     struct error *err)
{
	struct turn turn = turn_of(program, memory, stream, add);
	int rc = 0;

	for (int i = program->plan->node_count - 1; !rc && i >= 0; i--) {
		turn.index = i;
		turn.node = &program->plan->nodes[i];
		rc = node_backward(&turn, sink, err);
		if (!rc)
			rc = cuda_launched(op_name(turn.node->fused.kind), err);
		pass(&turn, true);
	}
	return rc;
}
