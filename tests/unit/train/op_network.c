/* SPDX-License-Identifier: BSD-3-Clause */
#include "op_network.h"

#include <stdlib.h>
#include <string.h>

static bool has(const struct tensor *tensor)
{
	return tensor->data;
}

/* The shape of one sample. */
static struct shape shape_of(const struct tensor *tensor)
{
	const int64_t *shape = tensor->shape;

	return (struct shape){tensor->rank > 1 ? (int)shape[1] : 1,
			      tensor->rank > 2 ? (int)shape[2] : 1,
			      tensor->rank > 3 ? (int)shape[3] : 1};
}

static int build(struct op_network *network, struct error *err)
{
	const struct op_call *call = network->call;
	const struct op_attributes *window = &call->attributes;
	const struct shape input = shape_of(&call->x);
	struct graph *graph = graph_new("op", &input, 1);
	bool bias = has(&call->b) || has(&call->db);
	int x = 0;

	if (!graph)
		return error_memory(err, "a network");
	network->graph = graph;
	if (has(&call->dx)) {
		x = graph_maxpool2d(graph, 0, 1, 1, 0);
		network->node = 1;
	}
	switch (call->kind) {
	case OP_CONV2D:
		graph_conv2d(graph, "op", x, (int)call->w.shape[0], window->kernel, window->stride,
			     window->pad, bias);
		break;
	case OP_LINEAR:
		graph_linear(graph, "op", x, (int)call->w.shape[0]);
		break;
	case OP_RELU:
		graph_relu(graph, x);
		break;
	case OP_MAXPOOL2D:
		graph_maxpool2d(graph, x, window->kernel, window->stride, window->pad);
		break;
	case OP_BATCHNORM:
		graph_batchnorm(graph, "op", x);
		break;
	case OP_ADD:
		graph_add(graph, x, graph_relu(graph, x));
		network->node++;
		break;
	default:
		graph_avgpool(graph, x);
	}
	if (graph->error.code)
		return error_set(err, graph->error.code, "%s", graph->error.text);
	return buckets_make(graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &network->buckets, err);
}

static const struct device_ops *ops_of(const struct op_network *network)
{
	return network->queue->device->ops;
}

/* A copy in host memory; zeros for an absent tensor, of which only the shape is known. */
static int fetch(const struct op_network *network, const struct tensor *tensor, float **out,
		 struct error *err)
{
	size_t count = (size_t)tensor_count(tensor);

	*out = calloc(count + 1, sizeof **out);
	if (!*out)
		return error_memory(err, "a tensor");
	return has(tensor) ? ops_of(network)->copy_out(network->queue, *out, tensor->data,
						       count * sizeof **out, err)
			   : 0;
}

/* Between two places in device memory. */
static int move(const struct op_network *network, void *to, const void *from, int64_t count,
		struct error *err)
{
	size_t bytes = (size_t)count * sizeof(float);
	float *host = malloc(bytes + 1);
	int rc = host ? ops_of(network)->copy_out(network->queue, host, from, bytes, err)
		      : error_memory(err, "a tensor");

	if (!rc)
		rc = ops_of(network)->copy_in(network->queue, to, host, bytes, err);
	free(host);
	return rc;
}

/* The tensors of the call and their places in the network's flat memory; store: from there, else to
 * there. */
static int exchange(const struct op_network *network, bool store, struct error *err)
{
	const struct executor_request *request = &network->request;
	const struct graph *graph = network->graph;
	const struct graph_op *op = &graph->ops[graph->op_count - 1];
	const struct op_call *call = network->call;
	const size_t *params = network->buckets.offsets;
	const struct {
		const struct tensor *tensor;
		float *flat;
		int index;
		bool result; /* the op writes it */
	} all[] = {
		{&call->w, request->weights, op->weight, false},
		{&call->b, request->weights, op->bias, false},
		{&call->dw, request->gradients, op->weight, true},
		{&call->db, request->gradients, op->bias, true},
		{&call->mean, request->buffers, op->mean, call->pass == OP_FORWARD},
		{&call->variance, request->buffers, op->variance, call->pass == OP_FORWARD},
	};
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof all / sizeof *all; i++) {
		const struct tensor *tensor = all[i].tensor;

		if (!has(tensor) || all[i].index < 0 || (store && !all[i].result))
			continue;

		float *place = all[i].flat +
			       (i < 4 ? params[all[i].index] : graph->buffers[all[i].index].offset);

		rc = move(network, store ? tensor->data : place, store ? place : tensor->data,
			  tensor_count(tensor), err);
	}
	return rc;
}

int op_network_store(const struct op_network *network, struct error *err)
{
	return exchange(network, true, err);
}

/* Cleared device memory: a linear layer of a network has a bias, although the call has none. */
static int reserve(const struct op_network *network, size_t count, float **out, struct error *err)
{
	float *zeros = calloc(count + 1, sizeof *zeros);
	void *memory = NULL;
	size_t bytes = count * sizeof *zeros;
	int rc =
		zeros ? ops_of(network)->memory_new(network->queue->device, bytes + 1, &memory, err)
		      : error_memory(err, "a tensor");

	*out = memory;
	if (!rc)
		rc = ops_of(network)->copy_in(network->queue, memory, zeros, bytes, err);
	free(zeros);
	return rc;
}

static int make_request(struct op_network *network, struct error *err)
{
	const struct op_call *call = network->call;
	struct executor_request *request = &network->request;
	size_t params = network->buckets.total;
	int rc;

	*request = (struct executor_request){
		.graph = network->graph,
		.batch = network->samples,
		.train = call->pass == OP_BACKWARD ||
			 (call->kind == OP_BATCHNORM && call->batchnorm.training),
		.buckets = &network->buckets,
		.direct = true,
		.deterministic = true,
	};
	rc = reserve(network, params, &request->weights, err);
	if (!rc)
		rc = reserve(network, params, &request->gradients, err);
	return rc ? rc
		  : reserve(network, (size_t)network->graph->buffer_total, &request->buffers, err);
}

int op_network_new(struct device_queue *queue, const struct op_call *call, struct op_network *out,
		   struct error *err)
{
	bool back = call->pass == OP_BACKWARD;
	const struct tensor *y = back ? &call->dy : &call->y;
	const struct shape result = shape_of(y);
	int rc;

	*out = (struct op_network){
		.queue = queue,
		.call = call,
		.samples = (int)call->x.shape[0],
		.y_channels = result.channels,
		.y_plane = result.height * result.width,
	};
	rc = build(out, err);
	if (!rc)
		rc = make_request(out, err);
	if (!rc)
		rc = exchange(out, false, err);
	if (!rc)
		rc = fetch(out, &call->x, &out->x, err);
	return rc || !back ? rc : fetch(out, &call->dy, &out->dy, err);
}

void op_network_free(struct op_network *network)
{
	struct device *device = network->queue->device;
	struct executor_request *request = &network->request;

	device->ops->memory_free(device, request->weights);
	device->ops->memory_free(device, request->gradients);
	device->ops->memory_free(device, request->buffers);
	buckets_free(&network->buckets);
	graph_free(network->graph);
	free(network->x);
	free(network->dy);
}
