/* SPDX-License-Identifier: BSD-3-Clause */
/* Op conformance, the layers (test_losses.c has the rest): each op of the reference device, forward
 * and backward, against float64 sums written here straight from the definitions of device.h. Data
 * are new in each run; the seed is printed, and BERTH_TEST_SEED=N repeats a run. Results are
 * poisoned with NaNs and have guards behind them; inputs must not change. */
#include "../rows.h"

#include <math.h>

#include "ops_support.h"

/* One part of a result in float64: the sum, the sum of absolutes and how many were summed. */
struct exact {
	double sum, size;
	long count;
};

static void add(struct exact *exact, double left, double right)
{
	exact->sum += left * right;
	exact->size += fabs(left * right);
	exact->count++;
}

/* Rounding errors of count float32 additions grow like a random walk; 8 of its deviations. */
static void close_to(const char *what, long at, float seen, const struct exact *exact)
{
	double bound = 8 * sqrt((double)exact->count + 1) * 0x1p-24 * exact->size;

	if (isnan(exact->sum) ? !isnan(seen) : !(fabs((double)seen - exact->sum) <= bound))
		fail_msg("%s[%ld] is %.9g, expected %.9g within %.2g (seed %llu)", what, at,
			 (double)seen, exact->sum, bound, (unsigned long long)test_seed);
}

static void all_close(struct bench *bench, const char *what, const struct tensor *tensor,
		      const struct exact *exact)
{
	float *seen = bench_fetch(bench, tensor);

	for (long i = 0; i < tensor_count(tensor); i++)
		close_to(what, i, seen[i], &exact[i]);
	free(seen);
}

static struct exact *exact_new(const struct tensor *tensor)
{
	return calloc((size_t)tensor_count(tensor) + 1, sizeof(struct exact));
}

/* ---- conv2d ---- */

struct conv_case {
	int64_t n, c, h, w, o;
	int kernel, stride, pad;
};

/* Every product of a convolution: x[xi] meets w[wi] in y[yi]. */
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

static void conv_sum(void *context, const struct conv_walk *at)
{
	struct conv_sums *sums = context;

	add(&sums->y[at->yi], sums->x[at->xi], sums->w[at->wi]);
	add(&sums->dx[at->xi], sums->dy[at->yi], sums->w[at->wi]);
	add(&sums->dw[at->wi], sums->dy[at->yi], sums->x[at->xi]);
}

static void conv_run(struct bench *bench, const struct conv_case *cv, bool bias, unsigned wanted,
		     bool nan)
{
	struct op_attributes attributes = {cv->kernel, cv->stride, cv->pad};
	int64_t oh = op_side(cv->h, &attributes), ow = op_side(cv->w, &attributes);
	struct op_call call = {.kind = OP_CONV2D, .attributes = attributes};
	struct conv_sums sums;

	call.x = bench_random(bench, 4, (int64_t[]){cv->n, cv->c, cv->h, cv->w});
	if (nan && tensor_count(&call.x))
		bench_set(bench, &call.x, bench_below(bench, tensor_count(&call.x)), NAN);
	call.w = bench_random(bench, 4, (int64_t[]){cv->o, cv->c, cv->kernel, cv->kernel});
	if (bias)
		call.b = bench_random(bench, 1, &cv->o);
	call.y = bench_result(bench, 4, (int64_t[]){cv->n, cv->o, oh, ow});
	bench_run(bench, &call);
	call.pass = OP_BACKWARD;
	call.dy = bench_random(bench, 4, call.y.shape);
	if (wanted & 1)
		call.dx = bench_result(bench, 4, call.x.shape);
	if (wanted & 2)
		call.dw = bench_result(bench, 4, call.w.shape);
	if (wanted & 4)
		call.db = bench_result(bench, 1, &cv->o);
	bench_run(bench, &call);

	float *x = bench_fetch(bench, &call.x), *w = bench_fetch(bench, &call.w);
	float *dy = bench_fetch(bench, &call.dy), *b = bias ? bench_fetch(bench, &call.b) : NULL;
	struct exact *db = calloc((size_t)cv->o, sizeof *db);

	sums = (struct conv_sums){
		x, w, dy, exact_new(&call.y), exact_new(&call.x), exact_new(&call.w)};
	conv_each(cv, oh, ow, conv_sum, &sums);
	for (int64_t i = 0; i < tensor_count(&call.y); i++) {
		if (bias)
			add(&sums.y[i], b[i / (oh * ow) % cv->o], 1);
		add(&db[i / (oh * ow) % cv->o], dy[i], 1);
	}
	all_close(bench, "conv2d y", &call.y, sums.y);
	if (wanted & 1)
		all_close(bench, "conv2d dx", &call.dx, sums.dx);
	if (wanted & 2)
		all_close(bench, "conv2d dw", &call.dw, sums.dw);
	if (wanted & 4)
		all_close(bench, "conv2d db", &call.db, db);
	free(sums.y);
	free(sums.dx);
	free(sums.dw);
	free(x);
	free(w);
	free(dy);
	free(b);
	free(db);
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
	struct bench *bench = *state;

	for (size_t i = 0; i < ROWS(cases); i++)
		conv_run(bench, &cases[i], i % 2, 7, false);
	for (unsigned i = 0; i < 40; i++) {
		struct conv_case cv = {
			1 + bench_below(bench, 3),	1 + bench_below(bench, 5),
			5 + bench_below(bench, 9),	5 + bench_below(bench, 9),
			1 + bench_below(bench, 20),	1 + (int)bench_below(bench, 5),
			1 + (int)bench_below(bench, 3), (int)bench_below(bench, 3)};

		conv_run(bench, &cv, i & 1, i % 8, i % 5 == 4);
	}
}

/* ---- linear ---- */

static void linear_run(struct bench *bench, int64_t n, int64_t inputs, int64_t outputs,
		       unsigned how)
{
	struct op_call call = {.kind = OP_LINEAR};

	/* Images are seen as vectors. */
	call.x = inputs % 4 ? bench_random(bench, 2, (int64_t[]){n, inputs})
			    : bench_random(bench, 4, (int64_t[]){n, inputs / 4, 2, 2});
	if (how & 8 && n)
		bench_set(bench, &call.x, bench_below(bench, n * inputs), NAN);
	call.w = bench_random(bench, 2, (int64_t[]){outputs, inputs});
	if (how & 16)
		call.b = bench_random(bench, 1, &outputs);
	call.y = bench_result(bench, 2, (int64_t[]){n, outputs});
	bench_run(bench, &call);
	call.pass = OP_BACKWARD;
	call.dy = bench_random(bench, 2, call.y.shape);
	if (how & 1)
		call.dx = bench_result(bench, call.x.rank, call.x.shape);
	if (how & 2)
		call.dw = bench_result(bench, 2, call.w.shape);
	if (how & 4)
		call.db = bench_result(bench, 1, &outputs);
	bench_run(bench, &call);

	float *x = bench_fetch(bench, &call.x), *w = bench_fetch(bench, &call.w);
	float *dy = bench_fetch(bench, &call.dy),
	      *b = how & 16 ? bench_fetch(bench, &call.b) : NULL;
	struct exact *y = exact_new(&call.y), *dx = exact_new(&call.x), *dw = exact_new(&call.w);
	struct exact *db = calloc((size_t)outputs, sizeof *db);

	for (int64_t i = 0; i < n * outputs * inputs; i++) {
		int64_t in = i % inputs, o = i / inputs % outputs, s = i / inputs / outputs;

		add(&y[s * outputs + o], x[s * inputs + in], w[o * inputs + in]);
		add(&dx[s * inputs + in], dy[s * outputs + o], w[o * inputs + in]);
		add(&dw[o * inputs + in], dy[s * outputs + o], x[s * inputs + in]);
	}
	for (int64_t i = 0; i < n * outputs; i++) {
		if (b)
			add(&y[i], b[i % outputs], 1);
		add(&db[i % outputs], dy[i], 1);
	}
	all_close(bench, "linear y", &call.y, y);
	if (how & 1)
		all_close(bench, "linear dx", &call.dx, dx);
	if (how & 2)
		all_close(bench, "linear dw", &call.dw, dw);
	if (how & 4)
		all_close(bench, "linear db", &call.db, db);
	free(x);
	free(w);
	free(dy);
	free(b);
	free(y);
	free(dx);
	free(dw);
	free(db);
	bench_clear(bench);
}

static void linear(void **state)
{
	struct bench *bench = *state;

	linear_run(bench, 3, 784, 10, 7 + 16);
	linear_run(bench, 5, 400, 120, 7 + 16);
	linear_run(bench, 64, 84, 10, 7 + 16);
	linear_run(bench, 1, 1, 1, 7);
	linear_run(bench, 0, 12, 5, 7 + 16);
	for (unsigned i = 0; i < 64; i++)
		linear_run(bench, 1 + bench_below(bench, 37), 1 + bench_below(bench, 70),
			   1 + bench_below(bench, 40), i % 32);
}

/* ---- relu ---- */

static void relu(void **state)
{
	static const int64_t shapes[][4] = {
		{1, 1, 1, 1}, {3, 5, 7, 2}, {2, 17, 3, 31}, {0, 4, 4, 4}};
	struct bench *bench = *state;

	for (size_t i = 0; i < ROWS(shapes); i++) {
		struct op_call call = {.kind = OP_RELU};

		call.x = bench_random(bench, 4, shapes[i]);
		int64_t count = tensor_count(&call.x);

		for (int64_t k = 0; k < count; k += 11)
			bench_set(bench, &call.x, k, k % 3 == 0 ? NAN : k % 3 == 1 ? 0.0f : -0.0f);
		call.y = bench_result(bench, 4, shapes[i]);
		bench_run(bench, &call);
		call.pass = OP_BACKWARD;
		call.dy = bench_random(bench, 4, shapes[i]);
		call.dx = bench_result(bench, 4, shapes[i]);
		bench_run(bench, &call);

		float *x = bench_fetch(bench, &call.x), *y = bench_fetch(bench, &call.y);
		float *dy = bench_fetch(bench, &call.dy), *dx = bench_fetch(bench, &call.dx);

		for (int64_t k = 0; k < count; k++) {
			/* PyTorch: the gradient stops where x <= 0, so a NaN passes it on. */
			bool stops = x[k] <= 0;

			if (isnan(x[k]) ? !isnan(y[k]) : y[k] != (stops ? 0 : x[k]))
				fail_msg("relu of %g is %g", (double)x[k], (double)y[k]);
			if (dx[k] != (stops ? 0 : dy[k]))
				fail_msg("relu's gradient at %g is %g of %g", (double)x[k],
					 (double)dx[k], (double)dy[k]);
		}
		free(x);
		free(y);
		free(dy);
		free(dx);
		bench_clear(bench);
	}
}

/* ---- maxpool2d ---- */

/* The place of the winner: the first NaN, else the first of the largest. */
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

/* levels: how many different values there are; few make ties. */
static void pool_run(struct bench *bench, const struct conv_case *cv, int levels, bool nan)
{
	struct op_attributes attributes = {cv->kernel, cv->stride, cv->pad};
	int64_t oh = op_side(cv->h, &attributes), ow = op_side(cv->w, &attributes);
	struct op_call call = {.kind = OP_MAXPOOL2D, .attributes = attributes};

	call.x = bench_random(bench, 4, (int64_t[]){cv->n, cv->c, cv->h, cv->w});
	for (int64_t i = 0; levels && i < tensor_count(&call.x); i++)
		bench_set(bench, &call.x, i, (float)bench_below(bench, levels) - (float)levels);
	for (int64_t i = 0; nan && i < tensor_count(&call.x); i += 1 + bench_below(bench, 5))
		bench_set(bench, &call.x, i, NAN);
	call.y = bench_result(bench, 4, (int64_t[]){cv->n, cv->c, oh, ow});
	bench_run(bench, &call);
	call.pass = OP_BACKWARD;
	call.dy = bench_random(bench, 4, call.y.shape);
	call.dx = bench_result(bench, 4, call.x.shape);
	bench_run(bench, &call);

	float *x = bench_fetch(bench, &call.x), *y = bench_fetch(bench, &call.y);
	float *dy = bench_fetch(bench, &call.dy);
	struct exact *dx = exact_new(&call.x);

	for (int64_t i = 0; i < tensor_count(&call.y); i++) {
		int64_t plane = i / (oh * ow) * cv->h * cv->w;
		int64_t top = i / ow % oh * cv->stride - cv->pad,
			left = i % ow * cv->stride - cv->pad;
		int64_t at = plane + pool_winner(x + plane, cv->h, cv->w, top, left, cv->kernel);

		if (isnan(x[at]) ? !isnan(y[i]) : y[i] != x[at])
			fail_msg("maxpool2d y[%lld] is %g, expected %g", (long long)i, (double)y[i],
				 (double)x[at]);
		add(&dx[at], dy[i], 1);
	}
	all_close(bench, "maxpool2d dx", &call.dx, dx);
	free(x);
	free(y);
	free(dy);
	free(dx);
	bench_clear(bench);
}

static void maxpool2d(void **state)
{
	static const struct conv_case cases[] = {
		{2, 6, 24, 24, 0, 2, 2, 0}, {3, 16, 8, 8, 0, 2, 2, 0},	{1, 1, 2, 2, 0, 2, 2, 0},
		{2, 3, 7, 5, 0, 2, 2, 0},   {2, 2, 7, 9, 0, 3, 2, 1},	{1, 2, 5, 5, 0, 3, 1, 1},
		{1, 3, 6, 7, 0, 2, 1, 1},   {1, 1, 4, 4, 0, 1, 1, 0},	{0, 2, 4, 4, 0, 2, 2, 0},
		{2, 2, 9, 6, 0, 2, 3, 0},   {1, 2, 35, 67, 0, 2, 2, 0},
	};
	struct bench *bench = *state;

	for (size_t i = 0; i < ROWS(cases) * 6; i++)
		pool_run(bench, &cases[i / 6], (const int[]){0, 1, 3}[i % 3], i / 3 % 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conv2d),
		cmocka_unit_test(linear),
		cmocka_unit_test(relu),
		cmocka_unit_test(maxpool2d),
	};

	bench_seed();
	return cmocka_run_group_tests(tests, bench_begin, bench_end);
}
