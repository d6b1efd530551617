/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints: DIR/step-00001230.safetensors, and DIR/latest, which names the newest.
 *
 * A file holds weights and buffers under torchvision's names and everything else under "berth.".
 * Momentum is berth.momentum.NAME. The metadata hold berth.format ("1") and berth.state, one JSON
 * object (struct train_state). safetensors.h describes the checksums. DIR/model.safetensors is the
 * model alone, for PyTorch's load_state_dict. */
#ifndef BERTH_TRAIN_CHECKPOINT_CHECKPOINT_H
#define BERTH_TRAIN_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/variables.h"
#include "train/comm/ddp.h"
#include "train/model/graph.h"

#define CHECKPOINT_STEP_MAX INT64_C(99999999999)

struct lease;
struct lease_identity;

/* What the user asked for; strings are borrowed. */
struct checkpoint_options {
	const char *directory;		   /* --ckpt, or NULL: nothing is saved */
	const char *resume;		   /* "auto", "never" or a file */
	int64_t keep;			   /* newest checkpoints; 0: all */
	bool take_over;			   /* directory, whoever owns it */
	const struct lease_identity *self; /* who we are; NULL: no job */
};

/* The state of a run except its tensors. Shuffling and learning rates are functions of it. */
struct train_state {
	int64_t step;	  /* steps done */
	int64_t epoch;	  /* the current one, from 0 */
	int64_t position; /* samples of the epoch's order already done; 0: at its beginning */
	int world;	  /* ranks at the start of the epoch; its order was padded for them */
	int batch;	  /* of a rank: its batch size times accumulation */
	int64_t update;	  /* samples of a whole update over all ranks */
	int64_t batches;  /* num_batches_tracked: batches that batch norms have seen */
	int64_t epochs;	  /* those that the run's schedule spanned; 0: unknown */
	uint64_t seed;
	double lr;		/* --lr; 0: unknown */
	double scale;		/* loss scale with --amp fp16; 0: none */
	int64_t growth_tracker; /* updates since the scale changed */
	char data[256];		/* from train_state_data */
};

/* Set data to --data's text as JSON holds it: invalid UTF-8 is replaced, excess is cut off. Return
 * 0, or -ERR_UNAVAILABLE if memory is out. */
int train_state_data(struct train_state *state, const char *spec, struct error *err);

/* Called for each skipped file, with the reason. */
struct checkpoint_sink {
	void *context;
	void (*note_skipped)(void *context, const char *text);
};

/* Write DIR/step-N.safetensors and then DIR/latest, each to a temporary file that is renamed into
 * place. *path is malloced. Return 0, or -ERR_OUTPUT or -ERR_IO: the previous files stay, and no
 * half-written file remains. Without enough space it writes nothing. */
int checkpoint_save(const char *directory, const struct train_state *state,
		    const struct variables *variables, struct lease *lease, char **path,
		    struct error *err);

/* Call before saving. If a file for that step is damaged or belongs to another network, rename it
 * to FILE.1 (or .2 ...), so that it is not replaced. *kept is the new name, malloced; NULL if there
 * is no such file. */
int checkpoint_keep_foreign(const char *directory, const struct graph *graph, int64_t step,
			    struct lease *lease, char **kept, struct error *err);

/* The largest possible size of a checkpoint file, in bytes. */
uint64_t checkpoint_size(const struct graph *graph, const struct buckets *buckets);

/* Is the file at path a checkpoint of graph's network? data: read all of it and verify every
 * checksum; else only its header and length. Errors are as in checkpoint_load, except that tensor
 * names and shapes are not compared with the network's. */
int checkpoint_check(const char *path, const struct graph *graph, bool data,
		     struct train_state *state, struct error *err);

/* Read a checkpoint of variables' network. Return 0; -ERR_INPUT if it cannot be read; -ERR_DATA if
 * it is damaged, not a berth checkpoint, or of another network. On failure nothing changes. */
int checkpoint_load(const char *path, struct train_state *state, struct variables *variables,
		    struct error *err);

/* Load the newest usable checkpoint of directory in checkpoint_dir_resume_order: the one that
 * latest names or a later one, else an earlier one. Damaged files are reported and skipped, never
 * deleted. A file of another network is -ERR_DATA, so that no run mixes its files with another's by
 * accident. *path is malloced; NULL if there is no checkpoint or no directory. */
int checkpoint_resume(const char *directory, const struct checkpoint_sink *sink,
		      struct train_state *state, struct variables *variables, char **path,
		      struct error *err);

/* Write DIR/model.safetensors: weights, buffers, num_batches_tracked. Errors and *path as
 * checkpoint_save. */
int checkpoint_save_model(const char *directory, const struct train_state *state,
			  const struct variables *variables, struct lease *lease, char **path,
			  struct error *err);

/* Load initial weights from a model file (--init), PyTorch's or a berth checkpoint: weights,
 * buffers, num_batches_tracked. Momentum stays. new_head: leave out the last linear layer. Return
 * 0, -ERR_INPUT or -ERR_DATA; on failure nothing changes. */
int checkpoint_init(const char *path, bool new_head, struct train_state *state,
		    struct variables *variables, struct error *err);

#endif
