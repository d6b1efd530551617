/* SPDX-License-Identifier: BSD-3-Clause */
/* The batches of an epoch, one after another, prepared ahead; and statistics of faulty samples. */
#ifndef BERTH_TRAIN_DATA_FEED_H
#define BERTH_TRAIN_DATA_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/data/loader.h"
#include "train/data/sampler.h"

struct feed_request {
	struct loader_request loader;
	/* Borrowed. NULL: in order, each sample once over all ranks. */
	const struct sampler *sampler;
	int rank, world;
	/* Called once per faulty file, from feed_next's thread. May be NULL. */
	void (*fault)(void *context, const char *text);
	void *context;
};

struct feed; /* opaque */

/* Until feed_set_update_size, batches have loader.batch samples per rank, wherever updates end. */
int feed_new(const struct feed_request *request, struct feed **out, struct error *err);
bool feed_free(struct feed *feed); /* as loader_free */
/* From now on batches have at most batch samples per rank (1 to loader.batch). None crosses the end
 * of an update of update samples. Updates count from the position at which feed_next restarts. Call
 * it before the first feed_next. */
void feed_set_update_size(struct feed *feed, int batch, int64_t update);
/* Get this rank's part of the global batch that begins at position of the sampler's epoch
 * (sampler_batch). The previous batch becomes invalid. The next batches are prepared ahead; an
 * epoch or position out of sequence restarts that. *global_count is the number of samples over all
 * ranks; at the end of the epoch it is 0 and there is no batch. Waits, and adds the time it took to
 * *wait_s. */
int feed_next(struct feed *feed, int64_t position, struct batch **out, int64_t *global_count,
	      double *wait_s, struct error *err);
/* Faulty samples in the batches so far, counted each time they occurred. */
int64_t feed_faults(const struct feed *feed);

#endif
