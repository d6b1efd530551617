/* SPDX-License-Identifier: BSD-3-Clause */
/* A device under test, and the memory of one case on it. */
#ifndef BERTH_TESTS_OPS_SUPPORT_H
#define BERTH_TESTS_OPS_SUPPORT_H

#include <stdbool.h>

#include "train/device/device.h"

extern uint64_t test_seed;
struct bench; /* opaque */

/* Take test_seed from BERTH_TEST_SEED or the clock and print it. */
void bench_seed(void);
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
/* Change one element of an input; from now on call what is in tensor a result (read and written).
 */
void bench_set(struct bench *bench, const struct tensor *tensor, int64_t at, float value);
void bench_in_out(struct bench *bench, const struct tensor *tensor);

/* Run call: must succeed, change no input and no guard, and give the same bits a second time (when
 * no tensor is read and written). */
void bench_run(struct bench *bench, const struct op_call *call);
int bench_try(struct bench *bench, const struct op_call *call, struct error *err);
/* The elements in host memory, malloced. */
void *bench_fetch(struct bench *bench, const struct tensor *tensor);

#endif
