/* SPDX-License-Identifier: BSD-3-Clause */
#include "reference.h"

#include <stdlib.h>
#include <string.h>

#include "train/device/cpu/loss.h"
#include "train/device/host.h"

static int reference_open(int index, struct device **out, struct error *err)
{
	struct reference *reference = calloc(1, sizeof *reference);

	if (!reference)
		return error_memory(err, "the device");
	reference->device.ops = &device_cpu_reference.device;
	*out = &reference->device;
	return 0;
}

static void reference_close(struct device *device)
{
	struct reference *reference = (struct reference *)device;

	if (!reference)
		return;
	free(reference->scratch);
	free(reference);
}

float *reference_scratch(struct reference *reference, size_t count)
{
	if (count > reference->scratch_count) {
		if (count > SIZE_MAX / sizeof(float) - 64)
			return NULL;
		free(reference->scratch);
		reference->scratch_count = 0;
		reference->scratch = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
		if (!reference->scratch)
			return NULL;
		reference->scratch_count = count;
	}
	return reference->scratch;
}

static int memory_new(struct device *device, size_t size_bytes, void **out, struct error *err)
{
	if (size_bytes > SIZE_MAX - 128)
		return error_memory(err, "a tensor");

	void *memory = aligned_alloc(64, (size_bytes + 127) / 64 * 64);

	if (!memory)
		return error_set(err, ERR_UNAVAILABLE,
				 "out of memory: cannot allocate %zu MiB. Use a smaller --batch",
				 size_bytes >> 20);
	*out = memory;
	return 0;
}

static int run(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	struct reference *reference = (struct reference *)queue->device;

	switch (call->kind) {
	case OP_CONV2D:
		return reference_conv2d(reference, call, err);
	case OP_LINEAR:
		return reference_linear(reference, call, err);
	case OP_RELU:
		reference_relu(call);
		return 0;
	case OP_MAXPOOL2D:
		reference_maxpool2d(call);
		return 0;
	case OP_BATCHNORM:
		reference_batchnorm(call);
		return 0;
	case OP_ADD:
		reference_add(call);
		return 0;
	case OP_AVGPOOL:
		reference_avgpool(call);
		return 0;
	case OP_CROSS_ENTROPY:
	case OP_MSE:
	case OP_LABEL_RANK:
		return host_loss(call, err);
	case OP_SGD:
		reference_sgd(call);
		return 0;
	default:
		return error_set(err, ERR_UNAVAILABLE,
				 "the reference device does not support op %s",
				 op_name(call->kind));
	}
}

__attribute__((visibility("default"))) const struct op_device_ops device_cpu_reference = {
	.device =
		{
			.name = "cpu-reference",
			.open = reference_open,
			.close = reference_close,
			.memory_new = memory_new,
			.memory_free = host_memory_free,
			.queue_new = host_queue_new,
			.queue_free = host_queue_free,
			.queue_native = host_queue_native,
			.copy_in = host_copy,
			.copy_out = host_copy,
			.executor = &op_executor,
		},
	.run = run,
};
