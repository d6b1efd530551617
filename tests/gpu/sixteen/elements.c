/* SPDX-License-Identifier: BSD-3-Clause */
/* Input, ReLU, additions, forks, pooling. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

/* ---- input ---- */

#define SIDE_H 6
#define SIDE_W 5
#define PAD 2
#define RESIDENT 7 /* images in the GPU's memory */
#define BATCH 4

/* The source of a batch of images. */
struct pictures {
	unsigned char bytes[RESIDENT * 4 * SIDE_H * SIDE_W];
	float floats[RESIDENT * 4 * SIDE_H * SIDE_W];
	float table[4 * 256];
	uint32_t index[BATCH];
	int32_t crops[BATCH * 3]; /* top, left, flip */
};

static void pictures_make(struct lab *lab, struct pictures *p)
{
	for (size_t i = 0; i < sizeof p->bytes; i++) {
		p->bytes[i] = (unsigned char)lab_below(lab, 256);
		p->floats[i] = (float)lab_number(lab);
	}
	for (int i = 0; i < 4 * 256; i++)
		p->table[i] = (float)(3 * lab_number(lab));
	for (int i = 0; i < BATCH; i++) {
		p->index[i] = (uint32_t)lab_below(lab, RESIDENT);
		p->crops[3 * i] = lab_below(lab, 2 * PAD + 1);
		p->crops[3 * i + 1] = lab_below(lab, 2 * PAD + 1);
		p->crops[3 * i + 2] = i % 2;
	}
}

/* Pixel (y, x) of channel c of sample n: from the crop of the padded image at (top, left), flipped
 * if requested. */
static double picture_at(const struct pictures *p, int channels, bool bytes, const int *at)
{
	int n = at[0], c = at[1], top = p->crops[3 * n], left = p->crops[3 * n + 1];
	int x = p->crops[3 * n + 2] ? SIDE_W - 1 - at[3] : at[3], y = at[2] + top - PAD;
	int image = (int)p->index[n] * channels + c;
	bool inside;

	x += left - PAD;
	inside = y >= 0 && y < SIDE_H && x >= 0 && x < SIDE_W;

	int from = (image * SIDE_H + y) * SIDE_W + x;

	/* The padding of an image is bytes of 0, or floats of 0. */
	if (bytes)
		return (double)p->table[c * 256 + (inside ? p->bytes[from] : 0)];
	return inside ? (double)p->floats[from] : 0;
}

static void input_case(struct lab *lab, int channels, int padded, bool bytes)
{
	struct pictures *p = calloc(1, sizeof *p);
	size_t count = (size_t)(BATCH * SIDE_H * SIDE_W * padded);
	struct numbers out = lab_result(lab, count, true, false);
	double *expected = calloc(count, sizeof *expected);

	pictures_make(lab, p);

	const struct kernel_input call = {
		.raw = bytes ? lab_bytes(lab, sizeof p->bytes, p->bytes)
			     : lab_bytes(lab, sizeof p->floats, p->floats),
		.index = lab_bytes(lab, sizeof p->index, p->index),
		.crops = lab_bytes(lab, sizeof p->crops, p->crops),
		.table = bytes ? lab_bytes(lab, sizeof p->table, p->table) : NULL,
		.out = out.memory,
		.n = BATCH,
		.c = channels,
		.h = SIDE_H,
		.w = SIDE_W,
		.padded = padded,
		.pad = PAD,
	};

	kernel_input(&lab->config, &call);
	lab_done(lab, 0, NULL);
	for (int i = 0; i < BATCH * SIDE_H * SIDE_W * channels; i++) {
		const int at[] = {i / channels / SIDE_W / SIDE_H, i % channels,
				  i / channels / SIDE_W % SIDE_H, i / channels % SIDE_W};

		expected[i / channels * padded + at[1]] =
			lab_rounded(lab, picture_at(p, channels, bytes, at), true);
	}
	lab_same(lab, "x", &out, expected);
	free(p);
}

/* ---- ReLU, additions ---- */

static double *relu_of(const double *values, const double *switches, size_t count)
{
	double *out = calloc(count + 1, sizeof *out);

	for (size_t i = 0; i < count; i++)
		out[i] = switches[i] > 0 ? values[i] : 0;
	return out;
}

static void relu_case(struct lab *lab, bool add)
{
	size_t count = 1000 + (size_t)lab_below(lab, 1000);
	struct numbers x = lab_random(lab, count, true), dy = lab_random(lab, count, true);
	struct numbers y = lab_result(lab, count, true, false);
	struct numbers dx = lab_result(lab, count, true, add);

	kernel_relu(&lab->config, x.memory, y.memory, count);
	lab_done(lab, 0, NULL);
	lab_same(lab, "y", &y, relu_of(x.at, x.at, count));
	lab_settle(lab, &y);
	kernel_relu_back(&lab->config, y.memory, dy.memory, dx.memory, count, add);
	lab_done(lab, 0, NULL);

	double *reached = relu_of(dy.at, x.at, count);
	struct exact *exact = exact_new(&dx, add);

	for (size_t i = 0; i < count; i++)
		exact_term(&exact[i], reached[i], 1);
	free(reached);
	lab_check(lab, "dx", &dx, exact);
}

/* y = a + b; and a fork: a gradient copied to one reader's gradient, or added to another's. */
static void add_case(struct lab *lab, bool add)
{
	size_t count = 1000 + (size_t)lab_below(lab, 1000);
	struct numbers a = lab_random(lab, count, true), b = lab_random(lab, count, true);
	struct numbers y = lab_result(lab, count, true, false);
	struct numbers to = lab_result(lab, count, true, add);
	struct exact *sum = exact_new(&y, false), *copy = exact_new(&to, add);

	kernel_sum(&lab->config, a.memory, b.memory, y.memory, count);
	kernel_copy(&lab->config, a.memory, to.memory, count, add);
	lab_done(lab, 0, NULL);
	for (size_t i = 0; i < count; i++) {
		exact_term(&sum[i], a.at[i], 1);
		exact_term(&sum[i], b.at[i], 1);
		exact_term(&copy[i], a.at[i], 1);
	}
	lab_check(lab, "y", &y, sum);
	lab_check(lab, "dx", &to, copy);
}

/* ---- pooling ---- */

struct pool_case {
	int n, h, w, c, kernel, stride, pad;
	bool add;
	const char *name;
};

/* The position in x of the maximum in the window of output i; the first among equal values. */
static int largest_at(const struct kernel_pool *p, const double *x, int i)
{
	int c = i % p->c, ox = i / p->c % p->out_w, oy = i / p->c / p->out_w % p->out_h;
	int n = i / p->c / p->out_w / p->out_h, best = -1;

	for (int k = 0; k < p->kernel * p->kernel; k++) {
		int y = oy * p->stride - p->pad + k / p->kernel;
		int at, from = ox * p->stride - p->pad + k % p->kernel;

		if (y < 0 || from < 0 || y >= p->h || from >= p->w)
			continue;
		at = ((n * p->h + y) * p->w + from) * p->c + c;
		if (best < 0 || x[at] > x[best])
			best = at;
	}
	return best;
}

/* Use so few distinct values that many are equal. */
static struct numbers pool_input(struct lab *lab, size_t count)
{
	double *values = calloc(count, sizeof *values);
	struct numbers out;

	for (size_t i = 0; i < count; i++)
		values[i] = lab_below(lab, 16) / 8.0 - 1;
	out = lab_given(lab, count, true, values);
	free(values);
	return out;
}

static void maxpool_case(struct lab *lab, const struct pool_case *pc)
{
	const struct op_attributes window = {pc->kernel, pc->stride, pc->pad};
	struct kernel_pool p = {pc->n,
				pc->h,
				pc->w,
				pc->c,
				.out_h = (int)op_side(pc->h, &window),
				.out_w = (int)op_side(pc->w, &window),
				.kernel = pc->kernel,
				.stride = pc->stride,
				.pad = pc->pad,
				.add = pc->add};
	size_t from = (size_t)(p.n * p.h * p.w * p.c),
	       count = (size_t)(p.n * p.out_h * p.out_w * p.c);
	struct numbers x, y, dy, dx;
	struct exact *exact;
	double *expected = calloc(count, sizeof *expected);

	lab_case(lab, pc->name);
	x = pool_input(lab, from);
	dy = lab_random(lab, count, true);
	y = lab_result(lab, count, true, false);
	dx = lab_result(lab, from, true, pc->add);
	p.x = x.memory;
	p.y = y.memory;
	p.dy = dy.memory;
	p.dx = dx.memory;
	p.argmax = lab_bytes(lab, count, NULL);
	kernel_maxpool(&lab->config, &p);
	kernel_maxpool_back(&lab->config, &p);
	lab_done(lab, 0, NULL);
	exact = exact_new(&dx, pc->add);
	for (int i = 0; i < (int)count; i++) {
		int best = largest_at(&p, x.at, i);

		expected[i] = x.at[best];
		exact_term(&exact[best], dy.at[i], 1);
	}
	lab_same(lab, "y", &y, expected);
	lab_check(lab, "dx", &dx, exact);
}

static void avgpool_case(struct lab *lab, const struct pool_case *pc)
{
	int hw = pc->h * pc->w;
	size_t from = (size_t)(pc->n * hw * pc->c), count = (size_t)(pc->n * pc->c);
	struct numbers x, y, dy, dx;
	struct exact *forward, *back;

	lab_case(lab, pc->name);
	x = lab_random(lab, from, true);
	dy = lab_random(lab, count, true);
	y = lab_result(lab, count, true, false);
	dx = lab_result(lab, from, true, pc->add);

	const struct kernel_pool p = {pc->n,	       pc->h,		pc->w,
				      pc->c,	       .x = x.memory,	.y = y.memory,
				      .dy = dy.memory, .dx = dx.memory, .add = pc->add};

	kernel_avgpool(&lab->config, &p);
	kernel_avgpool_back(&lab->config, &p);
	lab_done(lab, 0, NULL);
	forward = exact_new(&y, false);
	back = exact_new(&dx, pc->add);
	for (int i = 0; i < (int)from; i++) {
		int at = i / (pc->c * hw) * pc->c + i % pc->c;

		exact_term(&forward[at], x.at[i], 1.0 / hw);
		exact_term(&back[i], dy.at[at], 1.0 / hw);
	}
	lab_check(lab, "y", &y, forward);
	lab_check(lab, "dx", &dx, back);
}

static const struct pool_case pools[] = {
	{2, 9, 8, 16, 3, 2, 1, false, "max pool 3/2"},
	{2, 9, 8, 10, 3, 2, 1, true, "max pool 3/2, gradients added"},
	{2, 7, 9, 24, 3, 2, 1, true, "max pool 3/2 of 24 channels, added"},
	{2, 8, 8, 6, 2, 2, 0, false, "max pool 2/2"},
};
static const struct pool_case planes[] = {
	{3, 7, 7, 32, .add = false, .name = "average pool"},
	{3, 4, 5, 10, .add = true, .name = "average pool, added"},
};

void element_cases(struct lab *lab)
{
	static const struct {
		int channels, padded;
		bool bytes;
		const char *name;
	} inputs[] = {
		{3, 4, true, "input of bytes, 3 channels"},
		{1, 4, true, "input of bytes, 1 channel"},
		{3, 3, true, "input of bytes, not padded"},
		{3, 4, false, "input of floats, 3 channels"},
	};

	for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
		lab_case(lab, inputs[i].name);
		input_case(lab, inputs[i].channels, inputs[i].padded, inputs[i].bytes);
	}
	for (int add = 0; add < 2; add++) {
		lab_case(lab, add ? "ReLU, added" : "ReLU");
		relu_case(lab, add);
		lab_case(lab, add ? "add and fork, added" : "add and fork");
		add_case(lab, add);
	}
	for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
		maxpool_case(lab, &pools[i]);
	for (size_t i = 0; i < sizeof planes / sizeof *planes; i++)
		avgpool_case(lab, &planes[i]);
}
