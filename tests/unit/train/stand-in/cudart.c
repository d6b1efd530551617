/* SPDX-License-Identifier: BSD-3-Clause */
/* A CUDA runtime of the host's memory, for tests of what calls one: a stream is a thread with a
 * list of work, an event is a number that the work reaches, a graph is a list that is replayed.
 * What the real one checks about capture is checked only as far as it is written here. GPUs: one,
 * whose UUID has STAND_IN_GPU (0 to 255) in each byte. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { COPY, RECORD, WAIT, CALL, LAUNCH };

struct work {
	struct work *next;
	enum kind kind;
	void *to;
	const void *from;
	size_t size;
	struct CUevent_st *event;
	uint64_t number; /* of the event */
	cudaHostFn_t function;
	struct CUgraph_st *graph;
};

struct list {
	struct work *head, **tail;
};

struct CUgraph_st {
	struct list list;
};

struct CUevent_st {
	uint64_t recorded, reached;
	struct timespec at;
	struct CUgraph_st *captured; /* the capture that it was recorded in last */
	struct CUstream_st *on;	     /* there, behind so much captured work of it */
	uint64_t behind;
	struct CUevent_st *destroyed;
};

struct CUstream_st {
	struct CUstream_st *next; /* all streams */
	pthread_t thread;
	struct list list;
	bool busy, stop;
	struct CUgraph_st *capture;
	uint64_t captured,
		joined; /* work of this capture, and how much of it another stream waits for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static int graphs; /* begun and not destroyed */

static void append(struct list *list, const struct work *what)
{
	struct work *work = malloc(sizeof *work);

	if (!work)
		abort();
	*work = *what;
	work->next = NULL;
	if (!list->head)
		list->tail = &list->head;
	*list->tail = work;
	list->tail = &work->next;
}

static void reach(struct CUevent_st *event, uint64_t number)
{
	if (number > event->reached)
		event->reached = number;
	clock_gettime(CLOCK_MONOTONIC, &event->at);
	pthread_cond_broadcast(&changed);
}

/* Under lock, which is given up meanwhile. */
static void perform(const struct work *work)
{
	switch (work->kind) {
	case RECORD:
		reach(work->event, work->number);
		return;
	case WAIT:
		while (work->event->reached < work->number)
			pthread_cond_wait(&changed, &lock);
		return;
	case LAUNCH:
		/* One after another: the order in which they were captured is one that fits. */
		for (const struct work *w = work->graph->list.head; w; w = w->next)
			perform(w);
		return;
	default:
		pthread_mutex_unlock(&lock);
		if (work->kind == COPY)
			memcpy(work->to, work->from, work->size);
		else
			work->function(work->to);
		pthread_mutex_lock(&lock);
	}
}

static void *stream_thread(void *context)
{
	struct CUstream_st *stream = context;

	pthread_mutex_lock(&lock);
	for (;;) {
		struct work *work = stream->list.head;

		if (!work && stream->stop)
			break;
		if (!work) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		stream->list.head = work->next;
		stream->busy = true;
		perform(work);
		stream->busy = false;
		free(work);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static cudaError_t put(struct CUstream_st *stream, struct work work)
{
	pthread_mutex_lock(&lock);
	append(stream->capture ? &stream->capture->list : &stream->list, &work);
	stream->captured += stream->capture != NULL;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
	struct CUstream_st *stream = calloc(1, sizeof *stream);

	if (!stream || pthread_create(&stream->thread, NULL, stream_thread, stream))
		return cudaErrorMemoryAllocation;
	pthread_mutex_lock(&lock);
	stream->next = streams;
	streams = stream;
	pthread_mutex_unlock(&lock);
	*out = stream;
	return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
	return cudaStreamCreateWithPriority(out, 0, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
	return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	pthread_mutex_lock(&lock);
	stream->stop = true;
	for (struct CUstream_st **at = &streams; *at; at = &(*at)->next)
		if (*at == stream) {
			*at = stream->next;
			break;
		}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	pthread_join(stream->thread, NULL);
	free(stream);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	if (stream->capture)
		return cudaErrorStreamCaptureUnsupported;
	pthread_mutex_lock(&lock);
	while (stream->list.head || stream->busy)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	if (event->captured) {
		if (stream->capture && stream->capture != event->captured)
			return cudaErrorStreamCaptureMerge;
		if (!stream->capture)
			stream->captured = stream->joined = 0;
		stream->capture =
			event->captured; /* in a serial replay there is nothing to wait for */
		if (event->on != stream && event->behind > event->on->joined)
			event->on->joined = event->behind;
		return cudaSuccess;
	}
	if (stream->capture)
		return cudaErrorStreamCaptureIsolation;
	return put(stream, (struct work){.kind = WAIT, .event = event, .number = event->recorded});
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
	return put(stream, (struct work){.kind = CALL, .function = function, .to = data});
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
	*out = calloc(1, sizeof **out);
	return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* An event may be destroyed before its work is done (CUDA Runtime API, cudaEventDestroy): this one
 * lives until the process ends. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	static struct CUevent_st *all;

	pthread_mutex_lock(&lock);
	event->destroyed = all;
	all = event;
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
	if ((flags & cudaEventRecordExternal) && !stream->capture)
		return cudaErrorIllegalState;
	if (stream->capture && !(flags & cudaEventRecordExternal)) {
		event->captured = stream->capture;
		event->on = stream;
		event->behind = stream->captured;
		return cudaSuccess;
	}
	event->captured = NULL;
	return put(stream,
		   (struct work){.kind = RECORD, .event = event, .number = ++event->recorded});
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	pthread_mutex_lock(&lock);
	while (event->reached < event->recorded)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	if (!from->reached || !to->reached)
		return cudaErrorInvalidResourceHandle;
	*ms = (float)((double)(to->at.tv_sec - from->at.tv_sec) * 1e3 +
		      (double)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6);
	return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	stream->capture = calloc(1, sizeof *stream->capture);
	if (!stream->capture)
		return cudaErrorMemoryAllocation;
	pthread_mutex_lock(&lock);
	graphs++;
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* For the stand-in of NCCL, whose real one is told by an object that a graph holds. */
int stand_in_graphs(void);
int stand_in_graphs(void)
{
	pthread_mutex_lock(&lock);
	int count = graphs;

	pthread_mutex_unlock(&lock);
	return count;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	*status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
	struct CUgraph_st *graph = stream->capture;
	bool unjoined = false;

	*out = graph;
	pthread_mutex_lock(&lock);
	for (struct CUstream_st *at = streams; at; at = at->next)
		if (graph && at->capture == graph) {
			unjoined = unjoined || (at != stream && at->captured > at->joined);
			at->capture = NULL;
		}
	pthread_mutex_unlock(&lock);
	return !graph	  ? cudaErrorIllegalState
	       : unjoined ? cudaErrorStreamCaptureUnjoined
			  : cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
	*out = (cudaGraphExec_t)graph;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
	return put(stream, (struct work){.kind = LAUNCH, .graph = (struct CUgraph_st *)graph});
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	for (struct work *w = graph->list.head, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	free(graph);
	pthread_mutex_lock(&lock);
	graphs--;
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* An executable graph is the graph here: destroyed last. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
	return cudaGraphDestroy((cudaGraph_t)graph);
}

cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

/* ---- memory ---- */

static cudaError_t allocate(void **out, size_t size)
{
	*out = aligned_alloc(256, (size + 255) / 256 * 256);
	return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMalloc(void **out, size_t size)
{
	return allocate(out, size);
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
	return allocate(out, size);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags)
{
	*out = host;
	return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
	free(memory);
	return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
	free(memory);
	return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t size)
{
	memset(memory, value, size);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	return put(stream, (struct work){.kind = COPY, .to = to, .from = from, .size = size});
}

/* ---- devices ---- */

cudaError_t cudaGetDevice(int *out)
{
	*out = 0;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	return device ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
	const char *gpu = getenv("STAND_IN_GPU");

	memset(out, 0, sizeof *out);
	memset(&out->uuid, gpu ? atoi(gpu) : 0, sizeof out->uuid);
	return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error == cudaSuccess ? "no error" : "an error of the stand-in";
}
