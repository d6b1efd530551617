/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints written in the background: the training fills a snapshot in memory at a step's edge
 * and goes on; a thread makes checksums, writes, syncs, renames, and then keeps the folder in
 * order. One write is under way at a time. All calls from one thread. */
#ifndef BERTH_TRAIN_CHECKPOINT_WRITER_H
#define BERTH_TRAIN_CHECKPOINT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/owner.h"
#include "train/checkpoint/variables.h"
#include "train/device/device.h"

struct writer; /* opaque */

/* Borrowed until writer_free has returned true. */
struct writer_request {
	const char *directory;
	const struct graph *graph;
	const struct buckets *buckets;
	struct device *device; /* what the snapshot will be taken from, for its kind of memory */
	int64_t keep;	       /* newest ones; 0: all */
	struct owner *owner;   /* who holds folder; renewed beside the writes; NULL: nobody looks */
	int renew_ms;	       /* 0: OWNER_PERIOD_MS */
};

struct writer_job {
	struct train_state state;
	bool model;  /* model.safetensors, too */
	double best; /* Acc@1 where it is the best one so far; negative: it is not */
};

/* What came of a job. */
struct writer_result {
	int64_t step, epoch;
	int rc; /* a job that failed has left what was there before */
	struct error err;
	double seconds;
	double best; /* Acc@1 that the folder now has as its best one; negative: left as it was */
	uint64_t size_bytes;
	char *path;  /* malloced; NULL on failure */
	char *notes; /* what else is to be said, a line each; malloced or NULL */
};
void writer_result_free(struct writer_result *result); /* clears it */

/* Reserve a snapshot's memory and start the thread. -ERR_UNAVAILABLE. */
int writer_new(const struct writer_request *request, struct writer **out, struct error *err);
/* End the threads; waits for what is being written, then for a renewal of the owner's file, at most
 * timeout_ms each. False when one still goes on then (a file system hangs): what it uses must stay
 * until the process ends. NULL: true. */
bool writer_free(struct writer *writer, int timeout_ms);

/* Wait until nothing is being written. -ERR_IO after timeout_ms. */
int writer_wait(struct writer *writer, int timeout_ms, struct error *err);
bool writer_is_busy(struct writer *writer);
/* To be filled while nothing is being written. */
struct variables *writer_snapshot(struct writer *writer);
/* Write the snapshot. Only while nothing is being written, and the last result is taken. */
void writer_start(struct writer *writer, const struct writer_job *job);
/* The result of the last job, once; false where there is none (yet). */
bool writer_take_result(struct writer *writer, struct writer_result *out);
/* 0, or why the folder is no longer ours: then nothing more is written. */
int writer_lost(struct writer *writer, struct error *err);

#endif
