/* SPDX-License-Identifier: BSD-3-Clause */
/* A GPU that is none: the calls of the CUDA runtime, cuDNN and cuBLASLt that device-cuda.so makes,
 * done on the host, so that the device's own code can be tested where there is no GPU: what it
 * computes, in what order, from which memory, with what freed when.
 *
 * Work on a stream is done late: when something waits for it, or when chance says so
 * (FAKE_CUDA_SEED), and streams pass each other wherever no event keeps them in order. So a copy
 * whose source has changed, a missing event and a number that was captured in a graph instead of
 * read there show as wrong results. Each allocation is a block of its own, full of NaNs, that ASan
 * watches; what is left at the end is a leak. FAKE_CUDA_MIB: memory of the GPU (default 4096),
 * handed out in pages of 2 MiB. FAKE_CUDA_WAITS: the file in which is told at the end how often the
 * host waited for the GPU, and for an event. FAKE_CUDA_COUNT, FAKE_CUDA_MAJOR, FAKE_CUDA_DRIVER (a
 * version; 0: none), FAKE_CUDNN_VERSION: what there is said to be.
 *
 * It is no GPU: what it lets pass may still fail on one. */
#ifndef BERTH_TESTS_FAKE_H
#define BERTH_TESTS_FAKE_H

#include <cuda_runtime_api.h>

#include <functional>

#include "train/device/cuda/kernels/kernels.h"

/* Put work on a stream. */
void fake_put(cudaStream_t stream, std::function<void()> work);
/* Is it the default stream, or one that was not destroyed? */
bool fake_lives(cudaStream_t stream);
/* Is a stream being captured? Then what is not captured must fail. */
bool fake_capturing(cudaStream_t stream);
/* Is [at, at + size) within one allocation of the GPU's? Ends the process with what if not. */
void fake_expect(const void *at, size_t size, const char *what);

/* What the work that is being done takes, in milliseconds of the pretended clock. */
void fake_cost(double ms);

float fake_read(const void *at, size_t index, enum number number);
void fake_write(void *at, size_t index, enum number number, float value);

#endif
