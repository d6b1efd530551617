/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/ddp.h"

#include <stdlib.h>
#include <string.h>

#include "train/crc32c.h"

/* ready[]: parameters in the order in which backward finishes them. */
static void order(const struct graph *graph, int *ready)
{
	int count = 0;

	for (int i = graph->op_count - 1; i >= 0; i--) {
		const struct graph_op *op = &graph->ops[i];
		bool norm = op->kind == OP_BATCHNORM;
		int first = norm ? op->weight : op->bias, second = norm ? op->bias : op->weight;

		if (first >= 0)
			ready[count++] = first;
		if (second >= 0)
			ready[count++] = second;
	}
}

int buckets_plan(const struct graph *graph, size_t first_bytes, size_t cap_bytes,
		 struct buckets *out, struct error *err)
{
	size_t n = (size_t)graph->param_count;
	struct buckets buckets = {
		.list = calloc(n + 1, sizeof *buckets.list),
		.offsets = calloc(n + 1, sizeof *buckets.offsets),
		.bucket_of = calloc(n + 1, sizeof *buckets.bucket_of),
		.ready = calloc(n + 1, sizeof *buckets.ready),
	};

	if (!buckets.list || !buckets.offsets || !buckets.bucket_of || !buckets.ready) {
		buckets_free(&buckets);
		return error_memory(err, "the gradient buckets");
	}
	order(graph, buckets.ready);

	size_t limit = first_bytes;

	for (size_t i = 0; i < n; i++) {
		int param = buckets.ready[i];
		struct bucket *bucket = &buckets.list[buckets.bucket_count];

		if (!bucket->params)
			bucket->offset = buckets.total;
		buckets.offsets[param] = buckets.total;
		buckets.bucket_of[param] = buckets.bucket_count;
		bucket->count += (size_t)graph->params[param].count;
		bucket->params++;
		buckets.total += (size_t)graph->params[param].count;
		if (bucket->count * sizeof(float) >= limit) {
			buckets.bucket_count++;
			limit = cap_bytes;
		}
	}
	if (buckets.list[buckets.bucket_count].params)
		buckets.bucket_count++;
	*out = buckets;
	return 0;
}

void buckets_free(struct buckets *buckets)
{
	if (!buckets)
		return;
	free(buckets->list);
	free(buckets->offsets);
	free(buckets->bucket_of);
	free(buckets->ready);
	memset(buckets, 0, sizeof *buckets);
}

int ddp_compare(const struct graph *graph, int batch, int64_t samples, struct comm *comm,
		struct device_queue *queue, struct error *err)
{
	uint32_t mark = crc32c(0, graph->model, strlen(graph->model));

	for (int i = 0; i < graph->param_count; i++)
		mark = crc32c(mark, graph->params[i].shape, sizeof graph->params[i].shape);

	/* The largest of mark and of -mark: equal but for the sign where all have the same. */
	double values[6] = {mark,	    -(double)mark,   batch,
			    -(double)batch, (double)samples, -(double)samples};
	int rc = comm_agree(comm, queue, values, 6, COMM_MAX, err);

	if (rc)
		return error_prefix(err, "comparing what the ranks train");
	if (values[0] != -values[1])
		return error_set(err, ERR_DATA,
				 "the ranks train different networks (rank %d: %s with "
				 "%lld weights); give all the same command line and data",
				 comm->rank, graph->model, (long long)graph->weight_count);
	if (values[2] != -values[3])
		return error_set(err, ERR_DATA,
				 "the ranks have different batch sizes (%g to %g); give "
				 "all the same --batch",
				 -values[3], values[2]);
	if (values[4] != -values[5])
		return error_set(err, ERR_DATA,
				 "the ranks have different data (%.0f to %.0f samples, rank "
				 "%d: %lld); give all the same --data, and the same files",
				 -values[5], values[4], comm->rank, (long long)samples);
	return 0;
}
