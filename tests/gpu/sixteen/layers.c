/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions and linear layers with their surrounding work in a step: conversion of input and
 * weights to 16 bits, padded if the channels are few; the bias; and conversion of the weight's
 * gradient to float32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lab.h"

/* A layer's weight: float32 [outputs][c][inner] and the copy [outputs][inner][padded]. */
struct weight {
	struct numbers master, copy;
	int outputs, c, inner, padded;
};

static size_t master_at(const struct weight *w, int o, int s, int c)
{
	return ((size_t)o * (size_t)w->c + (size_t)c) * (size_t)w->inner + (size_t)s;
}

static size_t copy_at(const struct weight *w, int o, int s, int c)
{
	return ((size_t)o * (size_t)w->inner + (size_t)s) * (size_t)w->padded + (size_t)c;
}

static struct weight weight_new(struct lab *lab, int outputs, int c, int inner, int padded)
{
	struct weight w = {.outputs = outputs, .c = c, .inner = inner, .padded = padded};
	size_t count = (size_t)(outputs * inner * padded);
	double *expected = calloc(count, sizeof *expected);

	w.master = lab_random(lab, (size_t)(outputs * c * inner), false);
	w.copy = lab_result(lab, count, true, false);

	const struct kernel_weight list = {w.master.memory, w.copy.memory, outputs, c,
					   inner,	    padded};

	kernel_weights(&lab->config, lab_bytes(lab, sizeof list, &list), 1);
	lab_done(lab, 0, NULL);
	for (int i = 0; i < outputs * c * inner; i++) {
		int o = i / (c * inner), s = i % inner, channel = i / inner % c;

		expected[copy_at(&w, o, s, channel)] = lab_rounded(lab, w.master.at[i], true);
	}
	lab_same(lab, "weight in 16 bits", &w.copy, expected);
	lab_settle(lab, &w.copy);
	return w;
}

/* Convert the gradient dw from the copy's order and type to the master weight's. */
static void weight_gradient(struct lab *lab, const struct weight *w, struct numbers *dw, bool add)
{
	struct numbers to = lab_result(lab, w->master.count, false, add);
	struct exact *exact = exact_new(&to, add);

	lab_settle(lab, dw);
	kernel_weight_gradient(&lab->config, dw->memory, to.memory, w->outputs, w->c, w->inner,
			       w->padded, add);
	lab_done(lab, 0, NULL);
	for (int i = 0; i < w->outputs * w->c * w->inner; i++) {
		int o = i / (w->c * w->inner), s = i % w->inner, c = i / w->inner % w->c;

		exact_term(&exact[master_at(w, o, s, c)], dw->at[copy_at(w, o, s, c)], 1);
	}
	lab_check(lab, "dw in its place", &to, exact);
}

/* ---- bias ---- */

/* y += b, then db of dy [rows][c]. */
static void bias_case(struct lab *lab, int64_t rows, int c, bool add)
{
	size_t count = (size_t)rows * (size_t)c;
	struct numbers y = lab_random(lab, count, true), b = lab_random(lab, (size_t)c, false);
	struct numbers dy = lab_random(lab, count, true);
	struct numbers db = lab_result(lab, (size_t)c, false, add);
	size_t parts = (size_t)kernel_parts(lab->config.multiprocessors, rows, c);
	float *scratch = lab_bytes(lab, 2 * parts * (size_t)c * sizeof *scratch, NULL);
	struct exact *y_exact = exact_new(&y, true), *db_exact = exact_new(&db, add);

	lab_open(lab, &y);
	kernel_bias(&lab->config, y.memory, b.memory, rows, c);
	kernel_bias_back(&lab->config, dy.memory, db.memory, rows, c, add, scratch);
	lab_done(lab, 0, NULL);
	for (size_t i = 0; i < count; i++) {
		exact_term(&y_exact[i], b.at[i % (size_t)c], 1);
		exact_term(&db_exact[i % (size_t)c], dy.at[i], 1);
	}
	lab_check(lab, "y + bias", &y, y_exact);
	lab_check(lab, "db", &db, db_exact);
}

/* ---- convolution ---- */

struct conv_case {
	struct conv_shape shape; /* c: real ones */
	int padded;
	bool tune, sums, add;
	const char *name;
};

/* A convolution, its tensors and the expected results. */
struct conv_room {
	struct conv_shape shape; /* c: padded */
	int out_h, out_w;
	struct weight w;
	struct numbers x, y, dy, dx, dw, sums;
	struct exact *y_exact, *dx_exact, *dw_exact;
};

static void conv_product(void *context, size_t xi, size_t wi, size_t yi)
{
	struct conv_room *room = context;

	exact_term(&room->y_exact[yi], room->x.at[xi], room->w.copy.at[wi]);
	if (room->dx_exact)
		exact_term(&room->dx_exact[xi], room->dy.at[yi], room->w.copy.at[wi]);
	exact_term(&room->dw_exact[wi], room->dy.at[yi], room->x.at[xi]);
}

/* All products of pixel (oy, ox) of image n of y with filter tap s. */
static void conv_tap(const struct conv_shape *sh, const int out[2], const int at[4],
		     lab_product *product, void *context)
{
	int n = at[0], oy = at[1], ox = at[2], s = at[3], taps = sh->kernel * sh->kernel;
	int y = oy * sh->stride + s / sh->kernel - sh->pad;
	int x = ox * sh->stride + s % sh->kernel - sh->pad;

	if (y < 0 || x < 0 || y >= sh->h || x >= sh->w)
		return;
	for (int o = 0; o < sh->outputs; o++)
		for (int c = 0; c < sh->c; c++)
			product(context, (size_t)(((n * sh->h + y) * sh->w + x) * sh->c + c),
				(size_t)((o * taps + s) * sh->c + c),
				(size_t)(((n * out[0] + oy) * out[1] + ox) * sh->outputs + o));
}

void lab_conv_products(const struct conv_shape *shape, lab_product *product, void *context)
{
	const struct op_attributes window = {shape->kernel, shape->stride, shape->pad};
	const int out[2] = {(int)op_side(shape->h, &window), (int)op_side(shape->w, &window)};
	int taps = shape->kernel * shape->kernel;

	for (int i = 0; i < shape->n * out[0] * out[1] * taps; i++) {
		const int at[4] = {i / taps / out[1] / out[0], i / taps / out[1] % out[0],
				   i / taps % out[1], i % taps};

		conv_tap(shape, out, at, product, context);
	}
}

static void conv_exact(struct conv_room *room, bool add)
{
	room->y_exact = exact_new(&room->y, false);
	room->dw_exact = exact_new(&room->dw, false);
	room->dx_exact = room->dx.memory ? exact_new(&room->dx, add) : NULL;
	lab_conv_products(&room->shape, conv_product, room);
	/* A library may round the product before it adds the existing value. */
	for (size_t i = 0; add && room->dx_exact && i < room->dx.count; i++)
		room->dx_exact[i].rounded = fabs(room->dx_exact[i].sum - room->dx.at[i]);
}

/* Convert images as a step does: from float32 NCHW to NHWC in 16 bits with zero channels as
 * padding. */
static struct numbers images(struct lab *lab, const struct conv_shape *s, int padded)
{
	size_t plane = (size_t)(s->h * s->w), c = (size_t)s->c, all = (size_t)padded;
	struct numbers raw = lab_random(lab, (size_t)s->n * c * plane, false);
	struct numbers x = lab_result(lab, (size_t)s->n * plane * all, true, false);
	const struct kernel_input call = {.raw = raw.memory,
					  .out = x.memory,
					  .n = s->n,
					  .c = s->c,
					  .h = s->h,
					  .w = s->w,
					  .padded = padded};
	double *expected = calloc(x.count, sizeof *expected);

	kernel_input(&lab->config, &call);
	lab_done(lab, 0, NULL);
	for (size_t i = 0; i < raw.count; i++) {
		size_t n = i / (c * plane), channel = i / plane % c, at = i % plane;

		expected[(n * plane + at) * all + channel] = lab_rounded(lab, raw.at[i], true);
	}
	lab_same(lab, "x in 16 bits", &x, expected);
	lab_settle(lab, &x);
	return x;
}

/* Sums of y's channels and of its squares, of the computed y or of the rounded y. */
static void check_sums(struct lab *lab, const struct conv_room *room)
{
	struct exact *exact = exact_new(&room->sums, false);
	size_t c = (size_t)room->shape.outputs;

	for (size_t i = 0; i < room->y.count; i++) {
		const struct exact *y = &room->y_exact[i];
		struct exact *sum = &exact[i % c], *square = &exact[c + i % c];

		exact_term(sum, y->sum, 1);
		sum->rounded += fabs(y->sum);
		sum->size += y->size;
		exact_term(square, y->sum, y->sum);
		square->rounded += 2 * y->sum * y->sum;
		square->size += 2 * fabs(y->sum) * y->size;
	}
	lab_check(lab, "sums of y", &room->sums, exact);
}

static bool conv_run(struct lab *lab, const struct convolution *conv, struct conv_room *room,
		     bool add)
{
	void *workspace = lab_bytes(lab, convolution_workspace(conv), NULL);
	struct error err = {0};
	int rc = convolution_forward(conv, lab->config.stream, room->x.memory, room->w.copy.memory,
				     room->y.memory, room->sums.memory, NULL, workspace, &err);

	if (!rc)
		rc = convolution_back_weights(conv, lab->config.stream, room->x.memory,
					      room->dy.memory, room->dw.memory, false, NULL,
					      workspace, &err);
	if (!rc && room->dx.memory)
		rc = convolution_back_input(conv, lab->config.stream, room->w.copy.memory,
					    room->dy.memory, room->dx.memory, add, NULL, workspace,
					    &err);
	return lab_done(lab, rc, &err);
}

static void conv_case(struct lab *lab, const struct conv_case *cc)
{
	struct conv_room room = {.shape = cc->shape};
	struct conv_shape *s = &room.shape;
	const struct op_attributes window = {s->kernel, s->stride, s->pad};
	const struct layer_rules rules = {.number = lab->config.number,
					  .direct = true,
					  .deterministic = !cc->tune,
					  .tune = cc->tune,
					  .train = true,
					  .dx = cc->padded == cc->shape.c,
					  .add_dx = cc->add,
					  .sums = cc->sums};
	struct convolution *conv = NULL;
	struct error err = {0};
	size_t pixels;

	lab_case(lab, cc->name);
	room.out_h = (int)op_side(s->h, &window);
	room.out_w = (int)op_side(s->w, &window);
	pixels = (size_t)(s->n * room.out_h * room.out_w);
	room.x = images(lab, &cc->shape, cc->padded);
	room.w = weight_new(lab, s->outputs, s->c, s->kernel * s->kernel, cc->padded);
	s->c = cc->padded;
	room.y = lab_result(lab, pixels * (size_t)s->outputs, true, false);
	room.dy = lab_random(lab, room.y.count, true);
	room.dw = lab_result(lab, room.w.copy.count, true, false);
	if (rules.dx)
		room.dx = lab_result(lab, room.x.count, true, cc->add);
	if (convolution_new(lab->cuda, cc->name, s, &rules, &conv, &err)) {
		lab_fail(lab, "%s", err.text);
		return;
	}
	if (convolution_makes_sums(conv))
		room.sums = lab_result(lab, 2 * (size_t)s->outputs, false, false);
	if (conv_run(lab, conv, &room, cc->add)) {
		conv_exact(&room, cc->add);
		if (room.sums.memory)
			check_sums(lab, &room);
		lab_check(lab, "y", &room.y, room.y_exact);
		lab_check(lab, "dw", &room.dw, room.dw_exact);
		if (room.dx.memory)
			lab_check(lab, "dx", &room.dx, room.dx_exact);
		weight_gradient(lab, &room.w, &room.dw, cc->add);
	}
	convolution_free(conv);
}

/* Shapes of the models; tune: choose by time, also from cuDNN's graph API; else by the legacy API's
 * heuristics. */
static const struct conv_case conv_cases[] = {
	{{3, 32, 6, 5, 16, 1, 1, 0}, 32, false, false, false, "conv 1x1"},
	{{3, 32, 6, 5, 16, 1, 1, 0}, 32, true, true, true, "conv 1x1, tuned, added"},
	{{2, 32, 8, 8, 64, 1, 2, 0}, 32, false, false, true, "conv 1x1/2, added"},
	{{2, 32, 8, 8, 64, 1, 2, 0}, 32, true, true, false, "conv 1x1/2, tuned"},
	{{2, 16, 7, 6, 32, 3, 1, 1}, 16, false, false, false, "conv 3x3"},
	{{2, 16, 7, 6, 32, 3, 1, 1}, 16, true, true, false, "conv 3x3, tuned"},
	{{2, 16, 7, 6, 32, 3, 1, 1}, 16, false, false, true, "conv 3x3, added"},
	{{2, 64, 4, 4, 64, 3, 1, 1}, 64, true, true, true, "conv 3x3 64, tuned, added"},
	{{2, 16, 8, 8, 32, 3, 2, 1}, 16, false, false, false, "conv 3x3/2"},
	{{2, 16, 8, 8, 32, 3, 2, 1}, 16, true, true, true, "conv 3x3/2, tuned, added"},
	{{2, 3, 8, 8, 16, 3, 1, 1}, 4, false, false, true, "conv 3x3 of 3 channels"},
	{{2, 3, 15, 15, 16, 7, 2, 3}, 4, true, true, false, "conv 7x7/2 of 3, tuned"},
	{{2, 1, 14, 14, 6, 5, 1, 0}, 4, false, false, false, "conv 5x5 of 1 channel"},
	{{2, 6, 8, 8, 16, 5, 1, 0}, 6, false, false, false, "conv 5x5 of 6 channels"},
	{{2, 5, 8, 8, 16, 3, 1, 1}, 8, false, false, false, "conv 3x3 of 5 channels"},
};

/* ---- linear ---- */

struct linear_case {
	int n, c, inner, outputs;
	bool add;
	const char *name;
};

struct linear_room {
	int n, inputs, outputs;
	struct weight w;
	struct numbers x, y, dy, dx, dw;
	bool in_place; /* dw is float32 */
};

static void linear_exact(struct lab *lab, const struct linear_room *room, bool add)
{
	bool add_dw = room->in_place && add;
	struct exact *y = exact_new(&room->y, false), *dx = exact_new(&room->dx, add);
	struct exact *dw = exact_new(&room->dw, add_dw);

	for (int i = 0; i < room->n * room->outputs * room->inputs; i++) {
		int in = i % room->inputs, o = i / room->inputs % room->outputs;
		int n = i / room->inputs / room->outputs;
		size_t xi = (size_t)(n * room->inputs + in), wi = (size_t)(o * room->inputs + in);
		size_t yi = (size_t)(n * room->outputs + o);

		exact_term(&y[yi], room->x.at[xi], room->w.copy.at[wi]);
		exact_term(&dx[xi], room->dy.at[yi], room->w.copy.at[wi]);
		exact_term(&dw[wi], room->dy.at[yi], room->x.at[xi]);
	}
	for (size_t i = 0; add && i < room->dx.count; i++)
		dx[i].rounded = fabs(dx[i].sum - room->dx.at[i]);
	lab_check(lab, "y", &room->y, y);
	lab_check(lab, "dx", &room->dx, dx);
	lab_check(lab, room->in_place ? "dw in float32" : "dw", &room->dw, dw);
}

static void linear_case(struct lab *lab, const struct linear_case *lc)
{
	struct linear_room room = {lc->n, lc->c * lc->inner, lc->outputs,
				   .in_place = lc->inner == 1};
	const struct layer_rules rules = {.number = lab->config.number,
					  .direct = true,
					  .train = true,
					  .deterministic = true,
					  .dx = true,
					  .add_dx = lc->add};
	const struct cuda_linear_shape shape = {room.n, room.inputs, room.outputs, room.in_place,
						16};
	size_t x = (size_t)(room.n * room.inputs), y = (size_t)(room.n * room.outputs);
	void *workspace;
	struct cuda_linear *linear = NULL;
	struct error err = {0};
	int rc;

	lab_case(lab, lc->name);
	room.w = weight_new(lab, lc->outputs, lc->c, lc->inner, lc->c);
	room.x = lab_random(lab, x, true);
	room.y = lab_result(lab, y, true, false);
	room.dy = lab_random(lab, y, true);
	room.dx = lab_result(lab, x, true, lc->add);
	room.dw = lab_result(lab, room.w.copy.count, !room.in_place, room.in_place && lc->add);
	workspace = lab_bytes(lab, LINEAR_WORKSPACE, NULL);
	rc = cuda_linear_new(lab->cuda, lc->name, &shape, &rules, &linear, &err);
	if (!rc)
		rc = cuda_linear_forward(linear, lab->config.stream, room.x.memory,
					 room.w.copy.memory, room.y.memory, workspace, &err);
	if (!rc)
		rc = cuda_linear_back_weights(linear, lab->config.stream, room.x.memory,
					      room.dy.memory, room.dw.memory,
					      room.in_place && lc->add, workspace, &err);
	if (!rc)
		rc = cuda_linear_back_input(linear, lab->config.stream, room.w.copy.memory,
					    room.dy.memory, room.dx.memory, lc->add, workspace,
					    &err);
	if (lab_done(lab, rc, &err)) {
		linear_exact(lab, &room, lc->add);
		if (!room.in_place)
			weight_gradient(lab, &room.w, &room.dw, lc->add);
	}
	cuda_linear_free(linear);
}

static const struct linear_case linear_cases[] = {
	{9, 64, 1, 10, false, "linear"},
	{9, 64, 1, 16, true, "linear, added"},
	{5, 16, 25, 24, false, "linear of images"},
	{5, 16, 4, 24, true, "linear of images, added"},
};

void layers_cases(struct lab *lab)
{
	for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++)
		conv_case(lab, &conv_cases[i]);
	for (size_t i = 0; i < sizeof linear_cases / sizeof *linear_cases; i++)
		linear_case(lab, &linear_cases[i]);
	for (int i = 0; i < 4; i++) {
		lab_case(lab, i & 1 ? "bias, added" : "bias");
		bias_case(lab, 3 + lab_below(lab, 200), i < 2 ? 24 : 10, i & 1);
	}
}
