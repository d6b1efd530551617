/* SPDX-License-Identifier: BSD-3-Clause */
/* The folder of checkpoints: which steps lie there, which is the latest and which the best, what may
 * be removed, and whether there is room.
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
int64_t folder_step_of(const char *name);
/* "FOLDER/step-00001230.safetensors", malloced; NULL: memory. */
char *folder_path_of(const char *folder, int64_t step);
/* All steps that folder has a file for, the newest first. malloced; NULL: err says why. A folder
 * that cannot be read is no empty one: going on would begin anew beside what is there. */
int64_t *folder_steps(const char *folder, size_t *count, struct error *err);

/* What latest names, or -1 with the reason told (unless there is no such file; sink may be NULL). */
int64_t folder_latest(const char *folder, const struct checkpoint_sink *sink);
int folder_set_latest(const char *folder, int64_t step, struct error *err);
/* All steps in the order in which a run that goes on tries them; as folder_steps. What was written
 * after latest comes first, the newest before the others: a kill may come between a checkpoint and
 * latest. Then what latest names and those before it; last what is further but older than latest, as
 * that is of a run which went further from elsewhere. Told of a latest that cannot be used. */
int64_t *folder_order(const char *folder, const struct checkpoint_sink *sink, size_t *count,
		      struct error *err);
/* The step of best and its Acc@1 in per cent; -1 where there is none that can be used. */
int64_t folder_best(const char *folder, double *acc1);
int folder_set_best(const char *folder, int64_t step, double acc1, struct error *err);

/* Is there a model.safetensors that was written after the checkpoint of step? */
bool folder_model_follows(const char *folder, int64_t step);

/* -ERR_IO where folder's file system has less than size_bytes left for this user. A file system
 * that does not say is taken to have room. */
int folder_has_room(const char *folder, uint64_t size_bytes, struct error *err);

/* Where err tells of a full file system or a quota that is used up: add to it what the checkpoints in
 * folder take, and what to do. keep: as the user has said, 0: all stay. */
void folder_say_full(const char *folder, int64_t keep, struct error *err);

/* Remove what killed writers left: names with the number of a process that is not there (or is this
 * one, which must not be writing). Only for who owns folder. Returns how many were removed. */
int folder_sweep(const char *folder);

/* Files that were seen to be whole, so that none is read twice. Zeros to begin with. */
struct folder_known {
	struct folder_file {
		int64_t step;
		ino_t inode;
		off_t size;
		struct timespec changed;
	} *files;
	size_t count;
};
void folder_known_free(struct folder_known *known);
/* The checkpoint of step was just written. Without memory it will be read once. */
void folder_know(struct folder_known *known, const char *folder, int64_t step);

/* Keep the newest keep checkpoints of graph's network up to step, and what latest and best name;
 * remove the older ones. Those that are damaged or another's are not counted, and never removed;
 * nor are those past step, of a run that went further. Where latest or best is there and cannot be
 * read nothing is removed. Told of that, and of what cannot be removed. */
void folder_prune(const char *folder, const struct graph *graph, int64_t step, int64_t keep,
		  struct folder_known *known, const struct checkpoint_sink *sink);

#endif
