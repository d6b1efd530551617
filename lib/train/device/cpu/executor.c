/* SPDX-License-Identifier: BSD-3-Clause */
/* The CPU executor: compiled graphs for the batch sizes that occur, and one arena for all of
 * them. */
#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/device/cpu/cpu.h"
#include "train/device/cpu/loss.h"
#include "train/executor/executor_common.h"

struct executor {
	struct cpu *cpu;
	struct device_queue *queue;
	struct executor_request request;
	struct executor_common common;
	struct compiled_sizes sizes;
	struct compiled_graph *compiled; /* for the present number of samples */
	char *arena;
	size_t arena_bytes;
	float *losses;
	int32_t *label_ranks;
};

static void executor_free(struct executor *executor)
{
	if (!executor)
		return;
	for (int i = 0; i < COMPILED_SIZES_MAX; i++)
		compiled_graph_free(executor->sizes.list[i].compiled);
	executor->cpu->device.ops->memory_free(&executor->cpu->device, executor->arena);
	executor_common_free(&executor->common);
	free(executor->losses);
	free(executor->label_ranks);
	free(executor);
}

static int compile(struct executor *executor, int count, struct error *err)
{
	const struct graph *graph = executor->request.graph;
	struct compiled_graph *compiled;
	int rc = compiled_graph_new(executor->cpu, &executor->request, count, &compiled, err);

	if (rc)
		return rc;
	executor->compiled = compiled;
	compiled_graph_free(compiled_sizes_add(&executor->sizes, count, compiled));
	if (compiled->layouts[graph->output].block != 1)
		return error_set(err, ERR_INTERNAL, "the output of model %s is not a vector",
				 graph->model);
	return 0;
}

static int executor_new(struct device_queue *queue, const struct executor_request *request,
			struct executor **out, struct error *err)
{
	struct executor *executor = calloc(1, sizeof *executor);
	size_t batch = (size_t)request->batch;
	int rc;

	if (!executor)
		return error_memory(err, "a training step");
	executor->cpu = (struct cpu *)queue->device;
	executor->queue = queue;
	executor->request = *request;
	executor->losses = calloc(batch + 1, sizeof *executor->losses);
	executor->label_ranks = calloc(batch + 1, sizeof *executor->label_ranks);
	rc = executor->losses && executor->label_ranks ? 0 : error_memory(err, "a training step");
	if (!rc)
		rc = executor_common_new(&executor->request, queue, &executor->common, err);
	/* Do this now, so that a lack of memory shows before training starts. */
	if (!rc)
		rc = compile(executor, request->batch, err);
	if (rc)
		executor_free(executor);
	else
		*out = executor;
	return rc;
}

/* Make executor->compiled fit count samples, and the arena large enough for it. */
static int find_compiled_graph(struct executor *executor, int count, struct error *err)
{
	struct device *device = &executor->cpu->device;
	size_t bytes;
	int rc = 0;

	executor->compiled = compiled_sizes_use(&executor->sizes, count);
	if (!executor->compiled)
		rc = compile(executor, count, err);
	if (rc)
		return rc;
	bytes = executor->compiled->plan.arena_bytes;
	if (executor->arena && bytes <= executor->arena_bytes)
		return 0;
	device->ops->memory_free(device, executor->arena);
	executor->arena = NULL;
	executor->arena_bytes = bytes;
	return device->ops->memory_new(device, bytes, (void **)&executor->arena, err);
}

static struct op_call loss_call(const struct executor *executor, const struct executor_input *input)
{
	return executor_common_loss(&executor->common, input,
				    compiled_graph_output(executor->compiled, executor->arena),
				    input->target, executor->losses);
}

static int forward(struct executor *executor, const struct executor_input *input, struct error *err)
{
	int rc = find_compiled_graph(executor, input->count, err);
	struct op_call call;

	if (!rc)
		rc = compiled_graph_forward(executor->compiled, executor->arena, input->x, err);
	if (rc)
		return rc;
	call = loss_call(executor, input);
	rc = host_loss(&call, err);
	if (rc || call.kind == OP_MSE)
		return rc;
	call.kind = OP_LABEL_RANK;
	call.y = tensor_make(executor->label_ranks, ELEMENT_I32, 1, call.x.shape);
	return host_loss(&call, err);
}

/* No samples: zero gradients, and all buckets in the same order as on other ranks. */
static int backward_nothing(struct executor *executor, const struct executor_input *input,
			    struct error *err)
{
	const struct executor_request *request = &executor->request;
	int rc = 0;

	if (input->first)
		memset(request->gradients, 0, request->buckets->total * sizeof(float));
	for (int i = request->graph->op_count - 1; !rc && input->last && i >= 0; i--)
		rc = executor_common_op_ready(&executor->common, &request->graph->ops[i], err);
	return rc;
}

static int backward(struct executor *executor, const struct executor_input *input,
		    struct error *err)
{
	struct comm *comm = executor->request.comm;
	int rc;

	executor_common_begin_update(&executor->common);
	if (!input->count) {
		rc = backward_nothing(executor, input, err);
	} else {
		struct compiled_graph *compiled = executor->compiled;
		struct op_call call = loss_call(executor, input);

		call.pass = OP_BACKWARD;
		call.dx = tensor_make(compiled_graph_output_gradient(compiled, executor->arena),
				      ELEMENT_F32, 2, call.x.shape);
		rc = host_loss(&call, err);
		if (!rc)
			rc = compiled_graph_backward(compiled, executor->arena, input->x,
						     !input->first,
						     input->last ? &executor->common : NULL, err);
	}
	if (rc || !input->last)
		return rc;
	return comm->ops->finish(comm, executor->queue, err);
}

static void update(struct executor *executor, float lr)
{
	const struct executor_request *request = &executor->request;
	struct op_sgd sgd = request->sgd;

	sgd.lr = lr;
	for (size_t i = 0; i < executor->common.param_range_count; i++) {
		const struct param_range *part = &executor->common.param_ranges[i];

		sgd.weight_decay = part->decay ? request->sgd.weight_decay : 0;
		executor->cpu->kernels->sgd(&sgd, request->weights + part->offset,
					    request->gradients + part->offset,
					    request->momentum + part->offset, part->count);
	}
}

static int executor_run(struct executor *executor, const struct executor_input *input,
			struct error *err)
{
	int rc = executor_common_check(&executor->common, input, err);

	if (!rc && input->count)
		rc = forward(executor, input, err);
	if (rc)
		return rc;
	executor_common_add_losses(&executor->common, input, executor->losses,
				   executor->label_ranks);
	if (!executor->request.train)
		return 0;
	rc = executor_common_vote(&executor->common, input, err);
	if (!rc)
		rc = backward(executor, input, err);
	if (!rc && input->last)
		update(executor, input->lr);
	return rc;
}

static int executor_read(struct executor *executor, struct executor_totals *out, struct error *err)
{
	executor_common_take_totals(&executor->common, out);
	return 0;
}

const struct executor_ops cpu_executor = {
	.open = executor_new,
	.run = executor_run,
	.read = executor_read,
	.close = executor_free,
};
