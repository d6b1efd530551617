/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of several ways to compute the same is taken: the fastest that can be built, runs, and gives
 * what the first one gives. The clock and the ways are the caller's; the rule is here, so that it is
 * tested without a GPU. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_TUNING_CANDIDATES_H
#define BERTH_TRAIN_DEVICE_CUDA_TUNING_CANDIDATES_H

#include <stdbool.h>

#define CHOOSE_MOST 48	  /* ways; later ones are not tried */
#define CHOOSE_GAIN 0.98  /* what takes more than this of the first way's time is not worth leaving it */

/* Ways are numbered from 0. Way 0 is what the others are compared with, and is never dropped. */
struct choose_ways {
	void *context;
	int count;
	double gain; /* of way 0's time: what takes more is not taken; CHOOSE_GAIN */
	/* Make way ready. false: it cannot be had here. */
	bool (*build)(void *context, int way);
	/* What one run takes. Negative: it failed. */
	double (*time_ms)(void *context, int way);
	/* Is its result way 0's? Asked of the fastest first, until one says yes. */
	bool (*right)(void *context, int way);
	/* It is not taken: undo build. */
	void (*drop)(void *context, int way);
};

/* The way to take: way 0 where no other is right and faster, -1 where that cannot be had either. All
 * ways but the one that is taken and way 0 are dropped. times (NULL is fine): of the way taken, and of
 * way 0. */
int choose_way(const struct choose_ways *ways, double times[2]);

#endif
