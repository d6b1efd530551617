/* SPDX-License-Identifier: BSD-3-Clause */
/* Data parallel training: gradients in flat buckets, reduced as they get ready. */
#ifndef BERTH_TRAIN_COMM_DDP_H
#define BERTH_TRAIN_COMM_DDP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "train/comm/comm.h"
#include "train/model/graph.h"

/* PyTorch's limits: a first bucket that is soon full, then large ones. */
#define DDP_FIRST_BYTES ((size_t)1 << 20)
#define DDP_CAP_BYTES ((size_t)25 << 20)

struct bucket {
	size_t offset, count; /* elements of the flat buffer */
	int params;	      /* how many parameters it holds */
};

/* Weights, gradients and momentum are three flat buffers of one layout: parameters in the order in
 * which backward finishes their gradients, close together, so that a bucket is a stretch of the
 * buffer and nothing is ever copied to reduce it. Indexed by the graph's parameters: offsets,
 * bucket_of. ready: the order itself. */
struct buckets {
	size_t bucket_count, total;
	struct bucket *list;
	size_t *offsets;
	size_t *bucket_of;
	int *ready;
};

/* Plan them by PyTorch's rule: parameters in ready order (reversed ops, a bias before its weight,
 * but a batch norm's weight before its bias);
 * a bucket closes when its bytes reach the limit, first_bytes for the first, cap_bytes after.
 * -ERR_UNAVAILABLE: memory. */
int buckets_make(const struct graph *graph, size_t first_bytes, size_t cap_bytes,
		 struct buckets *out, struct error *err);
void buckets_free(struct buckets *buckets); /* clears it; NULL is fine */

/* Something that must be the same on all ranks. */
struct ddp_setting {
	const char *name; /* "--batch"; for the message */
	double value;
	bool mark; /* a fingerprint: means nothing to people */
};
double ddp_fingerprint(const void *data, size_t size); /* a fingerprint of it as a value */

/* Do all ranks train the same thing? Compares graph and all settings over the ranks, by one
 * reduction, before the first bucket (ranks of which one takes other steps would wait for each
 * other, or drift apart unseen): -ERR_DATA, with the same text on all ranks: the first setting that
 * differs, and the lowest rank that has it otherwise than rank 0. Collective. */
int ddp_compare(const struct graph *graph, const struct ddp_setting *settings, size_t count,
		struct comm *comm, struct device_queue *queue, struct error *err);

#endif
