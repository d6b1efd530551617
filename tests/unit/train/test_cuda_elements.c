/* SPDX-License-Identifier: BSD-3-Clause */
/* The arithmetic of the GPU kernels, run on the host and compared with float64 and PyTorch's rules.
 * Needs neither a GPU nor a toolkit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../rows.h"
#include "train/device/cuda/kernels/element.h"

static uint64_t state = 88172645463325252u;

/* -1 to 1 */
static double chance(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (double)(state >> 11) * 0x1p-52 - 1;
}

static bool near(double a, double exact, double relative)
{
	return fabs(a - exact) <= relative * fabs(exact) || (isnan(a) && isnan(exact));
}

/* Each 16-bit number converts to float and back unchanged. Numbers between two steps round to the
 * nearer one, and ties to the even one. */
static void sixteen_bits(void **unused)
{
	for (uint32_t bits = 0; bits < 0x7c00; bits++) {
		struct f16 low = {(uint16_t)bits}, high = {(uint16_t)(bits + 1)};
		double a = (double)f32_of_f16(low);
		/* The number after the largest would be 65536. */
		double b = bits == 0x7bff ? 65536 : (double)f32_of_f16(high);
		double expected =
			bits >= 0x400 ? ldexp(1 + (bits & 0x3ff) / 1024.0, (int)(bits >> 10) - 15)
				      : ldexp(bits, -24);
		float middle = (float)((a + b) / 2);

		assert_true(a == expected);
		assert_int_equal(f16_of_f32((float)a).bits, bits);
		assert_int_equal(f16_of_f32(-(float)a).bits, bits | 0x8000);
		assert_int_equal(f16_of_f32(middle).bits, bits + (bits & 1));
		assert_int_equal(f16_of_f32(nextafterf(middle, 0)).bits, bits);
		assert_int_equal(f16_of_f32(nextafterf(middle, INFINITY)).bits, bits + 1);
	}
	for (uint32_t bits = 0; bits < 0x7f80; bits++) {
		struct bf16 one = {(uint16_t)bits};
		float a = f32_of_bf16(one), middle = f32_of_bits((bits << 16) + 0x8000);

		assert_int_equal(bf16_of_f32(a).bits, bits);
		assert_int_equal(bf16_of_f32(-a).bits, bits | 0x8000);
		assert_int_equal(bf16_of_f32(middle).bits, bits + (bits & 1));
		assert_int_equal(bf16_of_f32(f32_of_bits((bits << 16) + 0x7fff)).bits, bits);
		assert_int_equal(bf16_of_f32(f32_of_bits((bits << 16) + 0x8001)).bits, bits + 1);
	}
	assert_int_equal(f16_of_f32(NAN).bits, 0x7fff);
	assert_int_equal(bf16_of_f32(-NAN).bits, 0x7fff);
	assert_true(isnan(f32_of_f16((struct f16){0x7c01})) &&
		    isinf(f32_of_f16((struct f16){0xfc00})));
	assert_int_equal(f16_of_f32(INFINITY).bits, 0x7c00);
	assert_int_equal(bf16_of_f32(-INFINITY).bits, 0xff80);
}

static void indices(void **unused)
{
	static const struct {
		int outputs, channels, inner, padded;
	} rows[] = {{3, 3, 49, 4}, {2, 1, 9, 4}, {5, 8, 1, 8}, {4, 16, 25, 16}, {1, 6, 4, 8}};

	for (size_t i = 0; i < ROWS(rows); i++) {
		int64_t count = (int64_t)rows[i].outputs * rows[i].inner * rows[i].padded, real = 0;

		for (int64_t at = 0; at < count; at++) {
			int64_t from;

			if (!weight_source(at, rows[i].channels, rows[i].inner, rows[i].padded,
					   &from))
				continue;
			real++;
			assert_int_equal(
				weight_place(from, rows[i].channels, rows[i].inner, rows[i].padded),
				at);
		}
		assert_int_equal(real, rows[i].outputs * rows[i].channels * rows[i].inner);
	}
	/* o 1, c 2, place 5 of [3][3][49], padded to 4 channels. */
	assert_int_equal(weight_place((1 * 3 + 2) * 49 + 5, 3, 49, 4), (1 * 49 + 5) * 4 + 2);
	assert_int_equal(padded_channels(3, true), 4);
	assert_int_equal(padded_channels(6, true), 8);
	assert_int_equal(padded_channels(64, true), 64);
	assert_int_equal(padded_channels(3, false), 3);
}

static void crops(void **unused)
{
	int y, x;

	/* Unchanged, shifted into the padding, and flipped. */
	assert_true(crop_source(32, 32, 4, 4, 4, false, 5, 6, &y, &x) && y == 5 && x == 6);
	assert_false(crop_source(32, 32, 4, 0, 4, false, 3, 6, &y, &x));
	assert_true(crop_source(32, 32, 4, 0, 4, false, 4, 6, &y, &x) && y == 0);
	assert_true(crop_source(32, 32, 4, 8, 8, true, 0, 31, &y, &x) && y == 4 && x == 4);
	assert_false(crop_source(32, 32, 4, 8, 8, true, 0, 0, &y, &x));
}

/* Far from 0: sums of squares without a shift would lose all precision. */
static void moments(void **unused)
{
	static const struct {
		double centre, width;
		int count;
	} rows[] = {{0, 1, 1000}, {1000, 1, 1000}, {-3, 1e-3, 5000}, {5, 0, 64}, {0, 1, 2}};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct norm_sums sums = {0, 0};
		double mean = 0, square = 0;
		float *x = malloc((size_t)rows[i].count * sizeof *x);

		assert_non_null(x);
		for (int k = 0; k < rows[i].count; k++) {
			x[k] = (float)(rows[i].centre + rows[i].width * chance());
			sums.sum += (double)(x[k] - x[0]);
			sums.square += (double)(x[k] - x[0]) * (double)(x[k] - x[0]);
			mean += (double)x[k];
		}
		mean /= rows[i].count;
		for (int k = 0; k < rows[i].count; k++)
			square += ((double)x[k] - mean) * ((double)x[k] - mean);

		struct norm_moments now = norm_moments(sums, x[0], rows[i].count, 1e-5f);
		double variance = square / rows[i].count;

		assert_true(near((double)now.mean, mean, 1e-6) || fabs(mean) < 1e-2);
		assert_true(near((double)now.variance, variance, 1e-4) || variance < 1e-12);
		assert_true(near((double)now.invstd, 1 / sqrt(variance + (double)1e-5f), 1e-4));
		assert_true(near((double)norm_unbiased(now.variance, rows[i].count),
				 square / (rows[i].count - 1), 1e-4) ||
			    variance < 1e-12);
		free(x);
	}
	assert_true(isnan(norm_moments((struct norm_sums){NAN, 1}, 0, 4, 1e-5f).mean));
	assert_true(near((double)norm_running(2, 7, 0.1f), 2.5, 1e-6));
}

static void losses(void **unused)
{
	float x[37];
	struct soft all = {0, 0};
	double sum = 0, everything = 0, max_logit = -INFINITY;

	for (int k = 0; k < 37; k++) {
		x[k] = (float)(90 * chance());
		max_logit = fmax(max_logit, (double)x[k]);
	}
	x[5] = -INFINITY; /* adds nothing */
	for (int k = 0; k < 37; k++) {
		sum += exp((double)x[k] - max_logit);
		all = soft_merge(all, soft_of(x[36 - k]));
	}

	double log_sum = max_logit + log(sum);

	assert_true(near((double)soft_log(all), log_sum, 1e-6));
	for (int k = 6; k < 37; k++)
		everything += log_sum - (double)x[k];
	assert_true(near((double)entropy_loss((float)log_sum, x[7], (float)everything, 0.1f, 31),
			 0.9 * (log_sum - (double)x[7]) + 0.1 / 31 * everything, 1e-5));
	for (int k = 6; k < 12; k++) {
		double share = exp((double)x[k] - log_sum) - 0.1 / 37 - (k == 7 ? 0.9 : 0);

		assert_true(fabs((double)entropy_gradient(x[k], all, k == 7, 0.1f, 37, 2) -
				 2 * share) < 1e-6);
	}
	assert_true(isnan(soft_log(soft_merge(soft_of(NAN), soft_of(1)))));
	assert_true(isnan(soft_log(soft_merge(soft_of(1), soft_of(NAN)))));
	assert_true(ranks_before(2, 5, 1, 0) && !ranks_before(1, 5, 1, 0) &&
		    ranks_before(1, 0, 1, 5));
	assert_true(pool_better(2, 1) && !pool_better(1, 1) && pool_better(NAN, 9) &&
		    !pool_better(9, NAN) && !pool_better(NAN, NAN));
	assert_true(relu(-1) == 0 && relu(2) == 2 && isnan(relu(NAN)));
	assert_true(relu_gradient(0, 3) == 0 && relu_gradient(1, 3) == 3 &&
		    relu_gradient(NAN, 3) == 3);
}

/* torch.optim.SGD, three steps in float64. */
static void updates(void **unused)
{
	for (int nesterov = 0; nesterov < 2; nesterov++) {
		struct sgd_rule rule = {0.9f, 5e-4f, nesterov};
		double w = 0.7, m = 0;
		float fw = 0.7f, fm = 0;

		for (int i = 0; i < 3; i++) {
			double g = 0.3 * i - 0.2, wanted = g + (double)5e-4f * w;

			fw = sgd_element(rule, 0.1f, fw, (float)g, &fm);
			m = (double)0.9f * m + wanted;
			w -= (double)0.1f * (nesterov ? wanted + (double)0.9f * m : m);
			assert_true(near((double)fw, w, 1e-6) && near((double)fm, m, 1e-5));
		}
	}

	float untouched = 42;

	assert_true(near((double)sgd_element((struct sgd_rule){0, 0, 0}, 0.5f, 1, 2, &untouched), 0,
			 0) ||
		    untouched == 42);
	assert_true(untouched == 42);
}

/* torch.amp.GradScaler's update, row by row. */
static void scales(void **unused)
{
	static const struct {
		float scale;
		int good;
		bool bad;
		float next;
		int next_good;
		const char *why;
	} rows[] = {
		{65536, 0, false, 65536, 1, "a finite update is counted"},
		{65536, 1998, false, 65536, 1999, "one before the growth interval"},
		{65536, 1999, false, 131072, 0,
		 "the interval is full: the scale doubles and the count restarts"},
		{65536, 1999, true, 32768, 0, "a non-finite update halves the scale, also then"},
		{65536, 700, true, 32768, 0, "a non-finite update restarts the count"},
		{1, 3, true, 0.5f, 0, "also below 1"},
		{0x1p127f, 1999, false, 0x1p127f, 0, "doubling would overflow: the scale stays"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct loss_scale now = loss_scale_next(
			(struct loss_scale){rows[i].scale, rows[i].good}, rows[i].bad);

		if (now.scale != rows[i].next || now.growth_tracker != rows[i].next_good)
			fail_msg("%s: %g, %d", rows[i].why, (double)now.scale, now.growth_tracker);
	}
	assert_true(loss_scale_inverse(65536) == 0x1p-16f);
	assert_true(loss_scale_inverse(3) == (float)(1.0 / 3));
	assert_true(finite_f32(3e38f) && !finite_f32(INFINITY) && !finite_f32(-NAN));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sixteen_bits), cmocka_unit_test(indices),
		cmocka_unit_test(crops),	cmocka_unit_test(moments),
		cmocka_unit_test(losses),	cmocka_unit_test(updates),
		cmocka_unit_test(scales),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
