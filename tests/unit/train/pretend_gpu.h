/* SPDX-License-Identifier: BSD-3-Clause */
/* A device whose queue is a stream of the fake CUDA runtime and whose ops are cpu-reference's. Each
 * op runs once everything before it on the stream is done. */
#ifndef BERTH_TEST_PRETEND_GPU_H
#define BERTH_TEST_PRETEND_GPU_H

#include <cuda_runtime_api.h>

#include "train/device/device.h"

struct device *pretend_gpu_open(void); /* NULL if memory is out */
cudaStream_t pretend_gpu_stream(struct device_queue *queue);

#endif
