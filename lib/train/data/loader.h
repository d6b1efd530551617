/* SPDX-License-Identifier: BSD-3-Clause */
/* Batches prepared ahead: threads read, decode and augment the samples of the next batches while
 * the step computes. A batch depends on its indices and epoch only, never on the threads. */
#ifndef BERTH_TRAIN_DATA_LOADER_H
#define BERTH_TRAIN_DATA_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/data/dataset.h"

/* A sensible number of threads: the CPUs that this process may use, at most limit (0: no limit), at
 * least 1. */
int loader_threads(int limit);

struct loader_request {
	const struct dataset *dataset; /* borrowed */
	int batch;		       /* the most samples in a batch */
	int threads;		       /* 0: loader_next makes the batch itself */
	bool raw; /* leave samples raw, with the random choices, for a device that augments */
	/* With raw: leave the samples out, because a device holds them. Not for formats of files.
	 */
	bool bare;
	int timeout_ms; /* for the wait for one batch */
};

/* A sample that could not be decoded; text names it and the cause. */
struct batch_fault {
	int position;	/* in the requested order */
	uint32_t index; /* of the faulty one */
	char *text;
};

/* Samples in the requested order. In the training split a faulty sample is replaced by the next
 * good index (cyclic). In the validation split it is left out, and later samples move up. With
 * --strict-data (dataset.strict) loader_next returns -ERR_DATA instead. */
struct batch {
	int count; /* samples in this batch */
	float *x;  /* [count][C][H][W], or NULL with raw */
	void *raw; /* with raw: as the format has them; NULL otherwise, and with bare */
	/* [count]: which samples. For formats of files, those that were requested. */
	const uint32_t *indices;
	struct augment_params *augments; /* with raw: [count], else NULL */
	void *target;			 /* I32 or F32 [count] */
	const struct batch_fault *faults;
	int fault_count;
	int64_t tag; /* from loader_submit */
};

struct loader; /* opaque */

/* Start the threads. Return 0, or -ERR_UNAVAILABLE if memory or threads are out. */
int loader_new(const struct loader_request *request, struct loader **out, struct error *err);
/* End the threads once they finish their present samples; batches become invalid. NULL is allowed.
 * Return false if a thread hangs in a file system (loader_next had timed out). It cannot be ended,
 * and what it uses, including the data set, must stay until the process ends. */
bool loader_free(struct loader *loader);

/* Is there no room for another batch? LOADER_SLOTS batches are prepared ahead, which bounds the
 * memory. */
#define LOADER_SLOTS 3
bool loader_full(const struct loader *loader);
/* Request a batch of count (0 to batch) indices, which are copied. Call it only if the loader is
 * not full. Does not block. */
void loader_submit(struct loader *loader, const uint32_t *indices, int count, int64_t epoch,
		   int64_t tag);
/* Wait for the oldest requested batch. It is valid until loader_release, loader_discard or
 * loader_free. The error is that of its first bad sample, or -ERR_IO if nothing arrived within
 * timeout_ms. */
int loader_next(struct loader *loader, struct batch **out, struct error *err);
/* The caller no longer reads the batch it took. */
void loader_release(struct loader *loader);
/* Drop all requested batches; waits for those in progress. */
void loader_discard(struct loader *loader);

#endif
