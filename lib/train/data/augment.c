/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/augment.h"

#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/random.h"

#define DEFAULT_PAD 4

static int parse_word(const char *word, struct augment *out, struct error *err)
{
	if (!strcmp(word, "flip"))
		out->flip = true;
	else if (!strcmp(word, "crop"))
		out->crop_pad = DEFAULT_PAD;
	else if (!strcmp(word, "resized-crop"))
		out->resized_crop = true;
	else if (!strncmp(word, "crop=", 5)) {
		if (number_int("the padding of --augment crop", word + 5, 1, AUGMENT_MAX_PAD,
			       &out->crop_pad, err))
			return error_set(err, ERR_USAGE,
					 "--augment has \"%s\": expected a padding from 1 to %d",
					 word, AUGMENT_MAX_PAD);
	} else
		return error_set(err, ERR_USAGE,
				 "--augment has \"%s\": expected auto, none, or a list of flip, "
				 "crop=PAD and resized-crop, for example flip,crop=4",
				 word);
	return 0;
}

int augment_parse(const char *text, struct augment *out, struct error *err)
{
	struct augment augment = {0};
	int rc = 0;

	if (strcmp(text, "none")) {
		char *copy = strdup(text), *rest = copy;

		if (!copy)
			return error_memory(err, "an option");
		for (char *word; !rc && (word = strsep(&rest, ","));)
			rc = parse_word(word, &augment, err);
		free(copy);
	}
	if (!rc)
		*out = augment;
	return rc;
}

void augment_draw(uint64_t seed, uint32_t epoch, uint32_t index, uint32_t draw, uint32_t out[4])
{
	const uint32_t counter[4] = {epoch, index, draw, 0};

	philox(seed, counter, out);
}

uint32_t augment_below(uint32_t word, uint32_t count)
{
	return (uint32_t)(((uint64_t)word * count) >> 32);
}

void augment_draw_params(const struct augment *augment, uint64_t seed, uint32_t epoch,
			 uint32_t index, struct augment_params *out)
{
	uint32_t words[4], places = 2 * (uint32_t)augment->crop_pad + 1;

	*out = (struct augment_params){0};
	if (!augment->crop_pad && !augment->flip)
		return;
	augment_draw(seed, epoch, index, AUGMENT_DRAW_CROP, words);
	out->top = (int)augment_below(words[0], places);
	out->left = (int)augment_below(words[1], places);
	out->flip = augment->flip && words[2] < UINT32_C(1) << 31;
}

void augment_table(int channels, const float *mean, const float *deviation, float (*out)[256])
{
	for (int c = 0; c < channels; c++)
		for (int v = 0; v < 256; v++)
			out[c][v] = ((float)v / 255 - mean[c]) / deviation[c];
}

/* Which columns of an output row come from the image: 'begin' up to but excluding 'end'. The first
 * comes from the image's column 'from'. */
struct span {
	int begin, end, from;
};

static struct span columns(int width, int shift)
{
	int begin = shift < 0 ? -shift : 0, end = shift > 0 ? width - shift : width;

	if (begin > width)
		begin = width;
	if (end < begin)
		end = begin;
	return (struct span){begin, end, begin < end ? begin + shift : 0};
}

/* bytes is constant wherever this is inlined: two loops without a branch per pixel. */
static inline __attribute__((always_inline)) float value_at(const void *raw, size_t i, bool bytes,
							    const float *table)
{
	return bytes ? table[((const unsigned char *)raw)[i]] : ((const float *)raw)[i];
}

static inline __attribute__((always_inline)) void
place(const void *raw, const struct shape *shape, int pad, const struct augment_params *choice,
      bool bytes, const float (*table)[256], float *out)
{
	int width = shape->width, height = shape->height;
	struct span inner = columns(width, choice->left - pad);

	for (int c = 0; c < shape->channels; c++) {
		const float *values = bytes ? table[c] : NULL;
		float zero = bytes ? values[0] : 0;

		for (int y = 0; y < height; y++, out += width) {
			int from = y + choice->top - pad;
			bool inside = from >= 0 && from < height;
			int begin = inside ? inner.begin : width, end = inside ? inner.end : width;
			size_t row = inside ? ((size_t)c * (size_t)height + (size_t)from) *
							      (size_t)width +
						      (size_t)inner.from
					    : 0;

			for (int x = 0; x < begin; x++)
				out[choice->flip ? width - 1 - x : x] = zero;
			for (int x = end; x < width; x++)
				out[choice->flip ? width - 1 - x : x] = zero;
			if (choice->flip)
				for (int x = begin; x < end; x++)
					out[width - 1 - x] = value_at(
						raw, row + (size_t)(x - begin), bytes, values);
			else
				for (int x = begin; x < end; x++)
					out[x] = value_at(raw, row + (size_t)(x - begin), bytes,
							  values);
		}
	}
}

void augment_apply(const void *raw, const struct shape *shape, int pad,
		   const struct augment_params *choice, const float (*table)[256], float *out)
{
	if (table)
		place(raw, shape, pad, choice, true, table, out);
	else
		place(raw, shape, pad, choice, false, NULL, out);
}
