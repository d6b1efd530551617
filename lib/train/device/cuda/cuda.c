/* SPDX-License-Identifier: BSD-3-Clause */
/* Module device-cuda.so: one GPU, its memory and its streams. */
#include "train/device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "train/device/cuda/gpu_meter.h"
#include "train/device/cuda/tuning/tuning_cache.h"

extern __attribute__((visibility("default"))) const struct device_ops device_cuda;

#define MIN_MAJOR 8	 /* the oldest architecture in the default build; bf16 needs it */
#define MIN_CUDNN 90000u /* the API that convolution.c uses */

size_t number_size(enum number number)
{
	return number == NUMBER_F32 ? 4 : 2;
}

/* ---- codes ---- */

int cuda_check(cudaError_t code, const char *what, struct error *err)
{
	if (!code)
		return 0;
	return error_set(err, ERR_UNAVAILABLE, "%s: CUDA error: %s (%s)", what,
			 cudaGetErrorString(code), cudaGetErrorName(code));
}

int cudnn_check(cudnnStatus_t code, const char *what, struct error *err)
{
	if (!code)
		return 0;
	return error_set(err, ERR_UNAVAILABLE, "%s: cuDNN %zu error: %s", what, cudnnGetVersion(),
			 cudnnGetErrorString(code));
}

int blas_check(cublasStatus_t code, const char *what, struct error *err)
{
	if (!code)
		return 0;
	return error_set(err, ERR_UNAVAILABLE, "%s: cuBLASLt %zu error: %s", what,
			 cublasLtGetVersion(), cublasLtGetStatusString(code));
}

int cuda_launched(const char *what, struct error *err)
{
	return cuda_check(cudaGetLastError(), what, err);
}

int cuda_wait(cudaStream_t stream, int timeout_ms, struct error *err)
{
	int64_t end = clock_now_ms() + timeout_ms;

	for (unsigned turn = 0;; turn++) {
		cudaError_t code = cudaStreamQuery(stream);

		if (code != cudaErrorNotReady)
			return cuda_check(code, "waiting for the GPU", err);
		if (turn < 1000)
			continue;
		if (clock_now_ms() > end)
			return error_set(err, ERR_NETWORK,
					 "the GPU did not finish its work within %d s; it may be "
					 "waiting for a rank that has failed",
					 timeout_ms / 1000);
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	}
}

/* "GPU-8a1b2c3d-0001-...", as NVML and nvidia-smi write it; "": unknown. */
static void gpu_uuid(int ordinal, char text[48])
{
	struct cudaDeviceProp properties;
	const unsigned char *bytes = (const unsigned char *)properties.uuid.bytes;
	char *at = text;

	*at = 0;
	if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess)
		return;
	at += sprintf(at, "GPU");
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i <= 10 && i % 2 == 0 && i != 2 ? "-" : "", bytes[i]);
}

/* The processes on the GPU that this thread uses, as a phrase that ends a sentence. */
static void holders(char *text, size_t size)
{
	char uuid[48];
	int ordinal;

	*text = 0;
	if (cudaGetDevice(&ordinal))
		return;
	gpu_uuid(ordinal, uuid);
	gpu_processes_text(uuid, NULL, text, size);
}

int cuda_memory_short(size_t size_bytes, const char *what, const char *hint, struct error *err)
{
	size_t available = 0, total = 0;
	char who[256] = "";

	cudaMemGetInfo(&available, &total);
	holders(who, sizeof who);
	return error_set(
		err, ERR_UNAVAILABLE,
		"out of GPU memory: %s need%s %zu MiB, but only %zu of the GPU's %zu MiB are "
		"free%s%s%s%s",
		what, what[strlen(what) - 1] == 's' ? "" : "s", (size_bytes >> 20) + 1,
		available >> 20, total >> 20, *hint ? "; " : "", hint,
		*who ? "; its memory is " : "; run nvidia-smi to see which processes use it", who);
}

static int reserve(size_t size_bytes, const char *what, const char *hint, void **out,
		   struct error *err)
{
	void *memory = NULL;
	cudaError_t code = cudaMalloc(&memory, size_bytes ? size_bytes : 1);

	if (!code) {
		*out = memory;
		return 0;
	}
	cudaGetLastError(); /* clear the error: it is reported here and must not appear again at the
			       next launch */
	if (code != cudaErrorMemoryAllocation)
		return cuda_check(code, what, err);
	return cuda_memory_short(size_bytes, what, hint, err);
}

int cuda_memory(size_t size_bytes, const char *what, void **out, struct error *err)
{
	return reserve(size_bytes, what, "use a smaller --batch", out, err);
}

/* ---- open ---- */

static int check_driver(cudaError_t code, int count, struct error *err)
{
	int driver = 0, runtime = 0;

	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	if (code == cudaErrorInsufficientDriver && !driver)
		return error_set(err, ERR_UNAVAILABLE,
				 "the NVIDIA driver is not installed or not loaded (nvidia-smi "
				 "should list a GPU). Use --device cpu to train without a GPU");
	if (code == cudaErrorInsufficientDriver)
		return error_set(
			err, ERR_UNAVAILABLE,
			"the NVIDIA driver is too old: it supports CUDA %d.%d, but this build uses "
			"CUDA %d.%d. Update the driver, or build berth with an older toolkit",
			driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
	if (code == cudaErrorNoDevice || (!code && count < 1))
		return error_set(err, ERR_UNAVAILABLE,
				 "no GPU is visible to this process. Check CUDA_VISIBLE_DEVICES "
				 "and nvidia-smi");
	return cuda_check(code, "counting the GPUs", err);
}

/* Choose this rank's GPU by index among those that it sees; if it sees only one, that is its
 * own. */
static int choose_gpu(struct cuda *cuda, int index, struct error *err)
{
	int count = 0;
	cudaError_t code = cudaGetDeviceCount(&count);
	int rc = check_driver(code, count, err);

	if (rc)
		return rc;
	if (count > 1 && index >= count)
		return error_set(err, ERR_UNAVAILABLE,
				 "LOCAL_RANK %d has no GPU: this process sees %d. Start one rank "
				 "per GPU, or check CUDA_VISIBLE_DEVICES",
				 index, count);
	cuda->ordinal = count > 1 ? index : 0;
	return cuda_check(cudaSetDevice(cuda->ordinal), "selecting the GPU", err);
}

static int check_gpu(struct cuda *cuda, struct error *err)
{
	struct cudaDeviceProp properties;
	int rc = cuda_check(cudaGetDeviceProperties(&properties, cuda->ordinal),
			    "querying the GPU's properties", err);
	cudaError_t usable;

	if (rc)
		return rc;
	snprintf(cuda->name, sizeof cuda->name, "%s", properties.name);
	cuda->multiprocessors = properties.multiProcessorCount;
	cuda->major = properties.major;
	cuda->minor = properties.minor;
	usable = cuda->major < MIN_MAJOR ? cudaErrorNoKernelImageForDevice : kernels_usable();
	if (usable == cudaErrorNoKernelImageForDevice || usable == cudaErrorInvalidDeviceFunction)
		return error_set(
			err, ERR_UNAVAILABLE,
			"the GPU %s has compute capability %d.%d, but this build of berth is for "
			"%s. Build berth with -Dgpu_arch=%d%d (8.0 or newer is supported)",
			cuda->name, cuda->major, cuda->minor, BERTH_CUDA_ARCH, cuda->major,
			cuda->minor);
	return cuda_check(usable, "checking whether the GPU can run berth's kernels", err);
}

static int open_libraries(struct cuda *cuda, struct error *err)
{
	size_t version = cudnnGetVersion();
	int rc;

	if (version < MIN_CUDNN)
		return error_set(err, ERR_UNAVAILABLE,
				 "cuDNN %zu is too old: berth requires %u or newer. Check whether "
				 "LD_LIBRARY_PATH contains an older version",
				 version, MIN_CUDNN);
	rc = cudnn_check(cudnnCreate(&cuda->cudnn), "initializing cuDNN", err);
	if (!rc)
		rc = blas_check(cublasLtCreate(&cuda->blas), "initializing cuBLASLt", err);
	if (rc)
		return rc;
	cuda->tuning_cache = tuning_cache_open(cuda->name, (unsigned long)version);
	return cuda->tuning_cache ? 0 : error_memory(err, "the device");
}

static void cuda_close(struct device *device)
{
	struct cuda *cuda = (struct cuda *)device;

	if (!cuda)
		return;
	tuning_cache_free(cuda->tuning_cache);
	if (cuda->blas)
		cublasLtDestroy(cuda->blas);
	if (cuda->cudnn)
		cudnnDestroy(cuda->cudnn);
	free(cuda);
}

static int cuda_open(int index, struct device **out, struct error *err)
{
	struct cuda *cuda = calloc(1, sizeof *cuda);
	int rc;

	if (!cuda)
		return error_memory(err, "the device");
	cuda->device.ops = &device_cuda;
	cuda->workspace_limit = TUNING_WORKSPACE;
	rc = choose_gpu(cuda, index, err);
	if (!rc)
		rc = check_gpu(cuda, err);
	if (!rc)
		rc = open_libraries(cuda, err);
	if (rc)
		cuda_close(&cuda->device);
	else
		*out = &cuda->device;
	return rc;
}

static void cuda_describe(const struct device *device, char *text, size_t size)
{
	const struct cuda *cuda = (const struct cuda *)device;
	size_t cudnn = cudnnGetVersion();

	snprintf(text, size, "%s (cuda %d, sm_%d%d, cuDNN %zu.%zu.%zu)", cuda->name, cuda->ordinal,
		 cuda->major, cuda->minor, cudnn / 10000, cudnn / 100 % 100, cudnn % 100);
}

static void uuid(const struct device *device, char text[48])
{
	gpu_uuid(((const struct cuda *)device)->ordinal, text);
}

static void tuned_model(const struct device *device, char text[128])
{
	snprintf(text, 128, "%s, cuDNN %zu", ((const struct cuda *)device)->name,
		 cudnnGetVersion());
}

static char *tuned(const struct device *device)
{
	return tuning_cache_text(((const struct cuda *)device)->tuning_cache);
}

static void take_tuned(struct device *device, char *text)
{
	tuning_cache_take(((struct cuda *)device)->tuning_cache, text);
}

/* ---- memory and queues ---- */

static int memory_new(struct device *device, size_t size_bytes, void **out, struct error *err)
{
	/* These sizes do not depend on --batch, so give no hint. */
	return reserve(size_bytes, "weights, gradients and other buffers", "", out, err);
}

static void memory_free(struct device *device, void *memory)
{
	cudaFree(memory);
}

static size_t memory_available(struct device *device)
{
	size_t available = 0, total = 0;

	return cudaMemGetInfo(&available, &total) ? 0 : available;
}

static int host_memory_new(struct device *device, size_t size_bytes, void **out, struct error *err)
{
	return cuda_check(cudaMallocHost(out, size_bytes ? size_bytes : 1),
			  "allocating pinned memory", err);
}

static void host_memory_free(struct device *device, void *memory)
{
	cudaFreeHost(memory);
}

static int queue_new(struct device *device, struct device_queue **out, struct error *err)
{
	struct cuda_queue *queue = calloc(1, sizeof *queue);
	int rc;

	if (!queue)
		return error_memory(err, "a queue");
	queue->queue.device = device;
	rc = cuda_check(cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking),
			"creating a CUDA stream", err);
	if (rc)
		free(queue);
	else
		*out = &queue->queue;
	return rc;
}

static cudaStream_t stream_of(struct device_queue *queue)
{
	return ((struct cuda_queue *)queue)->stream;
}

static void queue_free(struct device_queue *queue)
{
	struct cuda *cuda;
	cudaStream_t last = NULL;

	if (!queue)
		return;
	/* Otherwise cuDNN would keep using a destroyed stream. */
	cuda = (struct cuda *)queue->device;
	if (!cudnnGetStream(cuda->cudnn, &last) && last == stream_of(queue))
		cudnnSetStream(cuda->cudnn, NULL);
	cudaStreamDestroy(stream_of(queue));
	free(queue);
}

static void *queue_native(struct device_queue *queue)
{
	return stream_of(queue);
}

/* Host memory may be pageable and may be reused on return, so wait for the stream. */
static int copy(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		enum cudaMemcpyKind kind, struct error *err)
{
	int rc;

	if (!size_bytes)
		return 0;
	rc = cuda_check(cudaMemcpyAsync(to, from, size_bytes, kind, stream_of(queue)),
			"copying to or from the GPU", err);
	return rc ? rc : cuda_wait(stream_of(queue), CUDA_WAIT_MS, err);
}

/* cudaMemcpyDefault, because comm_self copies within the GPU. */
static int copy_in(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		   struct error *err)
{
	return copy(queue, to, from, size_bytes, cudaMemcpyDefault, err);
}

static int copy_out(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		    struct error *err)
{
	return copy(queue, to, from, size_bytes, cudaMemcpyDeviceToHost, err);
}

const struct device_ops device_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.describe = cuda_describe,
	.uuid = uuid,
	.tuned_model = tuned_model,
	.tuned = tuned,
	.take_tuned = take_tuned,
	.memory_new = memory_new,
	.memory_free = memory_free,
	.memory_available = memory_available,
	.queue_new = queue_new,
	.queue_free = queue_free,
	.queue_native = queue_native,
	.copy_in = copy_in,
	.copy_out = copy_out,
	.host_memory_new = host_memory_new,
	.host_memory_free = host_memory_free,
	.executor = &cuda_executor,
};
