/* SPDX-License-Identifier: BSD-3-Clause */
/* From raw samples to network input: random crop, flip, normalisation. Everything is a pure
 * function of (seed, epoch, sample index), so every thread, rank and device makes the same. */
#ifndef BERTH_TRAIN_DATA_AUGMENT_H
#define BERTH_TRAIN_DATA_AUGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/device/device.h"
#include "train/model/graph.h"

#define AUGMENT_MAX_CHANNELS 4
#define AUGMENT_MAX_PAD 1024

/* The augmentation of a training sample, in torchvision's order. All zeros: none. */
struct augment {
	bool resized_crop; /* RandomResizedCrop, while a file is decoded: imagefolder only */
	int crop_pad;	   /* RandomCrop(side, padding=crop_pad) with zeros; 0: none */
	bool flip;	   /* RandomHorizontalFlip(0.5) */
};

/* Parse --augment: "none", or a list of "flip", "crop[=PAD]" (default 4), "resized-crop". Return 0
 * or -ERR_USAGE. */
int augment_parse(const char *text, struct augment *out, struct error *err);

/* The random words of a sample: Philox4x32-10 with key seed (low word first) and counter (epoch,
 * index, draw, 0). Draw 0: word 0 is top and word 1 left, each (word * (2 crop_pad + 1)) >> 32 in
 * 64 bits; word 2 below 2^31 flips. Draws 1 to 10 are one try each of RandomResizedCrop
 * (imagefolder.c). */
enum augment_draw { AUGMENT_DRAW_CROP = 0, AUGMENT_DRAW_RESIZED = 1 };
void augment_draw(uint64_t seed, uint32_t epoch, uint32_t index, uint32_t draw, uint32_t out[4]);
/* Map word to one of 0 .. count - 1; count >= 1. */
uint32_t augment_below(uint32_t word, uint32_t count);
void augment_draw_params(const struct augment *augment, uint64_t seed, uint32_t epoch,
			 uint32_t index, struct augment_params *out);

/* The normalised value of each byte: out[c][v] = (v / 255 - mean[c]) / deviation[c] in float, as
 * ToTensor and Normalize compute it. */
void augment_table(int channels, const float *mean, const float *deviation, float (*out)[256]);

/* raw, out: [C][H][W]. Pad with zeros (raw ones, before normalisation, as torchvision does), crop
 * at choice, flip. With table, raw holds bytes, which it maps to floats; without, floats, which
 * stay as they are. */
void augment_apply(const void *raw, const struct shape *shape, int pad,
		   const struct augment_params *choice, const float (*table)[256], float *out);

#endif
