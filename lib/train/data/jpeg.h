/* SPDX-License-Identifier: BSD-3-Clause */
/* JPEG files to resized RGB with libjpeg (module data-jpeg.so). Nothing else calls libjpeg. */
#ifndef BERTH_TRAIN_DATA_JPEG_H
#define BERTH_TRAIN_DATA_JPEG_H

#include <stddef.h>

#include "base/error.h"
#include "train/data/dataset.h"

/* Larger images are not decoded, so that a header of a few bytes cannot request gigabytes. */
#define JPEG_MAX_PIXELS ((int64_t)1 << 26)

/* The part of an image to decode. x, y, width, height is resized to full_width x full_height; from
 * that, side x side pixels at left, top are taken. */
struct jpeg_crop {
	int x, y, width, height;
	int full_width, full_height;
	int left, top, side;
};

struct jpeg_request {
	const char *name; /* for err */
	/* Choose the part for an image of that size. */
	void (*choose)(void *context, int width, int height, struct jpeg_crop *out);
	void *context;
};

struct jpeg_ops {
	/* Decode size bytes to out [3][side][side], resized as resize.h describes. The whole file
	 * is read, so that a damaged end is detected whichever part is used. If the part is at
	 * least 2, 4 or 8 times as large as its result, the decoder itself scales the image down
	 * first. Grey becomes RGB; CMYK and YCCK are taken as Adobe's inverted variants. rows is
	 * kept for the next call. Return 0, or -ERR_DATA naming the file. That covers files that
	 * are not JPEG, truncated or damaged (even if libjpeg would continue with a warning), too
	 * large, or in an unknown colour space. Any number of threads may call this, each with its
	 * own rows. */
	int (*decode)(const struct jpeg_request *request, const unsigned char *bytes, size_t size,
		      unsigned char *out, struct dataset_buffer *rows, struct error *err);
};
#define JPEG_MODULE "data-jpeg" /* its symbol is data_jpeg, a struct jpeg_ops */
extern __attribute__((visibility("default"))) const struct jpeg_ops data_jpeg;

#endif
