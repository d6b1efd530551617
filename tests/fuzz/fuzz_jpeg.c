/* SPDX-License-Identifier: BSD-3-Clause */
/* A JPEG file, read as for evaluation and as for training. */
#include "fuzz.h"

#include "train/data/imagefolder.h"

#define SIDE 16

static void center(void *context, int width, int height, struct jpeg_crop *out)
{
	imagefolder_center(width, height, SIDE, out);
}

static void resized_crop(void *context, int width, int height, struct jpeg_crop *out)
{
	imagefolder_resized_crop(width, height, SIDE, (uint64_t) * (size_t *)context, 1, 2, out);
	CHECK(out->x >= 0 && out->width >= 1 && out->x + out->width <= width);
	CHECK(out->y >= 0 && out->height >= 1 && out->y + out->height <= height);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct jpeg_request requests[] = {{"input", center, NULL},
						{"input", resized_crop, &size}};
	struct dataset_buffer rows = {0};

	for (size_t i = 0; i < 2; i++) {
		unsigned char out[3 * SIDE * SIDE];
		struct error err = {0};

		if (data_jpeg.decode(&requests[i], data, size, out, &rows, &err))
			CHECK(err.code == ERR_DATA && !strncmp(err.text, "input: ", 7));
	}
	free(rows.bytes);
	return 0;
}
