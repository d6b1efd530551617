/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/resize.h"

#include <math.h>
#include <stdlib.h>

#define FRACTION_BITS 22
#define HALF (INT32_C(1) << (FRACTION_BITS - 1))

static double triangle(double x)
{
	x = fabs(x);
	return x < 1 ? 1 - x : 0;
}

/* The weights of one result, centred at middle among source pixels 0 .. pixels. */
static void weigh(double middle, double scale, int pixels, int *begin, int *size, int32_t *out)
{
	double sum = 0;
	int low = (int)(middle - scale + 0.5), high = (int)(middle + scale + 0.5);

	if (low < 0)
		low = 0;
	if (high > pixels)
		high = pixels;
	for (int i = low; i < high; i++)
		sum += triangle((i - middle + 0.5) / scale);
	for (int i = low; i < high; i++) {
		double weight = triangle((i - middle + 0.5) / scale) / sum;

		out[i - low] = (int32_t)(0.5 + weight * (1 << FRACTION_BITS));
	}
	*begin = low;
	*size = high - low;
}

int resize_axis_new(double from, double length, int full, int first, int count,
		    struct resize_axis *out, struct error *err)
{
	double ratio = length / full, scale = ratio < 1 ? 1 : ratio;
	int low = (int)floor(from), pixels = (int)ceil(from + length) - low;
	struct resize_axis axis = {.count = count, .width = 2 * (int)ceil(scale) + 1};

	axis.begin = calloc((size_t)count, sizeof *axis.begin);
	axis.size = calloc((size_t)count, sizeof *axis.size);
	axis.weights = calloc((size_t)count * (size_t)axis.width, sizeof *axis.weights);
	if (!axis.begin || !axis.size || !axis.weights) {
		resize_axis_free(&axis);
		return error_memory(err, "resizing");
	}
	for (int k = 0; k < count; k++) {
		weigh(from - low + (first + k + 0.5) * ratio, scale, pixels, &axis.begin[k],
		      &axis.size[k], axis.weights + (size_t)k * (size_t)axis.width);
		axis.begin[k] += low;
	}
	*out = axis;
	return 0;
}

void resize_axis_free(struct resize_axis *axis)
{
	free(axis->begin);
	free(axis->size);
	free(axis->weights);
	*axis = (struct resize_axis){0};
}

static unsigned char clip(int32_t sum)
{
	sum >>= FRACTION_BITS;
	return sum < 0 ? 0 : sum > 255 ? 255 : (unsigned char)sum;
}

void resize_row(const struct resize_axis *axis, const unsigned char *from, unsigned char *out)
{
	for (int k = 0; k < axis->count; k++, out += 3) {
		const int32_t *weights = axis->weights + (size_t)k * (size_t)axis->width;
		const unsigned char *p = from + 3 * (size_t)axis->begin[k];
		int32_t r = HALF, g = HALF, b = HALF;

		for (int i = 0; i < axis->size[k]; i++, p += 3) {
			r += weights[i] * p[0];
			g += weights[i] * p[1];
			b += weights[i] * p[2];
		}
		out[0] = clip(r);
		out[1] = clip(g);
		out[2] = clip(b);
	}
}

void resize_rows(const struct resize_axis *axis, const unsigned char *rows, int first, int columns,
		 int32_t *sums, unsigned char *out)
{
	size_t width = 3 * (size_t)columns, plane = (size_t)axis->count * (size_t)columns;

	for (int k = 0; k < axis->count; k++, out += columns) {
		const int32_t *weights = axis->weights + (size_t)k * (size_t)axis->width;
		const unsigned char *row = rows + (size_t)(axis->begin[k] - first) * width;

		for (size_t i = 0; i < width; i++)
			sums[i] = HALF;
		for (int n = 0; n < axis->size[k]; n++, row += width) {
			int32_t weight = weights[n];

			for (size_t i = 0; i < width; i++)
				sums[i] += weight * row[i];
		}
		for (size_t x = 0; x < (size_t)columns; x++) {
			out[x] = clip(sums[3 * x]);
			out[plane + x] = clip(sums[3 * x + 1]);
			out[2 * plane + x] = clip(sums[3 * x + 2]);
		}
	}
}
