/* SPDX-License-Identifier: BSD-3-Clause */
/* Op conformance of the layers (test_ops_norm.c and test_losses.c have the rest). Each op of a
 * device, forward and backward, is compared with float64 sums that follow the definitions in
 * device.h. Data are random; the seed is printed, and BERTH_TEST_SEED=N repeats a run. Results are
 * filled with NaNs, or with numbers to which the op adds, and are followed by guards. Inputs must
 * not change. op_network.h has the devices. */
#include "../rows.h"

#include <math.h>

#include "ops_support.h"

/* The variants of a case, one bit each. */
enum { DX = 1, DW = 2, DB = 4, BIAS = 8, ADD_DX = 16, ADD_DW = 32, HOWS = 64 };

/* ---- conv2d ---- */

struct conv_case {
	int64_t n, c, h, w, o;
	int kernel, stride, pad;
};

/* Every product of a convolution: x[xi] times w[wi] is part of y[yi]. */
struct conv_walk {
	int64_t xi, wi, yi, o;
};
typedef void conv_visit(void *context, const struct conv_walk *at);

static void conv_each(const struct conv_case *cv, int64_t oh, int64_t ow, conv_visit *visit,
		      void *context)
{
	int64_t k = cv->kernel;

	for (int64_t i = 0; i < cv->n * cv->o * oh * ow * cv->c * k * k; i++) {
		int64_t kx = i % k, ky = i / k % k, c = i / (k * k) % cv->c,
			y = i / (k * k * cv->c);
		int64_t ox = y % ow, oy = y / ow % oh, o = y / (ow * oh) % cv->o,
			n = y / (ow * oh * cv->o);
		int64_t ix = ox * cv->stride + kx - cv->pad, iy = oy * cv->stride + ky - cv->pad;

		if (ix < 0 || iy < 0 || ix >= cv->w || iy >= cv->h)
			continue;
		visit(context, &(struct conv_walk){((n * cv->c + c) * cv->h + iy) * cv->w + ix,
						   ((o * cv->c + c) * k + ky) * k + kx, y, o});
	}
}

struct conv_sums {
	const float *x, *w, *dy;
	struct exact *y, *dx, *dw;
};

static void conv_sum_forward(void *context, const struct conv_walk *at)
{
	struct conv_sums *sums = context;

	exact_add(&sums->y[at->yi], (double)sums->x[at->xi], (double)sums->w[at->wi]);
}

static void conv_sum_backward(void *context, const struct conv_walk *at)
{
	struct conv_sums *sums = context;

	if (sums->dx)
		exact_add(&sums->dx[at->xi], (double)sums->dy[at->yi], (double)sums->w[at->wi]);
	if (sums->dw)
		exact_add(&sums->dw[at->wi], (double)sums->dy[at->yi], (double)sums->x[at->xi]);
}

static void conv_backward(struct bench *bench, const struct conv_case *cv, struct op_call *call,
			  unsigned how)
{
	int64_t oh = call->y.shape[2], ow = call->y.shape[3];
	struct exact *db = NULL;

	call->pass = OP_BACKWARD;
	call->add_dx = how & ADD_DX;
	call->add_dw = how & ADD_DW;
	call->dy = bench_random(bench, 4, call->y.shape);
	if (how & DX)
		call->dx = bench_gradient(bench, 4, call->x.shape, call->add_dx);
	if (how & DW)
		call->dw = bench_gradient(bench, 4, call->w.shape, call->add_dw);
	if (how & DB)
		call->db = bench_gradient(bench, 1, &cv->o, call->add_dw);
	bench_run(bench, call);

	struct conv_sums sums = {
		.x = bench_before(bench, &call->x),
		.w = bench_before(bench, &call->w),
		.dy = bench_before(bench, &call->dy),
		.dx = how & DX ? exact_new(bench, &call->dx, call->add_dx) : NULL,
		.dw = how & DW ? exact_new(bench, &call->dw, call->add_dw) : NULL,
	};

	conv_each(cv, oh, ow, conv_sum_backward, &sums);
	if (how & DX)
		exact_check(bench, "conv2d dx", &call->dx, sums.dx);
	if (how & DW)
		exact_check(bench, "conv2d dw", &call->dw, sums.dw);
	if (!(how & DB))
		return;
	db = exact_new(bench, &call->db, call->add_dw);
	for (int64_t i = 0; i < tensor_count(&call->y); i++)
		exact_add(&db[i / (oh * ow) % cv->o], (double)sums.dy[i], 1);
	exact_check(bench, "conv2d db", &call->db, db);
}

static void conv_run(struct bench *bench, const struct conv_case *cv, unsigned how, bool nan)
{
	if (!bench_supports(cv->n))
		return;
	if (!op_emitter.adds)
		how &= ~(unsigned)ADD_DX;

	struct op_attributes attributes = {cv->kernel, cv->stride, cv->pad};
	int64_t oh = op_side(cv->h, &attributes), ow = op_side(cv->w, &attributes);
	struct op_call call = {.kind = OP_CONV2D, .attributes = attributes};

	call.x = bench_random(bench, 4, (int64_t[]){cv->n, cv->c, cv->h, cv->w});
	if (nan && tensor_count(&call.x))
		bench_set(bench, &call.x, bench_below(bench, tensor_count(&call.x)), NAN);
	call.w = bench_random(bench, 4, (int64_t[]){cv->o, cv->c, cv->kernel, cv->kernel});
	if (how & BIAS)
		call.b = bench_random(bench, 1, &cv->o);
	call.y = bench_result(bench, 4, (int64_t[]){cv->n, cv->o, oh, ow});
	bench_run(bench, &call);

	struct conv_sums sums = {.x = bench_before(bench, &call.x),
				 .w = bench_before(bench, &call.w),
				 .y = exact_new(bench, &call.y, false)};

	conv_each(cv, oh, ow, conv_sum_forward, &sums);
	for (int64_t i = 0; how & BIAS && i < tensor_count(&call.y); i++)
		exact_add(&sums.y[i], (double)bench_before(bench, &call.b)[i / (oh * ow) % cv->o],
			  1);
	exact_check(bench, "conv2d y", &call.y, sums.y);
	bench_settle(bench);
	conv_backward(bench, cv, &call, how);
	bench_clear(bench);
}

static void conv2d(void **state)
{
	static const struct conv_case cases[] = {
		{2, 1, 28, 28, 6, 5, 1, 0}, {3, 6, 12, 12, 16, 5, 1, 0}, {1, 1, 1, 1, 1, 1, 1, 0},
		{2, 3, 7, 5, 4, 3, 2, 1},   {1, 2, 5, 9, 17, 5, 1, 0},	 {2, 4, 6, 6, 33, 1, 1, 0},
		{1, 3, 4, 4, 2, 1, 3, 2},   {1, 1, 3, 3, 2, 5, 1, 1},	 {2, 3, 9, 8, 5, 2, 3, 0},
		{0, 2, 6, 6, 3, 3, 1, 1},   {3, 1, 16, 16, 7, 7, 2, 3},	 {1, 5, 2, 11, 3, 2, 1, 1},
	};
	/* As in ResNets, with few channels; some have odd sizes. */
	static const struct conv_case resnet[] = {
		{2, 3, 32, 32, 16, 7, 2, 3}, {1, 3, 33, 31, 5, 7, 2, 3}, {2, 16, 8, 8, 16, 3, 1, 1},
		{3, 5, 7, 9, 21, 3, 1, 1},   {2, 16, 8, 8, 32, 3, 2, 1}, {1, 7, 9, 7, 13, 3, 2, 1},
		{2, 16, 8, 8, 32, 1, 2, 0},  {3, 9, 7, 5, 11, 1, 2, 0},	 {2, 32, 7, 7, 16, 1, 1, 0},
		{2, 3, 16, 16, 16, 3, 1, 1}, {1, 20, 1, 1, 20, 3, 1, 1}, {0, 16, 4, 4, 16, 3, 2, 1},
		{4, 32, 2, 2, 48, 3, 2, 1},
	};
	struct bench *bench = *state;

	for (unsigned i = 0; i < ROWS(cases); i++)
		conv_run(bench, &cases[i], (i % 2 ? BIAS : 0) | DX | DW | DB, false);
	for (unsigned i = 0; i < ROWS(resnet) * 4; i++)
		conv_run(bench, &resnet[i / 4],
			 DX | DW | (i & 1 ? ADD_DX : 0) | (i & 2 ? ADD_DW : 0), false);
	for (unsigned i = 0; i < 2 * HOWS; i++) {
		struct conv_case cv = {
			1 + bench_below(bench, 3),	1 + bench_below(bench, 5),
			5 + bench_below(bench, 9),	5 + bench_below(bench, 9),
			1 + bench_below(bench, 20),	1 + (int)bench_below(bench, 5),
			1 + (int)bench_below(bench, 3), (int)bench_below(bench, 3)};

		conv_run(bench, &cv, i % HOWS, i % 5 == 4);
	}
}

/* ---- linear ---- */

static void linear_backward(struct bench *bench, struct op_call *call, unsigned how)
{
	int64_t n = call->x.shape[0], outputs = call->w.shape[0], inputs = call->w.shape[1];
	struct exact *dx = NULL, *dw = NULL, *db = NULL;

	call->pass = OP_BACKWARD;
	call->add_dx = how & ADD_DX;
	call->add_dw = how & ADD_DW;
	call->dy = bench_random(bench, 2, call->y.shape);
	if (how & DX)
		call->dx = bench_gradient(bench, call->x.rank, call->x.shape, call->add_dx);
	if (how & DW)
		call->dw = bench_gradient(bench, 2, call->w.shape, call->add_dw);
	if (how & DB)
		call->db = bench_gradient(bench, 1, &outputs, call->add_dw);
	bench_run(bench, call);

	const float *x = bench_before(bench, &call->x), *w = bench_before(bench, &call->w);
	const float *dy = bench_before(bench, &call->dy);

	if (how & DX)
		dx = exact_new(bench, &call->dx, call->add_dx);
	if (how & DW)
		dw = exact_new(bench, &call->dw, call->add_dw);
	if (how & DB)
		db = exact_new(bench, &call->db, call->add_dw);
	for (int64_t i = 0; i < n * outputs * inputs; i++) {
		int64_t in = i % inputs, o = i / inputs % outputs, s = i / inputs / outputs;

		if (dx)
			exact_add(&dx[s * inputs + in], (double)dy[s * outputs + o],
				  (double)w[o * inputs + in]);
		if (dw)
			exact_add(&dw[o * inputs + in], (double)dy[s * outputs + o],
				  (double)x[s * inputs + in]);
	}
	for (int64_t i = 0; db && i < n * outputs; i++)
		exact_add(&db[i % outputs], (double)dy[i], 1);
	if (dx)
		exact_check(bench, "linear dx", &call->dx, dx);
	if (dw)
		exact_check(bench, "linear dw", &call->dw, dw);
	if (db)
		exact_check(bench, "linear db", &call->db, db);
}

static void linear_run(struct bench *bench, int64_t n, int64_t inputs, int64_t outputs,
		       unsigned how, bool nan)
{
	struct op_call call = {.kind = OP_LINEAR};

	if (!bench_supports(n))
		return;
	if (!op_emitter.adds)
		how &= ~(unsigned)ADD_DX;

	/* Images are treated as vectors. */
	call.x = inputs % 4 ? bench_random(bench, 2, (int64_t[]){n, inputs})
			    : bench_random(bench, 4, (int64_t[]){n, inputs / 4, 2, 2});
	if (nan && n)
		bench_set(bench, &call.x, bench_below(bench, n * inputs), NAN);
	call.w = bench_random(bench, 2, (int64_t[]){outputs, inputs});
	if (how & BIAS)
		call.b = bench_random(bench, 1, &outputs);
	call.y = bench_result(bench, 2, (int64_t[]){n, outputs});
	bench_run(bench, &call);

	const float *x = bench_before(bench, &call.x), *w = bench_before(bench, &call.w);
	struct exact *y = exact_new(bench, &call.y, false);

	for (int64_t i = 0; i < n * outputs; i++) {
		for (int64_t in = 0; in < inputs; in++)
			exact_add(&y[i], (double)x[i / outputs * inputs + in],
				  (double)w[i % outputs * inputs + in]);
		if (how & BIAS)
			exact_add(&y[i], (double)bench_before(bench, &call.b)[i % outputs], 1);
	}
	exact_check(bench, "linear y", &call.y, y);
	bench_settle(bench);
	linear_backward(bench, &call, how);
	bench_clear(bench);
}

static void linear(void **state)
{
	struct bench *bench = *state;
	const unsigned all = DX | DW | DB | BIAS;

	linear_run(bench, 3, 784, 10, all, false);
	linear_run(bench, 5, 400, 120, all, false);
	linear_run(bench, 64, 84, 10, all, false);
	linear_run(bench, 9, 512, 10, all, false);
	linear_run(bench, 1, 1, 1, DX | DW | DB, false);
	linear_run(bench, 0, 12, 5, all, false);
	linear_run(bench, 0, 12, 5, all | ADD_DX | ADD_DW, false);
	for (unsigned i = 0; i < 2 * HOWS; i++)
		linear_run(bench, 1 + bench_below(bench, 37), 1 + bench_below(bench, 70),
			   1 + bench_below(bench, 40), i % HOWS, i % 7 == 6);
}

/* ---- relu ---- */

/* in_place: y shares x's memory, and dx shares dy's; add: dx is added to. A network has them in
 * place. */
static void relu_run(struct bench *bench, const int64_t *shape, bool in_place, bool add)
{
	struct op_call call = {.kind = OP_RELU};

	if (!bench_supports(shape[0]))
		return;
	in_place = in_place && !op_emitter.network;
	add = add && !op_emitter.network;

	call.x = bench_random(bench, 4, shape);

	int64_t count = tensor_count(&call.x);
	float *x = malloc((size_t)count * 4 + 1);

	for (int64_t k = 0; k < count; k += 11)
		bench_set(bench, &call.x, k, k % 3 == 0 ? NAN : k % 3 == 1 ? 0.0f : -0.0f);
	memcpy(x, bench_before(bench, &call.x), (size_t)count * 4);
	call.y = in_place ? call.x : bench_result(bench, 4, shape);
	if (in_place)
		bench_in_out(bench, &call.x);
	bench_run(bench, &call);
	bench_settle(bench);
	call.pass = OP_BACKWARD;
	call.dy = bench_random(bench, 4, shape);
	call.dx = in_place ? call.dy : bench_gradient(bench, 4, shape, add);
	call.add_dx = add;
	if (in_place)
		bench_in_out(bench, &call.dy);
	bench_run(bench, &call);

	float *y = bench_fetch(bench, &call.y), *dx = bench_fetch(bench, &call.dx);
	const float *dy = bench_before(bench, &call.dy), *had = bench_before(bench, &call.dx);

	for (int64_t k = 0; k < count; k++) {
		/* PyTorch: the gradient stops where x <= 0, so a NaN passes it on. */
		bool stops = x[k] <= 0;
		float passed = stops ? 0 : dy[k];

		if (isnan(x[k]) ? !isnan(y[k]) : y[k] != (stops ? 0 : x[k]))
			fail_msg("relu of %g is %g", (double)x[k], (double)y[k]);
		if (dx[k] != (add ? had[k] + passed : passed))
			fail_msg("relu's gradient at %g is %g of %g", (double)x[k], (double)dx[k],
				 (double)dy[k]);
	}
	free(x);
	free(y);
	free(dx);
	bench_clear(bench);
}

static void relu(void **state)
{
	static const int64_t shapes[][4] = {
		{1, 1, 1, 1}, {3, 5, 7, 2}, {2, 17, 3, 31}, {0, 4, 4, 4}};

	for (size_t i = 0; i < ROWS(shapes) * 3; i++)
		relu_run(*state, shapes[i / 3], i % 3 == 1, i % 3 == 2);
}

/* ---- maxpool2d ---- */

/* The position of the maximum: the first NaN, else the first of the largest values. */
static int64_t pool_winner(const float *plane, int64_t h, int64_t w, int64_t top, int64_t left,
			   int kernel)
{
	int64_t best = -1;

	for (int64_t i = 0; i < (int64_t)kernel * kernel; i++) {
		int64_t y = top + i / kernel, x = left + i % kernel, at = y * w + x;

		if (y < 0 || x < 0 || y >= h || x >= w)
			continue;
		if (isnan(plane[at]))
			return at;
		if (best < 0 || plane[at] > plane[best])
			best = at;
	}
	return best;
}

/* levels: the number of distinct values; few values produce ties. */
static void pool_run(struct bench *bench, const struct conv_case *cv, int levels, bool nan,
		     bool add)
{
	struct op_attributes attributes = {cv->kernel, cv->stride, cv->pad};
	int64_t oh = op_side(cv->h, &attributes), ow = op_side(cv->w, &attributes);
	struct op_call call = {.kind = OP_MAXPOOL2D, .attributes = attributes};

	if (!bench_supports(cv->n))
		return;
	add = add && op_emitter.adds;

	call.x = bench_random(bench, 4, (int64_t[]){cv->n, cv->c, cv->h, cv->w});
	for (int64_t i = 0; levels && i < tensor_count(&call.x); i++)
		bench_set(bench, &call.x, i, (float)bench_below(bench, levels) - (float)levels);
	for (int64_t i = 0; nan && i < tensor_count(&call.x); i += 1 + bench_below(bench, 5))
		bench_set(bench, &call.x, i, NAN);
	call.y = bench_result(bench, 4, (int64_t[]){cv->n, cv->c, oh, ow});
	bench_run(bench, &call);
	bench_settle(bench);
	call.pass = OP_BACKWARD;
	call.dy = bench_random(bench, 4, call.y.shape);
	call.add_dx = add;
	call.dx = bench_gradient(bench, 4, call.x.shape, add);
	bench_run(bench, &call);

	const float *x = bench_before(bench, &call.x), *y = bench_before(bench, &call.y);
	const float *dy = bench_before(bench, &call.dy);
	struct exact *dx = exact_new(bench, &call.dx, add);

	for (int64_t i = 0; i < tensor_count(&call.y); i++) {
		int64_t plane = i / (oh * ow) * cv->h * cv->w;
		int64_t top = i / ow % oh * cv->stride - cv->pad,
			left = i % ow * cv->stride - cv->pad;
		int64_t at = plane + pool_winner(x + plane, cv->h, cv->w, top, left, cv->kernel);

		if (isnan(x[at]) ? !isnan(y[i]) : y[i] != x[at])
			fail_msg("maxpool2d y[%lld] is %g, expected %g", (long long)i, (double)y[i],
				 (double)x[at]);
		exact_add(&dx[at], (double)dy[i], 1);
	}
	exact_check(bench, "maxpool2d dx", &call.dx, dx);
	bench_clear(bench);
}

static void maxpool2d(void **state)
{
	static const struct conv_case cases[] = {
		{2, 6, 24, 24, 0, 2, 2, 0}, {3, 16, 8, 8, 0, 2, 2, 0},	{1, 1, 2, 2, 0, 2, 2, 0},
		{2, 3, 7, 5, 0, 2, 2, 0},   {2, 2, 7, 9, 0, 3, 2, 1},	{1, 2, 5, 5, 0, 3, 1, 1},
		{1, 3, 6, 7, 0, 2, 1, 1},   {1, 1, 4, 4, 0, 1, 1, 0},	{0, 2, 4, 4, 0, 2, 2, 0},
		{2, 2, 9, 6, 0, 2, 3, 0},   {1, 2, 35, 67, 0, 2, 2, 0}, {2, 16, 16, 16, 0, 3, 2, 1},
		{1, 3, 1, 1, 0, 3, 2, 1},   {0, 3, 8, 8, 0, 3, 2, 1},
	};

	for (unsigned i = 0; i < ROWS(cases) * 12; i++)
		pool_run(*state, &cases[i / 12], (const int[]){0, 1, 3}[i % 3], i / 3 % 2,
			 i / 6 % 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conv2d),
		cmocka_unit_test(linear),
		cmocka_unit_test(relu),
		cmocka_unit_test(maxpool2d),
	};
	int absent = bench_choose();

	return absent ? absent : cmocka_run_group_tests(tests, bench_begin, bench_end);
}
