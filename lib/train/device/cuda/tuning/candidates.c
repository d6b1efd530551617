/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/tuning/candidates.h"

#include <math.h>

#define NEVER (-1.0)

/* The fastest of those that are left, or 0. */
static int fastest(const double *times, int count, double below)
{
	int best = 0;

	for (int way = 1; way < count; way++)
		if (times[way] >= 0 && times[way] < below) {
			below = times[way];
			best = way;
		}
	return best;
}

static double try_way(const struct choose_ways *ways, int way)
{
	double time_ms;

	if (!ways->build(ways->context, way))
		return NEVER;
	time_ms = ways->time_ms(ways->context, way);
	/* A clock that says nothing sensible says nothing. */
	if (time_ms >= 0 && isfinite(time_ms))
		return time_ms;
	if (way)
		ways->drop(ways->context, way);
	return NEVER;
}

int choose_way(const struct choose_ways *ways, double taken_ms[2])
{
	int count = ways->count < CHOOSE_MOST ? ways->count : CHOOSE_MOST, taken;
	double times[CHOOSE_MOST], first;

	if (count < 1)
		return -1;
	first = try_way(ways, 0);
	/* Without way 0 there is nothing that the others could be compared with. */
	if (first < 0)
		return -1;
	times[0] = first;
	for (int way = 1; way < count; way++)
		times[way] = try_way(ways, way);
	while ((taken = fastest(times, count, first * ways->gain)) &&
	       !ways->right(ways->context, taken)) {
		ways->drop(ways->context, taken);
		times[taken] = NEVER;
	}
	for (int way = 1; way < count; way++)
		if (way != taken && times[way] >= 0)
			ways->drop(ways->context, way);
	if (taken_ms) {
		taken_ms[0] = times[taken];
		taken_ms[1] = first;
	}
	return taken;
}
