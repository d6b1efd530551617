/* SPDX-License-Identifier: BSD-3-Clause */
/* Prefetched batches: the same for any number of threads; faulty samples follow the rules; no
 * thread is left. */
#include "../rows.h"

#include <dirent.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "train/data/loader.h"
#include "train/data/feed.h"
#include "../../support/wait.h"

#define SAMPLES 50

/* A format whose samples encode their index and epoch. Some are faulty or missing, and one is never
 * delivered. */
struct odd {
	struct dataset dataset;
	uint64_t faulty;   /* one bit per sample */
	int missing;	   /* a sample whose file is missing, or -1 */
	int endless;	   /* a sample that takes forever, or -1 */
	uint32_t slowness; /* sleep for up to so many microseconds */
};

static int odd_sample(const struct dataset *dataset, uint32_t index, uint32_t epoch,
		      struct dataset_scratch *scratch, void *raw, void *target, struct error *err)
{
	const struct odd *odd = (const struct odd *)dataset;
	unsigned char *bytes = raw;
	uint32_t words[4];

	augment_draw(99, epoch, index, 0, words);
	if (odd->slowness)
		usleep(words[0] % odd->slowness);
	while ((int)index == odd->endless)
		usleep(1000);
	if ((int)index == odd->missing)
		return error_set(err, ERR_INPUT, "file %u is missing", index);
	for (int i = 0; i < 12; i++)
		bytes[i] = (unsigned char)(index * 4 + (unsigned)i);
	bytes[11] = (unsigned char)epoch;
	*(int32_t *)target = (int32_t)index + 1000;
	if (odd->faulty >> index & 1)
		return error_set(err, ERR_DATA, "file %u is corrupt", index);
	return 0;
}

static const struct dataset_format format = {
	.name = "odd", .files = true, .bytes = true, .sample = odd_sample};
static float table[3][256];

static struct odd odd_make(void)
{
	static const float mean[] = {0.1f, 0.2f, 0.3f}, deviation[] = {1, 2, 3};

	augment_table(3, mean, deviation, table);
	return (struct odd){
		.dataset = {.format = &format,
			    .count = SAMPLES,
			    .shape = {3, 2, 2},
			    .classes = 10,
			    .augment_seed = 4,
			    .augment = {.crop_pad = 1, .flip = true},
			    .table = table},
		.missing = -1,
		.endless = -1,
	};
}

static int threads_here(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = 0;

	while (readdir(tasks))
		count++;
	closedir(tasks);
	return count - 2;
}

/* A joined thread stays in /proc for a moment. */
static void threads_are(int expected)
{
	for (int i = 0; i < 2000 && threads_here() != expected; i++)
		usleep(1000);
	assert_int_equal(threads_here(), expected);
}

static struct loader *start(const struct odd *odd, int batch, int threads, bool raw)
{
	const struct loader_request request = {
		.dataset = &odd->dataset,
		.batch = batch,
		.threads = threads,
		.raw = raw,
		.timeout_ms = 20000,
	};
	struct loader *loader;
	struct error err = {0};

	if (loader_new(&request, &loader, &err))
		fail_msg("%s", err.text);
	return loader;
}

/* ---- the loader ---- */

/* Ten batches of odd sizes: compare x and targets with samples that are read one by one. */
static void same_for_all_threads(void **state)
{
	static const int threads[] = {0, 1, 2, 7};

	for (size_t t = 0; t < ROWS(threads); t++) {
		struct odd odd = odd_make();
		int before = threads_here();

		odd.slowness = 300;
		struct loader *loader = start(&odd, 9, threads[t], false);
		struct dataset_scratch scratch = {0};
		int added = 0;

		threads_are(before + threads[t]);
		for (int n = 0; n < 10; n++) {
			uint32_t indices[9];
			struct batch *batch;
			struct error err = {0};

			for (; added < 10 && !loader_full(loader); added++) {
				for (uint32_t i = 0; i < 9; i++)
					indices[i] = ((uint32_t)added * 9 + i * 3) % SAMPLES;
				loader_submit(loader, indices, added % 2 ? 9 : 4, added,
					      added * 100);
			}
			assert_int_equal(loader_next(loader, &batch, &err), 0);
			assert_int_equal(batch->count, n % 2 ? 9 : 4);
			assert_int_equal(batch->tag, n * 100);
			for (int i = 0; i < batch->count; i++) {
				float x[12];
				int32_t target;

				assert_int_equal(
					dataset_sample(&odd.dataset,
						       ((uint32_t)n * 9 + (uint32_t)i * 3) %
							       SAMPLES,
						       n, &scratch, x, &target, &err),
					0);
				assert_memory_equal(batch->x + i * 12, x, sizeof x);
				assert_int_equal(((int32_t *)batch->target)[i], target);
			}
			loader_release(loader);
		}
		dataset_scratch_free(&scratch);
		loader_free(loader);
		threads_are(before);
	}
}

/* Raw samples, augmented by the caller with the random choices, equal what the loader itself makes.
 */
static void raw_is_the_same(void **state)
{
	struct odd odd = odd_make();
	struct loader *whole = start(&odd, 8, 2, false), *raw = start(&odd, 8, 2, true);
	const uint32_t indices[8] = {3, 1, 4, 15, 9, 2, 6, 5};
	struct batch *one, *two;
	struct error err = {0};

	loader_submit(whole, indices, 8, 7, 0);
	loader_submit(raw, indices, 8, 7, 0);
	assert_int_equal(loader_next(whole, &one, &err), 0);
	assert_int_equal(loader_next(raw, &two, &err), 0);
	assert_null(two->x);
	for (int i = 0; i < 8; i++) {
		float x[12];

		augment_apply((unsigned char *)two->raw + i * 12, &odd.dataset.shape, 1,
			      &two->augments[i], (const float(*)[256])table, x);
		assert_memory_equal(x, one->x + i * 12, sizeof x);
		assert_int_equal(((int32_t *)two->target)[i], ((int32_t *)one->target)[i]);
	}
	loader_free(whole);
	loader_free(raw);
}

static void faulty_samples(void **state)
{
	static const struct {
		enum split split;
		bool strict;
		uint64_t faulty;
		int missing;
		uint32_t indices[5];
		int rc;
		const char *words;
		int count;
		int32_t targets[5];
		int faults;
		const char *why;
	} rows[] = {
		{SPLIT_TRAIN,
		 false,
		 0,
		 -1,
		 {1, 2, 3, 4, 5},
		 0,
		 "",
		 5,
		 {1001, 1002, 1003, 1004, 1005},
		 0,
		 "none"},
		{SPLIT_TRAIN,
		 false,
		 1u << 2,
		 -1,
		 {1, 2, 3, 4, 5},
		 0,
		 "",
		 5,
		 {1001, 1003, 1003, 1004, 1005},
		 1,
		 "the next sample replaces it"},
		{SPLIT_TRAIN,
		 false,
		 7ull << 3,
		 -1,
		 {1, 3, 4, 9, 5},
		 0,
		 "",
		 5,
		 {1001, 1006, 1006, 1009, 1006},
		 6,
		 "the next good sample replaces it"},
		{SPLIT_TRAIN,
		 false,
		 UINT64_C(3) << 48,
		 -1,
		 {1, 2, 3, 48, 5},
		 0,
		 "",
		 5,
		 {1001, 1002, 1003, 1000, 1005},
		 2,
		 "the first sample follows the last"},
		{SPLIT_TRAIN,
		 false,
		 UINT64_MAX,
		 -1,
		 {1, 2, 3, 4, 5},
		 -ERR_DATA,
		 "50 consecutive samples",
		 0,
		 {0},
		 0,
		 "no good sample"},
		{SPLIT_VAL,
		 false,
		 1u << 2 | 1u << 5,
		 -1,
		 {1, 2, 3, 4, 5},
		 0,
		 "",
		 3,
		 {1001, 1003, 1004},
		 2,
		 "omitted from an evaluation"},
		{SPLIT_VAL,
		 false,
		 UINT64_MAX,
		 -1,
		 {1, 2, 3, 4, 5},
		 0,
		 "",
		 0,
		 {0},
		 5,
		 "all omitted"},
		{SPLIT_TRAIN,
		 true,
		 1u << 2 | 1u << 4 | 1u << 5,
		 -1,
		 {1, 4, 2, 4, 5},
		 -ERR_DATA,
		 "file 4 is corrupt",
		 0,
		 {0},
		 0,
		 "strict: the first of the batch"},
		{SPLIT_VAL,
		 true,
		 1u << 5,
		 -1,
		 {1, 2, 3, 4, 5},
		 -ERR_DATA,
		 "file 5 is corrupt",
		 0,
		 {0},
		 0,
		 "strict: also for val"},
		{SPLIT_TRAIN,
		 false,
		 0,
		 4,
		 {1, 2, 3, 4, 5},
		 -ERR_INPUT,
		 "file 4 is missing",
		 0,
		 {0},
		 0,
		 "a missing file is not a faulty sample"},
	};
	static const int threads[] = {0, 3};

	for (size_t i = 0; i < ROWS(rows) * ROWS(threads); i++) {
		size_t r = i / ROWS(threads);
		struct odd odd = odd_make();
		struct batch *batch;
		struct error err = {0};
		int rc;

		odd.slowness = 2000;
		odd.dataset.split = rows[r].split;
		odd.dataset.strict = rows[r].strict;
		odd.faulty = rows[r].faulty;
		odd.missing = rows[r].missing;
		struct loader *loader = start(&odd, 5, threads[i % ROWS(threads)], false);

		loader_submit(loader, rows[r].indices, 5, 1, 0);
		rc = loader_next(loader, &batch, &err);
		if (rc != rows[r].rc || !strstr(err.text, rows[r].words))
			fail_msg("%s: %d '%s'", rows[r].why, rc, err.text);
		if (!rc) {
			if (batch->count != rows[r].count || batch->fault_count != rows[r].faults)
				fail_msg("%s: %d samples, %d faults", rows[r].why, batch->count,
					 batch->fault_count);
			for (int k = 0; k < batch->count; k++)
				if (((int32_t *)batch->target)[k] != rows[r].targets[k])
					fail_msg("%s: target %d is %d", rows[r].why, k,
						 ((int32_t *)batch->target)[k]);
			for (int k = 1; k < batch->fault_count; k++)
				assert_true(batch->faults[k].position >=
					    batch->faults[k - 1].position);
		}
		loader_free(loader);
	}
}

static void dropped(void **state)
{
	struct odd odd = odd_make();
	struct loader *loader;
	const uint32_t first[3] = {1, 2, 3}, second[3] = {7, 8, 9};
	struct batch *batch;
	struct error err = {0};

	odd.slowness = 3000;
	loader = start(&odd, 3, 2, false);
	for (int n = 0; n < 5; n++) {
		while (!loader_full(loader))
			loader_submit(loader, first, 3, 0, 1);
		loader_discard(loader);
		loader_submit(loader, second, 3, 0, 2);
		assert_int_equal(loader_next(loader, &batch, &err), 0);
		assert_int_equal(batch->tag, 2);
		assert_int_equal(((int32_t *)batch->target)[2], 1009);
		loader_discard(loader);
	}
	/* Free the loader while it works. */
	while (!loader_full(loader))
		loader_submit(loader, first, 3, 0, 1);
	loader_free(loader);
}

/* If a file system does not respond, the wait ends, and loader_free does not hang. */
static void never_comes(void **state)
{
	struct odd odd = odd_make();
	static struct odd kept; /* the hanging thread still reads it */
	const uint32_t indices[3] = {1, 2, 3};
	struct loader_request request = {
		.dataset = &kept.dataset, .batch = 3, .threads = 2, .timeout_ms = 200};
	struct loader *loader;
	struct batch *batch;
	struct error err = {0};

	kept = odd;
	kept.endless = 2;
	assert_int_equal(loader_new(&request, &loader, &err), 0);
	loader_submit(loader, indices, 3, 0, 0);
	/* If the threads are scheduled late, an earlier wait finds fewer samples. */
	for (int i = 0; !strstr(err.text, "2 of 3 samples"); i++) {
		assert_int_equal(loader_next(loader, &batch, &err), -ERR_IO);
		assert_true(i < wait_ms(30000) / request.timeout_ms);
	}
	assert_false(loader_free(loader));
}

/* ---- the feed ---- */

static int said;
static char last_said[256];

static void fault(void *context, const char *text)
{
	said++;
	snprintf(last_said, sizeof last_said, "%s", text);
}

/* The feed's batches are those of sampler_batch, also from the middle of an epoch, and in the next
 * one. */
static void feeds_the_epoch(void **state)
{
	static const int threads[] = {0, 2};

	for (size_t t = 0; t < ROWS(threads); t++)
		for (int rank = 0; rank < 3; rank++) {
			struct odd odd = odd_make();
			struct sampler sampler;
			struct error err = {0};
			struct feed *feed;

			sampler_init(&sampler, 3, SAMPLES, true);
			const struct feed_request request = {
				.loader = {.dataset = &odd.dataset,
					   .batch = 4,
					   .threads = threads[t],
					   .timeout_ms = 20000},
				.sampler = &sampler,
				.rank = rank,
				.world = 3,
			};

			assert_int_equal(feed_new(&request, &feed, &err), 0);
			for (int64_t epoch = 0; epoch < 3; epoch++) {
				int64_t position = epoch == 1 ? 24 : 0, global, expected;

				assert_int_equal(sampler_begin(&sampler, epoch, 3, &err), 0);
				for (;; position += global) {
					uint32_t indices[4];
					struct batch *batch = NULL;
					int count = sampler_batch(&sampler, position, rank, 3, 12,
								  indices, &expected);

					assert_int_equal(feed_next(feed, position, &batch, &global,
								   &(double){0}, &err),
							 0);
					assert_int_equal(global, expected);
					if (!global)
						break;
					assert_int_equal(batch->count, count);
					for (int i = 0; i < count; i++)
						assert_int_equal(((int32_t *)batch->target)[i],
								 indices[i] + 1000);
				}
			}
			feed_free(feed);
			sampler_free(&sampler);
		}
}

/* Without a sampler, each sample is delivered once over all ranks, in every epoch. */
static void feeds_each_once(void **state)
{
	struct odd odd = odd_make();
	int seen[SAMPLES] = {0};

	odd.dataset.split = SPLIT_VAL;
	odd.faulty = 1u << 7;
	said = 0;
	for (int rank = 0; rank < 3; rank++) {
		const struct feed_request request = {
			.loader = {.dataset = &odd.dataset,
				   .batch = 4,
				   .threads = 2,
				   .timeout_ms = 20000},
			.rank = rank,
			.world = 3,
			.fault = fault,
		};
		struct feed *feed;
		struct error err = {0};

		assert_int_equal(feed_new(&request, &feed, &err), 0);
		for (int again = 0; again < 2; again++)
			for (int64_t position = 0, global;; position += global) {
				struct batch *batch;

				assert_int_equal(feed_next(feed, position, &batch, &global,
							   &(double){0}, &err),
						 0);
				if (!global)
					break;
				for (int i = 0; i < batch->count; i++)
					seen[((int32_t *)batch->target)[i] - 1000]++;
			}
		/* Sample 7 belongs to rank 1: found twice, reported once. */
		assert_int_equal(feed_faults(feed), rank == 1 ? 2 : 0);
		feed_free(feed);
	}
	for (int i = 0; i < SAMPLES; i++)
		assert_int_equal(seen[i], i == 7 ? 0 : 2);
	assert_int_equal(said, 1);
	assert_string_equal(last_said, "file 7 is corrupt");
}

static void *nothing(void *context)
{
	return context;
}

/* ThreadSanitizer starts a thread of its own with the first one: before threads are counted. */
static int first_thread(void **state)
{
	pthread_t thread;

	return pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_for_all_threads), cmocka_unit_test(raw_is_the_same),
		cmocka_unit_test(faulty_samples),	cmocka_unit_test(dropped),
		cmocka_unit_test(feeds_the_epoch),	cmocka_unit_test(feeds_each_once),
		cmocka_unit_test(never_comes),
	};

	return cmocka_run_group_tests(tests, first_thread, NULL);
}
