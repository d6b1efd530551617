/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/resident.h"

#include <stdlib.h>

#define CHUNK ((size_t)32 << 20) /* bytes copied at once, or one sample */

size_t resident_bytes(const struct dataset *dataset)
{
	size_t each = dataset_raw_size(dataset), bytes;

	if (dataset->format->files || dataset->count > UINT32_MAX ||
	    __builtin_mul_overflow(each, (size_t)dataset->count, &bytes))
		return 0;
	return bytes;
}

int resident_fill(struct device_queue *queue, const struct dataset *dataset, char *to,
		  struct error *err)
{
	size_t each = dataset_raw_size(dataset), capacity = CHUNK / each ? CHUNK / each : 1,
	       count = 0;
	struct dataset_scratch scratch = {0};
	struct augment_params choice;
	char *chunk = malloc(capacity * each);
	int rc = chunk ? 0 : error_memory(err, "a part of the data set");

	for (int64_t i = 0; !rc && i < dataset->count; i++) {
		union {
			int32_t class;
			float value;
		} target;

		rc = dataset_raw(dataset, (uint32_t)i, 0, &scratch, chunk + count++ * each, &choice,
				 &target, err);
		if (rc || (count < capacity && i + 1 < dataset->count))
			continue;
		rc = queue->device->ops->copy_in(queue, to, chunk, count * each, err);
		to += count * each;
		count = 0;
	}
	free(chunk);
	dataset_scratch_free(&scratch);
	return rc;
}

int resident_new(struct device_queue *queue, const struct dataset *dataset, void **out,
		 struct error *err)
{
	const struct device_ops *ops = queue->device->ops;
	size_t bytes = resident_bytes(dataset);
	void *memory;
	int rc;

	*out = NULL;
	if (!ops->memory_available || !bytes || bytes > RESIDENT_MAX_BYTES ||
	    bytes > ops->memory_available(queue->device) / RESIDENT_SHARE ||
	    /* Free memory that is not contiguous does not help. */
	    ops->memory_new(queue->device, bytes, &memory, NULL))
		return 0;
	rc = resident_fill(queue, dataset, memory, err);
	if (rc)
		ops->memory_free(queue->device, memory);
	else
		*out = memory;
	return rc;
}
