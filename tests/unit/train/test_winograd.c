/* SPDX-License-Identifier: BSD-3-Clause */
/* Winograd convolutions of each instruction set that this CPU has, compared with sums in double:
 * all passes, paddings, borders, many and few tiles, and any number of threads. */
#include "../rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/cpu/winograd.h"

#define GUARD 64 /* floats after the scratch that must stay as they are */

static float *numbers(size_t count, unsigned seed)
{
	float *values = aligned_alloc(64, (count * sizeof *values + 63) / 64 * 64);

	assert_non_null(values);
	for (size_t i = 0; i < count; i++) {
		seed = seed * 1664525 + 1013904223;
		values[i] = (float)(seed >> 8) / (1 << 23) - 1;
	}
	return values;
}

static size_t at(size_t lanes, size_t channels, size_t height, size_t width, size_t n, size_t c,
		 size_t row, size_t column)
{
	return (((n * channels + c) / lanes * height + row) * width + column) * lanes + c % lanes;
}

/* Everything that one call computes. */
struct results {
	float *y, *dx, *dw, *db;
};

static void results_free(struct results *results)
{
	free(results->y);
	free(results->dx);
	free(results->dw);
	free(results->db);
}

static struct results run(const struct winograd *winograd, struct winograd_call call,
			  size_t x_count, size_t y_count, int threads)
{
	size_t w_count = call.outputs * call.inputs * 9, scratch;
	struct results results = {numbers(y_count, 11), numbers(x_count, 12), numbers(w_count, 13),
				  numbers(call.outputs, 14)};

	call.threads = threads;
	scratch = winograd->scratch(&call);
	call.scratch = numbers(scratch + GUARD, 15);
	call.y = results.y;
	call.dx = results.dx;
	call.dw = results.dw;
	call.db = call.b ? results.db : NULL;
	winograd->forward(&call);
	winograd->backward_input(&call);
	winograd->backward_weights(&call);

	float *untouched = numbers(scratch + GUARD, 15);

	assert_memory_equal(call.scratch + scratch, untouched + scratch, GUARD * sizeof(float));
	free(untouched);
	free(call.scratch);
	return results;
}

static void near(const float *got, const double *want, size_t count, const char *what)
{
	double largest = 0, off = 0;

	for (size_t i = 0; i < count; i++) {
		largest = fmax(largest, fabs(want[i]));
		off = fmax(off, fabs(got[i] - want[i]));
		assert_true(isfinite(got[i]));
	}
	if (off > 1e-5 * largest)
		fail_msg("%s: off by %.1e of %.1e", what, off, largest);
}

/* What results must be, by the definition of a convolution. */
static void check(const struct winograd_call *call, size_t lanes, size_t x_count, size_t y_count,
		  const struct results *got)
{
	size_t high = call->height + 2 * call->pad - 2, wide = call->width + 2 * call->pad - 2;
	size_t w_count = call->outputs * call->inputs * 9;
	double *y = calloc(y_count, sizeof *y), *dx = calloc(x_count, sizeof *dx);
	double *dw = calloc(w_count, sizeof *dw), *db = calloc(call->outputs, sizeof *db);
	float *old_dw = numbers(w_count, 13), *old_db = numbers(call->outputs, 14);

	assert_true(y && dx && dw && db);
	for (size_t i = 0; call->add_dw && i < w_count; i++)
		dw[i] = old_dw[i];
	for (size_t i = 0; i < call->outputs; i++)
		db[i] = call->add_dw ? old_db[i] : 0;
	for (size_t n = 0; n < call->n; n++)
		for (size_t k = 0; k < call->outputs; k++)
			for (size_t i = 0; i < high * wide; i++) {
				size_t out = at(lanes, call->outputs, high, wide, n, k, i / wide,
						i % wide);

				y[out] += call->b ? call->b[k] : 0;
				db[k] += call->dy[out];
				for (size_t j = 0; j < call->inputs * 9; j++) {
					size_t row = i / wide + j % 9 / 3 - call->pad;
					size_t column = i % wide + j % 3 - call->pad;
					size_t in = at(lanes, call->inputs, call->height,
						       call->width, n, j / 9, row, column);
					size_t weight = k * call->inputs * 9 + j;

					if (row >= call->height || column >= call->width)
						continue; /* negative ones are huge */
					y[out] += (double)call->x[in] * call->w[weight];
					dx[in] += (double)call->dy[out] * call->w[weight];
					dw[weight] += (double)call->dy[out] * call->x[in];
				}
			}
	near(got->y, y, y_count, "y");
	near(got->dx, dx, x_count, "dx");
	near(got->dw, dw, w_count, "dw");
	if (call->b)
		near(got->db, db, call->outputs, "db");
	free(y);
	free(dx);
	free(dw);
	free(db);
	free(old_dw);
	free(old_db);
}

static void test_sizes(const struct winograd *winograd)
{
	static const struct {
		size_t n, inputs, outputs, height, width, pad;
		bool bias, add;
	} rows[] = {
		{1, 16, 16, 3, 3, 0, false, false}, /* one output */
		{2, 16, 32, 9, 7, 1, true, false},    {3, 48, 16, 5, 8, 0, true, true},
		{1, 32, 80, 4, 4, 2, false, true},    /* panels, the last one narrower */
		{3, 64, 144, 4, 4, 1, true, false},   /* an odd number of tiles */
		{5, 16, 16, 21, 22, 1, true, true},   /* many tiles */
		{3, 80, 32, 25, 26, 2, false, false}, /* and an odd number of them */
		{40, 16, 16, 5, 5, 0, false, false},  /* few tiles of y, many of x */
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct winograd_call call = {rows[i].n,	     rows[i].inputs, rows[i].outputs,
					     rows[i].height, rows[i].width,  rows[i].pad};
		size_t x_count = call.n * call.inputs * call.height * call.width;
		size_t y_count = call.n * call.outputs * (call.height + 2 * call.pad - 2) *
				 (call.width + 2 * call.pad - 2);
		float *x = numbers(x_count, 1), *w = numbers(call.outputs * call.inputs * 9, 2);
		float *b = numbers(call.outputs, 3), *dy = numbers(y_count, 4);

		call.x = x;
		call.w = w;
		call.b = rows[i].bias ? b : NULL;
		call.dy = dy;
		call.add_dw = rows[i].add;

		struct results one = run(winograd, call, x_count, y_count, 1);
		struct results many = run(winograd, call, x_count, y_count, 3 + 8 * (int)i);

		check(&call, winograd->lanes, x_count, y_count, &one);
		assert_memory_equal(one.y, many.y, y_count * sizeof(float));
		assert_memory_equal(one.dx, many.dx, x_count * sizeof(float));
		assert_memory_equal(one.dw, many.dw,
				    call.outputs * call.inputs * 9 * sizeof(float));
		assert_memory_equal(one.db, many.db, call.outputs * sizeof(float));
		results_free(&one);
		results_free(&many);
		free(x);
		free(w);
		free(b);
		free(dy);
	}
}

static void test_avx2(void **state)
{
	(void)state;
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
		skip();
	test_sizes(&winograd_avx2);
}

static void test_avx512(void **state)
{
	(void)state;
	if (!__builtin_cpu_supports("avx512f"))
		skip();
	test_sizes(&winograd_avx512);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_avx2),
		cmocka_unit_test(test_avx512),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
