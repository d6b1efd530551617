/* SPDX-License-Identifier: BSD-3-Clause */
/* The default step of any device: walks the graph's ops forward, backward and through the update,
 * and hands each bucket to comm as soon as its last gradient is there. */
#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/device/device.h"
#include "train/executor/executor_arena.h"
#include "train/executor/executor_common.h"
#include "train/model/graph.h"

struct walk {
	struct step_request request;
	struct device_queue *queue;
	struct step_plan plan;
	unsigned char *arena; /* device memory: values and their gradients, as plan says */
	void *target;	      /* device memory */
	float *losses;	      /* device memory, [batch] */
	int32_t *places;      /* device memory, [batch]: OP_LABEL_RANK's result */
	float *host_losses;   /* the same two, read back */
	int32_t *host_places;
	float *saved; /* device memory: batch norms' statistics, at the buffers' offsets */
	struct step_parts parts;
};

struct device_step {
	const struct device_ops *ops; /* of a device with steps of its own, else NULL */
	struct device_queue *queue;
	struct comm *comm; /* that wants to know the steps, else NULL */
	float *vote; /* device memory; NULL: none */
	float votes; /* the answer, where it is known at once */
	struct step *step;
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
	const struct step_request *request = &walk->request;
	const struct graph *graph = request->graph;
	size_t batch = (size_t)request->batch;
	size_t targets = request->loss == LOSS_MSE ? batch * (size_t)graph->classes : batch;
	int rc = step_plan_make(graph, request->batch, request->train, &walk->plan, err);

	if (!rc)
		rc = step_parts_new(request, &walk->parts, err);
	if (rc)
		return rc;
	walk->host_losses = calloc(batch, sizeof *walk->host_losses);
	walk->host_places = calloc(batch, sizeof *walk->host_places);
	if (!walk->host_losses || !walk->host_places)
		return error_memory(err, "a training step");
	rc = ops_of(walk)->memory_new(walk->queue->device, walk->plan.arena_bytes,
				      (void **)&walk->arena, err);
	if (!rc)
		rc = reserve(walk, targets, &walk->target, err);
	if (!rc)
		rc = reserve(walk, batch, &walk->losses, err);
	if (!rc)
		rc = reserve(walk, batch, &walk->places, err);
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
		device->ops->memory_free(device, walk->places);
		device->ops->memory_free(device, walk->saved);
	}
	free(walk->host_losses);
	free(walk->host_places);
	step_plan_free(&walk->plan);
	step_parts_free(&walk->parts);
}

/* offsets: the plan's values or gradients. */
static struct tensor value_tensor(const struct walk *walk, const size_t *offsets, int value,
				  int count, int rank)
{
	const struct shape *shape = &walk->request.graph->values[value];
	int64_t sizes[4] = {count, shape->channels, shape->height, shape->width};
	size_t offset = offsets[value];

	return tensor_make(offset == STEP_NOWHERE ? NULL : walk->arena + offset, ELEMENT_F32, rank,
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
	const struct step_request *request = &walk->request;
	struct op_call call = {.kind = op->kind,
			       .attributes = op->attributes,
			       .batchnorm = {op->eps, op->momentum, request->train}};

	/* A linear layer's result is a vector: {O, 1, 1} seen as [N, O]. */
	call.x = value_tensor(walk, walk->plan.values, op->input, count, 4);
	call.y = value_tensor(walk, walk->plan.values, op->output, count,
			      op->kind == OP_LINEAR ? 2 : 4);
	if (op->input2 >= 0)
		call.x2 = value_tensor(walk, walk->plan.values, op->input2, count, 4);
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
	const struct step_request *request = &walk->request;
	bool mse = request->loss == LOSS_MSE;
	int64_t sizes[2] = {count, request->graph->classes};

	return (struct op_call){
		.kind = mse ? OP_MSE : OP_CROSS_ENTROPY,
		.x = value_tensor(walk, walk->plan.values, request->graph->output, count, 2),
		.target = tensor_make(walk->target, mse ? ELEMENT_F32 : ELEMENT_I32, mse ? 2 : 1,
				      sizes),
		.y = tensor_make(walk->losses, ELEMENT_F32, 1, sizes),
		.smoothing = mse ? 0 : request->smoothing,
	};
}

static int forward(struct walk *walk, const struct step_input *input, struct error *err)
{
	const struct graph *graph = walk->request.graph;
	const struct device_ops *ops = ops_of(walk);
	size_t count = (size_t)input->count, x_count = (size_t)shape_count(&graph->values[0]);
	struct op_call call = loss_call(walk, input->count);
	int rc = ops->copy_in(walk->queue, walk->arena + walk->plan.values[0], input->x,
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
	call.y = tensor_make(walk->places, ELEMENT_I32, 1, call.x.shape);
	return ops->run(walk->queue, &call, err);
}

/* Read the losses back and add them up. */
static int count_up(struct walk *walk, const struct step_input *input, struct error *err)
{
	size_t bytes = (size_t)input->count * 4;
	const struct device_ops *ops = ops_of(walk);
	int rc = ops->copy_out(walk->queue, walk->host_losses, walk->losses, bytes, err);

	if (!rc && walk->request.loss == LOSS_CROSS_ENTROPY)
		rc = ops->copy_out(walk->queue, walk->host_places, walk->places, bytes, err);
	if (rc)
		return rc;
	step_parts_count(&walk->parts, input, walk->host_losses,
			 walk->request.loss == LOSS_CROSS_ENTROPY ? walk->host_places : NULL);
	return 0;
}

static int backward_op(struct walk *walk, int index, const struct step_input *input,
		       struct error *err)
{
	const struct step_request *request = &walk->request;
	const struct graph_op *op = &request->graph->ops[index];
	const struct step_turn *turn = &walk->plan.turns[index];
	const size_t *gradients = walk->plan.gradients;
	struct op_call call = graph_call(walk, op, input->count);
	int rc;

	call.pass = OP_BACKWARD;
	call.dy = value_tensor(walk, gradients, op->output, input->count, call.y.rank);
	call.dx = value_tensor(walk, gradients, op->input, input->count, call.x.rank);
	call.add_dx = turn->add_dx;
	if (op->input2 >= 0) {
		call.dx2 = value_tensor(walk, gradients, op->input2, input->count, call.x2.rank);
		call.add_dx2 = turn->add_dx2;
	}
	/* What the plan keeps for the backward pass: of a ReLU the result alone, else x alone,
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
	rc = step_parts_ready(&walk->parts, op->bias, walk->queue, err);
	if (!rc)
		rc = step_parts_ready(&walk->parts, op->weight, walk->queue, err);
	return rc ? rc : request->comm->ops->progress(request->comm, err);
}

static int backward(struct walk *walk, const struct step_input *input, struct error *err)
{
	const struct step_request *request = &walk->request;
	const struct graph *graph = request->graph;
	struct op_call loss = loss_call(walk, input->count);
	int rc;

	step_parts_begin(&walk->parts);
	loss.pass = OP_BACKWARD;
	loss.scale = (float)(1.0 / (double)input->global_count);
	loss.dx = value_tensor(walk, walk->plan.gradients, graph->output, input->count, 2);
	rc = ops_of(walk)->run(walk->queue, &loss, err);
	for (int i = graph->op_count - 1; !rc && i >= 0; i--)
		rc = backward_op(walk, i, input, err);
	if (rc || !input->last)
		return rc;
	return request->comm->ops->finish(request->comm, walk->queue, err);
}

static int update(struct walk *walk, float lr, struct error *err)
{
	const struct step_request *request = &walk->request;
	int rc = 0;

	for (size_t i = 0; !rc && i < walk->parts.stretch_count; i++) {
		const struct stretch *part = &walk->parts.stretches[i];
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

static int walk_run(struct walk *walk, const struct step_input *input, struct error *err)
{
	int rc = step_parts_check(&walk->parts, input, err);

	if (!rc)
		rc = forward(walk, input, err);
	if (!rc)
		rc = count_up(walk, input, err);
	if (!rc && walk->request.train)
		rc = backward(walk, input, err);
	if (!rc && walk->request.train && input->last)
		rc = update(walk, input->lr, err);
	return rc;
}

/* ---- device.h ---- */

int device_step_new(struct device_queue *queue, const struct step_request *request,
		    struct device_step **out, struct error *err)
{
	struct device_step *step = calloc(1, sizeof *step);
	int rc;

	if (!step)
		return error_memory(err, "a training step");
	if ((request->precision != PRECISION_F32 || request->tf32) &&
	    !queue->device->ops->reduced) {
		free(step);
		return error_set(err, ERR_USAGE,
				 "--%s is for a GPU: %s computes in float32; leave it out, or take "
				 "--device cuda",
				 request->tf32 ? "tf32" : "amp", queue->device->ops->name);
	}
	step->queue = queue;
	if (request->train && request->comm && request->comm->ops->begin_step)
		step->comm = request->comm;
	if (request->vote)
		step->vote = request->gradients + request->buckets->total;
	if (queue->device->ops->step_new) {
		step->ops = queue->device->ops;
		rc = step->ops->step_new(queue, request, &step->step, err);
	} else {
		step->walk.request = *request;
		step->walk.queue = queue;
		rc = walk_reserve(&step->walk, err);
	}
	if (rc) {
		device_step_free(step);
		return rc;
	}
	*out = step;
	return 0;
}

int device_step_run(struct device_step *step, const struct step_input *input, struct error *err)
{
	int rc = step->comm && input->last ? step->comm->ops->begin_step(step->comm, step->queue,
									 input->step, err)
					   : 0;

	/* A vote of 0 too: what stands there is the last update's sum. */
	if (!rc && step->vote && input->last && !(step->ops && step->ops->takes_vote))
		rc = step->queue->device->ops->copy_in(step->queue, step->vote, &input->vote,
						       sizeof input->vote, err);
	if (rc)
		return rc;
	if (step->ops)
		return step->ops->step_run(step->step, input, err);
	return walk_run(&step->walk, input, err);
}

int device_step_ask(struct device_step *step, struct error *err)
{
	if (step->ops && step->ops->step_ask)
		return step->ops->step_ask(step->step, err);
	return step->queue->device->ops->copy_out(step->queue, &step->votes, step->vote,
						  sizeof step->votes, err);
}

int device_step_votes(struct device_step *step, float *out, struct error *err)
{
	if (step->ops && step->ops->step_votes)
		return step->ops->step_votes(step->step, out, err);
	*out = step->votes;
	return 0;
}

int device_step_read(struct device_step *step, struct step_totals *out, struct error *err)
{
	if (step->ops)
		return step->ops->step_read(step->step, out, err);
	step_parts_read(&step->walk.parts, out);
	return 0;
}

int device_step_scale(struct device_step *step, const struct step_scale *begin,
		      struct step_scale *now, struct error *err)
{
	if (step->ops && step->ops->step_scale)
		return step->ops->step_scale(step->step, begin, now, err);
	if (now)
		*now = (struct step_scale){.scale = 1};
	return 0;
}

void device_step_free(struct device_step *step)
{
	if (!step)
		return;
	if (step->ops) {
		if (step->step)
			step->ops->step_free(step->step);
	} else {
		walk_free(&step->walk);
	}
	free(step);
}
