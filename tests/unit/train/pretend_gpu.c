/* SPDX-License-Identifier: BSD-3-Clause */
#include "pretend_gpu.h"

#include "../../reference/reference.h"

#include <stdio.h>
#include <stdlib.h>

struct gpu {
	struct device device;
	struct device *host;
};

struct queue {
	struct device_queue queue;
	struct device_queue *host;
	cudaStream_t stream;
};

cudaStream_t pretend_gpu_stream(struct device_queue *queue)
{
	return ((struct queue *)queue)->stream;
}

static void *queue_native(struct device_queue *queue)
{
	return pretend_gpu_stream(queue);
}

static void device_close(struct device *device)
{
	struct gpu *gpu = (struct gpu *)device;

	gpu->host->ops->close(gpu->host);
	free(gpu);
}

static int memory_new(struct device *device, size_t size_bytes, void **out, struct error *err)
{
	return cudaMalloc(out, size_bytes ? size_bytes : 1) == cudaSuccess
		       ? 0
		       : error_memory(err, "GPU");
}

static void memory_free(struct device *device, void *memory)
{
	cudaFree(memory);
}

static int queue_new(struct device *device, struct device_queue **out, struct error *err)
{
	struct gpu *gpu = (struct gpu *)device;
	struct queue *queue = calloc(1, sizeof *queue);
	int rc = queue ? gpu->host->ops->queue_new(gpu->host, &queue->host, err) : -ERR_UNAVAILABLE;

	if (rc || cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking) != cudaSuccess)
		return -ERR_UNAVAILABLE;
	queue->queue.device = device;
	*out = &queue->queue;
	return 0;
}

static void queue_free(struct device_queue *queue)
{
	struct queue *own = (struct queue *)queue;

	cudaStreamDestroy(own->stream);
	own->host->device->ops->queue_free(own->host);
	free(own);
}

static int queue_wait(struct device_queue *queue, int timeout_ms, struct error *err)
{
	return cudaStreamSynchronize(pretend_gpu_stream(queue)) == cudaSuccess
		       ? 0
		       : error_set(err, ERR_UNAVAILABLE, "waiting for the GPU");
}

static void uuid(const struct device *device, char text[48])
{
	struct cudaDeviceProp properties;
	bool known = cudaGetDeviceProperties(&properties, 0) == cudaSuccess;

	snprintf(text, 48, "GPU-%02x", known ? (unsigned char)properties.uuid.bytes[0] : 0U);
}

static int copy(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		enum cudaMemcpyKind kind, struct error *err)
{
	if (cudaMemcpyAsync(to, from, size_bytes, kind, pretend_gpu_stream(queue)) != cudaSuccess)
		return error_set(err, ERR_UNAVAILABLE, "copying to or from the GPU");
	return queue_wait(queue, 0, err);
}

static int copy_in(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		   struct error *err)
{
	return copy(queue, to, from, size_bytes, cudaMemcpyHostToDevice, err);
}

static int copy_out(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		    struct error *err)
{
	return copy(queue, to, from, size_bytes, cudaMemcpyDeviceToHost, err);
}

static int run(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	struct queue *own = (struct queue *)queue;

	queue_wait(queue, 0, err);
	return device_cpu_reference.run(own->host, call, err);
}

static const struct op_device_ops pretend_ops = {
	.device =
		{
			.name = "pretend-gpu",
			.uuid = uuid,
			.close = device_close,
			.memory_new = memory_new,
			.memory_free = memory_free,
			.queue_new = queue_new,
			.queue_free = queue_free,
			.queue_native = queue_native,
			.copy_in = copy_in,
			.copy_out = copy_out,
			.executor = &op_executor,
		},
	.run = run,
};

struct device *pretend_gpu_open(void)
{
	struct gpu *gpu = calloc(1, sizeof *gpu);

	if (!gpu || device_cpu_reference.device.open(0, &gpu->host, NULL))
		return NULL;
	gpu->device.ops = &pretend_ops.device;
	return &gpu->device;
}
