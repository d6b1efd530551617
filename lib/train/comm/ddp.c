/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/ddp.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"

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

double ddp_fingerprint(const void *data, size_t size)
{
	return crc32c(0, data, size);
}

static double graph_fingerprint(const struct graph *graph)
{
	uint32_t mark = crc32c(0, graph->model, strlen(graph->model));

	mark = crc32c(mark, &graph->values[0], sizeof graph->values[0]);
	for (int i = 0; i < graph->param_count; i++)
		mark = crc32c(mark, graph->params[i].shape, sizeof graph->params[i].shape);
	return mark;
}

/* Name the ranks on which setting differs. Collective: all ranks know that it differs and call
 * this. */
static int set_mismatch_error(const struct ddp_setting *setting, struct comm *comm,
			      struct device_queue *queue, struct error *err)
{
	double first = setting->value, other;
	int rc = comm_broadcast_on_host(comm, queue, &first, sizeof first, 0, err);
	double lowest = !rc && setting->value != first ? comm->size - comm->rank : 0;

	if (!rc)
		rc = comm_reduce_on_host(comm, queue, &lowest, 1, COMM_MAX, err);
	if (rc)
		return rc;

	int rank = comm->size - (int)lowest;

	other = setting->value;
	rc = comm_broadcast_on_host(comm, queue, &other, sizeof other, rank, err);
	if (rc)
		return rc;
	if (setting->mark)
		return error_set(err, ERR_DATA,
				 "the ranks differ in %s: rank %d does not match rank 0. Start all "
				 "ranks with the same command line and files",
				 setting->name, rank);
	return error_set(err, ERR_DATA,
			 "the ranks differ in %s: rank 0 has %.15g, rank %d has %.15g. Start all "
			 "ranks with the same command line and files",
			 setting->name, first, rank, other);
}

int ddp_compare(const struct graph *graph, const struct ddp_setting *settings, size_t count,
		struct comm *comm, struct device_queue *queue, struct error *err)
{
	const struct ddp_setting network = {"the network", graph_fingerprint(graph), true};
	double *values = calloc(count + 1, 2 * sizeof *values);

	if (!values)
		return error_memory(err, "comparing the ranks' settings");
	for (size_t i = 0; i <= count; i++) {
		values[2 * i] = i ? settings[i - 1].value : network.value;
		values[2 * i + 1] = -values[2 * i];
	}

	int rc = comm_reduce_on_host(comm, queue, values, 2 * (count + 1), COMM_MAX, err);

	for (size_t i = 0; !rc && i <= count; i++)
		if (values[2 * i] != -values[2 * i + 1])
			rc = set_mismatch_error(i ? &settings[i - 1] : &network, comm, queue, err);
	if (rc && rc != -ERR_DATA)
		error_prefix(err, "comparing the ranks' settings");
	free(values);
	return rc;
}
