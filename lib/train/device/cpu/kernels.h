/* SPDX-License-Identifier: BSD-3-Clause */
/* What oneDNN cannot do in one pass, on values in its layouts: batch norm with the addition and
 * ReLU that follow it, gradients from two sources, pooling with PyTorch's ties and NaNs, and the
 * update. The same source is compiled for several instruction sets (kernels.c).
 *
 * No product is contracted with a sum, and the order of every sum is independent of the number of
 * threads. So the same input gives the same bits on every x86-64 CPU. */
#ifndef BERTH_TRAIN_CPU_KERNELS_H
#define BERTH_TRAIN_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/device/cpu/winograd.h"
#include "train/device/device.h"

/* A value in memory: n images of `blocks` planes. A plane has height x width positions of `block`
 * adjacent channels (1: NCHW; 8, 16: oneDNN's nChw8c, nChw16c). The last block's channels beyond
 * `channels` are zeros and stay zeros. */
struct planes {
	size_t n, channels, blocks, block, height, width;
};

#define KERNEL_LANES 16
#define NORM_LANE_KINDS 5

/* One batch norm, with what follows it: y = relu(bn(x) + residual). A NULL residual or a false relu
 * leaves that part out.
 *
 * Backward: dz = relu'(dy + dy2) is the gradient before the ReLU, and so that of the residual. dy2,
 * dz and dx may be NULL: absent or not wanted. With a residual the ReLU's mask is read from y,
 * otherwise it is recomputed from x. dz may be dy; dx may be dy or dy2. eps to training, mean,
 * variance, saved_mean and saved_invstd are as in op_call. */
struct norm_call {
	struct planes planes;
	float eps, momentum;
	bool training, relu, add_dw;
	const float *x, *residual, *w, *b;
	float *y, *mean, *variance, *saved_mean, *saved_invstd;
	const float *dy, *dy2;
	float *dz, *dx, *dw, *db;
	double *sums; /* scratch: norm_sums(planes) of them */
	float *lanes; /* scratch: norm_lanes(planes) of them */
};
size_t norm_sums(const struct planes *planes);
size_t norm_lanes(const struct planes *planes);

struct kernels {
	const char *name;
	const struct winograd *winograd; /* NULL: none for this instruction set */
	void (*norm_forward)(const struct norm_call *call);
	void (*norm_backward)(const struct norm_call *call);
	/* y may be x, and dx may be dy. Backward blocks the gradient where y <= 0. */
	void (*relu_forward)(const float *x, float *y, size_t count);
	void (*relu_backward)(const float *y, const float *dy, float *dx, size_t count);
	/* to = a + b; to may be either. */
	void (*add)(const float *a, const float *b, float *to, size_t count);
	/* from: planes of x; argmax: for each y, the element of its window that won. */
	void (*maxpool_forward)(const struct planes *x, const struct op_attributes *window,
				const float *from, float *y, uint16_t *argmax);
	void (*maxpool_backward)(const struct planes *x, const struct op_attributes *window,
				 const uint16_t *argmax, const float *dy, float *dx);
	/* y, dy: [n][channels]. */
	void (*avgpool_forward)(const struct planes *x, const float *from, float *y);
	void (*avgpool_backward)(const struct planes *x, const float *dy, float *dx);
	/* As reference_sgd, bit for bit. */
	void (*sgd)(const struct op_sgd *sgd, float *w, const float *dw, float *state,
		    size_t count);
};
extern const struct kernels kernels_base, kernels_avx2, kernels_avx512;
const struct kernels *kernels_best(void); /* the best that this CPU can run */

#endif
