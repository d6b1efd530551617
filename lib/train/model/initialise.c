/* SPDX-License-Identifier: BSD-3-Clause */
/* Initial weights as PyTorch draws them. */
#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "train/model/graph.h"

/* kaiming_uniform_(a = sqrt(5)) in PyTorch's order of operations, so that rounding agrees; a bias
 * uses 1/sqrt(fan_in) directly. */
static void uniform(struct mt19937 *generator, const struct graph_param *param, float *to)
{
	double fan_in = (double)param->fan_in;
	double bound = param->rank > 1 ? sqrt(3.0) * (sqrt(2.0 / (1 + 5.0)) / sqrt(fan_in))
				       : 1 / sqrt(fan_in);

	for (int64_t i = 0; i < param->count; i++)
		to[i] = mt19937_uniform(generator, (float)-bound, (float)bound);
}

static void fill(const struct graph_param *param, struct mt19937 *generator, float *to)
{
	float value = param->init == INIT_ONE ? 1 : 0;

	if (param->init == INIT_DEFAULT || param->init == INIT_KAIMING_NORMAL)
		uniform(generator, param, to);
	else
		for (int64_t i = 0; i < param->count; i++)
			to[i] = value;
}

static void kaiming_normal(struct mt19937 *generator, const struct graph_param *param, float *to)
{
	double fan_out = (double)(param->shape[0] * param->shape[2] * param->shape[3]);

	mt19937_normal(generator, (float)sqrt(2.0 / fan_out), (size_t)param->count, to);
}

int graph_initialise(const struct graph *graph, uint64_t seed, const size_t *offsets, float *flat,
		     struct error *err)
{
	int count = graph->param_count;
	int *order = malloc(((size_t)count + 1) * sizeof *order);
	struct mt19937 generator;

	if (!order)
		return error_memory(err, "the initial weights");
	/* Insertion sort: at most hundreds, nearly in order. */
	for (int i = 0; i < count; i++) {
		int at = i;

		for (; at > 0 &&
		       graph->params[order[at - 1]].constructed > graph->params[i].constructed;
		     at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
	mt19937_seed(&generator, seed);
	for (int i = 0; i < count; i++)
		fill(&graph->params[order[i]], &generator, flat + offsets[order[i]]);
	for (int i = 0; i < count; i++)
		if (graph->params[i].init == INIT_KAIMING_NORMAL)
			kaiming_normal(&generator, &graph->params[i], flat + offsets[i]);
	free(order);
	return 0;
}

void graph_initialise_buffers(const struct graph *graph, float *flat)
{
	for (int i = 0; i < graph->buffer_count; i++)
		for (int64_t k = 0; k < graph->buffers[i].count; k++)
			flat[graph->buffers[i].offset + (size_t)k] = graph->buffers[i].initial;
}
