/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints written in the background. At a step boundary the training fills a snapshot in memory
 * and continues. A thread computes checksums, writes, syncs, renames, and then removes old
 * checkpoints. One write is in progress at a time. All calls come from one thread. */
#ifndef BERTH_TRAIN_CHECKPOINT_WRITER_H
#define BERTH_TRAIN_CHECKPOINT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/variables.h"
#include "train/device/device.h"

struct writer; /* opaque */

/* Borrowed until writer_free has returned true. */
struct writer_request {
	const char *directory;
	const struct graph *graph;
	const struct buckets *buckets;
	struct device *device; /* the snapshot's source, which determines the kind of host memory */
	int64_t keep;	       /* number of newest checkpoints to keep; 0: all */
	struct lease *lease;   /* of directory, checked before each change; NULL: not checked */
};

struct writer_job {
	struct train_state state;
	bool model;  /* write model.safetensors, too */
	double best; /* Acc@1 if it is the best so far; negative: it is not */
};

/* The outcome of a job. */
struct writer_result {
	int64_t step, epoch;
	int rc; /* a failed job leaves the previous files in place */
	struct error err;
	double seconds;
	/* Acc@1 of the directory's best checkpoint now; negative: unchanged. */
	double best;
	uint64_t size_bytes;
	char *path;  /* malloced; NULL on failure */
	char *notes; /* further messages, one per line; malloced or NULL */
};
void writer_result_free(struct writer_result *result); /* clears it */

/* Reserve memory for a snapshot and start the thread. Return 0 or -ERR_UNAVAILABLE. */
int writer_new(const struct writer_request *request, struct writer **out, struct error *err);
/* End the thread. Wait at most timeout_ms for the write in progress. Return false if it still runs
 * (a file system hangs): what it uses must then stay until the process ends. NULL: true. */
bool writer_free(struct writer *writer, int timeout_ms);

/* Wait until no write is in progress. Return 0, or -ERR_IO after timeout_ms (0: at once). */
int writer_wait(struct writer *writer, int timeout_ms, struct error *err);
/* The snapshot to fill in while no write is in progress. */
struct variables *writer_snapshot(struct writer *writer);
/* Write the snapshot. Call it only if no write is in progress and the last result was taken. */
void writer_start(struct writer *writer, const struct writer_job *job);
/* Take the result of the last job, once; false if there is none yet. */
bool writer_take_result(struct writer *writer, struct writer_result *out);

#endif
