/* SPDX-License-Identifier: BSD-3-Clause */
/* The default executor of any device. It runs the graph's ops forward, backward and through the
 * update, and passes each bucket to comm as soon as its last gradient is ready. */
#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/device/device.h"
#include "train/executor/executor_arena.h"
#include "train/executor/executor_common.h"
#include "train/model/graph.h"

struct walk {
	struct executor_request request;
	struct device_queue *queue;
	struct executor_arena arena_map;
	unsigned char *arena; /* device memory: values and their gradients, placed by arena_map */
	void *target;	      /* device memory */
	float *losses;	      /* device memory, [batch] */
	int32_t *label_ranks; /* device memory, [batch]: OP_LABEL_RANK's result */
	float *host_losses;   /* the previous two, read back */
	int32_t *host_label_ranks;
	float *saved; /* device memory: batch norm statistics, at the buffers' offsets */
	struct executor_common common;
};

struct device_executor {
	const struct device_ops *ops; /* of a device with its own executor, else NULL */
	struct device_queue *queue;
	struct comm *comm; /* a comm that tracks steps, else NULL */
	float *vote;	   /* device memory; NULL: none */
	float votes;	   /* the answer, if it is known at once */
	struct executor *native;
	struct walk walk;
};

static const struct device_ops *ops_of(const struct walk *walk)
{
	return walk->queue->device->ops;
}

static int reserve(struct walk *walk, size_t count, void *out, struct error *err)
{
	if (count > SIZE_MAX / 8)
		return error_memory(err, "the activations");
	return ops_of(walk)->memory_new(walk->queue->device, count * 4, out, err);
}

static int walk_reserve(struct walk *walk, struct error *err)
{
	const struct executor_request *request = &walk->request;
	const struct graph *graph = request->graph;
	size_t batch = (size_t)request->batch;
	size_t targets = request->loss == LOSS_MSE ? batch * (size_t)graph->classes : batch;
	int rc = executor_arena_make(graph, request->batch, request->train, &walk->arena_map, err);

	if (!rc)
		rc = executor_common_new(request, &walk->common, err);
	if (rc)
		return rc;
	walk->host_losses = calloc(batch, sizeof *walk->host_losses);
	walk->host_label_ranks = calloc(batch, sizeof *walk->host_label_ranks);
	if (!walk->host_losses || !walk->host_label_ranks)
		return error_memory(err, "a training step");
	rc = ops_of(walk)->memory_new(walk->queue->device, walk->arena_map.arena_bytes,
				      (void **)&walk->arena, err);
	if (!rc)
		rc = reserve(walk, targets, &walk->target, err);
	if (!rc)
		rc = reserve(walk, batch, &walk->losses, err);
	if (!rc)
		rc = reserve(walk, batch, &walk->label_ranks, err);
	if (!rc && request->train)
		rc = reserve(walk, (size_t)graph->buffer_total, &walk->saved, err);
	return rc;
}

static void walk_free(struct walk *walk)
{
	struct device *device = walk->queue ? walk->queue->device : NULL;

	if (device) {
		device->ops->memory_free(device, walk->arena);
		device->ops->memory_free(device, walk->target);
		device->ops->memory_free(device, walk->losses);
		device->ops->memory_free(device, walk->label_ranks);
		device->ops->memory_free(device, walk->saved);
	}
	free(walk->host_losses);
	free(walk->host_label_ranks);
	executor_arena_free(&walk->arena_map);
	executor_common_free(&walk->common);
}

/* offsets: arena_map's values or gradients. */
static struct tensor value_tensor(const struct walk *walk, const size_t *offsets, int value,
				  int count, int rank)
{
	const struct shape *shape = &walk->request.graph->values[value];
	int64_t sizes[4] = {count, shape->channels, shape->height, shape->width};
	size_t offset = offsets[value];

	return tensor_make(offset == ARENA_NONE ? NULL : walk->arena + offset, ELEMENT_F32, rank,
			   sizes);
}

static struct tensor param_tensor(const struct walk *walk, float *flat, int param)
{
	if (param < 0 || !flat)
		return (struct tensor){0};

	const struct graph_param *info = &walk->request.graph->params[param];

	return tensor_make(flat + walk->request.buckets->offsets[param], ELEMENT_F32, info->rank,
			   info->shape);
}

static struct tensor buffer_tensor(const struct walk *walk, float *flat, int buffer)
{
	if (buffer < 0 || !flat)
		return (struct tensor){0};

	const struct graph_buffer *info = &walk->request.graph->buffers[buffer];

	return tensor_make(flat + info->offset, ELEMENT_F32, 1, &info->count);
}

static struct op_call graph_call(const struct walk *walk, const struct graph_op *op, int count)
{
	const struct executor_request *request = &walk->request;
	struct op_call call = {.kind = op->kind,
			       .attributes = op->attributes,
			       .batchnorm = {op->eps, op->momentum, request->train}};

	/* A linear layer's result is a vector: {O, 1, 1} viewed as [N, O]. */
	call.x = value_tensor(walk, walk->arena_map.values, op->input, count, 4);
	call.y = value_tensor(walk, walk->arena_map.values, op->output, count,
			      op->kind == OP_LINEAR ? 2 : 4);
	if (op->input2 >= 0)
		call.x2 = value_tensor(walk, walk->arena_map.values, op->input2, count, 4);
	call.w = param_tensor(walk, request->weights, op->weight);
	call.b = param_tensor(walk, request->weights, op->bias);
	call.mean = buffer_tensor(walk, request->buffers, op->mean);
	call.variance = buffer_tensor(walk, request->buffers, op->variance);
	call.saved_mean = buffer_tensor(walk, walk->saved, op->mean);
	call.saved_invstd = buffer_tensor(walk, walk->saved, op->variance);
	return call;
}

static struct op_call loss_call(const struct walk *walk, int count)
{
	const struct executor_request *request = &walk->request;
	bool mse = request->loss == LOSS_MSE;
	int64_t sizes[2] = {count, request->graph->classes};

	return (struct op_call){
		.kind = mse ? OP_MSE : OP_CROSS_ENTROPY,
		.x = value_tensor(walk, walk->arena_map.values, request->graph->output, count, 2),
		.target = tensor_make(walk->target, mse ? ELEMENT_F32 : ELEMENT_I32, mse ? 2 : 1,
				      sizes),
		.y = tensor_make(walk->losses, ELEMENT_F32, 1, sizes),
		.smoothing = mse ? 0 : request->smoothing,
	};
}

static int forward(struct walk *walk, const struct executor_input *input, struct error *err)
{
	const struct graph *graph = walk->request.graph;
	const struct device_ops *ops = ops_of(walk);
	size_t count = (size_t)input->count, x_count = (size_t)shape_count(&graph->values[0]);
	struct op_call call = loss_call(walk, input->count);
	int rc = ops->copy_in(walk->queue, walk->arena + walk->arena_map.values[0], input->x,
			      count * x_count * 4, err);

	if (!rc)
		rc = ops->copy_in(walk->queue, walk->target, input->target,
				  (size_t)tensor_count(&call.target) * 4, err);
	for (int i = 0; !rc && i < graph->op_count; i++) {
		struct op_call layer = graph_call(walk, &graph->ops[i], input->count);

		rc = ops->run(walk->queue, &layer, err);
	}
	if (!rc)
		rc = ops->run(walk->queue, &call, err);
	if (rc || call.kind == OP_MSE)
		return rc;
	call.kind = OP_LABEL_RANK;
	call.y = tensor_make(walk->label_ranks, ELEMENT_I32, 1, call.x.shape);
	return ops->run(walk->queue, &call, err);
}

/* Read the losses back and add them up. */
static int add_losses(struct walk *walk, const struct executor_input *input, struct error *err)
{
	size_t bytes = (size_t)input->count * 4;
	const struct device_ops *ops = ops_of(walk);
	int rc = ops->copy_out(walk->queue, walk->host_losses, walk->losses, bytes, err);

	if (!rc && walk->request.loss == LOSS_CROSS_ENTROPY)
		rc = ops->copy_out(walk->queue, walk->host_label_ranks, walk->label_ranks, bytes,
				   err);
	if (rc)
		return rc;
	executor_common_add_losses(&walk->common, input, walk->host_losses,
				   walk->request.loss == LOSS_CROSS_ENTROPY ? walk->host_label_ranks
									    : NULL);
	return 0;
}

static int backward_op(struct walk *walk, int index, const struct executor_input *input,
		       struct error *err)
{
	const struct executor_request *request = &walk->request;
	const struct graph_op *op = &request->graph->ops[index];
	const struct executor_accumulate *accumulate = &walk->arena_map.accumulate[index];
	const size_t *gradients = walk->arena_map.gradients;
	struct op_call call = graph_call(walk, op, input->count);
	int rc;

	call.pass = OP_BACKWARD;
	call.dy = value_tensor(walk, gradients, op->output, input->count, call.y.rank);
	call.dx = value_tensor(walk, gradients, op->input, input->count, call.x.rank);
	call.add_dx = accumulate->add_dx;
	if (op->input2 >= 0) {
		call.dx2 = value_tensor(walk, gradients, op->input2, input->count, call.x2.rank);
		call.add_dx2 = accumulate->add_dx2;
	}
	/* What the arena keeps for the backward pass: only the result for a ReLU; else only x,
	 * which OP_ADD and OP_AVGPOOL do not read. */
	if (op->kind == OP_RELU)
		call.x = call.y;
	call.y.data = NULL;
	call.dw = param_tensor(walk, request->gradients, op->weight);
	call.db = param_tensor(walk, request->gradients, op->bias);
	call.add_dw = !input->first;
	rc = ops_of(walk)->run(walk->queue, &call, err);
	if (rc || !input->last)
		return rc;
	rc = executor_common_gradient_ready(&walk->common, op->bias, walk->queue, err);
	if (!rc)
		rc = executor_common_gradient_ready(&walk->common, op->weight, walk->queue, err);
	return rc ? rc : request->comm->ops->progress(request->comm, err);
}

static int backward(struct walk *walk, const struct executor_input *input, struct error *err)
{
	const struct executor_request *request = &walk->request;
	const struct graph *graph = request->graph;
	struct op_call loss = loss_call(walk, input->count);
	int rc;

	executor_common_begin_update(&walk->common);
	loss.pass = OP_BACKWARD;
	loss.scale = (float)(1.0 / (double)input->global_count);
	loss.dx = value_tensor(walk, walk->arena_map.gradients, graph->output, input->count, 2);
	rc = ops_of(walk)->run(walk->queue, &loss, err);
	for (int i = graph->op_count - 1; !rc && i >= 0; i--)
		rc = backward_op(walk, i, input, err);
	if (rc || !input->last)
		return rc;
	return request->comm->ops->finish(request->comm, walk->queue, err);
}

static int update(struct walk *walk, float lr, struct error *err)
{
	const struct executor_request *request = &walk->request;
	int rc = 0;

	for (size_t i = 0; !rc && i < walk->common.param_range_count; i++) {
		const struct param_range *part = &walk->common.param_ranges[i];
		int64_t count = (int64_t)part->count;
		struct op_call call = {.kind = OP_SGD, .sgd = request->sgd};

		call.sgd.lr = lr;
		if (!part->decay)
			call.sgd.weight_decay = 0;
		call.w = tensor_make(request->weights + part->offset, ELEMENT_F32, 1, &count);
		call.dw = tensor_make(request->gradients + part->offset, ELEMENT_F32, 1, &count);
		call.state = tensor_make(request->momentum + part->offset, ELEMENT_F32, 1, &count);
		rc = ops_of(walk)->run(walk->queue, &call, err);
	}
	return rc;
}

static int walk_run(struct walk *walk, const struct executor_input *input, struct error *err)
{
	int rc = executor_common_check(&walk->common, input, err);

	if (!rc)
		rc = forward(walk, input, err);
	if (!rc)
		rc = add_losses(walk, input, err);
	if (!rc && walk->request.train)
		rc = backward(walk, input, err);
	if (!rc && walk->request.train && input->last)
		rc = update(walk, input->lr, err);
	return rc;
}

/* ---- device.h ---- */

int device_executor_new(struct device_queue *queue, const struct executor_request *request,
			struct device_executor **out, struct error *err)
{
	struct device_executor *executor = calloc(1, sizeof *executor);
	int rc;

	if (!executor)
		return error_memory(err, "a training step");
	if ((request->precision != PRECISION_F32 || request->tf32) &&
	    !queue->device->ops->reduced) {
		free(executor);
		return error_set(err, ERR_USAGE,
				 "--%s is for a GPU: %s computes in float32; leave it out, or take "
				 "--device cuda",
				 request->tf32 ? "tf32" : "amp", queue->device->ops->name);
	}
	executor->queue = queue;
	if (request->train && request->comm && request->comm->ops->begin_step)
		executor->comm = request->comm;
	if (request->vote)
		executor->vote = request->gradients + request->buckets->total;
	if (queue->device->ops->executor_new) {
		executor->ops = queue->device->ops;
		rc = executor->ops->executor_new(queue, request, &executor->native, err);
	} else {
		executor->walk.request = *request;
		executor->walk.queue = queue;
		rc = walk_reserve(&executor->walk, err);
	}
	if (rc) {
		device_executor_free(executor);
		return rc;
	}
	*out = executor;
	return 0;
}

int device_executor_run(struct device_executor *executor, const struct executor_input *input,
			struct error *err)
{
	int rc = executor->comm && input->last
			 ? executor->comm->ops->begin_step(executor->comm, executor->queue,
							   input->step, err)
			 : 0;

	/* Write a vote of 0, too: otherwise the last update's sum would remain there. */
	if (!rc && executor->vote && input->last && !(executor->ops && executor->ops->accepts_vote))
		rc = executor->queue->device->ops->copy_in(executor->queue, executor->vote,
							   &input->vote, sizeof input->vote, err);
	if (rc)
		return rc;
	if (executor->ops)
		return executor->ops->executor_run(executor->native, input, err);
	return walk_run(&executor->walk, input, err);
}

int device_executor_start_votes(struct device_executor *executor, struct error *err)
{
	if (executor->ops && executor->ops->executor_start_votes)
		return executor->ops->executor_start_votes(executor->native, err);
	return executor->queue->device->ops->copy_out(executor->queue, &executor->votes,
						      executor->vote, sizeof executor->votes, err);
}

int device_executor_finish_votes(struct device_executor *executor, float *out, struct error *err)
{
	if (executor->ops && executor->ops->executor_finish_votes)
		return executor->ops->executor_finish_votes(executor->native, out, err);
	*out = executor->votes;
	return 0;
}

int device_executor_read(struct device_executor *executor, struct executor_totals *out,
			 struct error *err)
{
	if (executor->ops)
		return executor->ops->executor_read(executor->native, out, err);
	executor_common_take_totals(&executor->walk.common, out);
	return 0;
}

int device_executor_grad_scaler(struct device_executor *executor,
				const struct grad_scaler_state *begin,
				struct grad_scaler_state *now, struct error *err)
{
	if (executor->ops && executor->ops->executor_grad_scaler)
		return executor->ops->executor_grad_scaler(executor->native, begin, now, err);
	if (now)
		*now = (struct grad_scaler_state){.scale = 1};
	return 0;
}

void device_executor_free(struct device_executor *executor)
{
	if (!executor)
		return;
	if (executor->ops) {
		if (executor->native)
			executor->ops->executor_free(executor->native);
	} else {
		walk_free(&executor->walk);
	}
	free(executor);
}
