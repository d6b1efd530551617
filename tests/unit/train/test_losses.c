/* SPDX-License-Identifier: BSD-3-Clause */
/* Op conformance, as in test_ops.c: losses, label ranks, the update, and calls that are refused. */
#include "../rows.h"

#include <math.h>

#include "op_check.h"
#include "ops_support.h"

static int32_t *labels(struct bench *bench, int64_t n, int64_t classes)
{
	int32_t *out = malloc((size_t)(n + 1) * sizeof *out);

	for (int64_t i = 0; i < n; i++)
		out[i] = (int32_t)bench_below(bench, classes);
	return out;
}

/* Relative to the value's size; 4 roundings of float32. */
static void near(const char *what, int64_t at, float seen, double expected, double size)
{
	if (isnan(expected) ? !isnan(seen)
			    : !((double)seen == expected ||
				fabs((double)seen - expected) <= 0x1p-22 * size))
		fail_msg("%s[%lld] is %.9g, expected %.9g (seed %llu)", what, (long long)at,
			 (double)seen, expected, (unsigned long long)test_seed);
}

/* kind 0: random; 1: large logits, which overflow exp without care; 2: a NaN in some rows; 3:
 * -infinity for some classes other than the target. */
static void cross_entropy_run(struct bench *bench, int64_t n, int64_t classes, int kind,
			      float smoothing, bool add)
{
	add = add && !op_emitter.network;

	struct op_call call = {
		.kind = OP_CROSS_ENTROPY, .scale = 1.0f / 7, .smoothing = smoothing, .add_dx = add};
	int32_t *target = labels(bench, n, classes);

	call.x = bench_random(bench, 2, (int64_t[]){n, classes});
	for (int64_t i = 0; i < n * classes && kind; i++)
		if (kind == 1)
			bench_set(bench, &call.x, i, bench_number(bench) * 3e4f);
		else if (!bench_below(bench, 9) &&
			 (kind == 2 || i % classes != target[i / classes]))
			bench_set(bench, &call.x, i, kind == 2 ? NAN : -INFINITY);
	call.target = bench_given(bench, ELEMENT_I32, 1, &n, target);
	call.y = bench_result(bench, 1, &n);
	bench_run(bench, &call);
	bench_settle(bench);
	call.pass = OP_BACKWARD;
	call.dx = bench_gradient(bench, 2, call.x.shape, add);
	bench_run(bench, &call);

	const float *before = bench_before(bench, &call.dx);
	float *x = bench_fetch(bench, &call.x), *y = bench_fetch(bench, &call.y);
	float *dx = bench_fetch(bench, &call.dx);

	for (int64_t s = 0; s < n; s++) {
		const float *row = x + s * classes;
		double most = -INFINITY, sum = 0, size, e = (double)smoothing, loss, all = 0;

		for (int64_t k = 0; k < classes; k++)
			most = fmax(most, (double)row[k]);
		for (int64_t k = 0; k < classes; k++)
			sum += exp((double)row[k] - most);
		for (int64_t k = 0; k < classes; k++)
			all += most + log(sum) - (double)row[k];
		loss = most + log(sum) - (double)row[target[s]];
		size = fabs(most) + fabs((double)row[target[s]]) + log((double)classes) + 1;
		if (e > 0) {
			loss = (1 - e) * loss + e / (double)classes * all;
			size += e / (double)classes * fabs(all);
		}
		near("cross_entropy y", s, y[s], loss, isfinite(size) ? size : 1);
		for (int64_t k = 0; k < classes; k++) {
			int64_t at = s * classes + k;
			double wanted = e / (double)classes + (k == target[s] ? 1 - e : 0);
			double share = exp((double)row[k] - most) / sum - wanted;

			near("cross_entropy dx", at, dx[at],
			     share / 7 + (add ? (double)before[at] : 0),
			     1.0 / 7 + (add ? fabs((double)before[at]) : 0));
		}
	}
	free(x);
	free(y);
	free(dx);
	free(target);
	bench_clear(bench);
}

static void cross_entropy(void **state)
{
	struct bench *bench = *state;

	static const float smoothings[] = {0, 0.1f, 1};

	for (size_t i = 0; i < ROWS(smoothings) * 2; i++) {
		float smoothing = smoothings[i / 2];
		bool add = i % 2;

		cross_entropy_run(bench, 0, 10, 0, smoothing, add);
		cross_entropy_run(bench, 1, 1, 0, smoothing, add);
		for (int kind = 0; kind < 4; kind++) {
			cross_entropy_run(bench, 33, 10, kind, smoothing, add);
			cross_entropy_run(bench, 5, 1 + bench_below(bench, 1000), kind, smoothing,
					  add);
		}
	}
}

static void mse(void **state)
{
	struct bench *bench = *state;

	for (int i = 0; i < 12; i++) {
		int64_t n = i ? 1 + bench_below(bench, 40) : 0,
			k = i % 3 ? 1 : 1 + bench_below(bench, 9);
		struct op_call call = {
			.kind = OP_MSE, .scale = 0.125f, .add_dx = !op_emitter.network && i % 2};

		call.x = bench_random(bench, 2, (int64_t[]){n, k});
		if (i == 5)
			bench_set(bench, &call.x, 0, NAN);
		call.target = bench_random(bench, 2, (int64_t[]){n, k});
		call.y = bench_result(bench, 1, &n);
		bench_run(bench, &call);
		bench_settle(bench);
		call.pass = OP_BACKWARD;
		call.dx = bench_gradient(bench, 2, call.x.shape, call.add_dx);
		bench_run(bench, &call);

		const float *before = bench_before(bench, &call.dx);
		float *x = bench_fetch(bench, &call.x), *target = bench_fetch(bench, &call.target);
		float *y = bench_fetch(bench, &call.y), *dx = bench_fetch(bench, &call.dx);

		for (int64_t s = 0; s < n; s++) {
			double mean = 0;

			for (int64_t c = 0; c < k; c++) {
				double off = (double)x[s * k + c] - (double)target[s * k + c];

				mean += off * off / (double)k;
				near("mse dx", s * k + c, dx[s * k + c],
				     2 * off / (double)k / 8 +
					     (call.add_dx ? (double)before[s * k + c] : 0),
				     2);
			}
			near("mse y", s, y[s], mean, 4);
		}
		free(x);
		free(target);
		free(y);
		free(dx);
		bench_clear(bench);
	}
}

static void label_rank(void **state)
{
	static const struct {
		float x[4];
		int32_t target, expected;
		const char *why;
	} rows[] = {
		{{4, 3, 2, 1}, 0, 0, "the largest"},
		{{4, 3, 2, 1}, 3, 3, "the smallest"},
		{{1, 4, 3, 2}, 2, 1, "the second"},
		{{5, 5, 5, 5}, 0, 0, "all equal: the lowest class is first"},
		{{5, 5, 5, 5}, 3, 3, "all equal: the highest class is last"},
		{{1, 5, 5, 9}, 2, 2, "one larger, one equal before it"},
		{{1, 5, 5, 9}, 1, 1, "one larger, one equal after it"},
		{{0.0f, -0.0f, 1, 2}, 1, 3, "-0 equals 0"},
		{{NAN, NAN, NAN, NAN}, 2, 4, "all NaN: the target is not first"},
		{{1, 2, NAN, 0}, 2, 4, "the target's logit is NaN"},
		{{-INFINITY, INFINITY, 0, 1}, 0, 3, "infinities"},
	};
	struct bench *bench = *state;
	const int64_t n = ROWS(rows), shape[] = {n, 4};
	float x[ROWS(rows)][4];
	int32_t target[ROWS(rows)], poison[ROWS(rows)];
	struct op_call call = {.kind = OP_LABEL_RANK};

	for (size_t i = 0; i < ROWS(rows); i++) {
		memcpy(x[i], rows[i].x, sizeof x[i]);
		target[i] = rows[i].target;
		poison[i] = INT32_MIN;
	}
	call.x = bench_given(bench, ELEMENT_F32, 2, shape, x);
	call.target = bench_given(bench, ELEMENT_I32, 1, &n, target);
	call.y = bench_given(bench, ELEMENT_I32, 1, &n, poison);
	bench_in_out(bench, &call.y);
	bench_run(bench, &call);

	int32_t *y = bench_fetch(bench, &call.y);

	for (size_t i = 0; i < ROWS(rows); i++)
		if (y[i] != rows[i].expected)
			fail_msg("%s: rank %d, expected %d", rows[i].why, y[i], rows[i].expected);
	free(y);
	bench_clear(bench);
}

static void sgd(void **state)
{
	static const struct op_sgd rows[] = {
		{0.1f, 0, 0, false},	    {0.1f, 0.9f, 0, false}, {0.05f, 0.9f, 5e-4f, false},
		{0.05f, 0.9f, 5e-4f, true}, {0, 0.9f, 0.1f, false}, {0.3f, 0, 0.01f, false},
	};
	struct bench *bench = *state;

	for (size_t i = 0; i < ROWS(rows); i++) {
		int64_t n = 1 + bench_below(bench, 1000);
		struct op_call call = {.kind = OP_SGD, .sgd = rows[i]};

		call.w = bench_random(bench, 1, &n);
		bench_in_out(bench, &call.w);
		call.dw = bench_random(bench, 1, &n);
		/* Without momentum its buffer must stay unchanged, whatever it contains. */
		call.state = bench_random(bench, 1, &n);
		if (rows[i].momentum > 0)
			bench_in_out(bench, &call.state);

		float *w = bench_fetch(bench, &call.w), *m = bench_fetch(bench, &call.state);
		float *dw = bench_fetch(bench, &call.dw);

		bench_run(bench, &call);

		float *w1 = bench_fetch(bench, &call.w), *m1 = bench_fetch(bench, &call.state);

		for (int64_t k = 0; k < n; k++) {
			double mu = (double)rows[i].momentum;
			double g = (double)dw[k] + (double)rows[i].weight_decay * (double)w[k];
			double state_now = mu > 0 ? mu * (double)m[k] + g : (double)m[k];

			if (mu > 0)
				g = rows[i].nesterov ? g + mu * state_now : state_now;
			near("sgd state", k, m1[k], state_now, 2);
			near("sgd w", k, w1[k], (double)w[k] - (double)rows[i].lr * g, 2);
		}
		free(w);
		free(m);
		free(dw);
		free(w1);
		free(m1);
		bench_clear(bench);
	}
}

/* The second sample's label is unknown: its loss is NaN, and its rank is none of the classes. */
static void check_unknown_label(struct bench *bench, struct op_call *call)
{
	float *y;

	bench_run(bench, call);
	y = bench_fetch(bench, &call->y);
	if (call->kind == OP_LABEL_RANK)
		assert_int_equal(((const int32_t *)(const void *)y)[1], 3);
	else if (call->pass == OP_FORWARD)
		assert_true(isnan(y[1]) && !isnan(y[0]));
	free(y);
}

/* Labels outside the classes are bad data; mismatched shapes are our own defect. Both are reported,
 * and nothing is read or written out of bounds. */
static void refused(void **state)
{
	struct bench *bench = *state;
	const int64_t n = 2;
	const int32_t bad[] = {-1, 3, INT32_MAX, INT32_MIN};
	struct error err = {0};

	for (size_t i = 0; i < ROWS(bad) * 3; i++) {
		struct op_call call = {.kind = i / 4 == 2 ? OP_LABEL_RANK : OP_CROSS_ENTROPY,
				       .pass = i / 4 == 1 ? OP_BACKWARD : OP_FORWARD};

		call.x = bench_random(bench, 2, (int64_t[]){n, 3});
		call.target = bench_given(bench, ELEMENT_I32, 1, &n, (int32_t[]){0, bad[i % 4]});
		call.y = bench_result(bench, 1, &n);
		if (call.kind == OP_LABEL_RANK)
			call.y.type = ELEMENT_I32;
		call.dx = bench_result(bench, 2, call.x.shape);
		if (op_emitter.checks_labels) {
			assert_int_equal(bench_try(bench, &call, &err), -ERR_DATA);
			assert_non_null(strstr(err.text, "label"));
		} else {
			check_unknown_label(bench, &call);
		}
		bench_clear(bench);
	}

	struct op_call smooth = {.kind = OP_CROSS_ENTROPY, .smoothing = 1.5f};

	smooth.x = bench_random(bench, 2, (int64_t[]){n, 3});
	smooth.target = bench_given(bench, ELEMENT_I32, 1, &n, (int32_t[]){0, 1});
	smooth.y = bench_result(bench, 1, &n);
	assert_int_equal(bench_try(bench, &smooth, &err), -ERR_INTERNAL);
	smooth.smoothing = NAN;
	assert_int_equal(bench_try(bench, &smooth, &err), -ERR_INTERNAL);
	bench_clear(bench);

	struct op_call conv = {.kind = OP_CONV2D, .attributes = {3, 1, 0}};

	conv.x = bench_random(bench, 4, (int64_t[]){1, 2, 5, 5});
	conv.w = bench_random(bench, 4, (int64_t[]){4, 2, 3, 3});
	conv.y = bench_result(bench, 4, (int64_t[]){1, 4, 3, 3});
	assert_int_equal(op_check(&conv, &err), 0);
	for (int i = 0; i < 7; i++) {
		struct op_call call = conv;

		switch (i) {
		case 0:
			call.x.data = NULL;
			break;
		case 1:
			call.w.shape[1] = 3;
			break;
		case 2:
			call.y.shape[3] = 4;
			break;
		case 3:
			call.attributes.kernel = 6;
			break;
		case 4:
			call.attributes.stride = 0;
			break;
		case 5:
			call.w.type = ELEMENT_F64;
			break;
		case 6:
			call.y.rank = 3;
			break;
		}
		err = (struct error){0};
		if (bench_try(bench, &call, &err) != -ERR_INTERNAL || !strstr(err.text, "conv2d"))
			fail_msg("conv2d with fault %d: %d, '%s'", i, err.code, err.text);
	}
	bench_clear(bench);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cross_entropy), cmocka_unit_test(mse),
		cmocka_unit_test(label_rank),	 cmocka_unit_test(sgd),
		cmocka_unit_test(refused),
	};

	int absent = bench_choose();

	return absent ? absent : cmocka_run_group_tests(tests, bench_begin, bench_end);
}
