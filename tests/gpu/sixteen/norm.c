/* SPDX-License-Identifier: BSD-3-Clause */
/* Batch norm with the fused addition and ReLU. Statistics, weights and their gradients are float32.
 */
#include <math.h>
#include <stdlib.h>

#include "lab.h"

struct norm_case {
	int rows, c;
	bool relu, z, training;
	bool sums; /* the batch's statistics come from the producer of x */
	bool add_dx, add_dz, add_dw;
	bool dz_is_dy;
	const char *name;
};

/* Statistics of a channel. size: the mean of |x|; growth: the factor by which a float32 error of x
 * grows in invstd. */
struct channel {
	double mean, variance, invstd, size, growth;
	double g, g_size, gh,
		gh_size; /* backward: sums of g and of g xhat, and of their absolute values */
};

struct norm_room {
	const struct norm_case *nc;
	struct kernel_norm call;
	struct numbers x, z, y, w, b, mean, variance, saved, sums, dy, dx, dz, dw, db;
	struct channel *channels;
	double *before_relu,
		*reached; /* y before the ReLU; the part of dy that reaches the batch norm */
};

#define EPS 1e-5f
#define MOMENTUM 0.1f
#define NEAR 0.001 /* this close to a ReLU's threshold, float32 may be on the other side */

static struct channel channel_of(const struct norm_room *room, int c)
{
	int rows = room->nc->rows, all = room->nc->c;
	struct channel out = {0};
	double squares = 0;

	for (int i = 0; i < rows; i++) {
		double x = room->x.at[i * all + c];

		out.mean += x / rows;
		out.size += fabs(x) / rows;
		squares += x * x / rows;
	}
	for (int i = 0; i < rows; i++) {
		double x = room->x.at[i * all + c], off = x - out.mean;

		out.variance += off * off / rows;
		out.growth += fabs(off) * (fabs(x) + out.size) / rows;
	}
	/* Without a shift, the square of the mean is lost to rounding. */
	if (room->nc->sums)
		out.growth = 2 * (squares + out.mean * out.mean);
	if (!room->nc->training)
		out = (struct channel){.mean = room->mean.at[c],
				       .variance = room->variance.at[c],
				       .size = fabs(room->mean.at[c])};
	out.invstd = 1 / sqrt(out.variance + (double)EPS);
	out.growth = 1 + out.growth * out.invstd * out.invstd;
	return out;
}

static double hat(const struct norm_room *room, int at)
{
	const struct channel *ch = &room->channels[at % room->nc->c];

	return (room->x.at[at] - ch->mean) * ch->invstd;
}

static double hat_size(const struct norm_room *room, int at)
{
	const struct channel *ch = &room->channels[at % room->nc->c];

	return (fabs(room->x.at[at]) + ch->size) * ch->invstd * ch->growth;
}

/* ---- forward ---- */

/* Channels with different means and deviations. */
static struct numbers norm_x(struct lab *lab, int rows, int c)
{
	double *values = calloc((size_t)(rows * c), sizeof *values);
	struct numbers out;

	for (int k = 0; k < c; k++) {
		double shift = 2 * lab_number(lab), width = 1.25 + lab_number(lab);

		for (int i = 0; i < rows; i++)
			values[i * c + k] = shift + width * lab_number(lab);
	}
	out = lab_given(lab, (size_t)(rows * c), true, values);
	free(values);
	return out;
}

static struct numbers positive(struct lab *lab, int c)
{
	double *values = calloc((size_t)c, sizeof *values);
	struct numbers out;

	for (int k = 0; k < c; k++)
		values[k] = 0.2 + fabs(lab_number(lab));
	out = lab_given(lab, (size_t)c, false, values);
	free(values);
	return out;
}

static struct numbers sums_of(struct lab *lab, const struct norm_room *room)
{
	int c = room->nc->c;
	double *values = calloc((size_t)(2 * c), sizeof *values);
	struct numbers out;

	for (size_t i = 0; i < room->x.count; i++) {
		values[i % (size_t)c] += room->x.at[i];
		values[(size_t)c + i % (size_t)c] += room->x.at[i] * room->x.at[i];
	}
	out = lab_given(lab, (size_t)(2 * c), false, values);
	free(values);
	return out;
}

static void norm_begin(struct lab *lab, struct norm_room *room)
{
	const struct norm_case *nc = room->nc;
	size_t c = (size_t)nc->c, count = (size_t)nc->rows * c;
	size_t parts = (size_t)kernel_parts(lab->config.multiprocessors, nc->rows, nc->c);

	room->x = norm_x(lab, nc->rows, nc->c);
	if (nc->z)
		room->z = lab_random(lab, count, true);
	if (nc->sums)
		room->sums = sums_of(lab, room);
	room->w = lab_random(lab, c, false);
	room->b = lab_random(lab, c, false);
	room->mean = lab_random(lab, c, false);
	room->variance = positive(lab, nc->c);
	if (nc->training) {
		lab_open(lab, &room->mean);
		lab_open(lab, &room->variance);
	}
	room->y = lab_result(lab, count, true, false);
	room->saved = lab_result(lab, 4 * c, false, false);
	room->call = (struct kernel_norm){
		.rows = nc->rows,
		.c = nc->c,
		.eps = EPS,
		.momentum = MOMENTUM,
		.training = nc->training,
		.relu = nc->relu,
		.x = room->x.memory,
		.z = room->z.memory,
		.y = room->y.memory,
		.w = room->w.memory,
		.b = room->b.memory,
		.mean = room->mean.memory,
		.variance = room->variance.memory,
		.saved = room->saved.memory,
		.sums = room->sums.memory,
		.scratch = lab_bytes(lab, 2 * parts * c * sizeof(float), NULL),
	};
}

static struct exact one(double sum, double size, int count)
{
	return (struct exact){.sum = sum, .size = fabs(size), .count = count};
}

static void check_y(struct lab *lab, struct norm_room *room)
{
	const struct norm_case *nc = room->nc;
	struct exact *y = exact_new(&room->y, false);

	for (int i = 0; i < nc->rows * nc->c; i++) {
		double w = room->w.at[i % nc->c], b = room->b.at[i % nc->c];
		double z = nc->z ? room->z.at[i] : 0, value = hat(room, i) * w + b + z;

		room->before_relu[i] = value;
		y[i] = one(nc->relu && value < 0 ? 0 : value,
			   hat_size(room, i) * fabs(w) + fabs(b) + fabs(z), nc->rows);
	}
	lab_check(lab, "y", &room->y, y);
}

static void check_statistics(struct lab *lab, struct norm_room *room)
{
	const struct norm_case *nc = room->nc;
	double momentum = (double)MOMENTUM;
	struct exact *mean = exact_new(&room->mean, false);
	struct exact *variance = exact_new(&room->variance, false);

	for (int c = 0; c < nc->c; c++) {
		const struct channel *ch = &room->channels[c];
		double m = room->mean.at[c], v = room->variance.at[c];
		double now = momentum * ch->variance * nc->rows / (nc->rows - 1);

		mean[c] =
			one((1 - momentum) * m + momentum * ch->mean, fabs(m) + ch->size, nc->rows);
		variance[c] = one((1 - momentum) * v + now, v + now * ch->growth, nc->rows);
	}
	lab_check(lab, "running mean", &room->mean, mean);
	lab_check(lab, "running variance", &room->variance, variance);
}

/* ---- backward ---- */

/* dy, with zeros where float32 may be on the other side of a ReLU; and its sums. */
static void norm_dy(struct lab *lab, struct norm_room *room)
{
	const struct norm_case *nc = room->nc;
	double *values = calloc(room->y.count, sizeof *values);

	for (size_t i = 0; i < room->y.count; i++)
		values[i] = nc->relu && fabs(room->before_relu[i]) < NEAR ? 0 : lab_number(lab);
	room->dy = lab_given(lab, room->y.count, true, values);
	free(values);
	for (int i = 0; i < nc->rows * nc->c; i++) {
		struct channel *ch = &room->channels[i % nc->c];
		double g = nc->relu && room->before_relu[i] < 0 ? 0 : room->dy.at[i];

		room->reached[i] = g;
		ch->g += g;
		ch->g_size += fabs(g);
		ch->gh += g * hat(room, i);
		ch->gh_size += fabs(g) * hat_size(room, i);
	}
}

static void check_dx(struct lab *lab, struct norm_room *room)
{
	const struct norm_case *nc = room->nc;
	struct exact *dx = exact_new(&room->dx, nc->add_dx);

	for (int i = 0; i < nc->rows * nc->c; i++) {
		const struct channel *ch = &room->channels[i % nc->c];
		double factor = room->w.at[i % nc->c] * ch->invstd;

		dx[i].sum += factor * (room->reached[i] - ch->g / nc->rows -
				       hat(room, i) * ch->gh / nc->rows);
		dx[i].size += fabs(factor) * ch->growth *
			      (fabs(room->reached[i]) + ch->g_size / nc->rows +
			       hat_size(room, i) * ch->gh_size / nc->rows);
		dx[i].count += nc->rows;
	}
	lab_check(lab, "dx", &room->dx, dx);
}

static void check_parameters(struct lab *lab, struct norm_room *room)
{
	const struct norm_case *nc = room->nc;
	struct exact *dw = exact_new(&room->dw, nc->add_dw), *db = exact_new(&room->db, nc->add_dw);

	for (int c = 0; c < nc->c; c++) {
		const struct channel *ch = &room->channels[c];

		dw[c] = one(dw[c].sum + ch->gh, dw[c].size + ch->gh_size, nc->rows);
		db[c] = one(db[c].sum + ch->g, db[c].size + ch->g_size, nc->rows);
	}
	lab_check(lab, "dw", &room->dw, dw);
	lab_check(lab, "db", &room->db, db);
}

static void norm_backward(struct lab *lab, struct norm_room *room)
{
	const struct norm_case *nc = room->nc;
	size_t c = (size_t)nc->c;

	lab_settle(lab, &room->y);
	lab_settle(lab, &room->saved);
	lab_settle(lab, &room->mean);
	lab_settle(lab, &room->variance);
	norm_dy(lab, room);
	room->dx = lab_result(lab, room->x.count, true, nc->add_dx);
	if (nc->z)
		room->dz =
			nc->dz_is_dy ? room->dy : lab_result(lab, room->x.count, true, nc->add_dz);
	if (nc->dz_is_dy)
		lab_open(lab, &room->dy);
	room->dw = lab_result(lab, c, false, nc->add_dw);
	room->db = lab_result(lab, c, false, nc->add_dw);
	room->call.z_added = nc->z;
	room->call.add_dx = nc->add_dx;
	room->call.add_dz = nc->add_dz;
	room->call.add_dw = nc->add_dw;
	room->call.dy = room->dy.memory;
	room->call.dx = room->dx.memory;
	room->call.dz = room->dz.memory;
	room->call.dw = room->dw.memory;
	room->call.db = room->db.memory;
	kernel_norm_back(&lab->config, &room->call);
	if (!lab_done(lab, 0, NULL))
		return;
	check_dx(lab, room);
	check_parameters(lab, room);
	if (!nc->z)
		return;

	struct exact *dz = exact_new(&room->dz, nc->add_dz);

	for (size_t i = 0; i < room->dz.count; i++)
		exact_term(&dz[i], room->reached[i], 1);
	lab_check(lab, "dz", &room->dz, dz);
}

static void norm_case(struct lab *lab, const struct norm_case *nc)
{
	struct norm_room room = {.nc = nc};
	size_t count = (size_t)(nc->rows * nc->c);

	lab_case(lab, nc->name);
	norm_begin(lab, &room);
	room.channels = calloc((size_t)nc->c, sizeof *room.channels);
	room.before_relu = calloc(count, sizeof *room.before_relu);
	room.reached = calloc(count, sizeof *room.reached);
	for (int c = 0; c < nc->c; c++)
		room.channels[c] = channel_of(&room, c);
	kernel_norm(&lab->config, &room.call);
	if (lab_done(lab, 0, NULL)) {
		check_y(lab, &room);
		if (nc->training) {
			check_statistics(lab, &room);
			norm_backward(lab, &room);
		}
	}
	free(room.channels);
	free(room.before_relu);
	free(room.reached);
}

/* Channels in full groups of 8 use vectors, others are processed one by one. */
static const struct norm_case cases[] = {
	{97, 24, .training = true, .name = "batch norm"},
	{97, 10, .training = true, .name = "batch norm of 10 channels"},
	{97, 16, .training = true, .add_dx = true, .add_dw = true, .name = "batch norm, added"},
	{97, 16, .training = true, .sums = true, .relu = true, .name = "batch norm, sums given"},
	{97, 24, .relu = true, .training = true, .name = "batch norm, ReLU"},
	{97, 10, .relu = true, .training = true, .add_dx = true, .name = "batch norm, ReLU, added"},
	{97, 24, .relu = true, .z = true, .training = true, .name = "batch norm, add, ReLU"},
	{97, 10, .relu = true, .z = true, .training = true, .name = "batch norm, add, ReLU of 10"},
	{97, 16, .relu = true, .z = true, .training = true, .add_dz = true, .add_dx = true,
	 .add_dw = true, .name = "batch norm, add, ReLU, added"},
	{97, 16, .relu = true, .z = true, .training = true, .dz_is_dy = true,
	 .name = "batch norm, add, ReLU, dz in dy's place"},
	{97, 16, .z = true, .training = true, .name = "batch norm, add"},
	{2, 16, .training = true, .name = "batch norm of two values"},
	{97, 24, .name = "batch norm, evaluation"},
	{97, 10, .relu = true, .z = true, .name = "batch norm, add, ReLU, evaluation"},
};

void norm_cases(struct lab *lab)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		norm_case(lab, &cases[i]);
}
