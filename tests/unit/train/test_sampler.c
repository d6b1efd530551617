/* SPDX-License-Identifier: BSD-3-Clause */
/* Orders and initial weights against PyTorch's own, as vectors.py took them down. */
#include "../rows.h"

#include <zlib.h>

#include "train/comm/ddp.h"
#include "train/model/graph.h"
#include "base/random.h"
#include "train/data/sampler.h"

#define HEAD 6

struct permutation_vector {
	uint64_t seed;
	size_t count;
	uint32_t head[HEAD];
	uint32_t crc;
};
struct uniform_vector {
	uint64_t seed;
	double low, high;
	size_t count;
	float head[HEAD];
	uint32_t crc;
};
struct order_vector {
	int64_t samples;
	int world;
	uint64_t seed;
	int64_t epoch;
	bool shuffle;
	int rank;
	size_t count;
	uint32_t head[HEAD];
	uint32_t crc;
};
struct weight_vector {
	const char *model;
	int channels, side, classes;
	uint64_t seed;
	const char *name;
	size_t count;
	float head[HEAD];
	uint32_t crc;
};
#include "vectors.h"

static uint32_t sum(const void *words, size_t count)
{
	return (uint32_t)crc32_z(crc32(0, NULL, 0), words, count * 4);
}

/* PyTorch's first entries one by one, so that a failure shows them; then all by their sum. */
static void same(const char *what, const uint32_t *seen, size_t seen_count, const uint32_t *head,
		 size_t count, uint32_t crc)
{
	if (seen_count != count)
		fail_msg("%s: %zu entries, PyTorch has %zu", what, seen_count, count);
	for (size_t i = 0; i < HEAD && i < count; i++)
		if (seen[i] != head[i])
			fail_msg("%s: entry %zu is %u (%08x), PyTorch's is %u (%08x)", what, i,
				 seen[i], seen[i], head[i], head[i]);
	if (sum(seen, count) != crc)
		fail_msg("%s: the first entries are PyTorch's, a later one is not", what);
}

/* ---- the generator ---- */

/* The 10000th number of seed 5489 is in the C++ standard ([rand.predef]). */
static void generator(void **state)
{
	struct mt19937 random;
	uint32_t word = 0;

	mt19937_seed(&random, 5489);
	assert_int_equal(mt19937_next(&random), 3499211612u);
	mt19937_seed(&random, 5489);
	for (int i = 0; i < 10000; i++)
		word = mt19937_next(&random);
	assert_int_equal(word, 4123659995u);
	mt19937_seed(&random, (UINT64_C(7) << 32) + 5489);
	assert_int_equal(mt19937_next(&random), 3499211612u);
}

static void permutations(void **state)
{
	for (size_t i = 0; i < ROWS(permutation_vectors); i++) {
		const struct permutation_vector *row = &permutation_vectors[i];
		uint32_t *out = malloc(row->count * sizeof *out);
		struct error err = {0};
		char what[64];

		snprintf(what, sizeof what, "randperm(%zu) of seed %llu", row->count,
			 (unsigned long long)row->seed);
		assert_int_equal(random_permutation(row->seed, row->count, out, &err), 0);
		same(what, out, row->count, row->head, row->count, row->crc);
		free(out);
	}
}

static void uniform(void **state)
{
	for (size_t i = 0; i < ROWS(uniform_vectors); i++) {
		const struct uniform_vector *row = &uniform_vectors[i];
		float *out = malloc(row->count * sizeof *out);
		struct mt19937 random;
		uint32_t head[HEAD], *words = malloc(row->count * sizeof *words);

		mt19937_seed(&random, row->seed);
		for (size_t n = 0; n < row->count; n++)
			out[n] = mt19937_uniform(&random, (float)row->low, (float)row->high);
		memcpy(head, row->head, sizeof head);
		memcpy(words, out, row->count * sizeof *words);
		same("uniform_", words, row->count, head, row->count, row->crc);
		free(words);
		free(out);
	}
}

/* Random123's known answers (kat_vectors, philox4x32 10). */
static void philox_known(void **state)
{
	static const struct {
		uint32_t counter[4];
		uint64_t key;
		uint32_t expected[4];
	} rows[] = {
		{{0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{~0u, ~0u, ~0u, ~0u},
		 UINT64_MAX,
		 {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
		 0x299f31d0a4093822,
		 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		uint32_t out[4];

		philox(rows[i].key, rows[i].counter, out);
		assert_memory_equal(out, rows[i].expected, sizeof out);
	}
}

/* ---- orders ---- */

static void begin(struct sampler *sampler, uint64_t seed, int64_t samples, bool shuffle,
		  int64_t epoch, int world)
{
	struct error err = {0};

	sampler_init(sampler, seed, samples, shuffle);
	if (sampler_begin(sampler, epoch, world, &err))
		fail_msg("%s", err.text);
}

/* Whatever the batch, a rank's batches one after another are DistributedSampler's list. */
static void orders(void **state)
{
	static const int batches[] = {1, 7, 64, 100000};

	for (size_t i = 0; i < ROWS(order_vectors) * ROWS(batches); i++) {
		const struct order_vector *row = &order_vectors[i / ROWS(batches)];
		int batch = batches[i % ROWS(batches)];
		uint32_t *seen = malloc(((size_t)batch + row->count) * sizeof *seen);
		struct sampler sampler;
		int64_t position = 0, global;
		size_t count = 0;
		char what[128];

		snprintf(what, sizeof what, "%lld samples, rank %d of %d, epoch %lld, batch %d",
			 (long long)row->samples, row->rank, row->world, (long long)row->epoch,
			 batch);
		begin(&sampler, row->seed, row->samples, row->shuffle, row->epoch, row->world);
		for (;;) {
			int got = sampler_batch(&sampler, position, row->rank, row->world,
						(int64_t)batch * row->world, seen + count, &global);

			if (!global)
				break;
			assert_in_range(got, 0, batch);
			count += (size_t)got;
			if (count > row->count)
				break;
			position += global;
		}
		same(what, seen, count, row->head, row->count, row->crc);
		sampler_free(&sampler);
		free(seen);
	}
}

/* From position on with other ranks: every entry that was left comes once, entry j of a global
 * batch at rank j mod world'. */
static void other_world(void **state)
{
	static const struct {
		int64_t samples;
		int first, then;
		int64_t position;
		int batch;
		const char *why;
	} rows[] = {
		{60, 4, 2, 24, 3, "half the ranks"},
		{60, 2, 4, 22, 3, "twice the ranks"},
		{61, 4, 3, 16, 5, "no divisor of anything"},
		{61, 3, 1, 0, 8, "from the beginning"},
		{61, 1, 7, 60, 8, "one entry left for seven ranks"},
		{61, 1, 7, 61, 8, "nothing left"},
		{5, 8, 3, 2, 1, "padding among what is left"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct sampler sampler;
		int64_t position = rows[i].position, global, expected = position;
		uint32_t *batch = malloc((size_t)rows[i].batch * sizeof *batch);

		begin(&sampler, 9, rows[i].samples, true, 2, rows[i].first);
		do {
			for (int rank = 0; rank < rows[i].then; rank++) {
				int count = sampler_batch(&sampler, position, rank, rows[i].then,
							  (int64_t)rows[i].batch * rows[i].then,
							  batch, &global);

				for (int k = 0; k < count; k++) {
					int64_t at = position + rank + (int64_t)k * rows[i].then;

					if (batch[k] != sampler.permutation[at])
						fail_msg("%s: rank %d entry %d", rows[i].why, rank,
							 k);
				}
				expected += count;
			}
			position += global;
			if (expected != position)
				fail_msg("%s: the ranks took %lld entries, the batch had %lld",
					 rows[i].why, (long long)expected, (long long)position);
		} while (global);
		if (position != sampler.total)
			fail_msg("%s: ended at %lld of %lld", rows[i].why, (long long)position,
				 (long long)sampler.total);
		free(batch);
		sampler_free(&sampler);
	}
}

/* A position past the end, as a damaged checkpoint could say, is an epoch that is over. */
static void past_the_end(void **state)
{
	struct sampler sampler;
	uint32_t batch[4];
	int64_t global = -1;

	begin(&sampler, 0, 10, true, 0, 3);
	assert_int_equal(sampler_batch(&sampler, 13, 0, 3, 12, batch, &global), 0);
	assert_int_equal(global, 0);
	assert_int_equal(sampler_batch(&sampler, INT64_MAX / 2, 2, 3, 12, batch, &global), 0);
	assert_int_equal(global, 0);
	sampler_free(&sampler);
}

static void too_many(void **state)
{
	struct sampler sampler;
	struct error err = {0};

	sampler_init(&sampler, 0, (int64_t)RANDOM_PERMUTATION_MAX + 1, true);
	assert_int_equal(sampler_begin(&sampler, 0, 1, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "shuffled"));
	sampler_free(&sampler);
}

/* ---- initial weights ---- */

static void weights(void **state)
{
	for (size_t i = 0; i < ROWS(weight_vectors); i++) {
		const struct weight_vector *row = &weight_vectors[i];
		struct shape shape = {row->channels, row->side, row->side};
		struct graph *graph;
		struct buckets buckets;
		struct error err = {0};
		uint32_t head[HEAD];
		int found = 0;
		char what[128];

		assert_int_equal(
			model_build(row->model, &shape, row->classes, STEM_DEFAULT, &graph, &err),
			0);
		assert_int_equal(
			buckets_make(graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &buckets, &err), 0);

		float *flat = calloc(buckets.total, sizeof *flat);

		assert_int_equal(graph_initialise(graph, row->seed, buckets.offsets, flat, &err),
				 0);
		memcpy(head, row->head, sizeof head);
		snprintf(what, sizeof what, "%s seed %llu %s", row->model,
			 (unsigned long long)row->seed, row->name);
		for (int p = 0; p < graph->param_count; p++) {
			if (strcmp(graph->params[p].name, row->name))
				continue;

			size_t count = (size_t)graph->params[p].count;
			uint32_t *words = malloc(count * sizeof *words);

			memcpy(words, flat + buckets.offsets[p], count * sizeof *words);
			same(what, words, count, head, row->count, row->crc);
			free(words);
			found++;
		}
		if (found != 1)
			fail_msg("%s: there are %d such parameters", what, found);
		free(flat);
		buckets_free(&buckets);
		graph_free(graph);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(generator),	cmocka_unit_test(permutations),
		cmocka_unit_test(uniform),	cmocka_unit_test(philox_known),
		cmocka_unit_test(orders),	cmocka_unit_test(other_world),
		cmocka_unit_test(past_the_end), cmocka_unit_test(too_many),
		cmocka_unit_test(weights),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
