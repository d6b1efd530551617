/* SPDX-License-Identifier: BSD-3-Clause */
/* The state that training changes, in host memory: for initial values and for files. */
#ifndef BERTH_TRAIN_CHECKPOINT_VARIABLES_H
#define BERTH_TRAIN_CHECKPOINT_VARIABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/safetensors.h"
#include "train/comm/ddp.h"
#include "train/model/graph.h"

/* Flat arrays. Weights and momentum have the layout of the buckets (train/comm/ddp.h), buffers that
 * of the graph; both are borrowed. The arrays are one block of memory, which begins at weights. */
struct variables {
	const struct graph *graph;
	const struct buckets *buckets;
	float *weights, *momentum, *buffers;
	size_t weight_count, buffer_count; /* elements */
};

/* The size of such a block in bytes, and the variables in one, which stays the caller's. */
size_t variables_size(const struct graph *graph, const struct buckets *buckets);
struct variables variables_in(float *block, const struct graph *graph,
			      const struct buckets *buckets);
/* All zeros. Return 0, or -ERR_UNAVAILABLE if memory is out. */
int variables_new(const struct graph *graph, const struct buckets *buckets, struct variables *out,
		  struct error *err);
void variables_free(struct variables *variables); /* clears it; NULL is fine */

/* ---- as tensors in a file ---- */

#define VARIABLES_MOMENTUM "berth.momentum."

/* A list of tensors to write, with the memory they point into, besides the variables' own. */
struct variables_list {
	size_t count;
	struct safetensor *tensors;
	char (*names)[96]; /* behind the tensors in the same block */
	int64_t batches;   /* each num_batches_tracked points here */
};

/* The model under PyTorch's names: weights, buffers, and num_batches_tracked (I64, batches) for
 * each batch norm. With momentum, also VARIABLES_MOMENTUM plus each parameter's name. variables are
 * borrowed until variables_list_free; the list must not move. */
int variables_list(const struct variables *variables, int64_t batches, bool momentum,
		   struct variables_list *out, struct error *err);
void variables_list_free(struct variables_list *list); /* clears it; NULL is fine */

struct variables_filter {
	bool momentum; /* VARIABLES_MOMENTUM too */
	bool new_head; /* keep the last linear layer, whatever the file has for it */
	/* Refuse tensors that the network lacks; names in "berth." are ignored. */
	bool strict;
};

/* Copy file's tensors into variables, and the first num_batches_tracked into *batches (0 without
 * one). Return 0, or -ERR_DATA naming the tensor that is missing, superfluous, or of another type
 * or shape. On failure nothing changes. */
int variables_read(const char *path, const struct safetensors *file,
		   const struct variables_filter *want, struct variables *variables,
		   int64_t *batches, struct error *err);

#endif
