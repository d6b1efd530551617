/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions that include the preceding batch norm and ReLU, forward and backward: if cuDNN
 * supports that (fp16) and it was measured to be faster; otherwise they are reported as not used.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"
#include "train/device/cuda/kernels/element.h"
#include "train/device/cuda/lowered_graph.h"

#define NEAR 0.002 /* this close to the ReLU's threshold, 16 bits may be on the other side */

struct through_case {
	struct conv_shape shape;
	const char *name;
};

struct through_room {
	struct conv_shape shape;
	int rows; /* of x */
	struct numbers x, w, y, dy, dx, dw, sums, saved, norm_w, norm_b, mean, variance, scratch;
	double *saved_at, *applied, *seen; /* seen: dx */
	float *scale, *shift;		   /* as the convolution uses them, converted to double */
	struct exact *y_exact, *dx_exact, *dw_exact;
};

static struct conv_source source_of(const struct through_room *room)
{
	return (struct conv_source){room->x.memory, room->saved.memory};
}

static double saved(const struct through_room *room, int row, size_t at)
{
	size_t c = (size_t)room->shape.c;

	return room->saved_at[(size_t)row * c + at % c];
}

/* x's statistics, and what the convolution uses: saved's scale and shift in 16 bits, w and b. */
static void moments(struct lab *lab, struct through_room *room)
{
	size_t c = (size_t)room->shape.c, bytes = SAVED_ROWS * c * sizeof(float);
	float *all = room->saved.memory;
	const struct kernel_norm call = {.rows = room->rows,
					 .c = room->shape.c,
					 .eps = 1e-5f,
					 .momentum = 0.1f,
					 .training = true,
					 .relu = true,
					 .x = room->x.memory,
					 .w = room->norm_w.memory,
					 .b = room->norm_b.memory,
					 .mean = room->mean.memory,
					 .variance = room->variance.memory,
					 .saved = all,
					 .apply_params = all + SAVED_APPLY * c,
					 .scratch = room->scratch.memory};
	float *rows = malloc(bytes);
	const uint16_t *narrow = (const uint16_t *)(rows + SAVED_APPLY * c);

	kernel_norm_moments(&lab->config, &call);
	lab_done(lab, 0, NULL);
	room->saved_at = lab_fetch(lab, &room->saved);
	lab_fetch_bytes(lab, room->saved.memory, bytes, rows);
	room->scale = malloc(2 * c * sizeof *room->scale);
	room->shift = room->scale + c;
	for (size_t i = 0; i < 2 * c; i++) {
		room->scale[i] = lab->config.number == NUMBER_F16
					 ? f32_of_f16((struct f16){narrow[i]})
					 : f32_of_bf16((struct bf16){narrow[i]});
		if ((double)room->scale[i] != lab_rounded(lab, room->saved_at[2 * c + i], true))
			lab_fail(lab, "scale or shift %zu is not that of the statistics", i);
	}
	for (size_t i = 0; i < c; i++)
		if (saved(room, SAVED_APPLY + 1, i) != room->norm_w.at[i] ||
		    saved(room, SAVED_APPLY + 2, i) != room->norm_b.at[i])
			lab_fail(lab, "w or b of channel %zu is not copied", i);
	free(rows);
}

static void product(void *context, size_t xi, size_t wi, size_t yi)
{
	struct through_room *room = context;
	double a = room->applied[xi];
	struct exact *y = &room->y_exact[yi], *dw = &room->dw_exact[wi];

	exact_term(y, a, room->w.at[wi]);
	exact_term(dw, room->dy.at[yi], a);
	exact_term(&room->dx_exact[xi], room->dy.at[yi], room->w.at[wi]);
	/* Intermediate values may be rounded to either neighbour. */
	y->rounded += fabs(a * room->w.at[wi]);
	dw->rounded += fabs(a * room->dy.at[yi]);
}

static void exact_all(struct lab *lab, struct through_room *room)
{
	size_t c = (size_t)room->shape.c;

	room->y_exact = exact_new(&room->y, false);
	room->dw_exact = exact_new(&room->dw, false);
	room->dx_exact = exact_new(&room->dx, false);
	room->applied = calloc(room->x.count, sizeof *room->applied);
	for (size_t i = 0; i < room->x.count; i++) {
		double value =
			room->x.at[i] * (double)room->scale[i % c] + (double)room->shift[i % c];

		room->applied[i] = value > 0 ? lab_rounded(lab, value, true) : 0;
	}
	lab_conv_products(&room->shape, product, room);
}

/* Of the computed y or of the rounded y. */
static void check_sums(struct lab *lab, const struct through_room *room)
{
	struct exact *exact = exact_new(&room->sums, false);
	size_t c = (size_t)room->shape.outputs;

	for (size_t i = 0; i < room->y.count; i++) {
		const struct exact *y = &room->y_exact[i];

		exact_term(&exact[i % c], y->sum, 1);
		exact_term(&exact[c + i % c], y->sum, y->sum);
		exact[i % c].rounded += fabs(y->sum) + y->rounded;
		exact[i % c].size += y->size;
		exact[c + i % c].rounded += 2 * fabs(y->sum) * (fabs(y->sum) + y->rounded);
		exact[c + i % c].size += 2 * fabs(y->sum) * y->size;
	}
	lab_check(lab, "sums of y", &room->sums, exact);
}

/* The gradient that the ReLU lets through, and its sums, the gradients of w and b, in saved's rows.
 */
static void check_back(struct lab *lab, struct through_room *room)
{
	size_t c = (size_t)room->shape.c;
	double *now = lab_fetch(lab, &room->saved);
	struct numbers sums = lab_given(lab, 2 * c, false, now + SAVED_SUMS * c);
	struct exact *exact = exact_new(&sums, false);

	free(now);

	for (size_t i = 0; i < room->dx.count; i++) {
		struct exact *g = &room->dx_exact[i];
		double hat = (room->x.at[i] - saved(room, 0, i)) * saved(room, 1, i);
		double value = hat * room->norm_w.at[i % c] + room->norm_b.at[i % c];

		if (fabs(value) < NEAR ? room->seen[i] == 0 : value <= 0)
			*g = (struct exact){0};
		exact_term(&exact[i % c], g->sum, 1);
		exact_term(&exact[c + i % c], g->sum, hat);
		exact[i % c].rounded += fabs(g->sum);
		exact[i % c].size += g->size;
		exact[c + i % c].rounded += fabs(g->sum * hat);
		exact[c + i % c].size += 2 * fabs(hat) * g->size;
	}
	lab_check(lab, "sums of g and g xhat", &sums, exact);
	lab_check(lab, "g", &room->dx, room->dx_exact);
	room->dx_exact = NULL;
}

static void room_take(struct lab *lab, struct through_room *room)
{
	const struct conv_shape *s = &room->shape;
	const struct op_attributes window = {s->kernel, s->stride, s->pad};
	size_t c = (size_t)s->c, parts;
	size_t pixels =
		(size_t)s->n * (size_t)op_side(s->h, &window) * (size_t)op_side(s->w, &window);

	room->rows = s->n * s->h * s->w;
	parts = (size_t)kernel_parts(lab->config.multiprocessors, room->rows, s->c);
	room->x = lab_random(lab, (size_t)room->rows * c, true);
	room->w = lab_random(lab, (size_t)(s->outputs * s->kernel * s->kernel) * c, true);
	room->dy = lab_random(lab, pixels * (size_t)s->outputs, true);
	room->norm_w = lab_random(lab, c, false);
	room->norm_b = lab_random(lab, c, false);
	room->y = lab_result(lab, room->dy.count, true, false);
	room->dx = lab_result(lab, room->x.count, true, false);
	room->dw = lab_result(lab, room->w.count, true, false);
	room->sums = lab_result(lab, 2 * (size_t)s->outputs, false, false);
	room->saved = lab_result(lab, SAVED_ROWS * c, false, false);
	room->mean = lab_result(lab, c, false, true);
	room->variance = lab_result(lab, c, false, true);
	room->scratch = lab_result(lab, 2 * parts * c, false, false);
}

static void room_leave(struct through_room *room)
{
	free(room->saved_at);
	free(room->applied);
	free(room->seen);
	free(room->scale);
	free(room->y_exact);
	free(room->dx_exact);
	free(room->dw_exact);
}

static void forward(struct lab *lab, const struct convolution *conv, struct through_room *room,
		    void *workspace)
{
	const struct conv_source source = source_of(room);
	struct error err = {0};
	int rc = convolution_forward(conv, lab->config.stream, NULL, room->w.memory, room->y.memory,
				     room->sums.memory, &source, workspace, &err);

	if (!rc)
		rc = convolution_back_weights(conv, lab->config.stream, NULL, room->dy.memory,
					      room->dw.memory, false, &source, workspace, &err);
	if (!lab_done(lab, rc, &err))
		return;
	check_sums(lab, room);
	lab_check(lab, "y", &room->y, room->y_exact);
	lab_check(lab, "dw", &room->dw, room->dw_exact);
	room->y_exact = room->dw_exact = NULL; /* the checks free them */
}

static void backward(struct lab *lab, const struct convolution *conv, struct through_room *room,
		     void *workspace)
{
	const struct conv_source source = source_of(room);
	struct error err = {0};
	int rc = convolution_back_input(conv, lab->config.stream, room->w.memory, room->dy.memory,
					room->dx.memory, false, &source, workspace, &err);

	if (!lab_done(lab, rc, &err))
		return;
	room->seen = lab_fetch(lab, &room->dx);
	check_back(lab, room);
}

static void through_case(struct lab *lab, const struct through_case *tc, bool apply_params)
{
	struct through_room room = {.shape = tc->shape};
	const struct layer_rules rules = {.number = lab->config.number,
					  .direct = true,
					  .tune = true,
					  .train = true,
					  .dx = true,
					  .sums = true,
					  .fused_norm = true};
	struct convolution *first = NULL, *conv = NULL;
	struct error err = {0};
	void *workspace;
	int rc;

	lab_case(lab, tc->name);
	room_take(lab, &room);
	/* A second layer of the same shape uses the choice of the first one, and keeps it. */
	rc = convolution_new(lab->cuda, tc->name, &tc->shape, &rules, &first, &err);
	if (!rc)
		rc = convolution_new(lab->cuda, tc->name, &tc->shape, &rules, &conv, &err);
	convolution_free(first);
	if (rc) {
		lab_fail(lab, "%s", err.text);
		return;
	}
	workspace = lab_bytes(lab, convolution_workspace(conv), NULL);
	moments(lab, &room);
	exact_all(lab, &room);
	if (convolution_fuses_norm(conv))
		forward(lab, conv, &room, workspace);
	if (convolution_makes_back_sums(conv))
		backward(lab, conv, &room, workspace);
	if (apply_params && !(convolution_fuses_norm(conv) && convolution_makes_back_sums(conv)))
		lab_fail(lab, "the preceding batch norm was not fused");
	printf("%s %s: the preceding batch norm is %sfused forward, its sums are %sfused "
	       "backward\n",
	       lab->type, tc->name, convolution_fuses_norm(conv) ? "" : "not ",
	       convolution_makes_back_sums(conv) ? "" : "not ");
	convolution_free(conv);
	room_leave(&room);
}

static const struct through_case cases[] = {
	{{3, 32, 6, 5, 16, 1, 1, 0}, "norm, conv 1x1"},
	{{2, 64, 4, 4, 64, 3, 1, 1}, "norm, conv 3x3"},
	{{2, 16, 8, 8, 32, 3, 2, 1}, "norm, conv 3x3/2"},
};

void through_cases(struct lab *lab, bool apply_params)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		through_case(lab, &cases[i], apply_params);
}
