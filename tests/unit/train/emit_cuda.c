/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "op_network.h"
#include "train/device/cuda/executor_memory.h"

extern const struct device_ops device_cuda;

/* A network in one run. */
struct emitted {
	const struct op_network *network;
	struct kernel_config config;
	struct lowered_graph lowered;
	struct executor_memory memory;
	struct compiled_graph *compiled;
	struct error *err;
};

static float *slot(const struct emitted *emitted, int index)
{
	return (float *)(void *)(emitted->memory.graph_memory.arena +
				 emitted->lowered.plan.slots[index].offset);
}

/* From a dense tensor to NHWC. */
static void bring(const struct emitted *emitted, const struct tensor *from, float *to, int channels,
		  int plane)
{
	const struct kernel_input call = {.raw = from->data,
					  .out = to,
					  .n = emitted->network->samples,
					  .c = channels,
					  .h = 1,
					  .w = plane,
					  .padded = channels};

	kernel_input(&emitted->config, &call);
}

/* From NHWC to a dense tensor. */
static int take(const struct emitted *emitted, const float *from, const struct tensor *to,
		int channels, int plane)
{
	size_t count = (size_t)tensor_count(to), bytes = count * sizeof(float);
	float *nhwc = malloc(bytes + 1), *nchw = malloc(bytes + 1);
	const struct device_ops *ops = op_emitter.device;
	struct device_queue *queue = emitted->network->queue;
	int rc = nhwc && nchw ? cuda_wait(emitted->config.stream, CUDA_WAIT_MS, emitted->err)
			      : error_memory(emitted->err, "a tensor");

	if (!rc)
		rc = ops->copy_out(queue, nhwc, from, bytes, emitted->err);
	for (size_t i = 0; !rc && i < count; i++) {
		size_t c = (size_t)channels, hw = (size_t)plane;

		nchw[i] = nhwc[(i / (c * hw) * hw + i % hw) * c + i / hw % c];
	}
	if (!rc)
		rc = ops->copy_in(queue, to->data, nchw, bytes, emitted->err);
	free(nhwc);
	free(nchw);
	return rc;
}

static int forward(const struct emitted *emitted)
{
	const struct op_network *network = emitted->network;
	const struct op_call *call = network->call;
	const struct lowered_node *node = &emitted->lowered.nodes[network->node];
	const float *saved = emitted->memory.graph_memory.saved + node->saved;
	size_t bytes = (size_t)node->x_shape.channels * sizeof(float);
	cudaStream_t stream = emitted->config.stream;
	int rc;

	kernel_weights(&emitted->config, emitted->memory.weights, emitted->memory.weight_count);
	rc = compiled_graph_run(emitted->compiled, &emitted->memory.graph_memory, stream, false,
				NULL, emitted->err);
	if (rc || call->pass == OP_BACKWARD)
		return rc;
	if (call->saved_mean.data) {
		cudaMemcpyAsync(call->saved_mean.data, saved, bytes, cudaMemcpyDeviceToDevice,
				stream);
		cudaMemcpyAsync(call->saved_invstd.data, saved + node->x_shape.channels, bytes,
				cudaMemcpyDeviceToDevice, stream);
	}
	return take(emitted, slot(emitted, emitted->lowered.plan.output), &call->y,
		    network->y_channels, network->y_plane);
}

static int nothing(void *context, const struct graph_op *op, struct error *err)
{
	(void)context;
	(void)op;
	(void)err;
	return 0;
}

static int backward(const struct emitted *emitted)
{
	const struct op_network *network = emitted->network;
	const struct op_call *call = network->call;
	const struct gradient_sink sink = {NULL, nothing};
	const struct shape *x = &network->graph->values[0];
	int plane = x->height * x->width, rc;
	float *dx = call->dx.data ? slot(emitted, emitted->lowered.plan.nodes[0].dy[0]) : NULL;

	bring(emitted, &call->dy, slot(emitted, emitted->lowered.plan.output_gradient),
	      network->y_channels, network->y_plane);
	if (dx && call->add_dx)
		bring(emitted, &call->dx, dx, x->channels, plane);
	rc = compiled_graph_run(emitted->compiled, &emitted->memory.graph_memory,
				emitted->config.stream, call->add_dw, &sink, emitted->err);
	return rc || !dx ? rc : take(emitted, dx, &call->dx, x->channels, plane);
}

/* The batch's targets are not used. */
static int load(struct emitted *emitted)
{
	const struct op_network *network = emitted->network;
	size_t count = (size_t)network->samples;
	int32_t *targets = calloc(count + 1, sizeof *targets);
	const struct executor_input input = {.x = network->x,
					     .target = targets,
					     .count = network->samples,
					     .global_count = network->samples,
					     .first = true,
					     .last = true};
	int rc = targets ? executor_memory_load_batch(&emitted->memory, &emitted->config, &input,
						      emitted->err)
			 : error_memory(emitted->err, "a batch");

	free(targets);
	return rc;
}

static int make(struct emitted *emitted, struct cuda *cuda)
{
	const struct op_network *network = emitted->network;
	const struct executor_common common = {0};
	struct step_plan *plan = &emitted->lowered.plan;
	int rc = lowered_graph_make(&network->request, cuda->multiprocessors, &emitted->lowered,
				    emitted->err);

	if (rc)
		return rc;
	plan->nodes[network->node].add_dx = network->call->add_dx;
	rc = executor_memory_new(cuda, &network->request, &emitted->lowered, &common,
				 &emitted->memory, emitted->err);
	if (!rc)
		rc = compiled_graph_new(cuda, &network->request, &emitted->lowered,
					network->samples, false, &emitted->compiled, emitted->err);
	if (!rc)
		rc = executor_memory_reserve_workspace(&emitted->memory,
						       compiled_graph_workspace(emitted->compiled),
						       emitted->err);
	return rc;
}

static int run_network(const struct kernel_config *config, struct device_queue *queue,
		       const struct op_call *call, struct error *err)
{
	struct op_network network;
	struct emitted emitted = {.network = &network, .config = *config, .err = err};
	int rc = op_network_new(queue, call, &network, err);

	if (!rc)
		rc = make(&emitted, (struct cuda *)queue->device);
	if (!rc)
		rc = load(&emitted);
	if (!rc)
		rc = forward(&emitted);
	if (!rc && call->pass == OP_BACKWARD)
		rc = backward(&emitted);
	if (!rc)
		rc = cuda_wait(config->stream, CUDA_WAIT_MS, err);
	if (!rc)
		rc = op_network_store(&network, err);
	compiled_graph_free(emitted.compiled);
	executor_memory_free(&emitted.memory);
	lowered_graph_free(&emitted.lowered);
	op_network_free(&network);
	return rc;
}

/* ---- losses, update: as executor.c calls them ---- */

/* A value in device memory. */
static int on_device(struct device_queue *queue, const void *value, size_t bytes, void *out,
		     struct error *err)
{
	void *memory;
	int rc = cuda_memory(bytes, "a value", &memory, err);

	if (rc)
		return rc;
	memcpy(out, &memory, sizeof memory);
	return device_cuda.copy_in(queue, memory, value, bytes, err);
}

static int run_loss(const struct kernel_config *config, struct device_queue *queue,
		    const struct op_call *call, struct error *err)
{
	struct kernel_loss loss = {
		.x = call->x.data,
		.target = call->target.data,
		.n = (int)call->x.shape[0],
		.classes = (int)call->x.shape[1],
		.mse = call->kind == OP_MSE,
		.smoothing = call->smoothing,
	};
	float *share = NULL;
	int rc = on_device(queue, &call->scale, sizeof call->scale, &share, err);

	loss.share = share;
	if (call->pass == OP_BACKWARD)
		loss.dx = call->dx.data;
	else if (call->kind == OP_LABEL_RANK)
		loss.label_ranks = call->y.data;
	else
		loss.losses = call->y.data;
	if (!rc)
		kernel_loss(config, &loss);
	if (!rc)
		rc = cuda_wait(config->stream, CUDA_WAIT_MS, err);
	cudaFree(share);
	return rc;
}

static int run_sgd(const struct kernel_config *config, struct device_queue *queue,
		   const struct op_call *call, struct error *err)
{
	const struct kernel_param_range range = {0, tensor_count(&call->w), call->sgd.weight_decay};
	struct kernel_param_range *list = NULL;
	float *lr = NULL;
	int rc = on_device(queue, &range, sizeof range, &list, err);

	if (!rc)
		rc = on_device(queue, &call->sgd.lr, sizeof call->sgd.lr, &lr, err);

	const struct kernel_update update = {
		.weights = call->w.data,
		.momentum = call->state.data,
		.gradients = call->dw.data,
		.list = list,
		.count = 1,
		.momentum_factor = call->sgd.momentum,
		.nesterov = call->sgd.nesterov,
		.lr = lr,
	};

	if (!rc)
		kernel_update(config, &update);
	if (!rc)
		rc = cuda_wait(config->stream, CUDA_WAIT_MS, err);
	cudaFree(list);
	cudaFree(lr);
	return rc;
}

static int run(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	const struct cuda *cuda = (const struct cuda *)queue->device;
	const struct kernel_config config = {((struct cuda_queue *)queue)->stream, NUMBER_F32,
					     cuda->multiprocessors};

	switch (call->kind) {
	case OP_CROSS_ENTROPY:
	case OP_MSE:
	case OP_LABEL_RANK:
		return run_loss(&config, queue, call, err);
	case OP_SGD:
		return run_sgd(&config, queue, call, err);
	default:
		return run_network(&config, queue, call, err);
	}
}

const struct op_emitter op_emitter = {
	.device = &device_cuda,
	.run = run,
	.network = true,
	.adds = true,
};
