/* SPDX-License-Identifier: BSD-3-Clause */
/* The directory of checkpoints: which steps it holds, which is the latest and which the best, what
 * may be removed, and whether there is space.
 *
 * Next to step-N.safetensors are the files latest and best, one line each. The line is a
 * checkpoint's name; in best its Acc@1 follows ("step-00001230.safetensors Acc@1 91.25"). A file
 * being written has a further ".PID.I" until it is complete (base/file.h). */
#ifndef BERTH_TRAIN_CHECKPOINT_DIRECTORY_H
#define BERTH_TRAIN_CHECKPOINT_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"

/* The step of "step-00001230.safetensors"; -1 for other names. */
int64_t checkpoint_dir_step_of(const char *name);
/* That name; returns it. */
#define CHECKPOINT_NAME_BYTES 64
const char *checkpoint_dir_name_of(int64_t step, char name[CHECKPOINT_NAME_BYTES]);
/* "DIRECTORY/step-00001230.safetensors", malloced; NULL if memory is out. */
char *checkpoint_dir_path_of(const char *directory, int64_t step);
/* All steps with a file in directory, newest first; malloced. NULL: err holds the cause. An
 * unreadable directory is an error, not empty: resuming would start anew next to existing
 * checkpoints. */
int64_t *checkpoint_dir_steps(const char *directory, size_t *count, struct error *err);

/* The step that latest names, or -1. The sink (may be NULL) receives the reason unless the file is
 * missing. */
int64_t checkpoint_dir_latest(const char *directory, const struct checkpoint_sink *sink);
/* lease is checked before the file is replaced: latest never changes without it. */
int checkpoint_dir_set_latest(const char *directory, int64_t step, struct lease *lease,
			      struct error *err);
/* All steps in the order in which a resuming run tries them; returns as checkpoint_dir_steps. Files
 * written after latest come first, newest first, because a kill may come between a checkpoint and
 * latest. Then follows what latest names and the steps before it. Last are later steps in files
 * older than latest: a run that went further from elsewhere wrote them. The sink receives an
 * unusable latest. */
int64_t *checkpoint_dir_resume_order(const char *directory, const struct checkpoint_sink *sink,
				     size_t *count, struct error *err);
/* The step of best and its Acc@1 in per cent; -1 if there is none usable. */
int64_t checkpoint_dir_best(const char *directory, double *acc1);
int checkpoint_dir_set_best(const char *directory, int64_t step, double acc1, struct lease *lease,
			    struct error *err);

/* Is there a model.safetensors that was written after the checkpoint of step? */
bool checkpoint_dir_model_is_newer(const char *directory, int64_t step);

/* Return -ERR_IO if directory's file system has less than size_bytes left for this user. A file
 * system that does not report it is assumed to have space. */
int checkpoint_dir_has_space(const char *directory, uint64_t size_bytes, struct error *err);

/* If err reports a full file system or an exhausted quota, add how much the checkpoints in
 * directory take and what to do. keep is the user's setting; 0: all are kept. */
void checkpoint_dir_explain_full(const char *directory, int64_t keep, struct error *err);

/* Remove what killed writers left: names with the pid of a process that does not exist, or of this
 * one, which must not be writing. The lease is checked before each. Return how many were removed.
 */
int checkpoint_dir_remove_stale(const char *directory, struct lease *lease);

/* Keep the newest keep checkpoints of graph's network up to step, and what latest and best name;
 * remove older ones. Each file's header and length are checked, not its data: truncated or foreign
 * files are neither counted nor removed, nor are files past step, from a run that went further.
 * Nothing is removed without the lease, or if latest or best exists but cannot be read. The sink
 * receives the latter, and files that cannot be removed. */
void checkpoint_dir_prune(const char *directory, const struct graph *graph, int64_t step,
			  int64_t keep, struct lease *lease, const struct checkpoint_sink *sink);

#endif
