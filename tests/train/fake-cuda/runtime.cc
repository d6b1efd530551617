/* SPDX-License-Identifier: BSD-3-Clause */
#include "fake.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "train/device/cuda/kernels/element.h"

#define ALIGNMENT ((size_t)256)
#define POISONED ((size_t)64 << 20)

struct item {
	std::function<void()> work; /* empty: a wait */
	CUevent_st *event;
	int version;
};

struct CUgraph_st {
	std::vector<std::function<void()>> items;
	bool broken;
};
struct CUgraphExec_st {
	std::vector<std::function<void()>> items;
};

struct CUstream_st {
	std::deque<item> todo;
	CUgraph_st *graph; /* being captured */
};

/* versions: how often it was recorded, and how many of these have come. */
struct CUevent_st {
	int recorded, come;
	CUstream_st *stream;
	CUgraph_st *graph;
	double ms; /* when it last came */
};

static double clock_ms;
static std::map<uintptr_t, size_t> device_memory, pinned;
static std::set<CUstream_st *> streams;
/* Copies on the default stream that are on their way: no other stream waits for them. */
static std::deque<std::function<void()>> late_copies;
/* Of allocations that have pages of their own, and of the others, which share some. */
static size_t large_bytes, small_bytes;
static cudaError_t last_error;
static uint64_t chance;

[[noreturn]] static void die(const char *what)
{
	fprintf(stderr, "fake GPU: %s\n", what);
	abort();
}

static bool toss(void)
{
	if (!chance) {
		const char *seed = getenv("FAKE_CUDA_SEED");

		chance = seed ? strtoull(seed, nullptr, 10) * 2 + 1 : 1;
	}
	chance = chance * 6364136223846793005u + 1442695040888963407u;
	return chance >> 63;
}

/* How often the host waited for the GPU: in general, and for an event. */
static long waits, event_waits;

static cudaError_t fails(cudaError_t code)
{
	last_error = code;
	return code;
}

/* ---- streams ---- */

/* Do the first of a stream's items; force: with what it waits for, else only if that has come. */
static bool step(CUstream_st *stream, bool force)
{
	item first = stream->todo.front();

	if (!first.work) {
		while (first.event->come < first.version) {
			if (!force)
				return false;
			if (first.event->stream == stream || first.event->stream->todo.empty())
				die("a stream waits for an event that can never come");
			step(first.event->stream, true);
		}
	}
	stream->todo.pop_front();
	if (first.work)
		first.work();
	return true;
}

static void pump(CUstream_st *stream)
{
	while (!stream->todo.empty())
		step(stream, true);
}

static void arrive(void)
{
	while (!late_copies.empty()) {
		late_copies.front()();
		late_copies.pop_front();
	}
}

static void pump_all(void)
{
	arrive();
	for (CUstream_st *stream : streams)
		pump(stream);
}

/* Some of what could be done by now. */
static void drift(void)
{
	for (CUstream_st *stream : streams)
		while (!stream->todo.empty() && toss() && step(stream, false)) {
		}
}

void fake_put(cudaStream_t stream, std::function<void()> work)
{
	if (!stream)
		die("work on the default stream");
	if (stream->graph) {
		stream->graph->items.push_back(work);
		return;
	}
	stream->todo.push_back({work, nullptr, 0});
	drift();
}

bool fake_lives(cudaStream_t stream)
{
	return !stream || streams.count(stream);
}

bool fake_capturing(cudaStream_t stream)
{
	return stream && stream->graph;
}

/* A call that must not be made while anything is captured. */
static bool breaks_capture(void)
{
	bool any = false;

	for (CUstream_st *stream : streams)
		if (stream->graph)
			any = stream->graph->broken = true;
	return any;
}

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
	if (flags != cudaStreamNonBlocking)
		die("a stream that waits for the default stream");
	*out = new CUstream_st();
	streams.insert(*out);
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	if (!streams.count(stream))
		die("a stream destroyed that is none");
	pump(stream);
	streams.erase(stream);
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	if (stream->graph) {
		stream->graph->broken = true;
		return fails(cudaErrorStreamCaptureUnsupported);
	}
	waits++;
	pump(stream);
	return cudaSuccess;
}

/* Not done yet, as often as not; that is no error, and cudaGetLastError does not tell of it (CUDA
 * Programming Guide, Error Checking). */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	if (!stream->graph && !stream->todo.empty() && toss()) {
		drift();
		if (!stream->todo.empty())
			return cudaErrorNotReady;
	}
	return cudaStreamSynchronize(stream);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
	*out = new CUevent_st();
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	/* CUDA keeps it until it has come; here it is simply made to come. */
	if (event->stream && streams.count(event->stream) && event->come < event->recorded)
		pump_all();
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	if (stream->graph) {
		event->graph = stream->graph;
		return cudaSuccess;
	}
	event->graph = nullptr;
	event->stream = stream;

	int version = ++event->recorded;

	fake_put(stream, [event, version] {
		event->come = version;
		event->ms = clock_ms;
	});
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	if (event->graph) {
		stream->graph = event->graph; /* it joins the capture */
		return cudaSuccess;
	}
	if (stream->graph) {
		stream->graph->broken = true;
		return fails(cudaErrorStreamCaptureIsolation);
	}
	if (event->recorded)
		stream->todo.push_back({nullptr, event, event->recorded});
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	event_waits++;
	while (event->come < event->recorded)
		step(event->stream, true);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	*ms = (float)(to->ms - from->ms);
	return from->come && to->come ? cudaSuccess : fails(cudaErrorNotReady);
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	if (mode != cudaStreamCaptureModeThreadLocal || stream->graph)
		die("a capture of another mode, or within a capture");
	stream->graph = new CUgraph_st();
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
	CUgraph_st *graph = stream->graph;

	for (CUstream_st *other : streams)
		if (other->graph == graph)
			other->graph = nullptr;
	if (graph->broken) {
		delete graph;
		*out = nullptr;
		return fails(cudaErrorStreamCaptureInvalidated);
	}
	*out = graph;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
	if (flags != cudaGraphInstantiateFlagUseNodePriority)
		die("a graph whose nodes lose the priority of the stream that they were captured "
		    "from");
	*out = new CUgraphExec_st{graph->items};
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	pump_all();
	delete exec;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	fake_put(stream, [exec] {
		for (const auto &item : exec->items)
			item();
	});
	return cudaSuccess;
}

/* ---- memory ---- */

static bool within(const std::map<uintptr_t, size_t> &blocks, const void *at, size_t size)
{
	auto next = blocks.upper_bound((uintptr_t)at);

	if (next == blocks.begin())
		return false;
	--next;
	return (uintptr_t)at + size <= next->first + next->second;
}

static void *block(std::map<uintptr_t, size_t> &blocks, size_t size)
{
	/* Its end is where it says, for ASan. */
	void *memory = nullptr;

	if (posix_memalign(&memory, ALIGNMENT, size))
		die("the host's memory is out");
	/* The room in which layers are tried is a GiB, and nobody reads what it holds. */
	memset(memory, 0xff, size < POISONED ? size : POISONED);
	blocks[(uintptr_t)memory] = size;
	return memory;
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

/* What an allocation takes away from. */
static size_t *account(size_t size)
{
	return is_large(size) ? &large_bytes : &small_bytes;
}

cudaError_t cudaMalloc(void **out, size_t size)
{
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);

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
	if (!memory)
		return cudaSuccess;
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	if (!device_memory.count((uintptr_t)memory))
		die("cudaFree of what cudaMalloc did not give");
	pump_all();

	size_t size = device_memory[(uintptr_t)memory];

	*account(size) -= rounded(size, is_large(size) ? PAGE : ALIGNMENT);
	device_memory.erase((uintptr_t)memory);
	free(memory);
	return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t size)
{
	*out = block(pinned, size);
	return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
	if (!memory)
		return cudaSuccess;
	if (!pinned.count((uintptr_t)memory))
		die("cudaFreeHost of what cudaMallocHost did not give");
	pump_all();
	pinned.erase((uintptr_t)memory);
	free(memory);
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	*total = memory_limit();
	*available = *total - device_bytes();
	return cudaSuccess;
}

/* 'd' of the device, 'p' pinned, 'h' any of the host. */
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
		die("a copy that is not of the kind that it says, or beyond an allocation");
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	waits++;
	expect_kind(to, from, size, kind);
	if (place(from, size) != 'h' || place(to, size) != 'd') {
		memcpy(to, from, size);
		return cudaSuccess;
	}
	/* Pageable memory has been read when the call returns, and not more. */
	auto kept =
		std::make_shared<std::vector<char>>((const char *)from, (const char *)from + size);

	late_copies.push_back([=] { memcpy(to, kept->data(), size); });
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	waits++;
	pump_all();
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	expect_kind(to, from, size, kind);
	if (place(from, size) != 'h' && place(to, size) != 'h') {
		fake_put(stream, [=] { memcpy(to, from, size); });
		return cudaSuccess;
	}
	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	waits++;
	/* Pageable memory: read at once, written before the call returns. */
	if (place(from, size) == 'h') {
		auto kept = std::make_shared<std::vector<char>>((const char *)from,
								(const char *)from + size);

		fake_put(stream, [=] { memcpy(to, kept->data(), size); });
		return cudaSuccess;
	}
	pump(stream);
	memcpy(to, from, size);
	return cudaSuccess;
}

cudaError_t cudaMemset(void *at, int value, size_t size)
{
	fake_expect(at, size, "cudaMemset");
	memset(at, value, size);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t stream)
{
	fake_expect(at, size, "cudaMemsetAsync");
	fake_put(stream, [=] { memset(at, value, size); });
	return cudaSuccess;
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
	const char *wanted = getenv("FAKE_CUDA_COUNT");
	int driver;

	cudaDriverGetVersion(&driver);
	if (driver < CUDART_VERSION)
		return fails(cudaErrorInsufficientDriver);
	*count = wanted ? atoi(wanted) : 1;
	return *count ? cudaSuccess : fails(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *ordinal)
{
	*ordinal = 0;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
	const char *major = getenv("FAKE_CUDA_MAJOR");

	memset(out, 0, sizeof *out);
	snprintf(out->name, sizeof out->name, "Fake GPU");
	/* The first of tests/unit/inventory/fake_nvml.c. */
	memcpy(out->uuid.bytes, "\0\0\0\xf0\xaa\xaa\xbb\xbb\xcc\xcc\xdd\xdd\xdd\xdd\xdd\xdd", 16);
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

cudaError_t cudaGetLastError(void)
{
	cudaError_t code = last_error;

	last_error = cudaSuccess;
	return code;
}

const char *cudaGetErrorName(cudaError_t code)
{
	return "an error of the fake GPU";
}

const char *cudaGetErrorString(cudaError_t code)
{
	static char text[32];

	snprintf(text, sizeof text, "number %d", (int)code);
	return text;
}

} // extern "C"

/* ---- for the libraries ---- */

void fake_expect(const void *at, size_t size, const char *what)
{
	if (size && !within(device_memory, at, size))
		die(what);
}

void fake_cost(double ms)
{
	clock_ms += ms;
}

float fake_read(const void *at, size_t index, enum number number)
{
	if (number == NUMBER_F32)
		return ((const float *)at)[index];
	if (number == NUMBER_F16)
		return f32_of_f16(((const struct f16 *)at)[index]);
	return f32_of_bf16(((const struct bf16 *)at)[index]);
}

void fake_write(void *at, size_t index, enum number number, float value)
{
	if (number == NUMBER_F32)
		((float *)at)[index] = value;
	else if (number == NUMBER_F16)
		((struct f16 *)at)[index] = f16_of_f32(value);
	else
		((struct bf16 *)at)[index] = bf16_of_f32(value);
}

__attribute__((destructor)) static void tell_waits(void)
{
	const char *path = getenv("FAKE_CUDA_WAITS");
	FILE *file = path ? fopen(path, "w") : nullptr;

	if (!file)
		return;
	fprintf(file, "%ld %ld\n", waits, event_waits);
	fclose(file);
}

/* Leaks of the GPU's memory are the host's, which LeakSanitizer sees only where nothing points at
 * them. */
__attribute__((destructor)) static void left_over(void)
{
	if (!device_memory.empty() && getenv("FAKE_CUDA_STRICT")) {
		fprintf(stderr, "fake GPU: %zu bytes were not freed\n", device_bytes());
		_Exit(86);
	}
}
