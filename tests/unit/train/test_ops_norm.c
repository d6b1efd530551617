/* SPDX-License-Identifier: BSD-3-Clause */
/* Op conformance, as in test_ops.c: batch norm, addition and average pooling. */
#include "../rows.h"

#include <math.h>

#include "ops_support.h"

/* The variants of a case, one bit each. */
enum { DX = 1, DW = 2, DB = 4, ADD_DX = 8, ADD_DW = 16, DX2 = 32, ADD_DX2 = 64 };

/* ---- batch norm ---- */

struct norm_case {
	int64_t n, c, h, w;
	double offset; /* how far the means are from 0, in standard deviations, roughly */
	bool training, nan;
	unsigned how;
	const char *why;
};

/* Statistics of a channel in float64. */
struct channel {
	double mean, variance, invstd;
	double size; /* the mean of |x| */
	/* The factor by which a float32 rounding error of x grows in invstd: if the deviations are
	 * small compared with the values, float32 arithmetic is inexact. */
	double growth;
};

static int64_t norm_at(const struct norm_case *nc, int64_t c, int64_t i)
{
	int64_t plane = nc->h * nc->w;

	return (i / plane * nc->c + c) * plane + i % plane;
}

static struct channel channel_of(const struct norm_case *nc, const float *x, double eps, int64_t c)
{
	struct channel out = {.size = 0};
	double count = (double)(nc->n * nc->h * nc->w);

	for (int64_t i = 0; i < nc->n * nc->h * nc->w; i++) {
		out.mean += (double)x[norm_at(nc, c, i)] / count;
		out.size += fabs((double)x[norm_at(nc, c, i)]) / count;
	}
	for (int64_t i = 0; i < nc->n * nc->h * nc->w; i++) {
		double at = (double)x[norm_at(nc, c, i)], off = at - out.mean;

		out.variance += off * off / count;
		out.growth += fabs(off) * (fabs(at) + out.size) / count;
	}
	out.invstd = 1 / sqrt(out.variance + eps);
	out.growth = 1 + out.growth * out.invstd * out.invstd;
	return out;
}

static struct tensor positive(struct bench *bench, int64_t count)
{
	struct tensor tensor = bench_random(bench, 1, &count);

	for (int64_t i = 0; i < count; i++)
		bench_set(bench, &tensor, i, 0.1f + fabsf(bench_number(bench)));
	return tensor;
}

static struct tensor norm_input(struct bench *bench, const struct norm_case *nc)
{
	struct tensor x = bench_random(bench, 4, (int64_t[]){nc->n, nc->c, nc->h, nc->w});

	for (int64_t c = 0; nc->offset != 0 && c < nc->c; c++) {
		float shift = (float)nc->offset * bench_number(bench), scale = bench_number(bench);

		for (int64_t i = 0; i < nc->n * nc->h * nc->w; i++)
			bench_set(bench, &x, norm_at(nc, c, i),
				  shift + scale * bench_number(bench));
	}
	if (nc->nan)
		bench_set(bench, &x, bench_below(bench, tensor_count(&x)), NAN);
	return x;
}

/* A value with the float32 error of count additions of numbers of this size. */
static struct exact one(double sum, double size, int64_t count)
{
	return (struct exact){sum, fabs(size), (long)count};
}

static void norm_statistics(struct bench *bench, const struct norm_case *nc,
			    const struct op_call *call, const struct channel *channels)
{
	int64_t count = nc->n * nc->h * nc->w;
	double momentum = (double)call->batchnorm.momentum;
	double unbias = (double)count / ((double)count - 1);
	struct exact *mean = exact_new(bench, &call->mean, false);
	struct exact *variance = exact_new(bench, &call->variance, false);
	struct exact *saved_mean = exact_new(bench, &call->saved_mean, false);
	struct exact *saved_invstd = exact_new(bench, &call->saved_invstd, false);

	for (int64_t c = 0; c < nc->c; c++) {
		const struct channel *ch = &channels[c];
		double m = (double)bench_before(bench, &call->mean)[c];
		double v = (double)bench_before(bench, &call->variance)[c];
		double now = momentum * ch->variance * unbias;

		mean[c] = one((1 - momentum) * m + momentum * ch->mean, fabs(m) + ch->size, count);
		variance[c] =
			one((1 - momentum) * v + now,
			    v + now * ch->growth * (1 + 1e-5 / (ch->variance + 1e-30)), count);
		saved_mean[c] = one(ch->mean, ch->size, count);
		saved_invstd[c] = one(ch->invstd, ch->invstd * ch->growth, count);
	}
	exact_check(bench, "batchnorm running mean", &call->mean, mean);
	exact_check(bench, "batchnorm running variance", &call->variance, variance);
	exact_check(bench, "batchnorm saved mean", &call->saved_mean, saved_mean);
	exact_check(bench, "batchnorm saved invstd", &call->saved_invstd, saved_invstd);
}

static void norm_y(struct bench *bench, const struct norm_case *nc, const struct op_call *call,
		   const struct channel *channels)
{
	const float *x = bench_before(bench, &call->x);
	struct exact *y = exact_new(bench, &call->y, false);

	for (int64_t c = 0; c < nc->c; c++)
		for (int64_t i = 0; i < nc->n * nc->h * nc->w; i++) {
			const struct channel *ch = &channels[c];
			int64_t at = norm_at(nc, c, i);
			double w = (double)bench_before(bench, &call->w)[c];
			double b = (double)bench_before(bench, &call->b)[c];
			double size = (fabs((double)x[at]) + ch->size) * ch->invstd * fabs(w);

			y[at] = one(((double)x[at] - ch->mean) * ch->invstd * w + b,
				    size * ch->growth + fabs(b), nc->n * nc->h * nc->w);
		}
	exact_check(bench, "batchnorm y", &call->y, y);
}

/* Evaluation: the running statistics in place of the batch's. */
static void norm_evaluation(struct bench *bench, const struct op_call *call,
			    struct channel *channels)
{
	for (int64_t c = 0; c < call->x.shape[1]; c++) {
		double mean = (double)bench_before(bench, &call->mean)[c];
		double variance = (double)bench_before(bench, &call->variance)[c];

		channels[c] = (struct channel){
			.mean = mean,
			.variance = variance,
			.invstd = 1 / sqrt(variance + (double)call->batchnorm.eps),
			.size = fabs(mean),
			.growth = 1,
		};
	}
}

static void norm_backward(struct bench *bench, const struct norm_case *nc, struct op_call *call,
			  const struct channel *channels)
{
	int64_t count = nc->n * nc->h * nc->w;

	bench_settle(bench);
	call->pass = OP_BACKWARD;
	call->add_dx = nc->how & ADD_DX;
	call->add_dw = nc->how & ADD_DW;
	call->dy = bench_random(bench, 4, call->x.shape);
	if (nc->how & DX)
		call->dx = bench_gradient(bench, 4, call->x.shape, call->add_dx);
	if (nc->how & DW)
		call->dw = bench_gradient(bench, 1, &nc->c, call->add_dw);
	if (nc->how & DB)
		call->db = bench_gradient(bench, 1, &nc->c, call->add_dw);
	bench_run(bench, call);

	const float *x = bench_before(bench, &call->x), *dy = bench_before(bench, &call->dy);
	struct exact *dx = nc->how & DX ? exact_new(bench, &call->dx, call->add_dx) : NULL;
	struct exact *dw = nc->how & DW ? exact_new(bench, &call->dw, call->add_dw) : NULL;
	struct exact *db = nc->how & DB ? exact_new(bench, &call->db, call->add_dw) : NULL;

	for (int64_t c = 0; c < nc->c; c++) {
		const struct channel *ch = &channels[c];
		double factor = (double)bench_before(bench, &call->w)[c] * ch->invstd;
		struct exact bias = {0}, weight = {0};

		for (int64_t i = 0; i < count; i++) {
			int64_t at = norm_at(nc, c, i);
			double g = (double)dy[at];

			exact_add(&bias, g, 1);
			weight.sum += g * ((double)x[at] - ch->mean) * ch->invstd;
			weight.size += fabs(g) * (fabs((double)x[at]) + ch->size) * ch->invstd *
				       ch->growth;
		}
		for (int64_t i = 0; dx && i < count; i++) {
			int64_t at = norm_at(nc, c, i);
			double h = ((double)x[at] - ch->mean) * ch->invstd, n = (double)count;
			double h_size = (fabs((double)x[at]) + ch->size) * ch->invstd * ch->growth;

			dx[at].sum += factor * ((double)dy[at] - bias.sum / n - h * weight.sum / n);
			dx[at].size +=
				fabs(factor) * ch->growth *
				(fabs((double)dy[at]) + bias.size / n + h_size * weight.size / n);
			dx[at].count += count;
		}
		if (dw)
			dw[c] = one(dw[c].sum + weight.sum, dw[c].size + weight.size, count);
		if (db)
			db[c] = one(db[c].sum + bias.sum, db[c].size + bias.size, count);
	}
	if (dx)
		exact_check(bench, "batchnorm dx", &call->dx, dx);
	if (dw)
		exact_check(bench, "batchnorm dw", &call->dw, dw);
	if (db)
		exact_check(bench, "batchnorm db", &call->db, db);
}

static void norm_run(struct bench *bench, const struct norm_case *given)
{
	struct norm_case supported = *given;
	const struct norm_case *nc = &supported;

	if (!bench_supports(nc->n))
		return;
	if (!op_emitter.adds)
		supported.how &= ~(unsigned)ADD_DX;

	struct op_call call = {.kind = OP_BATCHNORM, .batchnorm = {1e-5f, 0.1f, nc->training}};
	struct channel *channels = calloc((size_t)nc->c, sizeof *channels);

	call.x = norm_input(bench, nc);
	call.w = bench_random(bench, 1, &nc->c);
	call.b = bench_random(bench, 1, &nc->c);
	call.mean = bench_random(bench, 1, &nc->c);
	call.variance = positive(bench, nc->c);
	call.y = bench_result(bench, 4, call.x.shape);
	/* An empty batch and evaluation leave all statistics unchanged: they are inputs then. */
	if (nc->training) {
		call.saved_mean = bench_random(bench, 1, &nc->c);
		call.saved_invstd = bench_random(bench, 1, &nc->c);
	}
	if (nc->training && nc->n) {
		bench_in_out(bench, &call.mean);
		bench_in_out(bench, &call.variance);
		bench_in_out(bench, &call.saved_mean);
		bench_in_out(bench, &call.saved_invstd);
	}
	bench_run(bench, &call);
	if (nc->training && nc->n)
		for (int64_t c = 0; c < nc->c; c++)
			channels[c] = channel_of(nc, bench_before(bench, &call.x),
						 (double)call.batchnorm.eps, c);
	else
		norm_evaluation(bench, &call, channels);
	norm_y(bench, nc, &call, channels);
	if (nc->training && nc->n)
		norm_statistics(bench, nc, &call, channels);
	if (nc->training)
		norm_backward(bench, nc, &call, channels);
	free(channels);
	bench_clear(bench);
}

static void batchnorm(void **state)
{
	static const struct norm_case rows[] = {
		{4, 16, 8, 8, 0, true, false, DX | DW | DB, "plain"},
		{3, 5, 7, 3, 0, true, false, DX | DW | DB, "odd sizes"},
		{4, 16, 8, 8, 0, true, false, DX | DW | DB | ADD_DX | ADD_DW,
		 "added to existing gradients"},
		{3, 17, 5, 5, 0, true, false, DX | DW | DB | ADD_DW, "a second micro-batch"},
		{3, 17, 5, 5, 0, true, false, DX | DW | DB | ADD_DX, "dx is added to"},
		{2, 3, 1, 1, 0, true, false, DX | DW | DB, "two values per channel"},
		{1, 3, 1, 2, 0, true, false, DX | DW | DB, "two values from one sample"},
		{1, 33, 9, 9, 0, true, false, DX | DW | DB, "one sample"},
		{0, 4, 5, 5, 0, true, false, DX | DW | DB, "no sample: zero gradients"},
		{0, 4, 5, 5, 0, true, false, DX | DW | DB | ADD_DX | ADD_DW,
		 "no sample, gradients kept"},
		{8, 4, 6, 6, 4, true, false, DX | DW | DB, "means away from 0"},
		{8, 4, 6, 6, 100, true, false, DX | DW | DB, "means far from 0"},
		{2, 4, 6, 6, 0, true, false, DX, "only dx"},
		{2, 4, 6, 6, 0, true, false, DW | DB, "no dx"},
		{2, 4, 6, 6, 0, true, false, DB, "only db"},
		{2, 4, 6, 6, 0, true, true, DX | DW | DB, "a NaN affects only its channel"},
		{4, 16, 8, 8, 0, false, false, 0, "evaluation"},
		{1, 3, 1, 1, 0, false, false, 0, "evaluation of one value"},
		{0, 3, 4, 4, 0, false, false, 0, "evaluation of no samples"},
		{3, 5, 7, 3, 10, false, true, 0, "evaluation of a NaN"},
	};

	for (size_t i = 0; i < ROWS(rows) * 3; i++) {
		if (i % 3 == 0)
			print_message("%s\n", rows[i / 3].why);
		norm_run(*state, &rows[i / 3]);
	}
}

/* A shape that does not fit is our own defect. */
static void refused(void **state)
{
	const int64_t shape[] = {2, 3, 1, 1}, c = 3;
	struct op_call call = {.kind = OP_BATCHNORM, .batchnorm = {1e-5f, 0.1f, true}};
	struct bench *bench = *state;
	struct error err = {0};

	call.x = bench_random(bench, 4, shape);
	call.w = bench_random(bench, 1, &c);
	call.b = bench_random(bench, 1, &c);
	call.mean = bench_random(bench, 1, &c);
	call.variance = positive(bench, c);
	call.saved_mean = bench_result(bench, 1, &c);
	call.saved_invstd = bench_result(bench, 1, &c);
	call.y = bench_result(bench, 4, shape);
	call.variance.shape[0] = 2;
	assert_int_equal(bench_try(bench, &call, &err), -ERR_INTERNAL);
	assert_non_null(strstr(err.text, "variance"));
	bench_clear(bench);
}

/* ---- add ---- */

/* What reaches x through x + relu(x). */
static double factor_of(struct bench *bench, const struct tensor *x, int64_t at)
{
	return bench_before(bench, x)[at] <= 0 ? 1 : 2;
}

/* x2 is the ReLU of x, as emitters of networks expect. */
static void add_run(struct bench *bench, int rank, const int64_t *shape, unsigned how, bool nan)
{
	struct op_call call = {.kind = OP_ADD};

	if (!bench_supports(shape[0]))
		return;
	if (op_emitter.network)
		how = DX;
	call.x = bench_random(bench, rank, shape);
	call.x2 = bench_random(bench, rank, shape);
	if (nan && tensor_count(&call.x))
		bench_set(bench, &call.x, bench_below(bench, tensor_count(&call.x)), NAN);
	for (int64_t i = 0; i < tensor_count(&call.x); i++) {
		float x = bench_before(bench, &call.x)[i];

		bench_set(bench, &call.x2, i, x <= 0 ? 0 : x);
	}
	call.y = bench_result(bench, rank, shape);
	bench_run(bench, &call);

	struct exact *y = exact_new(bench, &call.y, false);

	for (int64_t i = 0; i < tensor_count(&call.y); i++) {
		exact_add(&y[i], (double)bench_before(bench, &call.x)[i], 1);
		exact_add(&y[i], (double)bench_before(bench, &call.x2)[i], 1);
	}
	exact_check(bench, "add y", &call.y, y);
	bench_settle(bench);
	call.pass = OP_BACKWARD;
	/* Their memory may hold another value by now. */
	if (!op_emitter.network)
		call.x.data = call.x2.data = call.y.data = NULL;
	call.add_dx = how & ADD_DX;
	call.add_dx2 = how & ADD_DX2;
	call.dy = bench_random(bench, rank, shape);
	if (how & DX)
		call.dx = bench_gradient(bench, rank, shape, call.add_dx);
	if (how & DX2)
		call.dx2 = bench_gradient(bench, rank, shape, call.add_dx2);
	bench_run(bench, &call);
	for (int second = 0; second < 2; second++) {
		const struct tensor *to = second ? &call.dx2 : &call.dx;

		if (!to->data)
			continue;

		struct exact *dx = exact_new(bench, to, second ? call.add_dx2 : call.add_dx);

		for (int64_t i = 0; i < tensor_count(to); i++)
			exact_add(&dx[i], (double)bench_before(bench, &call.dy)[i],
				  op_emitter.network ? factor_of(bench, &call.x, i) : 1);
		exact_check(bench, second ? "add dx2" : "add dx", to, dx);
	}
	bench_clear(bench);
}

static void add(void **state)
{
	static const int64_t shapes[][4] = {
		{2, 16, 4, 4}, {3, 5, 7, 1}, {1, 1, 1, 1}, {0, 3, 4, 4}, {1, 67, 3, 5}};
	static const unsigned hows[] = {DX | DX2,
					DX,
					DX2,
					DX | DX2 | ADD_DX,
					DX | DX2 | ADD_DX2,
					DX | ADD_DX,
					DX | DX2 | ADD_DX | ADD_DX2};

	for (unsigned i = 0; i < ROWS(shapes) * ROWS(hows); i++)
		add_run(*state, 1 + (int)(i % 4), shapes[i / ROWS(hows)], hows[i % ROWS(hows)],
			i % 3 == 2);
}

/* ---- mean of a plane ---- */

static void avgpool_run(struct bench *bench, const int64_t *shape, bool add_dx, bool nan)
{
	struct op_call call = {.kind = OP_AVGPOOL};
	int64_t plane = shape[2] * shape[3];

	if (!bench_supports(shape[0]))
		return;
	add_dx = add_dx && op_emitter.adds;

	call.x = bench_random(bench, 4, shape);
	if (nan && tensor_count(&call.x))
		bench_set(bench, &call.x, bench_below(bench, tensor_count(&call.x)), NAN);
	call.y = bench_result(bench, 4, (int64_t[]){shape[0], shape[1], 1, 1});
	bench_run(bench, &call);

	struct exact *y = exact_new(bench, &call.y, false);

	for (int64_t i = 0; i < tensor_count(&call.x); i++)
		exact_add(&y[i / plane], (double)bench_before(bench, &call.x)[i],
			  1 / (double)plane);
	exact_check(bench, "avgpool y", &call.y, y);
	bench_settle(bench);
	call.pass = OP_BACKWARD;
	call.x.data = call.y.data = NULL;
	call.add_dx = add_dx;
	call.dy = bench_random(bench, 4, call.y.shape);
	call.dx = bench_gradient(bench, 4, shape, add_dx);
	bench_run(bench, &call);

	struct exact *dx = exact_new(bench, &call.dx, add_dx);

	for (int64_t i = 0; i < tensor_count(&call.x); i++)
		exact_add(&dx[i], (double)bench_before(bench, &call.dy)[i / plane],
			  1 / (double)plane);
	exact_check(bench, "avgpool dx", &call.dx, dx);
	bench_clear(bench);
}

static void avgpool(void **state)
{
	static const int64_t shapes[][4] = {{2, 32, 7, 7}, {3, 5, 1, 1},  {1, 1, 2, 9},
					    {0, 4, 7, 7},  {5, 33, 4, 4}, {1, 512, 1, 1}};

	for (unsigned i = 0; i < ROWS(shapes) * 4; i++)
		avgpool_run(*state, shapes[i / 4], i & 1, i & 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batchnorm),
		cmocka_unit_test(refused),
		cmocka_unit_test(add),
		cmocka_unit_test(avgpool),
	};
	int absent = bench_choose();

	return absent ? absent : cmocka_run_group_tests(tests, bench_begin, bench_end);
}
