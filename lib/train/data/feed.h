/* SPDX-License-Identifier: BSD-3-Clause */
/* The batches of an epoch, one after another, made ahead; and what became of faulty samples. */
#ifndef BERTH_TRAIN_DATA_FEED_H
#define BERTH_TRAIN_DATA_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/data/loader.h"
#include "train/data/sampler.h"

struct feed_request {
	struct loader_request loader;
	const struct sampler
		*sampler; /* borrowed; NULL: in order, each sample once over all ranks */
	int rank, world;
	/* Said once for each file, from feed_next's thread. May be NULL. */
	void (*fault)(void *context, const char *text);
	void *context;
};

struct feed; /* opaque */

/* Until feed_set_update_size: batches of loader.batch samples a rank, wherever updates end. */
int feed_new(const struct feed_request *request, struct feed **out, struct error *err);
bool feed_free(struct feed *feed); /* as loader_free */
/* From now on batches of at most batch samples a rank (1 to loader.batch), none of them beyond the
 * end of an update of update samples. Updates are counted from the position at which feed_next
 * begins anew. Before the first feed_next. */
void feed_set_update_size(struct feed *feed, int batch, int64_t update);
/* This rank's part of the global batch that begins at position of sampler's epoch (sampler_batch).
 * The batch before it is no longer read. What follows is made ahead; another epoch or position than
 * what comes next begins anew. *global_count: samples of all ranks; 0, and no batch, at the end.
 * Waits. */
int feed_next(struct feed *feed, int64_t position, struct batch **out, int64_t *global_count,
	      struct error *err);
/* Faulty samples of the batches so far, each time that they came. */
int64_t feed_faults(const struct feed *feed);

#endif
