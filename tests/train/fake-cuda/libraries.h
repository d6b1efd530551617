/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the two fake cuDNN APIs: libraries.cc is the legacy one, backend.cc the graph API. */
#ifndef BERTH_TESTS_FAKE_LIBRARIES_H
#define BERTH_TESTS_FAKE_LIBRARIES_H

#include "fake.h"

#include <cudnn.h>

#include "train/device/cuda/kernels/kernels.h"

#define FAKE_WORKSPACE ((size_t)4096)
#define FAKE_LEGACY_MS 1.0 /* of each convolution */

struct cudnnTensorStruct {
	enum number number;
	int n, c, h, w;
};
struct cudnnFilterStruct {
	enum number number;
	int k, c, h, w;
};
struct cudnnConvolutionStruct {
	int pad, stride;
	cudnnMathType_t math;
};

/* One convolution, for any pass. */
struct fake_pass {
	cudnnTensorStruct x, y;
	cudnnFilterStruct w;
	cudnnConvolutionStruct how;
};

enum number fake_number(cudnnDataType_t type);
size_t fake_bytes(const cudnnTensorStruct &t);
size_t fake_bytes(const cudnnFilterStruct &t);
/* Of 'x', 'w' or 'y'. */
size_t fake_count(const fake_pass &p, char which);
bool fake_fits(const fake_pass &p);
/* out of 'y', 'x', 'w' from the two others, now. */
void fake_convolve(const fake_pass &p, char out, const void *x, const void *w, const void *y,
		   void *to, float beta);
cudaStream_t fake_stream(cudnnHandle_t handle);
float fake_read(const void *at, size_t index, enum number number);
void fake_write(void *at, size_t index, enum number number, float value);

#endif
