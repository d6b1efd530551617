/* SPDX-License-Identifier: BSD-3-Clause */
/* Antialiased bilinear resizing of bytes in Pillow's fixed-point arithmetic. The same image gives
 * the same bytes as PIL.Image.resize(size, BILINEAR), and so as torchvision's Resize of a PIL
 * image. The filter is a triangle as wide as the reduction; columns come first, and each pass
 * rounds to bytes. */
#ifndef BERTH_TRAIN_DATA_RESIZE_H
#define BERTH_TRAIN_DATA_RESIZE_H

#include <stdint.h>

#include "base/error.h"

/* One direction. Result k is the sum over i < size[k] of weights[k * width + i] * source[begin[k] +
 * i]. Weights are 22-bit fractions. */
struct resize_axis {
	int count, width;
	int *begin, *size;
	int32_t *weights;
};

/* The range from .. from + length of a line (fractions allowed) becomes full pixels. Of these,
 * count pixels from number first on are wanted. Only source pixels from floor(from) to ceil(from +
 * length) are used, as if the range had been cropped before. */
int resize_axis_new(double from, double length, int full, int first, int count,
		    struct resize_axis *out, struct error *err);
void resize_axis_free(struct resize_axis *axis);

/* One row of 3 interleaved channels: from [..][3] to out [count][3]. */
void resize_row(const struct resize_axis *axis, const unsigned char *from, unsigned char *out);
/* All columns at once: rows [..][columns][3], the first of them source row 'first', to planes
 * out [3][count][columns]. sums: room for 3 * columns. */
void resize_rows(const struct resize_axis *axis, const unsigned char *rows, int first, int columns,
		 int32_t *sums, unsigned char *out);

#endif
