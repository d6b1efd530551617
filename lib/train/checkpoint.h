/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints: DIR/step-00001230.safetensors and DIR/latest, which names the newest.
 *
 * A file holds the weights under torchvision's bare names and all else under "berth.": the
 * momentum as berth.momentum.NAME, and in the metadata berth.format ("1") and berth.state, one
 * JSON object (struct train_state). safetensors.h tells of the checksums. */
#ifndef BERTH_TRAIN_CHECKPOINT_H
#define BERTH_TRAIN_CHECKPOINT_H

#include <stdint.h>

#include "base/error.h"
#include "train/ddp.h"
#include "train/model/graph.h"

/* Where a run stands, less the tensors. Orders and learning rates are functions of it. */
struct train_state {
	int64_t step;	  /* steps done */
	int64_t epoch;	  /* the running one, from 0 */
	int64_t position; /* entries of its order that are done; 0: at its beginning */
	int world;	  /* ranks that the epoch began with: its order was padded for them */
	int batch;	  /* of a rank */
	uint64_t seed;
	char data[256]; /* --data */
};

/* Told of each file that was passed over, with the reason. */
struct checkpoint_sink {
	void *context;
	void (*passed_over)(void *context, const char *text);
};

/* Write DIR/step-N.safetensors and then DIR/latest; both aside first, renamed into place.
 * weights, momentum: flat host memory in the layout of buckets. *path malloced.
 * -ERR_OUTPUT, -ERR_IO: what was there before stays, nothing half written. */
int checkpoint_save(const char *folder, const struct graph *graph, const struct buckets *buckets,
		    const struct train_state *state, const float *weights, const float *momentum,
		    char **path, struct error *err);

/* Before saving: a file of that step that is damaged, or another network's, is renamed to FILE.1 (or
 * .2 ...) and so not replaced. *kept: its new name, malloced; NULL when there is no such file. */
int checkpoint_keep_foreign(const char *folder, const struct graph *graph, int64_t step, char **kept,
			    struct error *err);

/* Read a checkpoint of graph's network into flat host memory. -ERR_INPUT when it cannot be read;
 * -ERR_DATA when it is damaged, no checkpoint of berth's, or of another network. */
int checkpoint_load(const char *path, const struct graph *graph, const struct buckets *buckets,
		    struct train_state *state, float *weights, float *momentum, struct error *err);

/* Load the newest usable one of folder: what latest names, else all by step, downwards. Damaged
 * and foreign files are passed over and told of, never deleted. *path malloced, NULL when there
 * is none (also when there is no folder). */
int checkpoint_resume(const char *folder, const struct graph *graph, const struct buckets *buckets,
		      const struct checkpoint_sink *sink, struct train_state *state, float *weights,
		      float *momentum, char **path, struct error *err);

#endif
