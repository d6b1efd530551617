/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/optim.h"

#include <stdlib.h>
#include <string.h>

int optim_new(struct device_queue *queue, const struct buckets *buckets, struct optim *out,
	      struct error *err)
{
	const struct device_ops *ops = queue->device->ops;
	struct optim optim = {.queue = queue, .count = buckets->total};
	size_t bytes = optim.count * sizeof(float);
	float *zeros = calloc(optim.count + 1, sizeof *zeros);
	int rc = zeros ? 0 : error_memory(err, "the weights");

	if (!rc)
		rc = ops->memory_new(queue->device, bytes, (void **)&optim.weights, err);
	if (!rc)
		rc = ops->memory_new(queue->device, bytes, (void **)&optim.gradients, err);
	if (!rc)
		rc = ops->memory_new(queue->device, bytes, (void **)&optim.momentum, err);
	if (!rc)
		rc = optim_load(&optim, zeros, zeros, err);
	free(zeros);
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
	device->ops->memory_free(device, optim->gradients);
	device->ops->memory_free(device, optim->momentum);
	memset(optim, 0, sizeof *optim);
}

int optim_load(struct optim *optim, const float *weights, const float *momentum, struct error *err)
{
	const struct device_ops *ops = optim->queue->device->ops;
	size_t bytes = optim->count * sizeof(float);
	int rc = 0;

	if (weights)
		rc = ops->copy_in(optim->queue, optim->weights, weights, bytes, err);
	if (!rc && momentum)
		rc = ops->copy_in(optim->queue, optim->momentum, momentum, bytes, err);
	return rc;
}

int optim_store(const struct optim *optim, float **weights, float **momentum, struct error *err)
{
	const struct device_ops *ops = optim->queue->device->ops;
	size_t bytes = optim->count * sizeof(float);
	float *w = malloc(bytes + 1), *m = malloc(bytes + 1);
	int rc = w && m ? 0 : error_memory(err, "a copy of the weights");

	if (!rc)
		rc = ops->copy_out(optim->queue, w, optim->weights, bytes, err);
	if (!rc)
		rc = ops->copy_out(optim->queue, m, optim->momentum, bytes, err);
	if (rc) {
		free(w);
		free(m);
		return rc;
	}
	*weights = w;
	*momentum = m;
	return 0;
}
