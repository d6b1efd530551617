/* SPDX-License-Identifier: BSD-3-Clause */
/* Which JPEG files are accepted and which are refused, and which part of an image becomes the
 * sample. tests/train/images.py compares the pixels with torchvision's. argv[1]: a directory of
 * files. */
#include "../rows.h"

#include "train/data/imagefolder.h"
#include "train/data/resize.h"

#define SIDE 16

static const char *directory;

static void center(void *context, int width, int height, struct jpeg_crop *out)
{
	imagefolder_center(width, height, SIDE, out);
}

static size_t read_all(const char *name, unsigned char *out, size_t room)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", directory, name);
	FILE *file = fopen(path, "re");

	if (!file)
		fail_msg("%s cannot be read", path);
	size_t size = fread(out, 1, room, file);

	fclose(file);
	return size;
}

static void files(void **state)
{
	static const struct {
		const char *name;
		int rc;
		const char *words;
	} rows[] = {
		{"rgb.jpg", 0, ""},
		{"grey.jpg", 0, ""},
		{"cmyk.jpg", 0, ""},
		{"progressive.jpg", 0, ""},
		{"bytes-between", 0, ""}, /* no pixel is missing */
		{"cut", -ERR_DATA, "Premature end"},
		{"cut-header", -ERR_DATA, "Premature end"},
		{"damaged", -ERR_DATA, "Corrupt JPEG data"},
		{"huge", -ERR_DATA, "65500x65500 pixels exceed the limit of 67108864"},
		{"no-height", -ERR_DATA, "Empty"},
		{"two-components", -ERR_DATA, ""},
		{"text", -ERR_DATA, "Not a JPEG file"},
	};
	struct dataset_buffer rows_room = {0};

	for (size_t i = 0; i < ROWS(rows); i++) {
		const struct jpeg_request request = {rows[i].name, center, NULL};
		unsigned char bytes[4096], out[3 * SIDE * SIDE + 1];
		struct error err = {0};
		size_t size = read_all(rows[i].name, bytes, sizeof bytes);

		out[3 * SIDE * SIDE] = 77;
		int rc = data_jpeg.decode(&request, bytes, size, out, &rows_room, &err);

		if (rc != rows[i].rc)
			fail_msg("%s: %d %s", rows[i].name, rc, err.text);
		if (rc && (!strstr(err.text, rows[i].words) ||
			   strncmp(err.text, rows[i].name, strlen(rows[i].name)) != 0))
			fail_msg("%s: expected '%s': %s", rows[i].name, rows[i].words, err.text);
		assert_int_equal(out[3 * SIDE * SIDE], 77);
	}
	free(rows_room.bytes);
}

/* A file is read to its end whichever part is wanted, so every truncation is detected. */
static void each_cut_is_found(void **state)
{
	unsigned char bytes[4096], out[3 * SIDE * SIDE];
	size_t size = read_all("rgb.jpg", bytes, sizeof bytes);
	const struct jpeg_request request = {"cut", center, NULL};
	struct dataset_buffer rows = {0};

	for (size_t cut = 0; cut + 2 < size; cut++) {
		struct error err = {0};

		if (data_jpeg.decode(&request, bytes, cut, out, &rows, &err) != -ERR_DATA)
			fail_msg("the first %zu of %zu bytes are accepted as an image", cut, size);
	}
	free(rows.bytes);
}

static void far_enlarged(void *context, int width, int height, struct jpeg_crop *part)
{
	*part = (struct jpeg_crop){.width = width,
				   .height = height,
				   .full_width = 1 << 28,
				   .full_height = 1 << 28,
				   .left = 1 << 27,
				   .top = 1 << 27,
				   .side = SIDE};
}

/* With --image-size 4096 and a line of 65500 pixels, each result comes from one pixel, or nearly
 * so. */
static void enlarges(void **state)
{
	unsigned char bytes[4096], out[3 * SIDE * SIDE];
	size_t size = read_all("rgb.jpg", bytes, sizeof bytes);
	const struct jpeg_request request = {"large", far_enlarged, NULL};
	struct dataset_buffer rows = {0};
	struct error err = {0};

	if (data_jpeg.decode(&request, bytes, size, out, &rows, &err))
		fail_msg("%s", err.text);
	for (int i = 0; i < 3 * SIDE * SIDE; i++)
		assert_in_range(out[i] - out[i / (SIDE * SIDE) * SIDE * SIDE] + 1, 0, 2);
	free(rows.bytes);
}

/* torchvision's Resize and CenterCrop. */
static void centers(void **state)
{
	static const struct {
		int width, height, side, full_width, full_height, left, top;
	} rows[] = {
		{500, 375, 224, 341, 256, 58, 16}, /* 58.5 is rounded to even */
		{375, 500, 224, 256, 341, 16, 58}, {256, 256, 224, 256, 256, 16, 16},
		{1, 1, 224, 256, 256, 16, 16},	   {1, 65500, 224, 256, 16768000, 16, 8383888},
		{100, 100, 64, 73, 73, 4, 4},	   {343, 256, 224, 343, 256, 60, 16},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct jpeg_crop part;

		imagefolder_center(rows[i].width, rows[i].height, rows[i].side, &part);
		assert_int_equal(part.width, rows[i].width);
		assert_int_equal(part.height, rows[i].height);
		assert_int_equal(part.full_width, rows[i].full_width);
		assert_int_equal(part.full_height, rows[i].full_height);
		assert_int_equal(part.left, rows[i].left);
		assert_int_equal(part.top, rows[i].top);
	}
}

/* Crops are inside the image and have the requested area and ratio; otherwise the centre is used.
 */
static void resized_crops(void **state)
{
	static const int sizes[][2] = {{500, 375}, {333, 500}, {1, 1},
				       {2000, 20}, {20, 2000}, {3, 2}};
	int distinct = 0;

	for (size_t i = 0; i < ROWS(sizes); i++)
		for (uint32_t index = 0; index < 2000; index++) {
			int width = sizes[i][0], height = sizes[i][1];
			struct jpeg_crop part, again;

			imagefolder_resized_crop(width, height, 224, 3, 1, index, &part);
			imagefolder_resized_crop(width, height, 224, 3, 1, index, &again);
			assert_memory_equal(&part, &again, sizeof part);
			assert_true(part.x >= 0 && part.width >= 1 && part.x + part.width <= width);
			assert_true(part.y >= 0 && part.height >= 1 &&
				    part.y + part.height <= height);
			if (width < 300)
				continue;
			double area = (double)part.width * part.height / (width * height);
			double ratio = (double)part.width / part.height;

			if (height > 300) {
				assert_true(area > 0.075 && area <= 1);
				assert_true(ratio > 0.74 && ratio < 1.35);
				distinct += part.x != 0;
			} else {
				assert_int_equal(part.height, height);
				assert_int_equal(part.width, 27); /* 20 * 4 / 3 */
				assert_int_equal(part.x, (width - 27) / 2);
			}
		}
	assert_true(distinct > 3000);
}

/* Resizing keeps a plane of one value, and does not change bytes if the size stays the same. */
static void resizing(void **state)
{
	static const struct {
		double from, length;
		int pixels, full, first, count;
	} rows[] = {
		{0, 40, 40, 40, 0, 40}, {0, 40, 40, 7, 0, 7},	   {0, 40, 40, 90, 10, 30},
		{3, 30, 40, 8, 0, 8},	{2.5, 30.25, 40, 8, 0, 8}, {39, 1, 40, 16, 0, 16},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		unsigned char line[120], out[3 * 90];
		struct resize_axis axis;
		struct error err;

		assert_int_equal(resize_axis_new(rows[i].from, rows[i].length, rows[i].full,
						 rows[i].first, rows[i].count, &axis, &err),
				 0);
		memset(line, 201, sizeof line);
		resize_row(&axis, line, out);
		for (int k = 0; k < 3 * rows[i].count; k++)
			assert_int_equal(out[k], 201);
		for (int k = 0; k < rows[i].count; k++) {
			assert_true(axis.begin[k] >= (int)rows[i].from);
			assert_true(axis.begin[k] + axis.size[k] <=
				    rows[i].from + rows[i].length + 1);
			assert_true(axis.begin[k] + axis.size[k] <= rows[i].pixels);
		}
		for (int k = 0; k < 120; k++)
			line[k] = (unsigned char)(k * 7);
		resize_row(&axis, line, out);
		if (!i)
			assert_memory_equal(out, line, sizeof line);
		resize_axis_free(&axis);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files),    cmocka_unit_test(each_cut_is_found),
		cmocka_unit_test(centers),  cmocka_unit_test(resized_crops),
		cmocka_unit_test(resizing), cmocka_unit_test(enlarges),
	};

	if (argc != 2)
		return 64;
	directory = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
