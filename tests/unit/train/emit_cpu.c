/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "op_network.h"
#include "train/device/cpu/cpu.h"
#include "train/device/cpu/loss.h"

extern const struct device_ops device_cpu;

/* A network in one run. */
struct emitted {
	const struct op_network *network;
	struct compiled_graph *compiled;
	char *arena;
	struct error *err;
};

static struct layout dense(const struct layout *layout)
{
	struct layout out = *layout;

	out.block = 1;
	return out;
}

static int reorder(const struct emitted *emitted, const struct layout *from, const float *in,
		   const struct layout *to, float *out)
{
	struct cpu_reorder *copy = NULL;
	int rc = cpu_reorder_new(emitted->compiled->cpu->dnnl, from, to, &copy, emitted->err);

	if (!rc)
		rc = cpu_reorder_run(copy, in, out, emitted->err);
	cpu_reorder_free(copy);
	return rc;
}

static int forward(const struct emitted *emitted)
{
	const struct op_call *call = emitted->network->call;
	const struct compiled_graph *compiled = emitted->compiled;
	const struct cpu_node *node = &compiled->nodes[emitted->network->node];
	const struct layout *y = &compiled->layouts[emitted->network->graph->output];
	const struct layout wanted = dense(y);
	size_t channels = (size_t)node->x.channels;
	int rc = compiled_graph_forward(emitted->compiled, emitted->arena, emitted->network->x,
					emitted->err);

	if (rc || call->pass == OP_BACKWARD)
		return rc;
	if (call->saved_mean.data) {
		memcpy(call->saved_mean.data, node->saved, channels * sizeof(float));
		memcpy(call->saved_invstd.data, node->saved + channels, channels * sizeof(float));
	}
	return reorder(emitted, y, compiled_graph_output(compiled, emitted->arena), &wanted,
		       call->y.data);
}

static int backward(const struct emitted *emitted)
{
	const struct op_call *call = emitted->network->call;
	const struct compiled_graph *compiled = emitted->compiled;
	const struct layout *y = &compiled->layouts[emitted->network->graph->output];
	const struct layout given = dense(y);
	int rc = reorder(emitted, &given, emitted->network->dy, y,
			 compiled_graph_output_gradient(compiled, emitted->arena));

	if (!rc)
		rc = compiled_graph_backward(emitted->compiled, emitted->arena, emitted->network->x,
					     call->add_dw, NULL, emitted->err);
	if (rc || !call->dx.data)
		return rc;

	/* The identity reads it as the gradient of its result, and has summed its parts. */
	const struct memory_item *slot =
		&compiled->plan.slots[step_node_dy(&compiled->plan.nodes[0])];
	const struct layout *x = &compiled->layouts[1];
	const struct layout wanted = dense(x);

	return reorder(emitted, x, (const float *)(void *)(emitted->arena + slot->offset), &wanted,
		       call->dx.data);
}

static int run_network(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	struct op_network network;
	struct emitted emitted = {.network = &network, .err = err};
	int rc = op_network_new(queue, call, &network, err);

	if (!rc)
		rc = compiled_graph_new((struct cpu *)queue->device, &network.request,
					network.samples, &emitted.compiled, err);
	if (!rc)
		rc = queue->device->ops->memory_new(queue->device,
						    emitted.compiled->plan.arena_bytes,
						    (void **)&emitted.arena, err);
	if (!rc)
		rc = forward(&emitted);
	if (!rc && call->pass == OP_BACKWARD)
		rc = backward(&emitted);
	if (!rc)
		rc = op_network_store(&network, err);
	queue->device->ops->memory_free(queue->device, emitted.arena);
	compiled_graph_free(emitted.compiled);
	op_network_free(&network);
	return rc;
}

/* Losses come from the reference device, the update from the kernels. */
static int run(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	switch (call->kind) {
	case OP_CROSS_ENTROPY:
	case OP_MSE:
	case OP_LABEL_RANK:
		return host_loss(call, err);
	case OP_SGD:
		((struct cpu *)queue->device)
			->kernels->sgd(&call->sgd, call->w.data, call->dw.data, call->state.data,
				       (size_t)call->w.shape[0]);
		return 0;
	default:
		return run_network(queue, call, err);
	}
}

const struct op_emitter op_emitter = {
	.device = &device_cpu,
	.run = run,
	.network = true,
	.checks_labels = true,
};
