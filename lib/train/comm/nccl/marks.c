/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams, and progress marks that the GPU writes by itself: copies of the step's number from its
 * memory to the host's, repeated by a replayed graph. */
#include <string.h>

#include "train/comm/nccl/nccl_internal.h"

#define TRY(call, what)                                                                            \
	do {                                                                                       \
		cudaError_t result_ = (call);                                                      \
		if (result_ != cudaSuccess)                                                        \
			return cuda_error(result_, what, err);                                     \
	} while (0)

/* ---- streams and events ---- */

int streams_new(struct nccl *nccl, struct error *err)
{
	int lowest, highest;

	TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "a stream for NCCL");
	TRY(cudaStreamCreateWithPriority(&nccl->stream, cudaStreamNonBlocking, highest),
	    "a stream for NCCL");
	TRY(cudaEventCreateWithFlags(&nccl->before, cudaEventDisableTiming), "an event");
	TRY(cudaEventCreateWithFlags(&nccl->after, cudaEventDisableTiming), "an event");
	TRY(cudaEventCreateWithFlags(&nccl->waiting, cudaEventDefault), "an event");
	for (int i = 0; i < SPANS_MAX; i++)
		for (int end = 0; end < 2; end++)
			TRY(cudaEventCreateWithFlags(&nccl->spans[i][end], cudaEventDefault),
			    "an event");
	return 0;
}

static void event_free(cudaEvent_t event)
{
	if (event)
		cudaEventDestroy(event);
}

void streams_free(struct nccl *nccl)
{
	event_free(nccl->before);
	event_free(nccl->after);
	event_free(nccl->waiting);
	for (int i = 0; i < SPANS_MAX; i++)
		for (int end = 0; end < 2; end++)
			event_free(nccl->spans[i][end]);
	if (nccl->stream)
		cudaStreamDestroy(nccl->stream);
}

/* ---- numbers to the GPU ---- */

static int ring_new(struct ring *ring, struct error *err)
{
	TRY(cudaHostAlloc((void **)&ring->values, RING * sizeof *ring->values,
			  cudaHostAllocDefault),
	    "host memory for NCCL");
	TRY(cudaMalloc((void **)&ring->word, sizeof *ring->word), "memory for NCCL");
	for (int half = 0; half < 2; half++)
		TRY(cudaEventCreateWithFlags(&ring->halves[half], cudaEventDisableTiming),
		    "an event");
	return 0;
}

static void ring_free(struct ring *ring)
{
	for (int half = 0; half < 2; half++)
		event_free(ring->halves[half]);
	cudaFree(ring->word);
	cudaFreeHost(ring->values);
}

int ring_put(struct ring *ring, cudaStream_t stream, int64_t value, struct error *err)
{
	unsigned at = ring->next % RING, half = at / (RING / 2);

	/* An event that was never recorded counts as complete. */
	if (at % (RING / 2) == 0)
		TRY(cudaEventSynchronize(ring->halves[half]), "waiting for the GPU");
	ring->values[at] = value;
	TRY(cudaMemcpyAsync(ring->word, &ring->values[at], sizeof value, cudaMemcpyHostToDevice,
			    stream),
	    "telling the GPU its step");
	if (at % (RING / 2) == RING / 2 - 1)
		TRY(cudaEventRecord(ring->halves[half], stream), "an event");
	ring->next++;
	return 0;
}

/* ---- marks ---- */

int marks_new(struct nccl *nccl, struct error *err)
{
	size_t size = (BUCKETS_MAX + 1) * sizeof *nccl->slots;
	void *slots, *device;

	TRY(cudaHostAlloc(&slots, size, cudaHostAllocMapped), "host memory for NCCL");
	nccl->slots = slots;
	memset(slots, 0, size);
	TRY(cudaHostGetDevicePointer(&device, slots, 0), "host memory for NCCL");
	nccl->slots_device = device;
	TRY(cudaMalloc(&nccl->barrier_word, sizeof(int32_t)), "memory for NCCL");
	TRY(cudaMemset(nccl->barrier_word, 0, sizeof(int32_t)), "memory for NCCL");

	int rc = ring_new(&nccl->steps, err);

	return rc ? rc : ring_new(&nccl->calls, err);
}

void marks_free(struct nccl *nccl)
{
	ring_free(&nccl->steps);
	ring_free(&nccl->calls);
	cudaFree(nccl->barrier_word);
	cudaFreeHost((void *)(uintptr_t)nccl->slots);
}

int mark_put(struct nccl *nccl, const int64_t *word, int slot, struct error *err)
{
	TRY(cudaMemcpyAsync(nccl->slots_device + slot, word, sizeof *word, cudaMemcpyDeviceToHost,
			    nccl->stream),
	    "marking what is done");
	return 0;
}
