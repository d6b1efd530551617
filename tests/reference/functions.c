/* SPDX-License-Identifier: BSD-3-Clause */
/* The ops without weights, and the update. */
#include <math.h>
#include <string.h>

#include "reference.h"

void reference_relu(const struct op_call *call)
{
	size_t count = (size_t)tensor_count(&call->x);
	const float *x = call->x.data;

	if (call->pass == OP_FORWARD) {
		float *y = call->y.data;

		for (size_t i = 0; i < count; i++)
			y[i] = x[i] < 0 ? 0 : x[i];
		return;
	}

	const float *dy = call->dy.data;
	float *dx = call->dx.data;

	for (size_t i = 0; dx && !call->add_dx && i < count; i++)
		dx[i] = x[i] <= 0 ? 0 : dy[i];
	for (size_t i = 0; dx && call->add_dx && i < count; i++)
		dx[i] += x[i] <= 0 ? 0 : dy[i];
}

/* The index in plane of a window's largest value; the first among equal ones; a NaN wins. */
static size_t window_best(const float *plane, long height, long width, long y0, long x0,
			  long kernel)
{
	long best = -1;

	for (long y = y0 < 0 ? 0 : y0; y < y0 + kernel && y < height; y++)
		for (long x = x0 < 0 ? 0 : x0; x < x0 + kernel && x < width; x++) {
			long at = y * width + x;

			if (best < 0 || plane[at] > plane[best] ||
			    (isnan(plane[at]) && !isnan(plane[best])))
				best = at;
		}
	return (size_t)best;
}

/* A row of adjacent 2x2 windows, which most networks use: without branches. */
static void pool_pairs(const float *above, const float *below, size_t out_width, float *y)
{
	for (size_t x = 0; x < out_width; x++) {
		float a = above[2 * x], b = above[2 * x + 1], c = below[2 * x],
		      d = below[2 * x + 1];
		float best = b > a ? b : a, second = d > c ? d : c;
		int nan = (a != a) | (b != b) | (c != c) | (d != d);

		best = second > best ? second : best;
		y[x] = nan ? NAN : best;
	}
}

/* Its backward pass: the first among equal values gets all, added to what is there. */
static void unpool_pairs(const float *above, const float *below, size_t out_width, const float *dy,
			 float *dx_above, float *dx_below)
{
	for (size_t x = 0; x < out_width; x++) {
		float a = above[2 * x], b = above[2 * x + 1], c = below[2 * x],
		      d = below[2 * x + 1];
		int left = !(b > a) & !((b != b) & (a == a)),
		    right = !(d > c) & !((d != d) & (c == c));
		float best = left ? a : b, second = right ? c : d;
		int up = !(second > best) & !((second != second) & (best == best));

		dx_above[2 * x] += (up & left) ? dy[x] : 0;
		dx_above[2 * x + 1] += (up & (!left)) ? dy[x] : 0;
		dx_below[2 * x] += ((!up) & right) ? dy[x] : 0;
		dx_below[2 * x + 1] += ((!up) & (!right)) ? dy[x] : 0;
	}
}

/* One row of windows of one plane; y forward, dx (added to) and dy backward. */
static void pool_row(const struct op_call *call, const float *plane, size_t oy, size_t out_width,
		     float *y, const float *dy, float *dx)
{
	const struct op_attributes *attributes = &call->attributes;
	long height = (long)call->x.shape[2], width = (long)call->x.shape[3];
	long y0 = (long)oy * attributes->stride - attributes->pad;

	if (attributes->kernel == 2 && attributes->stride == 2 && attributes->pad == 0) {
		const float *above = plane + y0 * width;

		if (y)
			pool_pairs(above, above + width, out_width, y);
		else
			unpool_pairs(above, above + width, out_width, dy, dx + y0 * width,
				     dx + (y0 + 1) * width);
		return;
	}
	for (size_t ox = 0; ox < out_width; ox++) {
		long x0 = (long)ox * attributes->stride - attributes->pad;
		size_t best = window_best(plane, height, width, y0, x0, attributes->kernel);

		if (y)
			y[ox] = plane[best];
		else
			dx[best] += dy[ox];
	}
}

void reference_maxpool2d(const struct op_call *call)
{
	size_t planes = (size_t)(call->x.shape[0] * call->x.shape[1]);
	size_t plane = (size_t)(call->x.shape[2] * call->x.shape[3]);
	size_t out_height = (size_t)op_side(call->x.shape[2], &call->attributes);
	size_t out_width = (size_t)op_side(call->x.shape[3], &call->attributes);
	const float *x = call->x.data, *dy = call->dy.data;
	float *y = call->y.data, *dx = call->dx.data;

	if (call->pass == OP_BACKWARD) {
		if (!dx)
			return;
		if (!call->add_dx)
			memset(dx, 0, planes * plane * sizeof *dx);
	}
	for (size_t p = 0; p < planes; p++)
		for (size_t oy = 0; oy < out_height; oy++) {
			size_t row = (p * out_height + oy) * out_width;

			if (call->pass == OP_FORWARD)
				pool_row(call, x + p * plane, oy, out_width, y + row, NULL, NULL);
			else
				pool_row(call, x + p * plane, oy, out_width, NULL, dy + row,
					 dx + p * plane);
		}
}

void reference_sgd(const struct op_call *call)
{
	size_t count = (size_t)call->w.shape[0];
	const struct op_sgd *sgd = &call->sgd;
	float *w = call->w.data, *state = call->state.data;
	const float *dw = call->dw.data;

	for (size_t i = 0; i < count; i++) {
		float g = dw[i] + sgd->weight_decay * w[i];

		if (sgd->momentum != 0) {
			float m = sgd->momentum * state[i] + g;

			state[i] = m;
			g = sgd->nesterov ? g + sgd->momentum * m : m;
		}
		w[i] -= sgd->lr * g;
	}
}
