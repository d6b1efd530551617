/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/module.h"

size_t element_size(enum element_type type)
{
	return type == ELEMENT_F64 || type == ELEMENT_I64 ? 8 : 4;
}

int64_t tensor_count(const struct tensor *tensor)
{
	int64_t count = 1;

	for (int i = 0; i < tensor->rank; i++)
		count *= tensor->shape[i];
	return count;
}

struct tensor tensor_make(void *data, enum element_type type, int rank, const int64_t *shape)
{
	struct tensor tensor = {.data = data, .type = type, .rank = rank};

	for (int i = 0; i < rank && i < TENSOR_MAX_RANK; i++)
		tensor.shape[i] = shape[i];
	return tensor;
}

const char *op_name(enum op_kind kind)
{
	static const char *const names[OP_KINDS] = {
		[OP_CONV2D] = "conv2d",
		[OP_LINEAR] = "linear",
		[OP_RELU] = "relu",
		[OP_MAXPOOL2D] = "maxpool2d",
		[OP_BATCHNORM] = "batchnorm",
		[OP_ADD] = "add",
		[OP_AVGPOOL] = "avgpool",
		[OP_CROSS_ENTROPY] = "cross_entropy",
		[OP_MSE] = "mse",
		[OP_LABEL_RANK] = "label_rank",
		[OP_SGD] = "sgd",
	};

	return (unsigned)kind < OP_KINDS ? names[kind] : "unknown op";
}

int64_t op_side(int64_t side, const struct op_attributes *attributes)
{
	int64_t room = side + 2 * (int64_t)attributes->pad - attributes->kernel;

	if (attributes->kernel < 1 || attributes->stride < 1 || attributes->pad < 0 || room < 0)
		return -1;
	return room / attributes->stride + 1;
}

/* ---- devices ---- */

int device_host_memory_new(struct device *device, size_t size_bytes, const char *what, void **out,
			   struct error *err)
{
	if (device->ops->host_memory_new)
		return device->ops->host_memory_new(device, size_bytes, out, err);
	*out = malloc(size_bytes);
	return *out ? 0 : error_memory(err, what);
}

void device_host_memory_free(struct device *device, void *memory)
{
	if (memory && device->ops->host_memory_free)
		device->ops->host_memory_free(device, memory);
	else
		free(memory);
}

int device_check_name(const char *name, struct error *err)
{
	if (!strcmp(name, "auto") || !strcmp(name, "cpu") || !strcmp(name, "cuda") ||
	    !strcmp(name, "cpu-reference"))
		return 0;
	return error_set(err, ERR_USAGE, "unknown device '%s'; expected one of: auto, cuda, cpu",
			 name);
}

static int open_module(const char *module, const char *symbol, int index, const char *search_path,
		       struct device **out, struct error *err)
{
	void *ops;
	int rc = module_load(module, symbol, search_path, 0, &ops, err);

	return rc ? rc : ((const struct device_ops *)ops)->open(index, out, err);
}

/* Is any part of NVIDIA's driver present? Without it, do not load the module, whose libraries take
 * long to load. */
static bool driver_present(void)
{
	return !access("/dev/nvidiactl", F_OK) || !access("/dev/dxg", F_OK) ||
	       !access("/proc/driver/nvidia/version", F_OK);
}

int device_find(const char *name, int index, const char *search_path, struct device **out,
		struct error *gpu_error, struct error *err)
{
	struct error missing = {0};
	int rc = device_check_name(name, err);

	if (gpu_error)
		*gpu_error = missing;
	if (rc)
		return rc;
	if (!strcmp(name, "cuda"))
		return open_module(DEVICE_CUDA_MODULE, "device_cuda", index, search_path, out, err);
	if (!strcmp(name, "cpu-reference"))
		return open_module(DEVICE_REFERENCE_MODULE, "device_cpu_reference", index,
				   search_path, out, err);
	if (!strcmp(name, "auto") && driver_present() &&
	    !open_module(DEVICE_CUDA_MODULE, "device_cuda", index, search_path, out,
			 gpu_error ? gpu_error : &missing))
		return 0;
	rc = open_module(DEVICE_CPU_MODULE, "device_cpu", index, search_path, out, &missing);
	if (!rc)
		return 0;
	return error_set(err, -rc,
			 "berth train needs a GPU or, on CPUs, oneDNN (Debian: libdnnl-dev, then "
			 "rebuild berth): %s%s%s",
			 missing.text, gpu_error && gpu_error->text[0] ? "; the GPU: " : "",
			 gpu_error ? gpu_error->text : "");
}
