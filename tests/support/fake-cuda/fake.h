/* SPDX-License-Identifier: BSD-3-Clause */
/* A fake GPU: the calls of the CUDA runtime that berth makes, done on the host. Tests of
 * device-cuda.so and of comm-nccl.so run on it where there is no GPU. They see what berth computes,
 * in what order, from which memory, and what it frees when.
 *
 * The host does the work on a stream late: when something waits for it, or when chance says so
 * (FAKE_CUDA_SEED). Streams pass each other unless an event keeps them in order. So three kinds of
 * defects show as wrong results: a copy whose source has changed, a missing event, and a number
 * that a graph captured instead of reading it. With FAKE_CUDA_THREADS each stream is a thread
 * instead: NCCL's collectives block the stream that they run on, and the host looks on meanwhile.
 *
 * Each allocation is a block of its own, full of NaNs, that ASan watches. A wrong call that CUDA
 * would not report ends the process with a message.
 *
 * FAKE_CUDA_MIB: memory of the GPU (default 4096), handed out in pages of 2 MiB.
 * FAKE_CUDA_STRICT: memory that was not freed at the end makes the process exit with code 86.
 * FAKE_CUDA_WAITS: file that receives at the end how often the host waited for the GPU, and for an
 * event.
 * FAKE_CUDA_TRACE: file that receives a line for each allocation, kernel, library call, copy and
 * graph, in the order in which the host asked for them. A graph's are there once, from its capture.
 * FAKE_CUDA_COUNT, FAKE_CUDA_NAME, FAKE_CUDA_MAJOR, FAKE_CUDA_DRIVER (a version; 0: none): the GPUs
 * and the driver that it reports. FAKE_CUDA_GPU: each byte of the GPU's UUID, 0 to 255.
 * FAKE_CUDA_NO_GRAPHS: no graph can be instantiated.
 *
 * What passes here may still fail on a real GPU. */
#ifndef BERTH_TESTS_FAKE_H
#define BERTH_TESTS_FAKE_H

#include <cuda_runtime_api.h>

#include <functional>

/* Write a line to the trace. */
__attribute__((format(printf, 1, 2))) void fake_trace(const char *format, ...);
/* Put work on a stream. It must not call the CUDA runtime. */
void fake_put(cudaStream_t stream, std::function<void()> work);
/* Whether stream is the default stream, or one that was not destroyed. */
bool fake_lives(cudaStream_t stream);
/* End the process with the message what unless [at, at + size) lies within one allocation of the
 * GPU's. */
void fake_expect(const void *at, size_t size, const char *what);
/* Advance the pretended clock by what the running work costs. */
void fake_cost(double ms);
/* From now on calls report an illegal address, as after a kernel that faults. */
void fake_fault(void);
/* How many captures exist that are still under way, or whose graphs were not destroyed. */
extern "C" int fake_graphs(void);

#endif
