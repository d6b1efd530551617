/* SPDX-License-Identifier: BSD-3-Clause */
/* A device under test, and the memory of one case on it. */
#ifndef BERTH_TESTS_OPS_SUPPORT_H
#define BERTH_TESTS_OPS_SUPPORT_H

#include <stdbool.h>

#include "op_network.h"

extern uint64_t test_seed;
struct bench; /* opaque */

/* Start a test program: print test_seed (from BERTH_TEST_SEED or the clock) and open op_emitter's
 * device. Return 0, or 77 with a message if that device is missing. */
int bench_choose(void);
/* cmocka's group set-up and tear-down: *state is the bench. */
int bench_begin(void **state);
int bench_end(void **state);
/* End a case: free its memory. */
void bench_clear(struct bench *bench);

/* Does the device run an op on a batch of this size? Executors handle empty ones before they run
 * any op. */
bool bench_supports(int64_t batch);

/* An integer from 0 to n - 1, and a uniform number from -1 to 1, from the run's random sequence. */
int64_t bench_below(struct bench *bench, int64_t n);
float bench_number(struct bench *bench);

/* An input of random numbers; an input of given 4-byte words; a result filled with NaNs (as I32:
 * large negative numbers). A guard follows each. */
struct tensor bench_random(struct bench *bench, int rank, const int64_t *shape);
struct tensor bench_given(struct bench *bench, enum element_type type, int rank,
			  const int64_t *shape, const void *words);
struct tensor bench_result(struct bench *bench, int rank, const int64_t *shape);
/* The destination of a gradient: filled with NaNs, or with random numbers to which the gradient is
 * added. */
struct tensor bench_gradient(struct bench *bench, int rank, const int64_t *shape, bool add);
/* Change one element of an input; treat tensor as a result from now on (read and written). */
void bench_set(struct bench *bench, const struct tensor *tensor, int64_t at, float value);
void bench_in_out(struct bench *bench, const struct tensor *tensor);
/* The contents of tensor before the first run; borrowed until bench_settle or bench_clear. */
const float *bench_before(struct bench *bench, const struct tensor *tensor);
/* Treat all existing tensors as inputs from now on, with their present contents. */
void bench_settle(struct bench *bench);

/* Run call. It must succeed, change no input and no guard, and give the same bits when it is run
 * again from the same state. */
void bench_run(struct bench *bench, const struct op_call *call);
int bench_try(struct bench *bench, const struct op_call *call, struct error *err);
/* The elements in host memory, malloced. */
void *bench_fetch(struct bench *bench, const struct tensor *tensor);

/* One element of a result in float64: the sum, the sum of absolute values, and the number of terms.
 */
struct exact {
	double sum, size;
	long count;
};

/* One for each element of tensor, malloced; if add is set, they include the contents before the
 * first run. */
struct exact *exact_new(struct bench *bench, const struct tensor *tensor, bool add);
void exact_add(struct exact *exact, double left, double right);
/* Check each element of tensor against exact. Errors of float32 sums grow like a random walk; 8
 * standard deviations are allowed. Frees exact. */
void exact_check(struct bench *bench, const char *what, const struct tensor *tensor,
		 struct exact *exact);

#endif
