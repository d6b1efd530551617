/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory and the properties of the fake GPU (fake.h). */
#include "internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#define ALIGNMENT ((size_t)256)
#define POISONED ((size_t)64 << 20)

using namespace fake;

static std::map<uintptr_t, size_t> device_memory, pinned;
/* Allocations with pages of their own, and the small ones, which share pages. */
static size_t large_bytes, small_bytes;
static int device;

static bool within(const std::map<uintptr_t, size_t> &blocks, const void *at, size_t size)
{
	auto next = blocks.upper_bound((uintptr_t)at);

	if (next == blocks.begin())
		return false;
	--next;
	return (uintptr_t)at + size <= next->first + next->second;
}

static void expect(const void *at, size_t size, const char *what)
{
	if (size && !within(device_memory, at, size))
		die(what);
}

static void *block(std::map<uintptr_t, size_t> &blocks, size_t size)
{
	void *memory = nullptr;

	/* Exactly size bytes, for ASan. */
	if (posix_memalign(&memory, ALIGNMENT, size))
		die("out of host memory");
	/* The autotuner's workspace is 1 GiB, whose contents are never read. */
	memset(memory, 0xff, size < POISONED ? size : POISONED);
	blocks[(uintptr_t)memory] = size;
	return memory;
}

/* Wait for the GPU, as CUDA does, and free memory. Return its size. */
static size_t release(std::map<uintptr_t, size_t> &blocks, void *memory, const char *unknown)
{
	auto it = blocks.find((uintptr_t)memory);

	if (it == blocks.end())
		die(unknown);
	pump_all();

	size_t size = it->second;

	blocks.erase(it);
	free(memory);
	return size;
}

static size_t memory_limit(void)
{
	const char *mib = getenv("FAKE_CUDA_MIB");

	return (mib ? strtoull(mib, nullptr, 10) : 4096) << 20;
}

#define PAGE ((size_t)2 << 20)

static bool is_large(size_t size)
{
	return size >= PAGE / 2;
}

static size_t rounded(size_t size, size_t to)
{
	return (size + to - 1) / to * to;
}

static size_t device_bytes(void)
{
	return large_bytes + rounded(small_bytes, PAGE);
}

/* Which total counts an allocation of size bytes. */
static size_t *account(size_t size)
{
	return is_large(size) ? &large_bytes : &small_bytes;
}

extern "C" {

cudaError_t cudaMalloc(void **out, size_t size)
{
	guard held(lock);

	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	fake_trace("memory of %zu bytes", size);

	size_t taken = rounded(size, is_large(size) ? PAGE : ALIGNMENT);

	*account(size) += taken;
	if (device_bytes() > memory_limit()) {
		*account(size) -= taken;
		return fails(cudaErrorMemoryAllocation);
	}
	*out = block(device_memory, size);
	return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
	guard held(lock);

	if (!memory)
		return cudaSuccess;
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);

	size_t size =
		release(device_memory, memory, "cudaFree of memory that is not from cudaMalloc");

	*account(size) -= rounded(size, is_large(size) ? PAGE : ALIGNMENT);
	return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t size)
{
	guard held(lock);

	*out = block(pinned, size);
	return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
	guard held(lock);

	if (memory)
		release(pinned, memory, "cudaFreeHost of memory that is not from cudaMallocHost");
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	guard held(lock);

	*total = memory_limit();
	*available = *total - device_bytes();
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
	return cudaMallocHost(out, size);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags)
{
	guard held(lock);

	if (!pinned.count((uintptr_t)host))
		return fails(cudaErrorInvalidValue);
	*out = host;
	return cudaSuccess;
}

/* 'd': device memory, 'p': pinned, 'h': other host memory. */
static char place(const void *at, size_t size)
{
	return within(device_memory, at, size) ? 'd' : within(pinned, at, size) ? 'p' : 'h';
}

static void expect_kind(const void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
	bool from_device = place(from, size) == 'd', to_device = place(to, size) == 'd';

	if ((kind == cudaMemcpyHostToDevice && (from_device || !to_device)) ||
	    (kind == cudaMemcpyDeviceToHost && (!from_device || to_device)) ||
	    (kind == cudaMemcpyDeviceToDevice && (!from_device || !to_device)) ||
	    (kind == cudaMemcpyDefault && !to_device))
		die("a copy whose kind does not match its memory, or that goes past an allocation");
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
	guard held(lock);

	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	waits++;
	expect_kind(to, from, size, kind);
	if (place(from, size) != 'h' || place(to, size) != 'd') {
		memcpy(to, from, size);
		return cudaSuccess;
	}
	/* The call returns when pageable memory has been read; the write comes later. */
	auto kept =
		std::make_shared<std::vector<char>>((const char *)from, (const char *)from + size);

	arrive_late([=] { memcpy(to, kept->data(), size); });
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
	guard held(lock);

	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	waits++;
	pump_all();
	return cudaSuccess;
}

/* A GPU writes an aligned word at once: the host may read it meanwhile. */
static void copy(void *to, const void *from, size_t size)
{
	int64_t word;

	if (size != sizeof word || (uintptr_t)to % sizeof word) {
		memcpy(to, from, size);
		return;
	}
	memcpy(&word, from, sizeof word);
	__atomic_store_n((int64_t *)to, word, __ATOMIC_RELEASE);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	guard held(lock);

	living(stream);
	expect_kind(to, from, size, kind);
	fake_trace("copy of %zu bytes", size);
	if (place(from, size) != 'h' && place(to, size) != 'h') {
		work(stream, [=] { copy(to, from, size); });
		return cudaSuccess;
	}
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	waits++;
	/* Pageable memory is read at once, and written before the call returns. */
	if (place(from, size) == 'h') {
		auto kept = std::make_shared<std::vector<char>>((const char *)from,
								(const char *)from + size);

		work(stream, [=] { memcpy(to, kept->data(), size); });
		return cudaSuccess;
	}
	pump(stream);
	memcpy(to, from, size);
	return cudaSuccess;
}

cudaError_t cudaMemset(void *at, int value, size_t size)
{
	guard held(lock);

	expect(at, size, "cudaMemset");
	memset(at, value, size);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t stream)
{
	guard held(lock);

	expect(at, size, "cudaMemsetAsync");
	fake_trace("%zu bytes of %d", size, value);
	work(stream, [=] { memset(at, value, size); });
	return cudaSuccess;
}

/* ---- the device ---- */

static int device_count(void)
{
	const char *wanted = getenv("FAKE_CUDA_COUNT");

	return wanted ? atoi(wanted) : 1;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	int driver;

	cudaDriverGetVersion(&driver);
	if (driver < CUDART_VERSION)
		return fails(cudaErrorInsufficientDriver);
	*count = device_count();
	return *count ? cudaSuccess : fails(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *ordinal)
{
	*ordinal = device;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
	if (ordinal < 0 || ordinal >= device_count())
		return fails(cudaErrorInvalidDevice);
	device = ordinal;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
	const char *major = getenv("FAKE_CUDA_MAJOR"), *gpu = getenv("FAKE_CUDA_GPU");
	const char *name = getenv("FAKE_CUDA_NAME");

	memset(out, 0, sizeof *out);
	snprintf(out->name, sizeof out->name, "%s", name ? name : "Fake GPU");
	/* The first GPU of tests/unit/inventory/fake_nvml.c. */
	memcpy(out->uuid.bytes, "\0\0\0\xf0\xaa\xaa\xbb\xbb\xcc\xcc\xdd\xdd\xdd\xdd\xdd\xdd", 16);
	if (gpu)
		memset(out->uuid.bytes, atoi(gpu), sizeof out->uuid.bytes);
	out->multiProcessorCount = 1;
	out->major = major ? atoi(major) : 9;
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	const char *driver = getenv("FAKE_CUDA_DRIVER");

	*version = driver ? atoi(driver) : CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}

} // extern "C"

void fake_expect(const void *at, size_t size, const char *what)
{
	guard held(lock);

	expect(at, size, what);
}

/* LeakSanitizer finds a leak of the GPU's memory only if nothing points at it. */
__attribute__((destructor)) static void left_over(void)
{
	if (!device_memory.empty() && getenv("FAKE_CUDA_STRICT")) {
		fprintf(stderr, "fake GPU: %zu bytes were not freed\n", device_bytes());
		_Exit(86);
	}
}
