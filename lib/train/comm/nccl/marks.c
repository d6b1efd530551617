/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams, and progress marks: copies of the step's number that the GPU itself makes from its
 * memory to the host's. A replayed graph repeats them. */
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

	TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "creating a CUDA stream for NCCL");
	TRY(cudaStreamCreateWithPriority(&nccl->stream, cudaStreamNonBlocking, highest),
	    "creating a CUDA stream for NCCL");
	TRY(cudaEventCreateWithFlags(&nccl->before, cudaEventDisableTiming),
	    "creating a CUDA event");
	TRY(cudaEventCreateWithFlags(&nccl->after, cudaEventDisableTiming),
	    "creating a CUDA event");
	TRY(cudaEventCreateWithFlags(&nccl->waiting, cudaEventDefault), "creating a CUDA event");
	for (int i = 0; i < SPANS_MAX; i++)
		for (int end = 0; end < 2; end++)
			TRY(cudaEventCreateWithFlags(&nccl->spans[i][end], cudaEventDefault),
			    "creating a CUDA event");
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
	    "allocating host memory for NCCL");
	TRY(cudaMalloc((void **)&ring->word, sizeof *ring->word), "allocating GPU memory for NCCL");
	for (int half = 0; half < 2; half++)
		TRY(cudaEventCreateWithFlags(&ring->halves[half], cudaEventDisableTiming),
		    "creating a CUDA event");
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
	    "copying the step number to the GPU");
	if (at % (RING / 2) == RING / 2 - 1)
		TRY(cudaEventRecord(ring->halves[half], stream), "recording a CUDA event");
	ring->next++;
	return 0;
}

/* ---- marks ---- */

int marks_new(struct nccl *nccl, struct error *err)
{
	size_t size = (BUCKETS_MAX + 1) * sizeof *nccl->slots;
	void *slots, *device;

	TRY(cudaHostAlloc(&slots, size, cudaHostAllocMapped), "allocating host memory for NCCL");
	nccl->slots = slots;
	memset(slots, 0, size);
	TRY(cudaHostGetDevicePointer(&device, slots, 0), "allocating host memory for NCCL");
	nccl->slots_device = device;
	TRY(cudaMalloc(&nccl->barrier_word, sizeof(int32_t)), "allocating GPU memory for NCCL");
	TRY(cudaMemset(nccl->barrier_word, 0, sizeof(int32_t)), "clearing GPU memory for NCCL");

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
	    "marking a completed collective");
	return 0;
}
