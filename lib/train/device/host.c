/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/host.h"

#include <stdlib.h>
#include <string.h>

void host_memory_free(struct device *device, void *memory)
{
	free(memory);
}

int host_queue_new(struct device *device, struct device_queue **out, struct error *err)
{
	struct device_queue *queue = calloc(1, sizeof *queue);

	if (!queue)
		return error_memory(err, "a queue");
	queue->device = device;
	*out = queue;
	return 0;
}

void host_queue_free(struct device_queue *queue)
{
	free(queue);
}

void *host_queue_native(struct device_queue *queue)
{
	return NULL;
}

int host_copy(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
	      struct error *err)
{
	if (size_bytes)
		memcpy(to, from, size_bytes);
	return 0;
}
