/* SPDX-License-Identifier: BSD-3-Clause */
/* A small data set kept raw in a device's memory, so that a batch sends only the indices of its
 * samples. */
#ifndef BERTH_TRAIN_DATA_RESIDENT_H
#define BERTH_TRAIN_DATA_RESIDENT_H

#include "train/data/dataset.h"
#include "train/device/device.h"

/* The limits for a data set on a device: 1/RESIDENT_SHARE of the free memory, and
 * RESIDENT_MAX_BYTES. */
#define RESIDENT_SHARE 2
#define RESIDENT_MAX_BYTES ((size_t)8 << 30)

/* Bytes of all samples, raw. 0: they are files, or the product overflows. Pure. */
size_t resident_bytes(const struct dataset *dataset);
/* Copy all samples to device memory, [count][C][H][W]; the caller frees *out with memory_free. *out
 * is NULL if the device has no memory of its own, or too little free memory. Reads the whole data
 * set. */
int resident_new(struct device_queue *queue, const struct dataset *dataset, void **out,
		 struct error *err);
/* Copy them again: the data set's seed has changed. to: from resident_new. */
int resident_fill(struct device_queue *queue, const struct dataset *dataset, char *to,
		  struct error *err);

#endif
