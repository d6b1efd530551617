/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/executor_size.h"

#include "train/device/cuda/cuda.h"

#define PAGE ((size_t)2 << 20) /* of a GPU's memory */

static size_t rounded(size_t bytes, size_t to)
{
	return (bytes + to - 1) / to * to;
}

static size_t aligned(size_t bytes)
{
	return rounded(bytes, PLAN_ALIGNMENT);
}

void step_sizes(const struct step_request *request, const struct plan *plan, size_t stretch_count,
		struct step_sizes *out)
{
	const struct graph *graph = request->graph;
	size_t batch = (size_t)plan->batch, weights = 0;
	size_t targets =
		request->loss == LOSS_MSE ? batch * (size_t)graph->classes : batch;

	for (int i = 0; i < plan->node_count; i++)
		weights += plan->nodes[i].weight.param >= 0 && !plan->nodes[i].weight.in_place;
	*out = (struct step_sizes){
		.arena = plan->arena_bytes,
		.copies = plan->copies_bytes,
		.saved = plan->saved_floats * sizeof(float),
		.losses = batch * sizeof(float),
		.places = batch * sizeof(int32_t),
		.weights = weights * sizeof(struct kernel_weight),
		.stretches = stretch_count * sizeof(struct kernel_stretch),
		.table = request->table ? (size_t)graph->values[0].channels * 256 * sizeof(float)
					: 0,
		.targets_at = aligned(sizeof(struct kernel_run)),
		.front = aligned(sizeof(struct kernel_run)) + aligned(targets * 4),
		.sample = (size_t)shape_count(&graph->values[0]) *
			  (request->table ? 1 : sizeof(float)),
	};
	out->choices_at = out->front;
	out->indices_at = out->choices_at + aligned(batch * 3 * sizeof(int32_t));
	out->samples_at = out->indices_at + aligned(batch * sizeof(uint32_t));
	out->way = out->samples_at + batch * out->sample;
}

/* Pages for what is large; what is small shares some. */
size_t step_bytes(const struct step_request *request, const struct step_sizes *sizes)
{
	const size_t all[] = {sizes->arena,	sizes->copies,	sizes->saved, sizes->losses,
			      sizes->places,	sizes->weights, sizes->table, sizes->front,
			      sizes->stretches, sizes->way,	sizes->way,
			      /* Choosing algorithms by what is free gives other bits. */
			      request->deterministic ? TUNING_WORKSPACE : LINEAR_WORKSPACE};
	size_t sum = 0, small = 4 * PLAN_ALIGNMENT; /* totals, scale */

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (all[i] < PAGE / 2)
			small += aligned(all[i]);
		else
			sum += rounded(all[i], PAGE);
	}
	return sum + rounded(small, PAGE);
}

static int bytes_of(const struct step_request *request, size_t stretch_count, enum number number,
		    int multiprocessors, size_t *out, struct error *err)
{
	struct step_sizes sizes;
	struct plan plan;
	int rc = plan_make(request->graph, request->buckets, request->batch, number,
			   request->train, multiprocessors, &plan, err);

	if (rc)
		return rc;
	step_sizes(request, &plan, stretch_count, &sizes);
	*out = step_bytes(request, &sizes);
	plan_free(&plan);
	return 0;
}

size_t step_bytes_beside(const struct step_request *request, enum number number,
			 int multiprocessors)
{
	struct step_request evaluation = *request;
	size_t bytes = 0;

	evaluation.train = false;
	if (request->evaluates)
		bytes_of(&evaluation, 0, number, multiprocessors, &bytes, NULL);
	return bytes;
}

int step_bytes_all(const struct step_request *request, size_t stretch_count, enum number number,
		   int multiprocessors, size_t *out, struct error *err)
{
	size_t own;
	int rc = bytes_of(request, stretch_count, number, multiprocessors, &own, err);

	if (!rc)
		*out = own + step_bytes_beside(request, number, multiprocessors);
	return rc;
}

int step_largest_batch(const struct step_request *request, size_t stretch_count,
		       enum number number, int multiprocessors, size_t available)
{
	int fits = 0, over = request->batch;

	while (over - fits > 1) {
		struct step_request smaller = *request;
		size_t bytes;

		smaller.batch = fits + (over - fits) / 2;
		if (step_bytes_all(&smaller, stretch_count, number, multiprocessors, &bytes, NULL))
			break;
		if (bytes <= available)
			fits = smaller.batch;
		else
			over = smaller.batch;
	}
	return fits;
}
