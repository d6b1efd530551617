/* SPDX-License-Identifier: BSD-3-Clause */
/* JPEG files to resized RGB, by libjpeg (module data-jpeg.so): the one place that calls it. */
#ifndef BERTH_TRAIN_DATA_JPEG_H
#define BERTH_TRAIN_DATA_JPEG_H

#include <stddef.h>

#include "base/error.h"
#include "train/data/dataset.h"

/* No image with more pixels is decoded: a header of a few bytes cannot ask for gigabytes. */
#define JPEG_MAX_PIXELS ((int64_t)1 << 26)

/* What of an image is wanted: the part x, y, width, height is resized to full_width x full_height,
 * and from that side x side pixels at left, top are taken. */
struct jpeg_crop {
	int x, y, width, height;
	int full_width, full_height;
	int left, top, side;
};

struct jpeg_request {
	const char *name; /* for err */
	/* Says what is wanted of an image of that size. */
	void (*choose)(void *context, int width, int height, struct jpeg_crop *out);
	void *context;
};

struct jpeg_ops {
	/* Decode size bytes to out [3][side][side], resized as resize.h says. The whole file is
	 * read, so that a damaged end is seen whichever part is wanted. Where the part is at least
	 * twice, 4 or 8 times as large as its result the decoder itself reduces the image first.
	 * Grey becomes RGB; CMYK and YCCK are taken for Adobe's inverted ones. rows: kept for the
	 * next time. -ERR_DATA: no JPEG, truncated or damaged (also where libjpeg would go on with
	 * a warning), too large, an unknown colour space; err names it. Any number of threads, each
	 * its own rows. */
	int (*decode)(const struct jpeg_request *request, const unsigned char *bytes, size_t size,
		      unsigned char *out, struct dataset_buffer *rows, struct error *err);
};
#define JPEG_MODULE "data-jpeg" /* its symbol is data_jpeg, a struct jpeg_ops */
extern __attribute__((visibility("default"))) const struct jpeg_ops data_jpeg;

#endif
