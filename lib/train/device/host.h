/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by devices that compute in the calling thread. Their memory is host memory, and work is
 * done when the call that queues it returns. The contracts are those of struct device_ops. */
#ifndef BERTH_TRAIN_DEVICE_HOST_H
#define BERTH_TRAIN_DEVICE_HOST_H

#include "train/device/device.h"

/* Memory from malloc or aligned_alloc. */
void host_memory_free(struct device *device, void *memory);
int host_queue_new(struct device *device, struct device_queue **out, struct error *err);
void host_queue_free(struct device_queue *queue);
void *host_queue_native(struct device_queue *queue);
int host_copy(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
	      struct error *err);

#endif
