/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums in memory that ranks share. Each rank maps it separately, as processes do; the ranks first
 * take turns in one thread, then run in concurrent threads. */
#include "../rows.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "train/comm/shm_allreduce.h"

#define RANKS_MOST 5
#define ROUNDS 60

/* Counts around the edges of a chunk and a block; the sums lie one after another. */
static const size_t counts[] = {1, 0, 16384, 16385, 1023, 1025, 40000, 7};
#define SUMS (sizeof counts / sizeof *counts)
#define FLOATS 75000

static void open_all(int ranks, struct shm_allreduce **windows)
{
	struct shm_handle name;
	struct error err = {0};

	assert_int_equal(shm_allreduce_create(0, ranks, FLOATS * sizeof(float), 77, &windows[0],
					      &name, &err),
			 0);
	for (int r = 1; r < ranks; r++)
		assert_int_equal(shm_allreduce_attach(r, ranks, FLOATS * sizeof(float), &name,
						      &windows[r], &err),
				 0);
	shm_allreduce_seal(windows[0]);
}

static float number(int rank, size_t i, int round)
{
	return (float)((double)((i * 2654435761u + (unsigned)round * 97u) % 100003u) *
		       (rank % 2 ? -1.37e-3 : 1e3) / (rank + 1));
}

static void fill(struct shm_allreduce *shm, int rank, int round)
{
	float *data = shm_allreduce_buffer(shm);

	for (size_t i = 0; i < FLOATS; i++)
		data[i] = number(rank, i, round);
}

static int begin_all(struct shm_allreduce *shm, struct error *err)
{
	float *at = shm_allreduce_buffer(shm);
	int rc = 0;

	for (size_t s = 0; !rc && s < SUMS; at += counts[s++])
		rc = shm_allreduce_start(shm, at, counts[s], err);
	return rc;
}

/* Compare every bit, because ranks are added in order. Memory outside the sums must stay unchanged.
 */
static bool right(const struct shm_allreduce *shm, int rank, int ranks, int round)
{
	const float *data = shm_allreduce_buffer(shm);
	size_t summed = 0;

	for (size_t s = 0; s < SUMS; s++)
		summed += counts[s];
	for (size_t i = 0; i < FLOATS; i++) {
		float expected = number(i < summed ? 0 : rank, i, round);

		for (int r = 1; i < summed && r < ranks; r++)
			expected += number(r, i, round);
		if (memcmp(&expected, &data[i], sizeof expected)) {
			print_error("rank %d of %d, element %zu: %g, not %g\n", rank, ranks, i,
				    (double)data[i], (double)expected);
			return false;
		}
	}
	return true;
}

static void test_by_turns(void **state)
{
	for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
		struct shm_allreduce *windows[RANKS_MOST] = {0};
		struct error err = {0};

		open_all(ranks, windows);
		for (int round = 0; round < 3; round++) {
			for (int r = 0; r < ranks; r++) {
				assert_true(shm_allreduce_done(windows[r]));
				fill(windows[r], r, round);
			}
			for (int r = 0; r < ranks; r++) {
				assert_false(shm_allreduce_has_arrived(windows[0], r) && r);
				assert_int_equal(begin_all(windows[r], &err), 0);
				assert_false(shm_allreduce_done(windows[r]));
				/* Nothing is changed before the last rank has begun. */
				assert_int_equal(shm_allreduce_progress(windows[r]),
						 r == ranks - 1);
				for (int other = 0; other < ranks; other++)
					assert_int_equal(
						shm_allreduce_has_arrived(windows[r], other),
						other <= r);
			}
			/* One rank may do all of the work. */
			while (shm_allreduce_progress(windows[round % ranks]))
				;
			for (int r = 0; r < ranks; r++) {
				assert_true(shm_allreduce_done(windows[r]));
				assert_true(right(windows[r], r, ranks, round));
			}
		}
		for (int r = 0; r < ranks; r++)
			shm_allreduce_free(windows[r]);
	}
}

struct racer {
	struct shm_allreduce *shm;
	int rank, ranks;
	bool passed;
};

static void *race(void *context)
{
	struct racer *racer = context;
	struct error err = {0};

	racer->passed = true;
	for (int round = 0; racer->passed && round < ROUNDS; round++) {
		fill(racer->shm, racer->rank, round);
		racer->passed = !begin_all(racer->shm, &err);
		while (!shm_allreduce_done(racer->shm))
			if (!shm_allreduce_progress(racer->shm))
				sched_yield();
		racer->passed =
			racer->passed && right(racer->shm, racer->rank, racer->ranks, round);
	}
	return NULL;
}

static void test_race(void **state)
{
	struct shm_allreduce *windows[RANKS_MOST] = {0};
	struct racer racers[RANKS_MOST];
	pthread_t threads[RANKS_MOST];
	const int ranks = 3;

	open_all(ranks, windows);
	for (int r = 0; r < ranks; r++) {
		racers[r] = (struct racer){windows[r], r, ranks, false};
		assert_int_equal(pthread_create(&threads[r], NULL, race, &racers[r]), 0);
	}
	for (int r = 0; r < ranks; r++)
		pthread_join(threads[r], NULL);
	for (int r = 0; r < ranks; r++) {
		assert_true(racers[r].passed);
		shm_allreduce_free(windows[r]);
	}
}

static void test_holds(void **state)
{
	struct shm_allreduce *windows[RANKS_MOST] = {0};
	float elsewhere = 0;

	open_all(2, windows);

	float *mine = shm_allreduce_buffer(windows[0]), *other = shm_allreduce_buffer(windows[1]);

	assert_true(shm_allreduce_contains(windows[0], mine, FLOATS));
	assert_true(shm_allreduce_contains(windows[0], mine + FLOATS - 1, 1));
	assert_false(shm_allreduce_contains(windows[0], mine, FLOATS + 4096));
	assert_false(shm_allreduce_contains(windows[0], mine, SIZE_MAX));
	assert_false(shm_allreduce_contains(windows[0], mine - 1, 1));
	assert_false(shm_allreduce_contains(windows[0], &elsewhere, 1));
	assert_false(shm_allreduce_contains(windows[0], other, 1));
	assert_int_equal((uintptr_t)mine % 64, 0);
	shm_allreduce_free(windows[0]);
	shm_allreduce_free(windows[1]);
}

static void test_refused(void **state)
{
	struct shm_allreduce *shm = NULL, *none = NULL;
	struct shm_handle name;
	struct error err = {0};
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(shm_allreduce_create(0, 2, 4096, 5, &shm, &name, &err), 0);

	const struct {
		const char *why;
		struct shm_handle name;
		size_t size_bytes;
	} rows[] = {
		{"another job's nonce", {name.pid, name.fd, 6}, 4096},
		{"another size", {name.pid, name.fd, 5}, 8192},
		{"no such process", {(int64_t)1 << 40, name.fd, 5}, 4096},
		{"no such descriptor", {name.pid, 1 << 20, 5}, 4096},
		{"a pipe", {name.pid, ends[0], 5}, 4096},
		{"an invalid pid and descriptor", {-1, -1, 5}, 4096},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		if (shm_allreduce_attach(1, 2, rows[i].size_bytes, &rows[i].name, &none, &err) !=
		    -ERR_UNAVAILABLE)
			fail_msg("%s was mapped", rows[i].why);
		assert_null(none);
		assert_true(err.text[0]);
	}
	shm_allreduce_seal(shm);
	assert_int_equal(shm_allreduce_attach(1, 2, 4096, &name, &none, &err), -ERR_UNAVAILABLE);
	shm_allreduce_free(shm);
	assert_int_equal(shm_allreduce_create(0, 2, SIZE_MAX / 2, 5, &none, &name, &err),
			 -ERR_UNAVAILABLE);
	shm_allreduce_free(NULL);
	close(ends[0]);
	close(ends[1]);
}

static void test_limit(void **state)
{
	struct rlimit before, small;
	struct shm_allreduce *none = NULL;
	struct shm_handle name;
	struct error err = {0};

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	small = before;
	small.rlim_cur = 4096;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	assert_int_equal(shm_allreduce_create(0, 2, 65536, 5, &none, &name, &err),
			 -ERR_UNAVAILABLE);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_null(none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_turns), cmocka_unit_test(test_race),
		cmocka_unit_test(test_holds),	 cmocka_unit_test(test_refused),
		cmocka_unit_test(test_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
