/* SPDX-License-Identifier: BSD-3-Clause */
/* A small data set that lives in a device's memory, raw: of each batch only the numbers of its
 * samples travel. */
#ifndef BERTH_TRAIN_DATA_RESIDENT_H
#define BERTH_TRAIN_DATA_RESIDENT_H

#include "train/data/dataset.h"
#include "train/device/device.h"

/* Of the device's free memory and in all: what a data set may take there. */
#define RESIDENT_SHARE 2
#define RESIDENT_MAX_BYTES ((size_t)8 << 30)

/* Bytes of all samples, raw. 0: they are files, or too many to count. Pure. */
size_t resident_bytes(const struct dataset *dataset);
/* *out: all samples in device memory, [count][C][H][W], for memory_free; NULL where the device has
 * no memory of its own, takes no raw samples, or too little of it is free. Reads all of the data
 * set. */
int resident_new(struct device_queue *queue, const struct dataset *dataset, void **out,
		 struct error *err);

#endif
