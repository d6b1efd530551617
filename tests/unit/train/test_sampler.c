/* SPDX-License-Identifier: BSD-3-Clause */
/* Orders and initial weights compared with PyTorch's, as recorded by vectors.py. */
#include "../../support/vectors.h"
#include "../rows.h"

#include <zlib.h>

#include "train/comm/ddp.h"
#include "train/model/graph.h"
#include "base/random.h"
#include "train/data/sampler.h"

#define HEAD 6

/* A list of 32-bit words from PyTorch; vectors.py describes what a row holds of it. */
struct list {
	size_t count;
	uint32_t head[HEAD]; /* a float32 as its bits */
	uint32_t crc;
};

/* The list whose fields start at number at of row. */
static struct list list_of(const struct vector_row *row, int at, bool floats)
{
	struct list list = {.count = vector_uint(row, at),
			    .crc = (uint32_t)vector_uint(row, at + 1 + HEAD)};

	for (int i = 0; i < HEAD; i++) {
		float real = (float)vector_real(row, at + 1 + i);

		if (floats)
			memcpy(&list.head[i], &real, sizeof real);
		else
			list.head[i] = (uint32_t)vector_uint(row, at + 1 + i);
	}
	return list;
}

static uint32_t sum(const void *words, size_t count)
{
	return (uint32_t)crc32_z(crc32(0, NULL, 0), words, count * 4);
}

/* Compare PyTorch's first entries one by one, so that a failure shows them; then all entries by
 * checksum. */
static void same(const char *what, const uint32_t *seen, size_t count, const struct list *expected)
{
	if (count != expected->count)
		fail_msg("%s: %zu entries, PyTorch has %zu", what, count, expected->count);
	for (size_t i = 0; i < HEAD && i < count; i++)
		if (seen[i] != expected->head[i])
			fail_msg("%s: entry %zu is %u (%08x), PyTorch's is %u (%08x)", what, i,
				 seen[i], seen[i], expected->head[i], expected->head[i]);
	if (sum(seen, count) != expected->crc)
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
	struct vector_table table = vectors_read("vectors.txt", "permutation");

	for (size_t i = 0; i < table.count; i++) {
		uint64_t seed = vector_uint(&table.rows[i], 0);
		struct list list = list_of(&table.rows[i], 1, false);
		uint32_t *out = malloc(list.count * sizeof *out);
		struct error err = {0};
		char what[64];

		snprintf(what, sizeof what, "randperm(%zu) of seed %llu", list.count,
			 (unsigned long long)seed);
		assert_int_equal(random_permutation(seed, list.count, out, &err), 0);
		same(what, out, list.count, &list);
		free(out);
	}
	vectors_free(&table);
}

static void uniform(void **state)
{
	struct vector_table table = vectors_read("vectors.txt", "uniform");

	for (size_t i = 0; i < table.count; i++) {
		const struct vector_row *row = &table.rows[i];
		float low = (float)vector_real(row, 1), high = (float)vector_real(row, 2);
		struct list list = list_of(row, 3, true);
		float *out = malloc(list.count * sizeof *out);
		struct mt19937 random;
		uint32_t *words = malloc(list.count * sizeof *words);

		mt19937_seed(&random, vector_uint(row, 0));
		for (size_t n = 0; n < list.count; n++)
			out[n] = mt19937_uniform(&random, low, high);
		memcpy(words, out, list.count * sizeof *words);
		same("uniform_", words, list.count, &list);
		free(words);
		free(out);
	}
	vectors_free(&table);
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

/* For any batch size, a rank's concatenated batches are DistributedSampler's list. */
static void orders(void **state)
{
	static const int batches[] = {1, 7, 64, 100000};
	struct vector_table table = vectors_read("vectors.txt", "order");

	for (size_t i = 0; i < table.count * ROWS(batches); i++) {
		const struct vector_row *row = &table.rows[i / ROWS(batches)];
		int64_t samples = vector_int(row, 0), epoch = vector_int(row, 3);
		int world = (int)vector_int(row, 1), rank = (int)vector_int(row, 5);
		struct list list = list_of(row, 6, false);
		int batch = batches[i % ROWS(batches)];
		uint32_t *seen = malloc(((size_t)batch + list.count) * sizeof *seen);
		struct sampler sampler;
		int64_t position = 0, global;
		size_t count = 0;
		char what[128];

		snprintf(what, sizeof what, "%lld samples, rank %d of %d, epoch %lld, batch %d",
			 (long long)samples, rank, world, (long long)epoch, batch);
		begin(&sampler, vector_uint(row, 2), samples, vector_int(row, 4), epoch, world);
		for (;;) {
			int got = sampler_batch(&sampler, position, rank, world,
						(int64_t)batch * world, seen + count, &global);

			if (!global)
				break;
			assert_in_range(got, 0, batch);
			count += (size_t)got;
			if (count > list.count)
				break;
			position += global;
		}
		same(what, seen, count, &list);
		sampler_free(&sampler);
		free(seen);
	}
	vectors_free(&table);
}

/* From position on with another number of ranks: every remaining entry is taken once, entry j of a
 * global batch by rank j mod world'. */
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

/* A position past the end, as in a damaged checkpoint, means that the epoch is over. */
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
	assert_non_null(strstr(err.text, "shuffle"));
	sampler_free(&sampler);
}

/* ---- initial weights ---- */

static void weights(void **state)
{
	struct vector_table table = vectors_read("vectors.txt", "weight");

	for (size_t i = 0; i < table.count; i++) {
		const struct vector_row *row = &table.rows[i];
		const char *model = vector_text(row, 0), *name = vector_text(row, 5);
		int side = (int)vector_int(row, 2), classes = (int)vector_int(row, 3);
		struct shape shape = {(int)vector_int(row, 1), side, side};
		uint64_t seed = vector_uint(row, 4);
		struct list list = list_of(row, 6, true);
		struct graph *graph;
		struct buckets buckets;
		struct error err = {0};
		int found = 0;
		char what[128];

		assert_int_equal(model_build(model, &shape, classes, STEM_DEFAULT, &graph, &err),
				 0);
		assert_int_equal(
			buckets_make(graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &buckets, &err), 0);

		float *flat = calloc(buckets.total, sizeof *flat);

		assert_int_equal(graph_initialise(graph, seed, buckets.offsets, flat, &err), 0);
		snprintf(what, sizeof what, "%s seed %llu %s", model, (unsigned long long)seed,
			 name);
		for (int p = 0; p < graph->param_count; p++) {
			if (strcmp(graph->params[p].name, name))
				continue;

			size_t count = (size_t)graph->params[p].count;
			uint32_t *words = malloc(count * sizeof *words);

			memcpy(words, flat + buckets.offsets[p], count * sizeof *words);
			same(what, words, count, &list);
			free(words);
			found++;
		}
		if (found != 1)
			fail_msg("%s: there are %d such parameters", what, found);
		free(flat);
		buckets_free(&buckets);
		graph_free(graph);
	}
	vectors_free(&table);
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
