/* SPDX-License-Identifier: BSD-3-Clause */
/* Which samples a rank takes, in which order: PyTorch's DistributedSampler, index for index. */
#ifndef BERTH_TRAIN_DATA_SAMPLER_H
#define BERTH_TRAIN_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* The order of one epoch: randperm(seed + epoch), padded from its own beginning to a multiple of
 * the world at the epoch's start. A position counts its entries. */
struct sampler {
	uint64_t seed;
	int64_t samples;
	bool shuffle;
	int64_t epoch; /* the epoch of permutation */
	int world;     /* number of ranks at the epoch's start */
	int64_t total; /* entries of permutation: samples + padding */
	uint32_t *permutation;
};

/* The entries of the order of an epoch that begins with world ranks. */
int64_t sampler_total_of(int64_t samples, int64_t world);
/* samples >= 1. The sampler has no epoch until sampler_begin. */
void sampler_init(struct sampler *sampler, uint64_t seed, int64_t samples, bool shuffle);
void sampler_free(struct sampler *sampler);

/* Make the order of epoch for world ranks. Return 0, -ERR_UNAVAILABLE if memory is out, or
 * -ERR_DATA if there are too many samples. */
int sampler_begin(struct sampler *sampler, int64_t epoch, int world, struct error *err);

/* The next global batch: entries position .. position + global_count - 1, at most max of them. Its
 * entry j (from 0) goes to rank j mod world; world is the present one, not necessarily the epoch's.
 * indices has room for this rank's part of max. Return this rank's number of samples. *global_count
 * is 0 at the epoch's end. */
int sampler_batch(const struct sampler *sampler, int64_t position, int rank, int world, int64_t max,
		  uint32_t *indices, int64_t *global_count);

#endif
