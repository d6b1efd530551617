/* SPDX-License-Identifier: BSD-3-Clause */
/* Losses of logits in 16 bits: the loss itself is float32, its gradient has 16 bits and is
 * multiplied by a sample's share and by the loss scale. */
#include <math.h>
#include <stdlib.h>

#include "lab.h"

struct loss_case {
	int n, classes;
	bool mse, scaled;
	double smoothing;
	const char *name;
};

struct loss_room {
	const struct loss_case *lc;
	struct numbers x, goal, losses, dx;
	int32_t *target, *label_ranks;
	double scale; /* of the gradient */
};

/* One sample's cross-entropy. */
static void entropy_exact(const struct loss_room *room, int n, struct exact *loss, struct exact *dx)
{
	int classes = room->lc->classes, target = room->target[n];
	const double *x = room->x.at + n * classes;
	double most = x[0], sum = 0, smoothing = (double)(float)room->lc->smoothing;
	double each = smoothing / classes;

	for (int k = 1; k < classes; k++)
		most = x[k] > most ? x[k] : most;
	for (int k = 0; k < classes; k++)
		sum += exp(x[k] - most);

	double log_sum = most + log(sum);

	for (int k = 0; k < classes; k++) {
		double share = exp(x[k] - log_sum), part = k == target ? 1 - smoothing : 0;

		/* The error of an exponential comes from its argument, a rounded logit. */
		dx[n * classes + k].sum += (share - each - part) * room->scale;
		dx[n * classes + k].size +=
			(share * (4 + fabs(x[k]) + fabs(most)) + each + part) * room->scale;
		dx[n * classes + k].count += classes;
		loss->sum += (part + each) * (log_sum - x[k]);
		loss->size += (part + each) * (fabs(most) + fabs(log(sum)) + 1 + fabs(x[k]));
		loss->count++;
	}
}

static void mse_exact(const struct loss_room *room, int n, struct exact *loss, struct exact *dx)
{
	int classes = room->lc->classes;

	for (int k = n * classes; k < (n + 1) * classes; k++) {
		double x = room->x.at[k], t = room->goal.at[k], size = fabs(x) + fabs(t);

		dx[k].sum += 2 * (x - t) / classes * room->scale;
		dx[k].size += 2 * size / classes * room->scale;
		dx[k].count += 2;
		loss->sum += (x - t) * (x - t) / classes;
		loss->size += size * size / classes;
		loss->count += 2;
	}
}

/* How many logits rank before the target's. */
static void check_places(struct lab *lab, const struct loss_room *room)
{
	int classes = room->lc->classes;
	int32_t *seen = calloc((size_t)room->lc->n, sizeof *seen);

	lab_fetch_bytes(lab, room->label_ranks, (size_t)room->lc->n * sizeof *seen, seen);
	lab->checked++;
	for (int n = 0; n < room->lc->n; n++) {
		const double *x = room->x.at + n * classes;
		int before = 0, target = room->target[n];

		for (int k = 0; k < classes; k++)
			before += x[k] > x[target] || (!(x[k] < x[target]) && k < target);
		if (seen[n] != before)
			lab_fail(lab, "place[%d] is %d, expected %d", n, seen[n], before);
	}
	free(seen);
}

static void loss_logits(struct lab *lab, struct loss_room *room)
{
	size_t count = (size_t)(room->lc->n * room->lc->classes);
	double *values = calloc(count, sizeof *values);

	for (size_t i = 0; i < count; i++)
		values[i] = 6 * lab_number(lab);
	room->x = lab_given(lab, count, true, values);
	free(values);
	room->goal = lab_random(lab, count, false);
	room->target = calloc((size_t)room->lc->n, sizeof *room->target);
	for (int i = 0; i < room->lc->n; i++)
		room->target[i] = lab_below(lab, room->lc->classes);
}

static void check_loss(struct lab *lab, const struct loss_room *room)
{
	const struct loss_case *lc = room->lc;
	struct exact *losses = exact_new(&room->losses, false), *dx = exact_new(&room->dx, false);

	for (int n = 0; n < lc->n; n++) {
		if (lc->mse)
			mse_exact(room, n, &losses[n], dx);
		else
			entropy_exact(room, n, &losses[n], dx);
	}
	lab_check(lab, "loss", &room->losses, losses);
	lab_check(lab, "dx", &room->dx, dx);
	if (!lc->mse)
		check_places(lab, room);
}

static void loss_case(struct lab *lab, const struct loss_case *lc)
{
	struct loss_room room = {.lc = lc};
	const struct kernel_scaler scaler = {.scale = 64};
	size_t n = (size_t)lc->n;
	float share = 1 / (float)lc->n;

	lab_case(lab, lc->name);
	loss_logits(lab, &room);
	room.losses = lab_result(lab, n, false, false);
	room.dx = lab_result(lab, room.x.count, true, false);
	room.scale = (double)share * (lc->scaled ? (double)scaler.scale : 1);
	room.label_ranks = lab_bytes(lab, n * sizeof *room.label_ranks, NULL);

	const struct kernel_loss call = {
		.x = room.x.memory,
		.target = lc->mse ? room.goal.memory
				  : lab_bytes(lab, n * sizeof *room.target, room.target),
		.losses = room.losses.memory,
		.label_ranks = lc->mse ? NULL : room.label_ranks,
		.dx = room.dx.memory,
		.share = lab_bytes(lab, sizeof share, &share),
		.scaler = lc->scaled ? lab_bytes(lab, sizeof scaler, &scaler) : NULL,
		.n = lc->n,
		.classes = lc->classes,
		.mse = lc->mse,
		.smoothing = (float)lc->smoothing,
	};

	kernel_loss(&lab->config, &call);
	if (lab_done(lab, 0, NULL))
		check_loss(lab, &room);
	free(room.target);
}

static const struct loss_case cases[] = {
	{17, 10, .name = "cross-entropy"},
	{17, 1000, .smoothing = 0.1, .scaled = true,
	 .name = "cross-entropy of 1000, smoothed, scaled"},
	{17, 33, .scaled = true, .name = "cross-entropy, scaled"},
	{17, 9, .mse = true, .name = "mse"},
	{17, 130, .mse = true, .scaled = true, .name = "mse, scaled"},
};

void loss_cases(struct lab *lab)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		loss_case(lab, &cases[i]);
}
