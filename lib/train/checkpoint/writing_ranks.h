/* SPDX-License-Identifier: BSD-3-Clause */
/* Which ranks write checkpoints: rank 0, and if --ckpt is not one directory for all nodes also the
 * first rank of each node that sees another directory. */
#ifndef BERTH_TRAIN_CHECKPOINT_WRITING_RANKS_H
#define BERTH_TRAIN_CHECKPOINT_WRITING_RANKS_H

#include <stdbool.h>

#include "base/error.h"
#include "train/comm/rank_group.h"

struct writing_ranks {
	bool own;  /* this rank writes */
	int count; /* ranks that write, each to a directory of its own; the same on all ranks */
};

/* Find them with the help of a file that rank 0 writes and the other nodes see or miss. Makes
 * directory. local_rank: this rank's number on its node. -ERR_OUTPUT. Collective. */
int writing_ranks_find(struct rank_group *group, const char *directory, int local_rank,
		       struct writing_ranks *out, struct error *err);

#endif
