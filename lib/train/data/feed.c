/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/feed.h"

#include <stdlib.h>

#include "base/clock.h"

#define REPORTED_FAULTS_MAX 100 /* faulty files that are named; further ones are only counted */

struct feed {
	struct feed_request request;
	struct loader *loader;
	uint32_t *indices;
	int batch;	/* per rank */
	int64_t update; /* samples of all ranks after which a batch ends in any case; 0: none */
	int64_t epoch, begin; /* begin: the position from which updates count */
	int64_t next, ahead;  /* positions: the next to be taken, and the next to be requested */
	int64_t faults, report_count;
	unsigned char *reported; /* one bit per sample, or NULL if none can be faulty */
};

int feed_new(const struct feed_request *request, struct feed **out, struct error *err)
{
	const struct dataset *dataset = request->loader.dataset;
	struct feed *feed = calloc(1, sizeof *feed);
	int rc;

	if (!feed)
		return error_memory(err, "the batches");
	feed->request = *request;
	feed->batch = request->loader.batch;
	feed->next = -1;
	feed->indices = calloc((size_t)request->loader.batch, sizeof *feed->indices);
	if (dataset->format->files)
		feed->reported = calloc((size_t)dataset->count / 8 + 1, 1);
	rc = feed->indices && (feed->reported || !dataset->format->files)
		     ? loader_new(&request->loader, &feed->loader, err)
		     : error_memory(err, "the batches");
	if (rc) {
		feed_free(feed);
		return rc;
	}
	*out = feed;
	return 0;
}

bool feed_free(struct feed *feed)
{
	if (!feed)
		return true;

	bool ended = loader_free(feed->loader);

	free(feed->indices);
	free(feed->reported);
	free(feed);
	return ended;
}

void feed_set_update_size(struct feed *feed, int batch, int64_t update)
{
	feed->batch = batch;
	feed->update = update;
}

int64_t feed_faults(const struct feed *feed)
{
	return feed->faults;
}

/* Samples 0, 1, 2, ... without padding. */
static int take_in_order(const struct feed *feed, int64_t position, int64_t max,
			 int64_t *global_count)
{
	const struct feed_request *request = &feed->request;
	int64_t left = request->loader.dataset->count - position;
	int count = 0;

	*global_count = left < max ? left : max;
	for (int64_t at = request->rank; at < *global_count; at += request->world)
		feed->indices[count++] = (uint32_t)(position + at);
	return count;
}

static void fill_ahead(struct feed *feed)
{
	const struct feed_request *request = &feed->request;

	while (!loader_full(feed->loader)) {
		int64_t global_count, max = (int64_t)feed->batch * request->world;
		int64_t left = feed->update
				       ? feed->update - (feed->ahead - feed->begin) % feed->update
				       : max;

		max = left < max ? left : max;

		int count = request->sampler ? sampler_batch(request->sampler, feed->ahead,
							     request->rank, request->world, max,
							     feed->indices, &global_count)
					     : take_in_order(feed, feed->ahead, max, &global_count);

		if (global_count <= 0)
			return;
		loader_submit(feed->loader, feed->indices, count, feed->epoch, global_count);
		feed->ahead += global_count;
	}
}

static void report_fault(struct feed *feed, const struct batch *batch)
{
	const struct feed_request *request = &feed->request;

	feed->faults += batch->fault_count;
	for (int i = 0; i < batch->fault_count; i++) {
		uint32_t index = batch->faults[i].index;
		unsigned char bit = (unsigned char)(1u << (index & 7));

		if (feed->reported[index / 8] & bit)
			continue;
		feed->reported[index / 8] |= bit;
		if (!request->fault || feed->report_count > REPORTED_FAULTS_MAX)
			continue;
		request->fault(request->context, feed->report_count < REPORTED_FAULTS_MAX
							 ? batch->faults[i].text
							 : "further files that cannot be decoded "
							   "will be counted but not named");
		feed->report_count++;
	}
}

int feed_next(struct feed *feed, int64_t position, struct batch **out, int64_t *global_count,
	      double *wait_s, struct error *err)
{
	const struct sampler *sampler = feed->request.sampler;
	int64_t epoch = sampler ? sampler->epoch : 0;
	double begin_s = clock_now_s();
	int rc = 0;

	loader_release(feed->loader);
	if (position != feed->next || epoch != feed->epoch) {
		loader_discard(feed->loader);
		feed->epoch = epoch;
		feed->begin = feed->next = feed->ahead = position;
	}
	fill_ahead(feed);
	*global_count = 0;
	if (feed->ahead != feed->next && !(rc = loader_next(feed->loader, out, err))) {
		*global_count = (*out)->tag;
		feed->next += *global_count;
		report_fault(feed, *out);
	}
	*wait_s += clock_now_s() - begin_s;
	return rc;
}
