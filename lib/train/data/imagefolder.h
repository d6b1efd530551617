/* SPDX-License-Identifier: BSD-3-Clause */
/* Which part of an image becomes the sample. Pure. */
#ifndef BERTH_TRAIN_DATA_IMAGEFOLDER_H
#define BERTH_TRAIN_DATA_IMAGEFOLDER_H

#include <stdint.h>

#include "train/data/jpeg.h"

/* Evaluation: resize the short side to side * 256 / 224 and take the centre. width, height >= 1. */
void imagefolder_center(int width, int height, int side, struct jpeg_crop *out);
/* Training: torchvision's RandomResizedCrop(side). Try i of ten uses draw AUGMENT_DRAW_RESIZED + i.
 * Word 0 is the share of the area (0.08 to 1), word 1 the logarithm of width / height (3/4 to 4/3),
 * word 2 top, word 3 left. */
void imagefolder_resized_crop(int width, int height, int side, uint64_t seed, uint32_t epoch,
			      uint32_t index, struct jpeg_crop *out);

#endif
