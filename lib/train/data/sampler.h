/* SPDX-License-Identifier: BSD-3-Clause */
/* Which samples a rank takes, in which order: PyTorch's DistributedSampler, index for index. */
#ifndef BERTH_TRAIN_DATA_SAMPLER_H
#define BERTH_TRAIN_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* The list of one epoch: randperm(seed + epoch), padded from its own beginning to a multiple of
 * the world that the epoch began with. A position is a number of its entries. */
struct sampler {
	uint64_t seed;
	int64_t samples;
	bool shuffle;
	int64_t epoch; /* of permutation */
	int world;     /* that the epoch began with */
	int64_t total; /* entries of permutation: samples + padding */
	uint32_t *permutation;
};

/* samples >= 1. The sampler has no epoch until sampler_begin. */
void sampler_init(struct sampler *sampler, uint64_t seed, int64_t samples, bool shuffle);
void sampler_free(struct sampler *sampler);

/* Make the list of epoch for world ranks. -ERR_UNAVAILABLE: memory; -ERR_DATA: too many samples. */
int sampler_begin(struct sampler *sampler, int64_t epoch, int world, struct error *err);

/* The next global batch is entries position .. position + global_count - 1, at most most of them;
 * entry j of it (from 0) goes to rank j mod world, where world is today's, not necessarily the
 * epoch's. indices: room for this rank's part of most. Returns how many this rank gets;
 * *global_count is 0 at the epoch's end. */
int sampler_batch(const struct sampler *sampler, int64_t position, int rank, int world, int64_t max,
		  uint32_t *indices, int64_t *global_count);

#endif
