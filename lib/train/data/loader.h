/* SPDX-License-Identifier: BSD-3-Clause */
/* Batches made ahead of their use: threads read, decode and augment the samples of the next batches
 * while the step computes. What a batch holds depends on its indices and epoch alone, never on the
 * threads. */
#ifndef BERTH_TRAIN_DATA_LOADER_H
#define BERTH_TRAIN_DATA_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/data/dataset.h"

/* Threads that are sensible here: the CPUs that this process may use, at most limit (0: no limit),
 * at least 1. */
int loader_threads(int limit);

struct loader_request {
	const struct dataset *dataset; /* borrowed */
	int batch;		       /* the most samples of one */
	int threads; /* 0: none, the taker makes its batch itself when it wants it */
	bool raw;    /* leave the samples raw, with what chance says, for a device that augments */
	bool bare;   /* with raw: the samples themselves are not wanted, a device has them; not of
		      * formats of files */
	int timeout_ms; /* of a wait for one batch */
};

/* A sample that could not be decoded; text says which and why. */
struct batch_fault {
	int position;	/* in what was asked for */
	uint32_t index; /* of the faulty one */
	char *text;
};

/* Samples in the order in which they were asked for. A faulty one of the training split is replaced
 * by the next index (cyclic) that is good; one of the validation split is left out, and those after
 * it move up. With --strict-data (dataset.strict) it ends loader_next with -ERR_DATA instead. */
struct batch {
	int count;		 /* samples here */
	float *x;		 /* [count][C][H][W], or NULL with raw */
	void *raw;		 /* with raw: as the format has them, else (and bare) NULL */
	const uint32_t *indices; /* [count]: which samples; of formats of files those that were
				  * asked for */
	struct augment_params *augments; /* with raw: [count], else NULL */
	void *target;			 /* I32 or F32 [count] */
	const struct batch_fault *faults;
	int fault_count;
	int64_t tag; /* of loader_submit */
};

struct loader; /* opaque */

/* Starts the threads. -ERR_UNAVAILABLE: memory or threads are out. */
int loader_new(const struct loader_request *request, struct loader **out, struct error *err);
/* Ends the threads after the samples that they are at; batches become invalid. NULL is fine. False
 * when a thread hangs in a file system (loader_next had waited in vain): it cannot be ended, and
 * what it uses, the data set too, must stay until the process ends. */
bool loader_free(struct loader *loader);

/* Is there no room for another batch? A few are made ahead (memory: LOADER_SLOTS batches). */
#define LOADER_SLOTS 3
bool loader_full(const struct loader *loader);
/* Ask for a batch; indices are copied, count 0 to batch. Only when not full. Does not block. */
void loader_submit(struct loader *loader, const uint32_t *indices, int count, int64_t epoch,
		   int64_t tag);
/* The oldest batch that was asked for; waits for it. Valid until loader_release, drop or free. The
 * error is that of its first bad sample; -ERR_IO when nothing came within timeout_ms. */
int loader_next(struct loader *loader, struct batch **out, struct error *err);
/* The batch that was taken is no longer read. */
void loader_release(struct loader *loader);
/* Forget all batches that were asked for; waits for those that are being made. */
void loader_discard(struct loader *loader);

#endif
