/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-gloo.so as installed, between processes: its results, how exact they are, and what happens
 * when a rank hangs, gives up or ends. */
#include "../../reference/reference.h"
#include "comm_job.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

static struct device *open_cpu(void)
{
	struct device *device;

	return device_cpu_reference.device.open(0, &device, NULL) ? NULL : device;
}

static void test_well(void **state)
{
	int status[RANKS];

	for (int size = 2; size <= 4; size++) {
		job(rank_well, size, NULL, false, LONG_MS, status);
		job_all_well(size, status);
	}
}

/* ---- exactness ---- */

#define COUNT 300000

static float number(int rank, size_t i)
{
	return (float)((double)((i * 2654435761u + (unsigned)rank * 97u) % 100003u) *
		       (rank % 2 ? -1.37e-3 : 1e3));
}

/* A sum of n numbers in any order is off by at most n - 1 roundings of a partial sum, which is no
 * larger than the sum of their sizes. Repeats give the same bits. */
static void exact(struct rank *rank)
{
	float *data = malloc(COUNT * sizeof *data), *first = malloc(COUNT * sizeof *first);

	WANT(data && first && !rank_open(rank));
	for (int repeat = 0; repeat < 5; repeat++) {
		for (size_t i = 0; i < COUNT; i++)
			data[i] = number(rank->rank, i);
		/* Several at once, as the trainer's buckets. */
		for (size_t at = 0; at < COUNT; at += COUNT / 3)
			WANT(!rank->comm->ops->all_reduce(rank->comm, rank->queue, data + at,
							  COUNT / 3, ELEMENT_F32, COMM_SUM,
							  &rank->err));
		WANT(!rank->comm->ops->finish(rank->comm, rank->queue, &rank->err));
		if (!repeat)
			memcpy(first, data, COUNT * sizeof *data);
		WANT(!memcmp(first, data, COUNT * sizeof *data));
	}
	for (size_t i = 0; i < COUNT; i++) {
		double sum = 0, sizes = 0;

		for (int r = 0; r < rank->size; r++) {
			sum += (double)number(r, i);
			sizes += fabs((double)number(r, i));
		}
		WANT(fabs((double)data[i] - sum) <=
		     (rank->size - 1) * (double)FLT_EPSILON / 2 * sizes);
	}
	free(data);
	free(first);
	rank_close(rank);
}

static void test_exact(void **state)
{
	int status[RANKS];

	for (int size = 2; size <= 4; size++) {
		job(exact, size, NULL, false, LONG_MS, status);
		job_all_well(size, status);
	}
}

/* ---- failures ---- */

static int reduce(struct rank *rank, double value)
{
	return comm_reduce_on_host(rank->comm, rank->queue, &value, 1, COMM_SUM, &rank->err);
}

static void one_hangs(struct rank *rank)
{
	WANT(!rank_open(rank));
	WANT(!reduce(rank, 1));
	if (rank->rank == 1) {
		sleep(SHORT_MS / 1000 + 4);
		_exit(0);
	}
	WANT(reduce(rank, 1) == -ERR_NETWORK);
	struct error again = rank->err;

	/* Nothing works after a failure, and nothing waits. */
	WANT(reduce(rank, 1) == -ERR_NETWORK && !strcmp(again.text, rank->err.text));
	WANT(rank->comm->ops->progress(rank->comm, &rank->err) == -ERR_NETWORK);
	rank_close(rank);
}

static void test_one_hangs(void **state)
{
	int status[RANKS];
	char host[64], text[160];

	gethostname(host, sizeof host);
	job(one_hangs, 3, NULL, false, SHORT_MS, status);
	snprintf(text, sizeof text, "on %s waited 3 s in a collective; missing ranks: 1 on %s.",
		 host, host);
	job_has(0, text);
	job_has(2, text);
	/* The deadline, and the search for who is missing. */
	assert_true(said[0].seconds < 3 * (SHORT_MS + 2000) / 1000.0);
}

static void one_ends(struct rank *rank)
{
	WANT(!rank_open(rank));
	WANT(!reduce(rank, 1));
	if (rank->rank == 0)
		raise(SIGKILL);
	WANT(reduce(rank, 1) == -ERR_NETWORK);
	rank_close(rank);
}

static void test_one_ends(void **state)
{
	int status[RANKS];

	job(one_ends, 3, NULL, false, LONG_MS, status);
	assert_int_equal(status[0], 128 + SIGKILL);
	for (int rank = 1; rank < 3; rank++) {
		assert_int_equal(status[rank], 0);
		job_has(rank, "lost a connection: ");
		job_has(rank, "; missing ranks: 0 on ");
		assert_true(said[rank].seconds < LONG_MS / 2000.0);
	}
}

static void *abort_soon(void *context)
{
	struct comm *comm = context;

	nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
	comm->ops->abort(comm, "the test requested it");
	return NULL;
}

static void aborted(struct rank *rank)
{
	pthread_t thread;

	WANT(!rank_open(rank));
	if (rank->rank) {
		sleep(2);
		_exit(0);
	}
	WANT(!pthread_create(&thread, NULL, abort_soon, rank->comm));
	WANT(reduce(rank, 1) == -ERR_NETWORK);
	pthread_join(thread, NULL);
	rank_close(rank);
}

static void test_abort(void **state)
{
	int status[RANKS];

	job(aborted, 2, NULL, false, LONG_MS, status);
	assert_int_equal(status[0], 0);
	job_has(0, "aborted: the test requested it");
	assert_true(said[0].seconds < LONG_MS / 2000.0);
}

/* The others leave at once, not after a deadline. */
static void leaves_early(struct rank *rank)
{
	WANT(!rank_open(rank));
	if (rank->rank == 1)
		_exit(0);
	rank_close(rank);
}

static void test_leaves_early(void **state)
{
	int status[RANKS];

	job(leaves_early, 3, NULL, false, LONG_MS, status);
	for (int rank = 0; rank < 3; rank++)
		assert_int_equal(status[rank], 0);
	assert_true(said[0].seconds < LONG_MS / 2000.0);
}

static void one_stays_away(struct rank *rank)
{
	if (rank->rank == 2)
		_exit(0);
	WANT(rank_open(rank) == -ERR_NETWORK);
}

static void test_stays_away(void **state)
{
	int status[RANKS];

	job(one_stays_away, 3, NULL, false, SHORT_MS, status);
	assert_int_equal(status[0], 0);
	job_has(0, "rank 2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_well),	   cmocka_unit_test(test_exact),
		cmocka_unit_test(test_one_hangs),  cmocka_unit_test(test_one_ends),
		cmocka_unit_test(test_abort),	   cmocka_unit_test(test_leaves_early),
		cmocka_unit_test(test_stays_away),
	};

	job_comm = "gloo";
	job_device = open_cpu;
	return job_main(tests, sizeof tests / sizeof *tests);
}
