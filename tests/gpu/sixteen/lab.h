/* SPDX-License-Identifier: BSD-3-Clause */
/* Ops of the CUDA device in 16 bits, each alone, by the calls that its steps make (cuda.h,
 * kernels.h): the memory of one case, and what is right.
 *
 * What is right: float64 sums on the host of the very numbers of 16 bits (or float32) that the
 * device was given. How far a result may be off is the forward error of a sum of products (Higham,
 * Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1 and 2.2): products of 16-bit numbers
 * are exact in float32; a float32 sum of n terms errs like a random walk of n roundings (Higham and
 * Mary, SIAM J. Sci. Comput. 41(5), 2019), of which 8 deviations are allowed, as in ops_support.c;
 * and writing the result in 16 bits adds one unit roundoff u of it (fp16 2^-11, bf16 2^-8): |seen -
 * exact| <= u (|exact| + rounded) + 8 sqrt(n + 1) 2^-24 (sum of |terms|) + least rounded: what is
 * written in 16 bits on the way, as y before its bias is added; least: half the distance of the
 * type's smallest numbers. Results in float32 have 2^-24 in u's place. */
#ifndef BERTH_TESTS_GPU_LAB_H
#define BERTH_TESTS_GPU_LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/device/cuda/cuda.h"

#define LAB_MOST 24

/* Numbers in the device's memory. */
struct numbers {
	void *memory;
	double *at; /* what they are, or were before the op; borrowed until lab_clear */
	size_t count;
	bool sixteen; /* else float32 */
};

/* One allocation, with what it held and a guard behind it. */
struct held {
	unsigned char *memory, *before;
	double *at;
	size_t bytes;
	bool result;
};

struct lab {
	struct cuda *cuda;
	struct kernel_config config;
	const char *type;   /* "fp16" */
	double unit, least; /* see above */
	uint64_t random, seed;
	char name[96]; /* of the case */
	struct held held[LAB_MOST];
	int count;
	int checked, failed; /* results */
};

/* -1 to 1; 0 to n - 1. */
double lab_number(struct lab *lab);
int lab_below(struct lab *lab, int n);
/* As the type under test, or as float32, writes it. */
double lab_rounded(const struct lab *lab, double value, bool sixteen);

/* Begin a case: its name; what the last one held is given back. */
void lab_case(struct lab *lab, const char *name);
void lab_clear(struct lab *lab);

/* Random numbers of -1 to 1; given ones, rounded; a result full of NaNs, or with add of random
 * numbers that are added to. Each has a guard behind it. */
struct numbers lab_random(struct lab *lab, size_t count, bool sixteen);
struct numbers lab_given(struct lab *lab, size_t count, bool sixteen, const double *values);
struct numbers lab_result(struct lab *lab, size_t count, bool sixteen, bool add);
/* Bytes of any kind: as they are (an input), or NULL: all ones (a result: workspaces, places). */
void *lab_bytes(struct lab *lab, size_t bytes, const void *from);
/* Change what is in an input. */
void lab_put(struct lab *lab, struct numbers *numbers, const double *values);
/* numbers becomes an input, with what is in it now; a result, that may be written. */
void lab_settle(struct lab *lab, struct numbers *numbers);
void lab_open(struct lab *lab, const struct numbers *numbers);

/* After an op: wait; no input and no guard may have changed. rc: what the op said. */
bool lab_done(struct lab *lab, int rc, const struct error *err);
/* What is there now, malloced. */
double *lab_fetch(struct lab *lab, const struct numbers *numbers);
void lab_fetch_bytes(struct lab *lab, const void *memory, size_t bytes, void *to);

/* One element of a result, see above. */
struct exact {
	double sum, size, rounded;
	long count;
};
/* One an element, malloced; add: what was in it is the first term. */
struct exact *exact_new(const struct numbers *numbers, bool add);
void exact_term(struct exact *exact, double left, double right);
/* Compare, print how far off it was, count; takes exact. */
void lab_check(struct lab *lab, const char *what, const struct numbers *numbers,
	       struct exact *exact);
/* Each number is the one expected, bit by bit; takes expected. */
void lab_same(struct lab *lab, const char *what, const struct numbers *numbers, double *expected);
void lab_fail(struct lab *lab, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* product of each x[xi] that meets w[wi] in y[yi]; w: [outputs][k][k][c]. */
typedef void lab_product(void *context, size_t xi, size_t wi, size_t yi);
void lab_conv_products(const struct conv_shape *shape, lab_product *product, void *context);

/* The cases: layers.c, through.c, norm.c, elements.c, losses.c. */
void layers_cases(struct lab *lab);
void through_cases(struct lab *lab, bool apply_params); /* apply_params: they must be */
void norm_cases(struct lab *lab);
void element_cases(struct lab *lab);
void loss_cases(struct lab *lab);

#endif
