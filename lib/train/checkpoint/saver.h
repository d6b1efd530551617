/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves the checkpoints of a run: which ranks write, who holds the directory's lease, what became
 * of each write, and which checkpoint is the best. Training pauses only for the snapshot; writer.h
 * does the rest in the background. If a write fails, berth reports it, keeps the earlier
 * checkpoints, and the run continues. */
#ifndef BERTH_TRAIN_CHECKPOINT_SAVER_H
#define BERTH_TRAIN_CHECKPOINT_SAVER_H

#include <stdbool.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/lease.h"
#include "train/checkpoint/writer.h"
#include "train/comm/rank_group.h"

/* Borrowed until saver_close. */
struct saver_request {
	const struct checkpoint_options *options; /* directory NULL: nothing is saved */
	struct rank_group *group;
	const struct graph *graph;
	const struct buckets *buckets;
	struct device *device;
	int local_rank;
	int timeout_ms; /* for which ranks wait for each other */
	/* Receives each checkpoint that is complete, on every rank that writes; may take
	 * result->path. stall_s: how long training stood still for it. */
	int (*saved)(void *context, struct writer_result *result, double stall_s,
		     struct error *err);
	/* Why the run must stop before it has begun, or NULL. */
	const char *(*interrupted)(void);
	void *context;
};

/* The fields belong to saver.c and resume.c; others may read copies and stalled. Zeros: a saver
 * that saves nothing. It must stay where it is after saver_open. */
struct saver {
	struct saver_request request;
	char run[LEASE_RUN_BYTES];
	struct lease *lease;   /* on ranks that write: rank 0, and if --ckpt is not one directory
				* for all nodes also one rank per further directory */
	struct writer *writer; /* likewise */
	int copies;	       /* ranks that write; the same on all ranks */
	atomic_bool cancelled; /* for the thread of saver_io */
	bool stalled;	       /* it still runs: what it uses must stay until the process ends */
	double best_acc1;  /* of what was saved or is being saved, by this run and those before it;
			    * negative: none. Rank 0's counts, as only rank 0 knows of its failed
			    * writes. */
	double best_saved; /* of what was saved */
	double next_best;  /* Acc@1 of the save being prepared if it is the best; else -1 */
	double stall_s;	   /* of the last save */
	struct error save_error; /* of the last write; code 0: it succeeded */
	struct error skip_error; /* why the last save was not begun; code 0: it was */
	bool wait_reported, at_end;
	struct error reported; /* why a checkpoint could not be saved, as last printed */
};

void saver_init(struct saver *saver, const struct saver_request *request);
/* Find the ranks that write: on these make the directory, take its lease, tidy it up and start the
 * writer. Only with a directory. Collective; see saver_io. */
int saver_open(struct saver *saver, struct error *err);

/* Run step in a thread on ranks where it is not NULL. Meanwhile all ranks keep communicating,
 * however long it takes. -ERR_IO if the file system does not answer for SAVER_STALL_MS;
 * -ERR_STOPPED if the run is interrupted. Then the thread may still run: if so, saver->stalled is
 * set. Collective; the result is rank_group_ready's. */
#define SAVER_STALL_MS 60000
int saver_io(struct saver *saver, int (*step)(void *argument, struct error *err), void *argument,
	     struct error *err);

/* Load the checkpoint that the run resumes from (resume.c) into state and variables of one rank,
 * *root. *path (malloced, or NULL): the file; on a rank other than *root the name that it has
 * there, or NULL. On all ranks NULL: the run begins anew, and *root is 0. Collective. */
int saver_resume(struct saver *saver, struct train_state *state, struct variables *variables,
		 char **path, int *root, struct error *err);

/* Take the best Acc@1 of the checkpoints that the run resumes among (resumed), on all ranks.
 * Collective. */
int saver_load_best(struct saver *saver, bool resumed, struct error *err);
/* After an evaluation: rank 0 may have learnt that the best checkpoint was not saved. Collective.
 */
int saver_share_best(struct saver *saver, struct error *err);
/* Is a step with acc1 (negative: none) to be kept as the best one, whenever saves are due? Only
 * with --keep: without it nothing is saved that was not asked for. The same on all ranks. */
bool saver_wants_best(const struct saver *saver, double acc1);

/* Prepare to save step: wait for a write under way and report its result. acc1: the evaluation's
 * of this step; negative: none. due: --save-every asks for it, so a wait means that it asks too
 * often. *snapshot: to be filled before saver_start; NULL if this rank does
 * not write, or the last write hangs. */
int saver_prepare(struct saver *saver, int64_t step, double acc1, bool due,
		  struct variables **snapshot, struct error *err);
/* Write the snapshot in the background. last: model.safetensors, too. begin_s: when training
 * stopped for it (base/clock.h). */
void saver_start(struct saver *saver, const struct train_state *state, bool last, double begin_s);
/* Report what became of a write, if one has ended. -ERR_OUTPUT: another job owns the directory
 * now. */
int saver_report_finished(struct saver *saver, struct error *err);
/* Wait until everything is written; on failure err says why. Called at the end of a run, before it
 * reports success. Collective. */
int saver_wait(struct saver *saver, struct error *err);
/* Wait for a write under way and release the lease. Return false if a file system hangs: the saver
 * and what it borrowed must then stay until the process ends. */
bool saver_close(struct saver *saver);

#endif
