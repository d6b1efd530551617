/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/tuning/candidates.h"

#include <math.h>

#define NEVER (-1.0)

/* The fastest of the remaining candidates, or 0. */
static int fastest(const double *times, int count, double below)
{
	int best = 0;

	for (int candidate = 1; candidate < count; candidate++)
		if (times[candidate] >= 0 && times[candidate] < below) {
			below = times[candidate];
			best = candidate;
		}
	return best;
}

static double time_candidate(const struct candidate_list *candidates, int candidate)
{
	double time_ms;

	if (!candidates->build(candidates->context, candidate))
		return NEVER;
	time_ms = candidates->time_ms(candidates->context, candidate);
	/* Ignore measured times that make no sense. */
	if (time_ms >= 0 && isfinite(time_ms))
		return time_ms;
	if (candidate)
		candidates->drop(candidates->context, candidate);
	return NEVER;
}

int choose_candidate(const struct candidate_list *candidates, double taken_ms[2])
{
	int count = candidates->count < CANDIDATES_MAX ? candidates->count : CANDIDATES_MAX, taken;
	double times[CANDIDATES_MAX], first;

	if (count < 1)
		return -1;
	first = time_candidate(candidates, 0);
	/* Without candidate 0 there is nothing to compare the others with. */
	if (first < 0)
		return -1;
	times[0] = first;
	for (int candidate = 1; candidate < count; candidate++)
		times[candidate] = time_candidate(candidates, candidate);
	while ((taken = fastest(times, count, first * candidates->gain)) &&
	       !candidates->is_correct(candidates->context, taken)) {
		candidates->drop(candidates->context, taken);
		times[taken] = NEVER;
	}
	for (int candidate = 1; candidate < count; candidate++)
		if (candidate != taken && times[candidate] >= 0)
			candidates->drop(candidates->context, candidate);
	if (taken_ms) {
		taken_ms[0] = times[taken];
		taken_ms[1] = first;
	}
	return taken;
}
