/* SPDX-License-Identifier: BSD-3-Clause */
#include "random_graph.h"

#include "../rows.h"

#define CHANNELS 8
#define READERS 3 /* of a value, at most, until the rest is added up */

struct growing {
	struct graph *graph;
	uint64_t random;
	int values[256], readers[256], count; /* all of one shape */
};

static int below(struct growing *growing, int n)
{
	growing->random ^= growing->random << 13;
	growing->random ^= growing->random >> 7;
	growing->random ^= growing->random << 17;
	return (int)((growing->random >> 11) % (uint64_t)n);
}

/* One of the last values, so that the network is deep; -1: it has enough readers. */
static int pick(struct growing *growing)
{
	int recent = growing->count < 4 ? growing->count : 4;
	int at = growing->count - 1 - below(growing, recent);

	if (growing->readers[at] >= READERS)
		return -1;
	return at;
}

static void add_value(struct growing *growing, int value)
{
	assert_int_equal(growing->graph->error.code, 0);
	assert_true(growing->count < (int)ROWS(growing->values));
	growing->values[growing->count] = value;
	growing->readers[growing->count++] = 0;
}

static void grow(struct growing *growing)
{
	struct graph *graph = growing->graph;
	int at = pick(growing), other = pick(growing), value;
	char name[16];

	if (at < 0 || other < 0)
		return;
	value = growing->values[at];
	snprintf(name, sizeof name, "op%d", graph->op_count);
	growing->readers[at]++;
	switch (below(growing, 7)) {
	case 0:
		value = graph_conv2d(graph, name, value, CHANNELS, 3, 1, 1, below(growing, 2));
		break;
	case 1:
		value = graph_conv2d(graph, name, value, CHANNELS, 1, 1, 0, false);
		break;
	case 2:
		value = graph_relu(graph, value);
		break;
	case 3:
		value = graph_maxpool2d(graph, value, 3, 1, 1);
		break;
	case 4:
		if (at != other) {
			growing->readers[other]++;
			value = graph_add(graph, value, growing->values[other]);
			break;
		} /* fallthrough */
	default:
		value = graph_batchnorm(graph, name, value);
		break;
	}
	add_value(growing, value);
}

/* Add up what no op reads yet; the last value is read by none. */
static int sum_of_rest(struct growing *growing)
{
	int sum = growing->values[growing->count - 1];

	for (int i = 0; i < growing->count - 1; i++)
		if (!growing->readers[i])
			sum = graph_add(growing->graph, sum, growing->values[i]);
	return sum;
}

struct graph *random_graph(uint64_t seed, const struct shape *input, int classes, int ops)
{
	struct growing growing = {.graph = graph_new("random", input, classes),
				  .random = seed * 2654435761u + 88172645463325252u};
	struct graph *graph = growing.graph;
	int value;

	assert_non_null(graph);
	/* Some read the input, in all ways that a network may. */
	value = graph_conv2d(graph, "stem", seed % 3 == 1 ? graph_relu(graph, 0) : 0, CHANNELS, 3,
			     1, 1, true);
	if (seed % 3 == 2 && input->channels == CHANNELS)
		value = graph_relu(graph, graph_add(graph, graph_batchnorm(graph, "bn", value), 0));
	add_value(&growing, value);
	while (graph->op_count < ops)
		grow(&growing);
	value = graph_avgpool(graph, sum_of_rest(&growing));
	graph_linear(graph, "fc", value, classes);
	assert_int_equal(graph->error.code, 0);
	return graph;
}
