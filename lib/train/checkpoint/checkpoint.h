/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints: DIR/step-00001230.safetensors and DIR/latest, which names the newest.
 *
 * A file holds weights and buffers under torchvision's bare names and all else under "berth.": the
 * momentum as berth.momentum.NAME, and in the metadata berth.format ("1") and berth.state, one
 * JSON object (struct train_state). safetensors.h tells of the checksums. DIR/model.safetensors is
 * the model alone, for PyTorch's load_state_dict. */
#ifndef BERTH_TRAIN_CHECKPOINT_CHECKPOINT_H
#define BERTH_TRAIN_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/variables.h"
#include "train/comm/ddp.h"
#include "train/model/graph.h"

#define CHECKPOINT_STEP_MAX INT64_C(99999999999)

/* Where a run stands, less the tensors. Orders and learning rates are functions of it. */
struct train_state {
	int64_t step;	  /* steps done */
	int64_t epoch;	  /* the running one, from 0 */
	int64_t position; /* entries of its order that are done; 0: at its beginning */
	int world;	  /* ranks that the epoch began with: its order was padded for them */
	int batch;	  /* of a rank: what its options came to, batch times accumulate */
	int64_t update;	  /* samples of a whole update, over all ranks */
	int64_t batches;  /* num_batches_tracked: batches that batch norms have seen */
	uint64_t seed;
	double scale;		/* of the loss, with --amp fp16; 0: none */
	int64_t growth_tracker; /* updates since it was changed */
	char data[256];		/* of train_state_data */
};

/* Set data to --data's spec as JSON has it: what is no UTF-8 is replaced, what does not fit is cut
 * off. -ERR_UNAVAILABLE: memory. */
int train_state_data(struct train_state *state, const char *spec, struct error *err);

/* Told of each file that was passed over, with the reason. */
struct checkpoint_sink {
	void *context;
	void (*note_skipped)(void *context, const char *text);
};

/* Write DIR/step-N.safetensors and then DIR/latest; both aside first, renamed into place.
 * *path malloced. -ERR_OUTPUT, -ERR_IO: what was there before stays, nothing half written (without
 * room for it nothing is begun). */
int checkpoint_save(const char *directory, const struct graph *graph, const struct buckets *buckets,
		    const struct train_state *state, const struct variables *variables, char **path,
		    struct error *err);

/* Before saving: a file of that step that is damaged, or another network's, is renamed to FILE.1
 * (or .2 ...) and so not replaced. *kept: its new name, malloced; NULL when there is no such file.
 */
int checkpoint_keep_foreign(const char *directory, const struct graph *graph, int64_t step,
			    char **kept, struct error *err);

/* What a checkpoint's file takes at most. */
uint64_t checkpoint_size(const struct graph *graph, const struct buckets *buckets);

/* Read the whole file at path and look at every checksum. -ERR_INPUT, -ERR_DATA as checkpoint_load,
 * less the tensors' names and shapes. *mark (may be NULL): the header's checksum, by which two
 * files with the same content are told from others. */
int checkpoint_check(const char *path, const struct graph *graph, struct train_state *state,
		     uint32_t *mark, struct error *err);

/* Read a checkpoint of graph's network. -ERR_INPUT when it cannot be read; -ERR_DATA when it is
 * damaged, no checkpoint of berth's, or of another network; on failure nothing is changed. */
int checkpoint_load(const char *path, const struct graph *graph, const struct buckets *buckets,
		    struct train_state *state, struct variables *variables, struct error *err);

/* The one of step in folder; -ERR_DATA also when it is of another step. *path malloced. *stop: none
 * of the folder's is to be taken, as this one is of another network, or memory is short. */
int checkpoint_load_step(const char *directory, int64_t step, const struct graph *graph,
			 const struct buckets *buckets, struct train_state *state,
			 struct variables *variables, char **path, bool *stop, struct error *err);

/* Load the newest usable one of folder (checkpoint_dir_resume_order: what latest names or a later
 * one, else those before). Damaged files are passed over and told of, never deleted; one of another
 * network is an error
 * (-ERR_DATA), so that no run mixes its files with another's unasked. *path malloced, NULL when
 * there is none (also when there is no folder). */
int checkpoint_resume(const char *directory, const struct graph *graph,
		      const struct buckets *buckets, const struct checkpoint_sink *sink,
		      struct train_state *state, struct variables *variables, char **path,
		      struct error *err);

/* Write DIR/model.safetensors: weights, buffers, num_batches_tracked. Errors and *path as
 * checkpoint_save. */
int checkpoint_save_model(const char *directory, const struct graph *graph,
			  const struct buckets *buckets, const struct train_state *state,
			  const struct variables *variables, char **path, struct error *err);

/* Initial weights from a model file (--init), PyTorch's or a checkpoint of berth's: weights,
 * buffers, num_batches_tracked; momentum stays. new_head: all but the last linear layer.
 * -ERR_INPUT, -ERR_DATA; on failure nothing is changed. */
int checkpoint_init(const char *path, const struct graph *graph, const struct buckets *buckets,
		    bool new_head, struct train_state *state, struct variables *variables,
		    struct error *err);

#endif
