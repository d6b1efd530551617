/* SPDX-License-Identifier: BSD-3-Clause */
/* Data-parallel training: gradients in flat buckets, reduced as soon as they are ready. */
#ifndef BERTH_TRAIN_COMM_DDP_H
#define BERTH_TRAIN_COMM_DDP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "train/comm/comm.h"
#include "train/model/graph.h"

/* PyTorch's limits: a small first bucket that fills early, then large ones. */
#define DDP_FIRST_BYTES ((size_t)1 << 20)
#define DDP_CAP_BYTES ((size_t)25 << 20)

struct bucket {
	size_t offset, count; /* elements of the flat buffer */
	int params;	      /* number of parameters in it */
};

/* Weights, gradients and momentum are three flat buffers with one layout. Parameters lie without
 * gaps, in the order in which backward finishes their gradients. So a bucket is a range of the
 * buffer, and reducing needs no copy. The gradients have one more element, the last of the last
 * bucket: the rank's vote (executor_input.vote). offsets and bucket_of are indexed by the graph's
 * parameters; ready is the order itself. */
struct buckets {
	size_t bucket_count;
	size_t total; /* elements of all parameters: where the vote is */
	struct bucket *list;
	size_t *offsets;
	size_t *bucket_of;
	int *ready;
};

/* Make buckets by PyTorch's rule. Parameters are in ready order: reversed ops, a bias before its
 * weight, but a batch norm's weight before its bias. A bucket closes when its bytes reach the
 * limit: first_bytes for the first, then cap_bytes. Return 0, or -ERR_UNAVAILABLE if memory is
 * out. */
int buckets_make(const struct graph *graph, size_t first_bytes, size_t cap_bytes,
		 struct buckets *out, struct error *err);
void buckets_free(struct buckets *buckets); /* clears it; NULL is fine */

#endif
