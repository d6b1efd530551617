/* SPDX-License-Identifier: BSD-3-Clause */
/* Which checkpoint a run resumes from: the newest whole one; if several nodes keep copies, the
 * newest that all of them have, so that no node is left with a step of its own. */
#ifndef BERTH_TRAIN_CHECKPOINT_RESUME_H
#define BERTH_TRAIN_CHECKPOINT_RESUME_H

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/writing_ranks.h"
#include "train/comm/rank_group.h"

/* All is borrowed for the call. */
struct resume_request {
	const struct checkpoint_options *options;
	const struct writing_ranks *writing;
	struct rank_group *group;
	const struct graph *graph;
	const struct buckets *buckets;
};

/* Load it into state and variables of one rank, *root. *path (malloced, or NULL): the file; on a
 * rank other than *root the name that it has there, or NULL. On all ranks NULL: the run begins
 * anew, and *root is 0. Collective. */
int resume_load(const struct resume_request *request, struct train_state *state,
		struct variables *variables, char **path, int *root, struct error *err);

#endif
