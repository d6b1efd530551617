/* SPDX-License-Identifier: BSD-3-Clause */
/* Pooling, compiled once per instruction set: see kernels.c. */
#include "train/device/cpu/kernels_vector.h"

#include <stdbool.h>
#include <string.h>

struct window {
	long height, width, out_height, out_width, kernel, stride, pad, block;
};

static struct window window_of(const struct planes *x, const struct op_attributes *attributes)
{
	return (struct window){
		.height = (long)x->height,
		.width = (long)x->width,
		.out_height = (long)op_side((int64_t)x->height, attributes),
		.out_width = (long)op_side((int64_t)x->width, attributes),
		.kernel = attributes->kernel,
		.stride = attributes->stride,
		.pad = attributes->pad,
		.block = (long)x->block,
	};
}

/* For each channel of a block: the first of a window's largest values; a NaN wins. */
static void window_best(const struct window *window, const float *plane, long oy, long ox, float *y,
			uint16_t *argmax)
{
	long top = oy * window->stride - window->pad, left = ox * window->stride - window->pad;
	bool any = false;

	for (long k = 0; k < window->kernel * window->kernel; k++) {
		long row = top + k / window->kernel, column = left + k % window->kernel;
		const float *x = plane + (row * window->width + column) * window->block;

		if (row < 0 || column < 0 || row >= window->height || column >= window->width)
			continue;
		for (long i = 0; i < window->block; i++) {
			bool wins = !any | (x[i] > y[i]) | ((x[i] != x[i]) & (y[i] == y[i]));

			y[i] = wins ? x[i] : y[i];
			argmax[i] = wins ? (uint16_t)k : argmax[i];
		}
		any = true;
	}
}

/* The same for WIDTH of the channels, without a branch per channel. */
static void lanes_best(const struct window *window, const float *plane, long oy, long ox, float *y,
		       uint16_t *argmax)
{
	long top = oy * window->stride - window->pad, left = ox * window->stride - window->pad;
	vector best = {0};
	mask place = {0}, none = (mask){0} - 1; /* all ones: no best value yet */

	for (long ky = 0; ky < window->kernel; ky++)
		for (long kx = 0; kx < window->kernel; kx++) {
			long row = top + ky, column = left + kx;

			if (row < 0 || column < 0 || row >= window->height ||
			    column >= window->width)
				continue;
			vector value =
				load(plane + (row * window->width + column) * window->block, WIDTH);
			mask wins = none | (value > best) | ((value != value) & (best == best));
			mask k = (mask){0} + (int32_t)(ky * window->kernel + kx);

			best = (vector)(((mask)value & wins) | ((mask)best & ~wins));
			place = (k & wins) | (place & ~wins);
			none = (mask){0};
		}
	store(y, best, WIDTH);
	for (int i = 0; i < WIDTH; i++)
		argmax[i] = (uint16_t)place[i];
}

/* For WIDTH of the channels: add to each position of the window the dy of those that it won. */
static void lanes_spread(const struct window *window, float *plane, long oy, long ox,
			 const float *dy, const uint16_t *argmax)
{
	long top = oy * window->stride - window->pad, left = ox * window->stride - window->pad;
	vector value = load(dy, WIDTH);
	mask won;

	for (int i = 0; i < WIDTH; i++)
		won[i] = argmax[i];
	for (long ky = 0; ky < window->kernel; ky++)
		for (long kx = 0; kx < window->kernel; kx++) {
			long row = top + ky, column = left + kx;

			if (row < 0 || column < 0 || row >= window->height ||
			    column >= window->width)
				continue;
			float *to = plane + (row * window->width + column) * window->block;
			mask hit = won == (mask){0} + (int32_t)(ky * window->kernel + kx);

			store(to, load(to, WIDTH) + (vector)((mask)value & hit), WIDTH);
		}
}

void KERNEL(maxpool_forward)(const struct planes *x, const struct op_attributes *attributes,
			     const float *from, float *y, uint16_t *argmax)
{
	const struct window window = window_of(x, attributes);
	size_t count = x->n * x->blocks, size = plane_size(x);
	bool narrow = x->block % WIDTH;
	size_t out = (size_t)(window.out_height * window.out_width) * x->block;

#pragma omp parallel for schedule(static) if (count * size > SMALL)
	for (size_t plane = 0; plane < count; plane++)
		for (long oy = 0; oy < window.out_height; oy++)
			for (long ox = 0; ox < window.out_width; ox++) {
				size_t at = plane * out +
					    (size_t)(oy * window.out_width + ox) * x->block;

				for (size_t i = 0; !narrow && i < x->block; i += WIDTH)
					lanes_best(&window, from + plane * size + i, oy, ox,
						   y + at + i, argmax + at + i);
				if (narrow)
					window_best(&window, from + plane * size, oy, ox, y + at,
						    argmax + at);
			}
}

static void window_spread(const struct window *window, float *plane, long oy, long ox,
			  const float *dy, const uint16_t *argmax)
{
	long top = oy * window->stride - window->pad, left = ox * window->stride - window->pad;

	for (long i = 0; i < window->block; i++) {
		long row = top + argmax[i] / window->kernel;
		long column = left + argmax[i] % window->kernel;

		plane[(row * window->width + column) * window->block + i] += dy[i];
	}
}

void KERNEL(maxpool_backward)(const struct planes *x, const struct op_attributes *attributes,
			      const uint16_t *argmax, const float *dy, float *dx)
{
	const struct window window = window_of(x, attributes);
	size_t count = x->n * x->blocks, size = plane_size(x);
	bool narrow = x->block % WIDTH;
	size_t out = (size_t)(window.out_height * window.out_width) * x->block;

#pragma omp parallel for schedule(static) if (count * size > SMALL)
	for (size_t plane = 0; plane < count; plane++) {
		float *to = dx + plane * size;

		memset(to, 0, size * sizeof *to);
		for (long oy = 0; oy < window.out_height; oy++)
			for (long ox = 0; ox < window.out_width; ox++) {
				size_t at = plane * out +
					    (size_t)(oy * window.out_width + ox) * x->block;

				for (size_t i = 0; !narrow && i < x->block; i += WIDTH)
					lanes_spread(&window, to + i, oy, ox, dy + at + i,
						     argmax + at + i);
				if (narrow)
					window_spread(&window, to, oy, ox, dy + at, argmax + at);
			}
	}
}

void KERNEL(avgpool_forward)(const struct planes *x, const float *from, float *y)
{
	size_t size = plane_size(x), argmax = x->height * x->width;

#pragma omp parallel for schedule(static) if (x->n * x->blocks * size > SMALL)
	for (size_t plane = 0; plane < x->n * x->blocks; plane++) {
		double sums[LANES] = {0};
		size_t first = plane % x->blocks * x->block;

		for (size_t i = 0; i < size; i++)
			sums[i % x->block] += (double)from[plane * size + i];
		for (size_t c = 0; c < x->block && first + c < x->channels; c++)
			y[plane / x->blocks * x->channels + first + c] =
				(float)(sums[c] / (double)argmax);
	}
}

void KERNEL(avgpool_backward)(const struct planes *x, const float *dy, float *dx)
{
	size_t size = plane_size(x), argmax = x->height * x->width;

#pragma omp parallel for schedule(static) if (x->n * x->blocks * size > SMALL)
	for (size_t plane = 0; plane < x->n * x->blocks; plane++) {
		float shares[LANES] = {0};
		size_t first = plane % x->blocks * x->block;

		for (size_t c = 0; c < x->block && first + c < x->channels; c++)
			shares[c] =
				(float)((double)dy[plane / x->blocks * x->channels + first + c] /
					(double)argmax);
		for (size_t i = 0; i < size; i++)
			dx[plane * size + i] = shares[i % x->block];
	}
}
