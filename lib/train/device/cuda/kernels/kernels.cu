/* SPDX-License-Identifier: BSD-3-Clause */
#define LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)

#include "train/device/cuda/kernels/kernels.cuh"

extern "C" cudaError_t kernels_usable(void)
{
	struct cudaFuncAttributes attributes;

	return cudaFuncGetAttributes(&attributes, scaler_kernel);
}
