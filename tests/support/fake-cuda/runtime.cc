/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams, events and graphs of the fake GPU (fake.h). One lock guards everything; only the threads
 * of FAKE_CUDA_THREADS release it while they work. A graph is the list of what was captured. It is
 * replayed in that order, as one item of its stream: a serial order that the captured events allow.
 */
#include "internal.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <time.h>
#include <vector>

static int graphs;

struct item {
	enum { WORK, RECORD, WAIT, LAUNCH } kind;
	std::function<void()> work;
	CUevent_st *event;
	int version; /* of the event; 0: each replay of the graph records the next one */
	std::shared_ptr<struct capture> graph;
};

/* The graph, its executable form and its launches share it: each may be destroyed before the
 * others. */
struct capture {
	std::vector<item> items;
	bool active = true, broken = false;

	capture()
	{
		graphs++;
	}
	~capture()
	{
		graphs--;
	}
};
struct CUgraph_st {
	std::shared_ptr<capture> made;
};
struct CUgraphExec_st : CUgraph_st {
};

struct CUstream_st {
	std::deque<item> todo;		/* includes the item that its thread works on */
	std::shared_ptr<capture> graph; /* the capture under way */
	size_t captured,
		joined; /* its work in that capture; how much of it another stream waits for */
	std::thread thread;
	bool stop;
};

struct CUevent_st {
	int recorded, come; /* how often it was recorded, and how many of these have come */
	CUstream_st *stream;
	std::shared_ptr<capture> graph; /* NULL: it was last recorded outside of a capture */
	size_t behind;			/* how much work its stream had in that capture */
	double ms;			/* when it last came */
	bool timed, destroyed;
};

std::mutex fake::lock;
long fake::waits;
static std::condition_variable_any changed;
static double clock_ms;
static std::set<CUstream_st *> streams;
static std::vector<std::unique_ptr<CUevent_st>> destroyed_events;
/* Copies under way on the default stream: no other stream waits for them. */
static std::deque<std::function<void()>> late_copies;
static long event_waits; /* how often the host waited for an event */
static uint64_t chance;
/* Not thread_local: LeakSanitizer crashes on that of a module that was unloaded. */
static cudaError_t last_error;
static std::atomic<bool> faulted;

[[noreturn]] void fake::die(const char *what)
{
	fprintf(stderr, "fake GPU: %s\n", what);
	abort();
}

using namespace fake;

static bool threaded(void)
{
	static const bool wanted = getenv("FAKE_CUDA_THREADS");

	return wanted;
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

cudaError_t fake::fails(cudaError_t code)
{
	last_error = code;
	return code;
}

void fake_fault(void)
{
	faulted = true;
}

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return threaded() ? (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6 : clock_ms;
}

/* ---- work, under the lock ---- */

static bool ready(const item &it)
{
	return it.kind != item::WAIT || it.event->come >= it.version;
}

static void perform(const item &it)
{
	switch (it.kind) {
	case item::WORK:
		if (threaded())
			lock.unlock();
		it.work();
		if (threaded())
			lock.lock();
		break;
	case item::RECORD:
		it.event->come =
			std::max(it.event->come, it.version ? it.version : ++it.event->recorded);
		it.event->ms = now_ms();
		changed.notify_all();
		break;
	case item::LAUNCH:
		for (const item &node : it.graph->items)
			perform(node);
		break;
	case item::WAIT:
		break;
	}
}

static void run_stream(CUstream_st *stream)
{
	guard held(lock);

	for (;;) {
		changed.wait(lock, [=] {
			return stream->todo.empty() ? stream->stop : ready(stream->todo.front());
		});
		if (stream->todo.empty())
			return;
		perform(stream->todo.front());
		stream->todo.pop_front();
		changed.notify_all();
	}
}

/* Do the first of a stream's items. If it waits for an event that has not come: force makes the
 * event come; otherwise returns false. */
static bool step(CUstream_st *stream, bool force)
{
	while (!ready(stream->todo.front())) {
		CUstream_st *other = stream->todo.front().event->stream;

		if (!force)
			return false;
		if (other == stream || other->todo.empty())
			die("a stream waits for an event that can never come");
		step(other, true);
	}
	item first = std::move(stream->todo.front());

	stream->todo.pop_front();
	perform(first);
	return true;
}

void fake::pump(CUstream_st *stream)
{
	if (threaded())
		changed.wait(lock, [=] { return stream->todo.empty(); });
	while (!stream->todo.empty())
		step(stream, true);
}

void fake::arrive_late(std::function<void()> copy)
{
	late_copies.push_back(std::move(copy));
}

static void arrive(void)
{
	while (!late_copies.empty()) {
		late_copies.front()();
		late_copies.pop_front();
	}
}

void fake::pump_all(void)
{
	arrive();
	for (CUstream_st *stream : streams)
		pump(stream);
}

/* Do some of what a GPU could have done by now. */
static void drift(void)
{
	for (CUstream_st *stream : streams)
		while (!threaded() && !stream->todo.empty() && toss() && step(stream, false)) {
		}
}

static void put(CUstream_st *stream, item it)
{
	if (stream->graph) {
		stream->graph->items.push_back(std::move(it));
		stream->captured++;
		return;
	}
	stream->todo.push_back(std::move(it));
	changed.notify_all();
	drift();
}

static cudaError_t synchronize(CUstream_st *stream)
{
	if (stream->graph) {
		stream->graph->broken = true;
		return fails(cudaErrorStreamCaptureUnsupported);
	}
	waits++;
	pump(stream);
	return faulted ? cudaErrorIllegalAddress : cudaSuccess;
}

CUstream_st *fake::living(CUstream_st *stream)
{
	if (!stream)
		die("work on the default stream");
	if (!streams.count(stream))
		die("a stream that was not created or is destroyed");
	return stream;
}

/* Return event. End the process if it is destroyed. */
static CUevent_st *living(CUevent_st *event)
{
	if (event->destroyed)
		die("a destroyed event");
	return event;
}

bool fake::breaks_capture(void)
{
	bool any = false;

	for (CUstream_st *stream : streams)
		if (stream->graph)
			any = stream->graph->broken = true;
	return any;
}

void fake::work(CUstream_st *stream, std::function<void()> what)
{
	put(living(stream), {item::WORK, std::move(what), nullptr, 0, nullptr});
}

void fake_trace(const char *format, ...)
{
	static const char *const path = getenv("FAKE_CUDA_TRACE");
	static FILE *const file = path ? fopen(path, "w") : nullptr;
	char line[256];
	va_list arguments;

	if (!file)
		return;
	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	fprintf(file, "%s\n", line);
}

void fake_put(cudaStream_t stream, std::function<void()> work)
{
	guard held(lock);

	fake::work(stream, std::move(work));
}

bool fake_lives(cudaStream_t stream)
{
	guard held(lock);

	return !stream || streams.count(stream);
}

extern "C" {

int fake_graphs(void)
{
	guard held(lock);

	return graphs;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
	guard held(lock);

	if (flags != cudaStreamNonBlocking)
		die("a stream that waits for the default stream");
	*out = new CUstream_st();
	streams.insert(*out);
	if (threaded())
		(*out)->thread = std::thread(run_stream, *out);
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
	return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	{
		guard held(lock);

		pump(living(stream));
		streams.erase(stream);
		stream->stop = true;
		changed.notify_all();
	}
	if (stream->thread.joinable())
		stream->thread.join();
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	guard held(lock);

	return synchronize(living(stream));
}

/* Reports pending work every other time. cudaGetLastError does not return cudaErrorNotReady (CUDA
 * Programming Guide, Error Checking). */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	guard held(lock);

	if (!living(stream)->graph && !stream->todo.empty() && (threaded() || toss())) {
		drift();
		if (!stream->todo.empty())
			return cudaErrorNotReady;
	}
	return synchronize(stream);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
	fake_put(stream, [=] { function(data); });
	return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
	*out = new CUevent_st();
	(*out)->timed = !(flags & cudaEventDisableTiming);
	return cudaSuccess;
}

/* CUDA allows this before the event has come (CUDA Runtime API, cudaEventDestroy). The memory stays
 * until the process ends, so that living() finds a later use. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	guard held(lock);

	living(event)->destroyed = true;
	destroyed_events.emplace_back(event);
	return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
	guard held(lock);
	bool external = flags & cudaEventRecordExternal;

	if (external && !living(stream)->graph)
		return fails(cudaErrorIllegalState);
	living(event)->stream = living(stream);
	event->graph = external ? nullptr : stream->graph;
	event->behind = stream->captured;
	if (!event->graph)
		put(stream, {item::RECORD, {}, event, external ? 0 : ++event->recorded, nullptr});
	return faulted ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

/* Take stream into the capture that event was recorded in. */
static cudaError_t join(CUstream_st *stream, CUevent_st *event)
{
	if (!event->graph->active)
		return fails(cudaErrorCapturedEvent);
	if (stream->graph && stream->graph != event->graph) {
		stream->graph->broken = event->graph->broken = true;
		return fails(cudaErrorStreamCaptureMerge);
	}
	if (!stream->graph)
		stream->captured = stream->joined = 0;
	stream->graph = event->graph;
	if (event->stream != stream)
		event->stream->joined = std::max(event->stream->joined, event->behind);
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	guard held(lock);

	if (living(event)->graph)
		return join(living(stream), event);
	if (living(stream)->graph) {
		stream->graph->broken = true;
		return fails(cudaErrorStreamCaptureIsolation);
	}
	if (event->recorded)
		put(stream, {item::WAIT, {}, event, event->recorded, nullptr});
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	guard held(lock);

	if (breaks_capture())
		return fails(cudaErrorStreamCaptureUnsupported);
	if (living(event)->graph)
		return fails(cudaErrorCapturedEvent);
	event_waits++;
	if (threaded())
		changed.wait(lock, [=] { return event->come >= event->recorded; });
	while (event->come < event->recorded)
		step(event->stream, true);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	guard held(lock);

	for (CUevent_st *event : {living(from), living(to)}) {
		if (!event->timed || !event->recorded)
			return fails(cudaErrorInvalidResourceHandle);
		if (event->come < event->recorded)
			return fails(cudaErrorNotReady);
	}
	*ms = (float)(to->ms - from->ms);
	return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	guard held(lock);

	if (mode != cudaStreamCaptureModeThreadLocal || living(stream)->graph)
		die("a capture with another mode, or within a capture");
	stream->graph = std::make_shared<capture>();
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	guard held(lock);

	*status = !living(stream)->graph  ? cudaStreamCaptureStatusNone
		  : stream->graph->broken ? cudaStreamCaptureStatusInvalidated
					  : cudaStreamCaptureStatusActive;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
	guard held(lock);
	std::shared_ptr<capture> graph = living(stream)->graph;
	bool unjoined = false;

	*out = nullptr;
	if (!graph)
		return fails(cudaErrorIllegalState);
	graph->active = false;
	for (CUstream_st *other : streams)
		if (other->graph == graph) {
			unjoined = unjoined || (other != stream && other->captured > other->joined);
			other->graph = nullptr;
		}
	if (graph->broken)
		return fails(cudaErrorStreamCaptureInvalidated);
	if (unjoined)
		return fails(cudaErrorStreamCaptureUnjoined);
	*out = new CUgraph_st{graph};
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
	guard held(lock);

	if (flags != cudaGraphInstantiateFlagUseNodePriority)
		die("a graph whose nodes lose the priority of the stream that they were captured "
		    "from");
	if (getenv("FAKE_CUDA_NO_GRAPHS"))
		return cudaErrorNotSupported;
	*out = new CUgraphExec_st{{graph->made}};
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	guard held(lock);

	delete graph;
	return cudaSuccess;
}

/* A launch under way completes (CUDA Driver API, cuGraphExecDestroy). */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	guard held(lock);

	delete exec;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	guard held(lock);

	fake_trace("graph");
	put(living(stream), {item::LAUNCH, {}, nullptr, 0, exec->made});
	return cudaSuccess;
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void)
{
	cudaError_t code = faulted ? cudaErrorIllegalAddress : last_error;

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

/* Work calls this, so the lock is held. With threads the clock is the real one. */
void fake_cost(double ms)
{
	clock_ms += ms;
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
