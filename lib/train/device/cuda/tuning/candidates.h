/* SPDX-License-Identifier: BSD-3-Clause */
/* Choosing among several candidates that compute the same thing: the fastest that can be built,
 * runs, and gives the first one's result. The caller provides the clock and the candidates. The
 * rule is separate from them so that tests need no GPU. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_TUNING_CANDIDATES_H
#define BERTH_TRAIN_DEVICE_CUDA_TUNING_CANDIDATES_H

#include <stdbool.h>

#define CANDIDATES_MAX 48 /* later candidates are not tried */
#define CANDIDATE_GAIN                                                                             \
	0.98 /* a candidate must take less than this share of the first one's time to replace it   \
	      */

/* Candidates are numbered from 0. Candidate 0 is the reference for the others and is never
 * dropped. */
struct candidate_list {
	void *context;
	int count;
	double gain; /* maximum share of candidate 0's time; normally CANDIDATE_GAIN */
	/* Prepare the candidate. false: it is unavailable here. */
	bool (*build)(void *context, int candidate);
	/* The time of one run. Negative: it failed. */
	double (*time_ms)(void *context, int candidate);
	/* Does it give candidate 0's result? Called for the fastest first, until one passes. */
	bool (*is_correct)(void *context, int candidate);
	/* The candidate was not chosen: undo build. */
	void (*drop)(void *context, int candidate);
};

/* Choose a candidate: 0 if no other is correct and faster, -1 if 0 is unavailable, too. Drops every
 * candidate except the chosen one and 0. times (may be NULL) receives the times of the chosen one
 * and of candidate 0. */
int choose_candidate(const struct candidate_list *candidates, double times[2]);

#endif
