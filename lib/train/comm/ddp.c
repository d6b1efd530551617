/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/ddp.h"

#include <stdlib.h>
#include <string.h>

/* Fill ready[] with the parameters in the order in which backward finishes them. */
static void order_by_readiness(const struct graph *graph, int *ready)
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

int buckets_make(const struct graph *graph, size_t first_bytes, size_t cap_bytes,
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
	order_by_readiness(graph, buckets.ready);

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
	if (buckets.bucket_count)
		buckets.list[buckets.bucket_count - 1].count++; /* the vote */
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
