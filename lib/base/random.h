/* SPDX-License-Identifier: BSD-3-Clause */
/* Random numbers that are the same on every machine. PyTorch's generator serves shuffling and
 * initial weights. Philox serves numbers that depend only on a position. */
#ifndef BERTH_BASE_RANDOM_H
#define BERTH_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* torch.Generator on the CPU: mt19937. Only the low 32 bits of the seed count. */
struct mt19937 {
	uint32_t state[624];
	int next;
};
void mt19937_seed(struct mt19937 *generator, uint64_t seed);
uint32_t mt19937_next(struct mt19937 *generator);
/* tensor.uniform_(low, high) for one float element; uses 24 bits of a draw. */
float mt19937_uniform(struct mt19937 *generator, float low, float high);
/* tensor.normal_(0, std) for count float elements. count must be at least 16: PyTorch draws
 * differently below that. */
void mt19937_normal(struct mt19937 *generator, float std, size_t count, float *out);

/* The largest n for random_permutation. Above it torch.randperm draws differently. */
#define RANDOM_PERMUTATION_MAX 214748364

/* torch.randperm(n) with a generator seeded with seed. out has room for n entries. Return 0, or
 * -ERR_DATA if n exceeds RANDOM_PERMUTATION_MAX. */
int random_permutation(uint64_t seed, size_t n, uint32_t *out, struct error *err);

/* Philox4x32-10 (Salmon et al., SC11): four words from a key and a counter. Pure. */
void philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);
/* Two independent N(0,1) numbers for a counter (Box and Muller on its first three words). */
void philox_normal2(uint64_t key, const uint32_t counter[4], float out[2]);

#endif
