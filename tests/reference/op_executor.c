/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs a graph's ops forward, backward and through the update, and passes each bucket to comm as
 * soon as its last gradient is ready. Devices' own executors are tested against it. */
#include <stdlib.h>
#include <string.h>

#include "reference.h"
#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/executor/executor_common.h"
#include "train/model/graph.h"

#define NONE SIZE_MAX

struct executor {
	struct executor_request request;
	struct device_queue *queue;
	float *arena;	   /* device memory: values and their gradients */
	size_t *values;	   /* of each value, [batch]: where it begins in arena */
	size_t *gradients; /* the same of its gradient; the input has none: NONE */
	bool *written;	   /* per value: does its gradient hold something in this backward pass? */
	void *target;	   /* device memory */
	float *losses;	   /* device memory, [batch] */
	int32_t *label_ranks; /* device memory, [batch]: OP_LABEL_RANK's result */
	float *host_losses;   /* the previous two, read back */
	int32_t *host_label_ranks;
	float *saved; /* device memory: batch norm statistics, at the buffers' offsets */
	struct executor_common common;
};

static const struct device_ops *ops_of(const struct executor *executor)
{
	return executor->queue->device->ops;
}

static int run_op(const struct executor *executor, const struct op_call *call, struct error *err)
{
	return ((const struct op_device_ops *)ops_of(executor))->run(executor->queue, call, err);
}

static int reserve(struct executor *executor, size_t count, void *out, struct error *err)
{
	if (count > SIZE_MAX / 8)
		return error_memory(err, "the activations");
	return ops_of(executor)->memory_new(executor->queue->device, count * 4, out, err);
}

static void executor_free(struct executor *executor)
{
	struct device *device = executor->queue->device;

	device->ops->memory_free(device, executor->arena);
	device->ops->memory_free(device, executor->target);
	device->ops->memory_free(device, executor->losses);
	device->ops->memory_free(device, executor->label_ranks);
	device->ops->memory_free(device, executor->saved);
	free(executor->host_losses);
	free(executor->host_label_ranks);
	free(executor->values);
	free(executor->gradients);
	free(executor->written);
	executor_common_free(&executor->common);
	free(executor);
}

/* Lay out the arena; *total receives its floats. */
static int lay_out(struct executor *executor, size_t *total, struct error *err)
{
	const struct executor_request *request = &executor->request;
	size_t values = (size_t)request->graph->value_count;

	executor->values = calloc(values, sizeof *executor->values);
	executor->gradients = calloc(values, sizeof *executor->gradients);
	executor->written = calloc(values, sizeof *executor->written);
	if (!executor->values || !executor->gradients || !executor->written)
		return error_memory(err, "a training step");
	*total = 0;
	for (size_t i = 0; i < values; i++) {
		size_t count = (size_t)shape_count(&request->graph->values[i]);

		if (count > (SIZE_MAX / 16 - *total) / 2 / (size_t)request->batch)
			return error_memory(err, "the activations");
		/* Each begins at a multiple of 64 bytes. */
		count = (count * (size_t)request->batch + 15) / 16 * 16;
		executor->values[i] = *total;
		executor->gradients[i] = request->train && i ? *total + count : NONE;
		*total += executor->gradients[i] == NONE ? count : 2 * count;
	}
	return 0;
}

static int executor_reserve(struct executor *executor, struct error *err)
{
	const struct executor_request *request = &executor->request;
	const struct graph *graph = request->graph;
	size_t batch = (size_t)request->batch;
	size_t targets = request->loss == LOSS_MSE ? batch * (size_t)graph->classes : batch;
	size_t total = 0;
	int rc = lay_out(executor, &total, err);

	if (!rc)
		rc = executor_common_new(request, executor->queue, &executor->common, err);
	if (rc)
		return rc;
	executor->host_losses = calloc(batch, sizeof *executor->host_losses);
	executor->host_label_ranks = calloc(batch, sizeof *executor->host_label_ranks);
	if (!executor->host_losses || !executor->host_label_ranks)
		return error_memory(err, "a training step");
	rc = reserve(executor, total, &executor->arena, err);
	if (!rc)
		rc = reserve(executor, targets, &executor->target, err);
	if (!rc)
		rc = reserve(executor, batch, &executor->losses, err);
	if (!rc)
		rc = reserve(executor, batch, &executor->label_ranks, err);
	if (!rc && request->train)
		rc = reserve(executor, (size_t)graph->buffer_total, &executor->saved, err);
	return rc;
}

static int executor_new(struct device_queue *queue, const struct executor_request *request,
			struct executor **out, struct error *err)
{
	struct executor *executor = calloc(1, sizeof *executor);
	int rc;

	if (!executor)
		return error_memory(err, "a training step");
	executor->request = *request;
	executor->queue = queue;
	rc = executor_reserve(executor, err);
	if (rc)
		executor_free(executor);
	else
		*out = executor;
	return rc;
}

/* offsets: the executor's values or gradients. */
static struct tensor value_tensor(const struct executor *executor, const size_t *offsets, int value,
				  int count, int rank)
{
	const struct shape *shape = &executor->request.graph->values[value];
	int64_t sizes[4] = {count, shape->channels, shape->height, shape->width};
	size_t offset = offsets[value];

	return tensor_make(offset == NONE ? NULL : executor->arena + offset, ELEMENT_F32, rank,
			   sizes);
}

static struct tensor param_tensor(const struct executor *executor, float *flat, int param)
{
	if (param < 0 || !flat)
		return (struct tensor){0};

	const struct graph_param *info = &executor->request.graph->params[param];

	return tensor_make(flat + executor->request.buckets->offsets[param], ELEMENT_F32,
			   info->rank, info->shape);
}

static struct tensor buffer_tensor(const struct executor *executor, float *flat, int buffer)
{
	if (buffer < 0 || !flat)
		return (struct tensor){0};

	const struct graph_buffer *info = &executor->request.graph->buffers[buffer];

	return tensor_make(flat + info->offset, ELEMENT_F32, 1, &info->count);
}

static struct op_call graph_call(const struct executor *executor, const struct graph_op *op,
				 int count)
{
	const struct executor_request *request = &executor->request;
	struct op_call call = {.kind = op->kind,
			       .attributes = op->attributes,
			       .batchnorm = {op->eps, op->momentum, request->train}};

	/* A linear layer's result is a vector: {O, 1, 1} viewed as [N, O]. */
	call.x = value_tensor(executor, executor->values, op->input, count, 4);
	call.y = value_tensor(executor, executor->values, op->output, count,
			      op->kind == OP_LINEAR ? 2 : 4);
	if (op->input2 >= 0)
		call.x2 = value_tensor(executor, executor->values, op->input2, count, 4);
	call.w = param_tensor(executor, request->weights, op->weight);
	call.b = param_tensor(executor, request->weights, op->bias);
	call.mean = buffer_tensor(executor, request->buffers, op->mean);
	call.variance = buffer_tensor(executor, request->buffers, op->variance);
	call.saved_mean = buffer_tensor(executor, executor->saved, op->mean);
	call.saved_invstd = buffer_tensor(executor, executor->saved, op->variance);
	return call;
}

static struct op_call loss_call(const struct executor *executor, const struct executor_input *input)
{
	size_t output = executor->values[executor->request.graph->output];

	return executor_common_loss(&executor->common, input, executor->arena + output,
				    executor->target, executor->losses);
}

static int forward(struct executor *executor, const struct executor_input *input, struct error *err)
{
	const struct graph *graph = executor->request.graph;
	const struct device_ops *ops = ops_of(executor);
	size_t count = (size_t)input->count, x_count = (size_t)shape_count(&graph->values[0]);
	struct op_call call = loss_call(executor, input);
	int rc = ops->copy_in(executor->queue, executor->arena + executor->values[0], input->x,
			      count * x_count * 4, err);

	if (!rc)
		rc = ops->copy_in(executor->queue, executor->target, input->target,
				  (size_t)tensor_count(&call.target) * 4, err);
	for (int i = 0; !rc && i < graph->op_count; i++) {
		struct op_call layer = graph_call(executor, &graph->ops[i], input->count);

		rc = run_op(executor, &layer, err);
	}
	if (!rc)
		rc = run_op(executor, &call, err);
	if (rc || call.kind == OP_MSE)
		return rc;
	call.kind = OP_LABEL_RANK;
	call.y = tensor_make(executor->label_ranks, ELEMENT_I32, 1, call.x.shape);
	return run_op(executor, &call, err);
}

/* Read the losses back and add them up. */
static int add_losses(struct executor *executor, const struct executor_input *input,
		      struct error *err)
{
	size_t bytes = (size_t)input->count * 4;
	const struct device_ops *ops = ops_of(executor);
	int rc =
		ops->copy_out(executor->queue, executor->host_losses, executor->losses, bytes, err);

	if (!rc && executor->request.loss == LOSS_CROSS_ENTROPY)
		rc = ops->copy_out(executor->queue, executor->host_label_ranks,
				   executor->label_ranks, bytes, err);
	if (!rc)
		executor_common_add_losses(&executor->common, input, executor->host_losses,
					   executor->host_label_ranks);
	return rc;
}

static int backward_op(struct executor *executor, int index, const struct executor_input *input,
		       struct error *err)
{
	const struct executor_request *request = &executor->request;
	const struct graph_op *op = &request->graph->ops[index];
	const size_t *gradients = executor->gradients;
	struct op_call call = graph_call(executor, op, input->count);
	int rc;

	if (!executor->written[op->output])
		return error_set(err, ERR_INTERNAL,
				 "model %s: nothing reads the result of op %d (%s)",
				 request->graph->model, index, op_name(op->kind));
	call.pass = OP_BACKWARD;
	call.dy = value_tensor(executor, gradients, op->output, input->count, call.y.rank);
	call.dx = value_tensor(executor, gradients, op->input, input->count, call.x.rank);
	call.add_dx = executor->written[op->input];
	executor->written[op->input] = true;
	if (op->input2 >= 0) {
		call.dx2 =
			value_tensor(executor, gradients, op->input2, input->count, call.x2.rank);
		call.add_dx2 = executor->written[op->input2];
		executor->written[op->input2] = true;
	}
	call.dw = param_tensor(executor, request->gradients, op->weight);
	call.db = param_tensor(executor, request->gradients, op->bias);
	call.add_dw = !input->first;
	rc = run_op(executor, &call, err);
	return rc || !input->last ? rc : executor_common_op_ready(&executor->common, op, err);
}

static int backward(struct executor *executor, const struct executor_input *input,
		    struct error *err)
{
	const struct executor_request *request = &executor->request;
	const struct graph *graph = request->graph;
	struct op_call loss = loss_call(executor, input);
	int rc;

	executor_common_begin_update(&executor->common);
	memset(executor->written, 0, (size_t)graph->value_count * sizeof *executor->written);
	executor->written[graph->output] = true;
	loss.pass = OP_BACKWARD;
	loss.dx = value_tensor(executor, executor->gradients, graph->output, input->count, 2);
	rc = run_op(executor, &loss, err);
	for (int i = graph->op_count - 1; !rc && i >= 0; i--)
		rc = backward_op(executor, i, input, err);
	if (rc || !input->last)
		return rc;
	return request->comm->ops->finish(request->comm, executor->queue, err);
}

static int update(struct executor *executor, float lr, struct error *err)
{
	const struct executor_request *request = &executor->request;
	int rc = 0;

	for (size_t i = 0; !rc && i < executor->common.param_range_count; i++) {
		const struct param_range *part = &executor->common.param_ranges[i];
		int64_t count = (int64_t)part->count;
		struct op_call call = {.kind = OP_SGD, .sgd = request->sgd};

		call.sgd.lr = lr;
		if (!part->decay)
			call.sgd.weight_decay = 0;
		call.w = tensor_make(request->weights + part->offset, ELEMENT_F32, 1, &count);
		call.dw = tensor_make(request->gradients + part->offset, ELEMENT_F32, 1, &count);
		call.state = tensor_make(request->momentum + part->offset, ELEMENT_F32, 1, &count);
		rc = run_op(executor, &call, err);
	}
	return rc;
}

static int executor_run(struct executor *executor, const struct executor_input *input,
			struct error *err)
{
	int rc = executor_common_check(&executor->common, input, err);

	if (!rc)
		rc = forward(executor, input, err);
	if (!rc)
		rc = add_losses(executor, input, err);
	if (!rc && executor->request.train)
		rc = executor_common_vote(&executor->common, input, err);
	if (!rc && executor->request.train)
		rc = backward(executor, input, err);
	if (!rc && executor->request.train && input->last)
		rc = update(executor, input->lr, err);
	return rc;
}

static int executor_read(struct executor *executor, struct executor_totals *out, struct error *err)
{
	executor_common_take_totals(&executor->common, out);
	return 0;
}

const struct executor_ops op_executor = {
	.open = executor_new,
	.run = executor_run,
	.read = executor_read,
	.close = executor_free,
};
