/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/jpeg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "train/data/resize.h"

#define MAX_SCANS 100 /* in a progressive file; real ones have about ten */

/* libjpeg's errors end in a longjmp; everything that must be freed is kept here. */
struct decoder {
	struct jpeg_decompress_struct info;
	struct jpeg_error_mgr errors;
	struct jpeg_progress_mgr progress;
	jmp_buf failed;
	char text[JMSG_LENGTH_MAX];
	const struct jpeg_request *request;
	struct resize_axis columns, rows;
	unsigned char *line;
	int32_t *sums;
};

static struct decoder *decoder_of(j_common_ptr info)
{
	return (struct decoder *)((char *)info - offsetof(struct decoder, info));
}

static void fail(j_common_ptr info)
{
	struct decoder *decoder = decoder_of(info);

	info->err->format_message(info, decoder->text);
	longjmp(decoder->failed, 1);
}

/* A warning means lost pixels, so it is an error here. Exceptions occur in many files of known data
 * sets and are harmless: bytes between markers, odd versions and parameters. */
static void message(j_common_ptr info, int level)
{
	if (level >= 0)
		return;
	switch (info->err->msg_code) {
	case JWRN_EXTRANEOUS_DATA:
	case JWRN_ADOBE_XFORM:
	case JWRN_JFIF_MAJOR:
	case JWRN_NOT_SEQUENTIAL:
		return;
	default:
		fail(info);
	}
}

static void discard_message(j_common_ptr info)
{
}

static void __attribute__((format(printf, 2, 3)))
abort_decode(struct decoder *decoder, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(decoder->text, sizeof decoder->text, format, ap);
	va_end(ap);
	longjmp(decoder->failed, 1);
}

static void count_scans(j_common_ptr info)
{
	struct decoder *decoder = decoder_of(info);

	if (decoder->info.input_scan_number > MAX_SCANS)
		abort_decode(decoder, "the image has more than %d scans", MAX_SCANS);
}

/* ---- steps of one image; each may longjmp ---- */

static void read_header(struct decoder *decoder, const unsigned char *bytes, size_t size)
{
	struct jpeg_decompress_struct *info = &decoder->info;

	jpeg_mem_src(info, bytes, size);
	jpeg_read_header(info, TRUE);
	if ((int64_t)info->image_width * info->image_height > JPEG_MAX_PIXELS)
		abort_decode(decoder, "%ux%u pixels exceed the limit of %lld", info->image_width,
			     info->image_height, (long long)JPEG_MAX_PIXELS);
	switch (info->num_components) {
	case 1:
		info->out_color_space = JCS_GRAYSCALE;
		break;
	case 3:
		info->out_color_space = JCS_RGB;
		break;
	case 4:
		info->out_color_space = JCS_CMYK;
		break;
	default:
		abort_decode(decoder, "the image is neither greyscale, RGB nor CMYK");
	}
}

/* The decoder's scale in eighths. Only 1/2, 1/4 and 1/8 are fast. */
static int eighths(const struct jpeg_crop *part)
{
	int64_t width = part->width, height = part->height;
	int eighths = 8;

	while (eighths > 1 && width * (eighths / 2) >= (int64_t)part->full_width * 8 &&
	       height * (eighths / 2) >= (int64_t)part->full_height * 8)
		eighths /= 2;
	return eighths;
}

static void choose_scaling(struct decoder *decoder, const struct jpeg_crop *part)
{
	struct jpeg_decompress_struct *info = &decoder->info;
	struct error err;

	info->scale_num = (unsigned)eighths(part);
	info->scale_denom = 8;
	double scale = info->scale_num / 8.0;

	jpeg_start_decompress(info);
	decoder->line = malloc((size_t)info->output_width * 4 + 1);
	decoder->sums = malloc((size_t)part->side * 3 * sizeof *decoder->sums);
	if (!decoder->line || !decoder->sums ||
	    resize_axis_new(part->x * scale, part->width * scale, part->full_width, part->left,
			    part->side, &decoder->columns, &err) ||
	    resize_axis_new(part->y * scale, part->height * scale, part->full_height, part->top,
			    part->side, &decoder->rows, &err))
		abort_decode(decoder, "out of memory");
}

/* a b / 255, rounded. */
static unsigned char part_of(int a, int b)
{
	int product = a * b + 128;

	return (unsigned char)((product + (product >> 8)) >> 8);
}

/* Convert a line to RGB in place. */
static void to_rgb(const struct jpeg_decompress_struct *info, unsigned char *line)
{
	int width = (int)info->output_width;

	if (info->out_color_space == JCS_GRAYSCALE)
		for (int x = width - 1; x >= 0; x--)
			line[3 * x] = line[3 * x + 1] = line[3 * x + 2] = line[x];
	if (info->out_color_space == JCS_CMYK)
		for (int x = 0; x < width; x++) {
			const unsigned char *from = line + 4 * x;
			int key = from[3];
			unsigned char rgb[3];

			for (int c = 0; c < 3; c++)
				rgb[c] = (unsigned char)(key - part_of(255 - from[c], key));
			memcpy(line + 3 * x, rgb, 3);
		}
}

static void read_rows(struct decoder *decoder, const struct jpeg_crop *part, unsigned char *out,
		      struct dataset_buffer *capacity)
{
	struct jpeg_decompress_struct *info = &decoder->info;
	const struct resize_axis *axis = &decoder->rows;
	int last = axis->count - 1;
	int begin = axis->begin[0], end = axis->begin[last] + axis->size[last];
	size_t width = 3 * (size_t)part->side;
	unsigned char *rows = dataset_reserve(capacity, (size_t)(end - begin) * width);

	if (!rows)
		abort_decode(decoder, "out of memory");
	while (info->output_scanline < info->output_height) {
		int y = (int)info->output_scanline;

		jpeg_read_scanlines(info, &decoder->line, 1);
		if (y < begin || y >= end)
			continue;
		to_rgb(info, decoder->line);
		resize_row(&decoder->columns, decoder->line, rows + (size_t)(y - begin) * width);
	}
	jpeg_finish_decompress(info);
	resize_rows(axis, rows, begin, part->side, decoder->sums, out);
}

/* ---- jpeg.h ---- */

/* Return -1 with the cause in decoder.text. */
static int run(struct decoder *decoder, const unsigned char *bytes, size_t size, unsigned char *out,
	       struct dataset_buffer *rows)
{
	struct jpeg_decompress_struct *info = &decoder->info;
	const struct jpeg_request *request = decoder->request;
	struct jpeg_crop part;

	if (setjmp(decoder->failed))
		return -1;
	jpeg_create_decompress(info);
	info->progress = &decoder->progress;
	read_header(decoder, bytes, size);
	request->choose(request->context, (int)info->image_width, (int)info->image_height, &part);
	choose_scaling(decoder, &part);
	read_rows(decoder, &part, out, rows);
	return 0;
}

static int decode(const struct jpeg_request *request, const unsigned char *bytes, size_t size,
		  unsigned char *out, struct dataset_buffer *rows, struct error *err)
{
	struct decoder decoder = {.request = request};
	int rc = 0;

	decoder.info.err = jpeg_std_error(&decoder.errors);
	decoder.errors.error_exit = fail;
	decoder.errors.emit_message = message;
	decoder.errors.output_message = discard_message;
	decoder.progress.progress_monitor = count_scans;
	if (run(&decoder, bytes, size, out, rows))
		rc = error_set(err, ERR_DATA, "%s: %s", request->name, decoder.text);
	jpeg_destroy_decompress(&decoder.info);
	resize_axis_free(&decoder.columns);
	resize_axis_free(&decoder.rows);
	free(decoder.line);
	free(decoder.sums);
	return rc;
}

const struct jpeg_ops data_jpeg = {.decode = decode};
