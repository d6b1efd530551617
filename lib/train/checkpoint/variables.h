/* SPDX-License-Identifier: BSD-3-Clause */
/* What a run changes, in host memory: for initial values and for files. */
#ifndef BERTH_TRAIN_CHECKPOINT_VARIABLES_H
#define BERTH_TRAIN_CHECKPOINT_VARIABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/safetensors.h"
#include "train/comm/ddp.h"
#include "train/model/graph.h"

/* Flat: weights and momentum in the layout of the buckets (train/comm/ddp.h), buffers in the
 * graph's. */
struct variables {
	float *weights, *momentum, *buffers;
	size_t weight_count, buffer_count; /* elements */
};

/* Zeros. -ERR_UNAVAILABLE: memory. */
int variables_new(const struct graph *graph, const struct buckets *buckets, struct variables *out,
		  struct error *err);
void variables_free(struct variables *variables); /* clears it; NULL is fine */

/* ---- as tensors of a file ---- */

#define VARIABLES_MOMENTUM "berth.momentum."

/* A list of tensors to write, with the memory that they point into beside the variables'. */
struct variables_list {
	size_t count;
	struct safetensor *tensors;
	char (*names)[96];
	int64_t batches; /* what each num_batches_tracked points at */
};

/* The model as PyTorch names it: weights and buffers, for each batch norm num_batches_tracked
 * (I64, batches); with momentum also VARIABLES_MOMENTUM and each parameter's name. variables are
 * borrowed until variables_list_free; the list must not move. */
int variables_list(const struct graph *graph, const struct buckets *buckets,
		   const struct variables *variables, int64_t batches, bool momentum,
		   struct variables_list *out, struct error *err);
void variables_list_free(struct variables_list *list); /* clears it; NULL is fine */

struct variables_filter {
	bool momentum; /* VARIABLES_MOMENTUM too */
	bool new_head; /* leave the last linear layer as it is, whatever the file has of it */
	bool strict; /* refuse tensors that the network lacks; names in "berth." are passed over */
};

/* Copy file's tensors into variables and num_batches_tracked (the first; 0 without one) into
 * batches. -ERR_DATA names the tensor that is missing, of another type or shape, or too much; on
 * failure nothing is changed. */
int variables_read(const char *path, const struct safetensors *file, const struct graph *graph,
		   const struct buckets *buckets, const struct variables_filter *want,
		   struct variables *variables, int64_t *batches, struct error *err);

#endif
