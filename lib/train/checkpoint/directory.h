/* SPDX-License-Identifier: BSD-3-Clause */
/* The folder of checkpoints: which steps lie there, which is the latest and which the best, what
 * may be removed, and whether there is room.
 *
 * Beside step-N.safetensors lie latest and best, a line each: a checkpoint's name, in best with its
 * Acc@1 behind it ("step-00001230.safetensors Acc@1 91.25"). A file being written has a further
 * ".PID.I" until it is whole (base/file.h). */
#ifndef BERTH_TRAIN_CHECKPOINT_DIRECTORY_H
#define BERTH_TRAIN_CHECKPOINT_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"

/* The step of "step-00001230.safetensors"; -1 for other names. */
int64_t checkpoint_dir_step_of(const char *name);
/* "FOLDER/step-00001230.safetensors", malloced; NULL: memory. */
char *checkpoint_dir_path_of(const char *directory, int64_t step);
/* All steps that folder has a file for, the newest first. malloced; NULL: err says why. A folder
 * that cannot be read is no empty one: going on would begin anew beside what is there. */
int64_t *checkpoint_dir_steps(const char *directory, size_t *count, struct error *err);

/* What latest names, or -1 with the reason told (unless there is no such file; sink may be NULL).
 */
int64_t checkpoint_dir_latest(const char *directory, const struct checkpoint_sink *sink);
int checkpoint_dir_set_latest(const char *directory, int64_t step, struct error *err);
/* All steps in the order in which a run that goes on tries them; as checkpoint_dir_steps. What was
 * written after latest comes first, the newest before the others: a kill may come between a
 * checkpoint and latest. Then what latest names and those before it; last what is further but older
 * than latest, as that is of a run which went further from elsewhere. Told of a latest that cannot
 * be used. */
int64_t *checkpoint_dir_resume_order(const char *directory, const struct checkpoint_sink *sink,
				     size_t *count, struct error *err);
/* The step of best and its Acc@1 in per cent; -1 where there is none that can be used. */
int64_t checkpoint_dir_best(const char *directory, double *acc1);
int checkpoint_dir_set_best(const char *directory, int64_t step, double acc1, struct error *err);

/* Is there a model.safetensors that was written after the checkpoint of step? */
bool checkpoint_dir_model_is_newer(const char *directory, int64_t step);

/* -ERR_IO where folder's file system has less than size_bytes left for this user. A file system
 * that does not say is taken to have room. */
int checkpoint_dir_has_space(const char *directory, uint64_t size_bytes, struct error *err);

/* Where err tells of a full file system or a quota that is used up: add to it what the checkpoints
 * in folder take, and what to do. keep: as the user has said, 0: all stay. */
void checkpoint_dir_explain_full(const char *directory, int64_t keep, struct error *err);

/* Remove what killed writers left: names with the number of a process that is not there (or is this
 * one, which must not be writing). Only for who owns folder. Returns how many were removed. */
int checkpoint_dir_remove_stale(const char *directory);

/* Files that were seen to be whole, so that none is read twice. Zeros to begin with. */
struct checkpoint_dir_verified {
	struct checkpoint_dir_file {
		int64_t step;
		ino_t inode;
		off_t size;
		struct timespec changed;
	} * files;
	size_t count;
};
void checkpoint_dir_verified_free(struct checkpoint_dir_verified *known);
/* The checkpoint of step was just written. Without memory it will be read once. */
void checkpoint_dir_add_verified(struct checkpoint_dir_verified *known, const char *directory,
				 int64_t step);

/* Keep the newest keep checkpoints of graph's network up to step, and what latest and best name;
 * remove the older ones. Those that are damaged or another's are not counted, and never removed;
 * nor are those past step, of a run that went further. Where latest or best is there and cannot be
 * read nothing is removed. Told of that, and of what cannot be removed. */
void checkpoint_dir_prune(const char *directory, const struct graph *graph, int64_t step,
			  int64_t keep, struct checkpoint_dir_verified *known,
			  const struct checkpoint_sink *sink);

#endif
