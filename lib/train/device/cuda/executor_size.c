/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/executor_size.h"

#include "train/device/cuda/cuda.h"

#define PAGE ((size_t)2 << 20) /* page size of GPU memory */

static size_t rounded(size_t bytes, size_t to)
{
	return (bytes + to - 1) / to * to;
}

static size_t aligned(size_t bytes)
{
	return rounded(bytes, LOWERED_ALIGNMENT);
}

void executor_sizes_compute(const struct executor_request *request,
			    const struct lowered_graph *lowered, size_t param_range_count,
			    struct executor_sizes *out)
{
	const struct graph *graph = request->graph;
	size_t batch = (size_t)lowered->batch, weights = 0;
	size_t targets = request->loss == LOSS_MSE ? batch * (size_t)graph->classes : batch;

	for (int i = 0; i < lowered->plan.node_count; i++)
		weights +=
			lowered->nodes[i].weight.param >= 0 && !lowered->nodes[i].weight.in_place;
	*out = (struct executor_sizes){
		.arena = lowered->plan.arena_bytes,
		.copies = lowered->copies_bytes,
		.saved = lowered->saved_floats * sizeof(float),
		.losses = batch * sizeof(float),
		.label_ranks = batch * sizeof(int32_t),
		.weights = weights * sizeof(struct kernel_weight),
		.param_ranges = param_range_count * sizeof(struct kernel_param_range),
		.table = request->table ? (size_t)graph->values[0].channels * 256 * sizeof(float)
					: 0,
		.targets_at = aligned(sizeof(struct kernel_run_params)),
		.graph_inputs = aligned(sizeof(struct kernel_run_params)) + aligned(targets * 4),
		.sample = (size_t)shape_count(&graph->values[0]) *
			  (request->table ? 1 : sizeof(float)),
	};
	out->augments_at = out->graph_inputs;
	out->indices_at = out->augments_at + aligned(batch * 3 * sizeof(int32_t));
	out->samples_at = out->indices_at + aligned(batch * sizeof(uint32_t));
	out->staging = out->samples_at + batch * out->sample;
}

/* The total as a GPU allocates it: large allocations take whole pages; small ones share some. */
static size_t total_bytes(const struct executor_request *request,
			  const struct executor_sizes *sizes)
{
	const size_t all[] = {sizes->arena, sizes->copies, sizes->saved, sizes->losses,
			      sizes->label_ranks, sizes->weights, sizes->table, sizes->graph_inputs,
			      sizes->param_ranges, sizes->staging, sizes->staging,
			      /* Choosing algorithms by free memory would change the bits. */
			      request->deterministic ? TUNING_WORKSPACE : LINEAR_WORKSPACE};
	size_t sum = 0, small = 4 * LOWERED_ALIGNMENT; /* totals, scale */

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (all[i] < PAGE / 2)
			small += aligned(all[i]);
		else
			sum += rounded(all[i], PAGE);
	}
	return sum + rounded(small, PAGE);
}

static int bytes_of(const struct executor_request *request, size_t param_range_count,
		    int multiprocessors, size_t *out, struct error *err)
{
	struct executor_sizes sizes;
	struct lowered_graph lowered;
	int rc = lowered_graph_make(request, multiprocessors, &lowered, err);

	if (rc)
		return rc;
	executor_sizes_compute(request, &lowered, param_range_count, &sizes);
	*out = total_bytes(request, &sizes);
	lowered_graph_free(&lowered);
	return 0;
}

size_t executor_bytes_of_eval(const struct executor_request *request, int multiprocessors)
{
	struct executor_request evaluation = *request;
	size_t bytes = 0;

	evaluation.train = false;
	if (request->evaluates)
		bytes_of(&evaluation, 0, multiprocessors, &bytes, NULL);
	return bytes;
}

int executor_bytes_with_eval(const struct executor_request *request, size_t param_range_count,
			     int multiprocessors, size_t *out, struct error *err)
{
	size_t own;
	int rc = bytes_of(request, param_range_count, multiprocessors, &own, err);

	if (!rc)
		*out = own + executor_bytes_of_eval(request, multiprocessors);
	return rc;
}

int executor_largest_batch(const struct executor_request *request, size_t param_range_count,
			   int multiprocessors, size_t available)
{
	int fits = 0, over = request->batch;

	while (over - fits > 1) {
		struct executor_request smaller = *request;
		size_t bytes;

		smaller.batch = fits + (over - fits) / 2;
		if (executor_bytes_with_eval(&smaller, param_range_count, multiprocessors, &bytes,
					     NULL))
			break;
		if (bytes <= available)
			fits = smaller.batch;
		else
			over = smaller.batch;
	}
	return fits;
}
