/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/dataset.h"

#include <stdio.h>
#include <string.h>

static const struct dataset_format *const formats[] = {
	&dataset_fashion_mnist,
	&dataset_mnist,
	&dataset_synthetic,
	NULL,
};

const char *split_name(enum split split)
{
	return split == SPLIT_TRAIN ? "train" : "val";
}

int dataset_open(const char *spec, enum split split, uint64_t seed, struct dataset **out,
		 struct error *err)
{
	size_t size = strcspn(spec, ":,");
	char known[256];
	size_t used = 0;

	for (size_t i = 0; formats[i]; i++) {
		if (strlen(formats[i]->name) == size && !memcmp(spec, formats[i]->name, size)) {
			struct dataset_request request = {
				.spec = spec,
				.argument = spec[size] ? spec + size + 1 : "",
				.split = split,
				.seed = seed,
			};

			return formats[i]->open(&request, out, err);
		}
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
					 formats[i]->name);
	}
	return error_set(err, ERR_USAGE,
			 "--data %s: there is no format '%.*s'; the formats are: %s", spec,
			 (int)size, spec, known);
}

int dataset_read(struct dataset *dataset, const uint32_t *indices, int count, float *x,
		 void *target, struct error *err)
{
	for (int i = 0; i < count; i++)
		if (indices[i] >= (uint64_t)dataset->count)
			return error_set(err, ERR_INTERNAL, "sample %u of %lld", indices[i],
					 (long long)dataset->count);
	return dataset->format->read(dataset, indices, count, x, target, err);
}

void dataset_close(struct dataset *dataset)
{
	if (dataset)
		dataset->format->close(dataset);
}
