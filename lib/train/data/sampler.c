/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/sampler.h"

#include <stdlib.h>

#include "base/random.h"

int64_t sampler_total_of(int64_t samples, int64_t world)
{
	return (samples + world - 1) / world * world;
}

void sampler_init(struct sampler *sampler, uint64_t seed, int64_t samples, bool shuffle)
{
	*sampler =
		(struct sampler){.seed = seed, .samples = samples, .shuffle = shuffle, .epoch = -1};
}

void sampler_free(struct sampler *sampler)
{
	free(sampler->permutation);
	sampler->permutation = NULL;
}

int sampler_begin(struct sampler *sampler, int64_t epoch, int world, struct error *err)
{
	int64_t total = sampler_total_of(sampler->samples, world);
	uint32_t *permutation = NULL;
	int rc;

	if (sampler->samples <= RANDOM_PERMUTATION_MAX)
		permutation = malloc((size_t)total * sizeof *permutation);
	if (sampler->samples <= RANDOM_PERMUTATION_MAX && !permutation)
		return error_memory(err, "the order of an epoch");
	/* Without shuffling the order counts up; the size check is the same. */
	rc = random_permutation(sampler->seed + (uint64_t)epoch, (size_t)sampler->samples,
				permutation, err);
	if (rc) {
		free(permutation);
		return rc;
	}
	for (int64_t i = 0; !sampler->shuffle && i < sampler->samples; i++)
		permutation[i] = (uint32_t)i;
	/* More padding than samples: repeat the order, as PyTorch does. */
	for (int64_t i = sampler->samples; i < total; i++)
		permutation[i] = permutation[i % sampler->samples];
	free(sampler->permutation);
	sampler->permutation = permutation;
	sampler->total = total;
	sampler->epoch = epoch;
	sampler->world = world;
	return 0;
}

int sampler_batch(const struct sampler *sampler, int64_t position, int rank, int world, int64_t max,
		  uint32_t *indices, int64_t *global_count)
{
	int64_t left = sampler->total - position;
	int count = 0;

	*global_count = left < max ? left : max;
	if (*global_count < 0)
		*global_count = 0;
	for (int64_t j = rank; j < *global_count; j += world)
		indices[count++] = sampler->permutation[position + j];
	return count;
}
