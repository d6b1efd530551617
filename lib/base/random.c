/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/random.h"

#include <math.h>

void mt19937_seed(struct mt19937 *generator, uint64_t seed)
{
	generator->state[0] = (uint32_t)seed;
	for (uint32_t i = 1; i < 624; i++) {
		uint32_t before = generator->state[i - 1];

		generator->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
	}
	generator->next = 624;
}

static void refill(struct mt19937 *generator)
{
	uint32_t *state = generator->state;

	for (int i = 0; i < 624; i++) {
		uint32_t mixed = (state[i] & 0x80000000u) | (state[(i + 1) % 624] & 0x7fffffffu);

		state[i] = state[(i + 397) % 624] ^ (mixed >> 1) ^ (mixed & 1 ? 0x9908b0dfu : 0);
	}
	generator->next = 0;
}

uint32_t mt19937_next(struct mt19937 *generator)
{
	if (generator->next >= 624)
		refill(generator);

	uint32_t word = generator->state[generator->next++];

	word ^= word >> 11;
	word ^= (word << 7) & 0x9d2c5680u;
	word ^= (word << 15) & 0xefc60000u;
	return word ^ (word >> 18);
}

float mt19937_uniform(struct mt19937 *generator, float low, float high)
{
	float unit = (float)(mt19937_next(generator) & 0xffffff) * 0x1p-24f;

	/* PyTorch's compiler contracts this on every CPU with FMA; a CPU without it must not
	 * differ. */
	return fmaf(unit, high - low, low);
}

/* Box and Muller on sixteen numbers: u1 from the first eight, u2 from the others. */
static void normal16(float std, float *at)
{
	for (int j = 0; j < 8; j++) {
		float u1 = 1 - at[j], u2 = at[j + 8];
		float radius = sqrtf(-2 * logf(u1)), angle = 2.0f * (float)M_PI * u2;

		at[j] = radius * cosf(angle) * std;
		at[j + 8] = radius * sinf(angle) * std;
	}
}

void mt19937_normal(struct mt19937 *generator, float std, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = mt19937_uniform(generator, 0, 1);
	for (size_t i = 0; i + 16 <= count; i += 16)
		normal16(std, out + i);
	if (count % 16 == 0)
		return;
	/* The last sixteen are drawn again, including those already done. */
	for (size_t i = count - 16; i < count; i++)
		out[i] = mt19937_uniform(generator, 0, 1);
	normal16(std, out + count - 16);
}

int random_permutation(uint64_t seed, size_t n, uint32_t *out, struct error *err)
{
	struct mt19937 generator;

	if (n > RANDOM_PERMUTATION_MAX)
		return error_set(err, ERR_DATA, "cannot shuffle %zu samples: the limit is %d", n,
				 RANDOM_PERMUTATION_MAX);
	mt19937_seed(&generator, seed);
	for (size_t i = 0; i < n; i++)
		out[i] = (uint32_t)i;
	for (size_t i = 0; i + 1 < n; i++) {
		size_t other = i + mt19937_next(&generator) % (uint32_t)(n - i);
		uint32_t kept = out[i];

		out[i] = out[other];
		out[other] = kept;
	}
	return 0;
}

void philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xd2511f53u * c[0], p1 = (uint64_t)0xcd9e8d57u * c[2];
		uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
				    (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};

		for (int i = 0; i < 4; i++)
			c[i] = next[i];
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	for (int i = 0; i < 4; i++)
		out[i] = c[i];
}

void philox_normal2(uint64_t key, const uint32_t counter[4], float out[2])
{
	uint32_t words[4];

	philox(key, counter, words);

	/* (0, 1], because the logarithm of 0 is undefined. */
	double u1 = ((double)words[0] + 1) * 0x1p-32, u2 = (double)words[1] * 0x1p-32;
	double radius = sqrt(-2 * log(u1)), angle = 2 * 3.14159265358979323846 * u2;

	out[0] = (float)(radius * cos(angle));
	out[1] = (float)(radius * sin(angle));
}
