/* SPDX-License-Identifier: BSD-3-Clause */
/* 3x3 convolutions of stride 1 by Winograd's algorithm F(4x4, 3x3) (Lavin and Gray, 2016): a tile
 * of 4x4 outputs costs 36 multiplications per pair of channels instead of 144. x and w are
 * transformed, multiplied as 36 matrices, and the product is transformed back. The gradients are
 * the transposes of the same transforms.
 *
 * The points are 0, 5/8, -5/8, 3/2, -3/2 and infinity: half the error of the usual 0, 1, -1, 2, -2
 * (Barabasz et al., 2020), and 1.8 times that of a direct convolution's sums. */
#ifndef BERTH_TRAIN_CPU_WINOGRAD_H
#define BERTH_TRAIN_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>

/* x [n][inputs][height][width], y [n][outputs][height + 2 pad - 2][width + 2 pad - 2], both in
 * blocks of `lanes` channels (struct layout), dense w [outputs][inputs][3][3]. Channels are
 * multiples of `lanes`, pad is at most 2. b and db may be NULL: no bias. add_dw
 * adds to dw and db. */
struct winograd_call {
	size_t n, inputs, outputs, height, width, pad;
	const float *x, *w, *b, *dy;
	float *y, *dx, *dw, *db;
	bool add_dw;
	int threads;	/* results are independent of it */
	float *scratch; /* 64-byte aligned: winograd.scratch(call) floats */
};

/* One instruction set's functions. */
struct winograd {
	size_t lanes;
	/* Is it faster than a direct convolution? Looks at the sizes only. */
	bool (*pays)(const struct winograd_call *call);
	/* Enough for each pass: at most 8 times w and 9 times x and y. */
	size_t (*scratch)(const struct winograd_call *call);
	void (*forward)(const struct winograd_call *call);
	void (*backward_input)(const struct winograd_call *call);
	void (*backward_weights)(const struct winograd_call *call);
};
extern const struct winograd winograd_avx2, winograd_avx512;

#endif
