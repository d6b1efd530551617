/* SPDX-License-Identifier: BSD-3-Clause */
/* Ops of the CUDA device in 16 bits, each on its own, through the calls that training steps make
 * (cuda.h, kernels.h): the memory of one case, and the expected results.
 *
 * The expected results are float64 sums on the host, over the same 16-bit (or float32) numbers that
 * the device was given. The error bound is the forward error of a sum of products (Higham, Accuracy
 * and Stability of Numerical Algorithms, 2nd ed., 3.1 and 2.2). Products of 16-bit numbers are
 * exact in float32. A float32 sum of n terms errs like a random walk of n roundings (Higham and
 * Mary, SIAM J. Sci. Comput. 41(5), 2019), of which 8 standard deviations are allowed, as in
 * ops_support.c. Writing the result in 16 bits adds one unit roundoff u (fp16 2^-11, bf16 2^-8; for
 * float32 results 2^-24):
 *
 *   |seen - exact| <= u (|exact| + rounded) + 8 sqrt(n + 1) 2^-24 (sum of |terms|) + least
 *
 * rounded: intermediate values written in 16 bits, such as y before its bias is added; least: half
 * the distance between the type's smallest numbers. */
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
	double *at; /* their values, or those before the op; borrowed until lab_clear */
	size_t count;
	bool sixteen; /* else float32 */
};

/* One allocation, with its initial contents and a guard behind it. */
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
/* Rounded to the type under test, or to float32. */
double lab_rounded(const struct lab *lab, double value, bool sixteen);

/* Begin a case of this name; free the memory of the previous one. */
void lab_case(struct lab *lab, const char *name);
void lab_clear(struct lab *lab);

/* Random numbers from -1 to 1; given numbers, rounded; a result filled with NaNs, or, if add is
 * set, with random numbers to which the op adds. Each has a guard behind it. */
struct numbers lab_random(struct lab *lab, size_t count, bool sixteen);
struct numbers lab_given(struct lab *lab, size_t count, bool sixteen, const double *values);
struct numbers lab_result(struct lab *lab, size_t count, bool sixteen, bool add);
/* Bytes of any kind: data is an input; NULL makes a result with all bits set (workspaces,
 * positions). */
void *lab_bytes(struct lab *lab, size_t bytes, const void *from);
/* Change the contents of an input. */
void lab_put(struct lab *lab, struct numbers *numbers, const double *values);
/* Make numbers an input with its present contents; make it a result, which may be written. */
void lab_settle(struct lab *lab, struct numbers *numbers);
void lab_open(struct lab *lab, const struct numbers *numbers);

/* After an op that returned rc: wait for it, and check that no input and no guard has changed. */
bool lab_done(struct lab *lab, int rc, const struct error *err);
/* The present contents, malloced. */
double *lab_fetch(struct lab *lab, const struct numbers *numbers);
void lab_fetch_bytes(struct lab *lab, const void *memory, size_t bytes, void *to);

/* One element of a result, see above. */
struct exact {
	double sum, size, rounded;
	long count;
};
/* One per element, malloced; if add is set, the initial contents are the first term. */
struct exact *exact_new(const struct numbers *numbers, bool add);
void exact_term(struct exact *exact, double left, double right);
/* Compare with exact, print the error, count the result. Frees exact. */
void lab_check(struct lab *lab, const char *what, const struct numbers *numbers,
	       struct exact *exact);
/* Check that all numbers equal expected, bit by bit. Frees expected. */
void lab_same(struct lab *lab, const char *what, const struct numbers *numbers, double *expected);
void lab_fail(struct lab *lab, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Call product for each x[xi] times w[wi] that is part of y[yi]; w: [outputs][k][k][c]. */
typedef void lab_product(void *context, size_t xi, size_t wi, size_t yi);
void lab_conv_products(const struct conv_shape *shape, lab_product *product, void *context);

/* The cases: layers.c, through.c, norm.c, elements.c, losses.c. */
void layers_cases(struct lab *lab);
void through_cases(struct lab *lab, bool apply_params); /* apply_params: it must be used */
void norm_cases(struct lab *lab);
void element_cases(struct lab *lab);
void loss_cases(struct lab *lab);

#endif
