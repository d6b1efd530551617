/* SPDX-License-Identifier: BSD-3-Clause */
/* A device under test, and the memory of one case on it. */
#ifndef BERTH_TESTS_OPS_SUPPORT_H
#define BERTH_TESTS_OPS_SUPPORT_H

#include <stdbool.h>

#include "train/device/device.h"

extern uint64_t test_seed;
struct bench; /* opaque */

/* Begin a test program: test_seed from BERTH_TEST_SEED or the clock, printed; the device that
 * argv[1] names, cpu-reference without it. 0, or 77 after saying that there is no such device. */
int bench_choose(int argc, char **argv);
/* cmocka's group set-up and tear-down: *state is the bench. */
int bench_begin(void **state);
int bench_end(void **state);
/* End a case: give its memory back. */
void bench_clear(struct bench *bench);

/* 0 to n - 1, and a uniform number of -1 to 1, of the run's own sequence. */
int64_t bench_below(struct bench *bench, int64_t n);
float bench_number(struct bench *bench);

/* An input of random numbers; one of given 4-byte words; a result full of NaNs (as I32: of large
 * negative numbers). All have a guard behind them. */
struct tensor bench_random(struct bench *bench, int rank, const int64_t *shape);
struct tensor bench_given(struct bench *bench, enum element_type type, int rank,
			  const int64_t *shape, const void *words);
struct tensor bench_result(struct bench *bench, int rank, const int64_t *shape);
/* Where a gradient goes: full of NaNs, or of random numbers that it is added to. */
struct tensor bench_gradient(struct bench *bench, int rank, const int64_t *shape, bool add);
/* Change one element of an input; from now on call what is in tensor a result (read and written).
 */
void bench_set(struct bench *bench, const struct tensor *tensor, int64_t at, float value);
void bench_in_out(struct bench *bench, const struct tensor *tensor);
/* What was in tensor before the first run; borrowed until bench_settle or bench_clear. */
const float *bench_before(struct bench *bench, const struct tensor *tensor);
/* From now on all tensors that there are are inputs, with what is in them now. */
void bench_settle(struct bench *bench);

/* Run call: must succeed, change no input and no guard, and give the same bits a second time from
 * the same beginning. */
void bench_run(struct bench *bench, const struct op_call *call);
int bench_try(struct bench *bench, const struct op_call *call, struct error *err);
/* The elements in host memory, malloced. */
void *bench_fetch(struct bench *bench, const struct tensor *tensor);

/* One element of a result in float64: the sum, the sum of absolutes and how many were summed. */
struct exact {
	double sum, size;
	long count;
};

/* One for each element of tensor, malloced; with add what was in it before the first run. */
struct exact *exact_new(struct bench *bench, const struct tensor *tensor, bool add);
void exact_add(struct exact *exact, double left, double right);
/* Each element of tensor is what exact says: errors of float32 sums grow like a random walk, and 8
 * of its deviations are allowed, times what the device's row in ops_support.c says. Takes exact. */
void exact_check(struct bench *bench, const char *what, const struct tensor *tensor,
		 struct exact *exact);

#endif
