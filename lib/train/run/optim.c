/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/optim.h"

#include <string.h>

static int gradients_new(struct optim *optim, struct comm *comm, struct error *err)
{
	const struct device_ops *ops = optim->queue->device->ops;
	size_t bytes = (optim->count + 1) * sizeof(float); /* and the vote */
	void *memory = NULL;
	int rc = comm->ops->memory ? comm->ops->memory(comm, optim->queue, bytes, &memory, err) : 0;

	optim->gradients_of_comm = memory;
	if (!rc && !memory)
		rc = ops->memory_new(optim->queue->device, bytes, &memory, err);
	optim->gradients = memory;
	return rc;
}

int optim_new(struct device_queue *queue, const struct graph *graph, const struct buckets *buckets,
	      struct comm *comm, struct optim *out, struct error *err)
{
	const struct device_ops *ops = queue->device->ops;
	struct optim optim = {.queue = queue,
			      .count = buckets->total,
			      .buffer_count = (size_t)graph->buffer_total};
	size_t bytes = optim.count * sizeof(float);
	struct variables zeros = {0};
	/* This comes first because it is collective; the calls below may fail on a single rank. */
	int rc = gradients_new(&optim, comm, err);

	if (!rc)
		rc = variables_new(graph, buckets, &zeros, err);
	if (!rc)
		rc = ops->memory_new(queue->device, bytes, (void **)&optim.weights, err);
	if (!rc)
		rc = ops->memory_new(queue->device, bytes, (void **)&optim.momentum, err);
	if (!rc && optim.buffer_count)
		rc = ops->memory_new(queue->device, optim.buffer_count * sizeof(float),
				     (void **)&optim.buffers, err);
	if (!rc)
		rc = optim_load(&optim, &zeros, err);
	variables_free(&zeros);
	if (rc)
		optim_free(&optim);
	else
		*out = optim;
	return rc;
}

void optim_free(struct optim *optim)
{
	if (!optim->queue)
		return;

	struct device *device = optim->queue->device;

	device->ops->memory_free(device, optim->weights);
	if (!optim->gradients_of_comm)
		device->ops->memory_free(device, optim->gradients);
	device->ops->memory_free(device, optim->momentum);
	device->ops->memory_free(device, optim->buffers);
	memset(optim, 0, sizeof *optim);
}

int optim_load(struct optim *optim, const struct variables *variables, struct error *err)
{
	const struct device_ops *ops = optim->queue->device->ops;
	size_t bytes = optim->count * sizeof(float);
	int rc = ops->copy_in(optim->queue, optim->weights, variables->weights, bytes, err);

	if (!rc)
		rc = ops->copy_in(optim->queue, optim->momentum, variables->momentum, bytes, err);
	if (!rc && optim->buffer_count)
		rc = ops->copy_in(optim->queue, optim->buffers, variables->buffers,
				  optim->buffer_count * sizeof(float), err);
	return rc;
}

int optim_store(const struct optim *optim, struct variables *variables, struct error *err)
{
	const struct device_ops *ops = optim->queue->device->ops;
	size_t bytes = optim->count * sizeof(float);
	int rc = ops->copy_out(optim->queue, variables->weights, optim->weights, bytes, err);

	if (!rc)
		rc = ops->copy_out(optim->queue, variables->momentum, optim->momentum, bytes, err);
	if (!rc && optim->buffer_count)
		rc = ops->copy_out(optim->queue, variables->buffers, optim->buffers,
				   optim->buffer_count * sizeof(float), err);
	return rc;
}

int optim_broadcast_buffers(struct optim *optim, struct comm *comm, struct error *err)
{
	if (!optim->buffer_count)
		return 0;

	int rc = comm->ops->broadcast(comm, optim->queue, optim->buffers,
				      optim->buffer_count * sizeof(float), 0, err);

	return rc ? rc : comm->ops->finish(comm, optim->queue, err);
}
