/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of several ways to compute the same is taken: the fastest that can be built, runs, and
 * gives what the first one gives. The clock and the ways are the caller's; the rule is here, so
 * that it is tested without a GPU. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_TUNING_CANDIDATES_H
#define BERTH_TRAIN_DEVICE_CUDA_TUNING_CANDIDATES_H

#include <stdbool.h>

#define CANDIDATES_MAX 48 /* ways; later ones are not tried */
#define CANDIDATE_GAIN                                                                             \
	0.98 /* what takes more than this of the first candidate's time is not worth leaving it */

/* Candidates are numbered from 0. Candidate 0 is what the others are compared with, and is never
 * dropped. */
struct candidate_list {
	void *context;
	int count;
	double gain; /* of candidate 0's time: what takes more is not taken; CANDIDATE_GAIN */
	/* Make candidate ready. false: it cannot be had here. */
	bool (*build)(void *context, int candidate);
	/* What one run takes. Negative: it failed. */
	double (*time_ms)(void *context, int candidate);
	/* Is its result candidate 0's? Asked of the fastest first, until one says yes. */
	bool (*is_correct)(void *context, int candidate);
	/* It is not taken: undo build. */
	void (*drop)(void *context, int candidate);
};

/* The way to take: candidate 0 where no other is right and faster, -1 where that cannot be had
 * either. All ways but the one that is taken and candidate 0 are dropped. times (NULL is fine): of
 * the way taken, and of candidate 0. */
int choose_candidate(const struct candidate_list *candidates, double times[2]);

#endif
