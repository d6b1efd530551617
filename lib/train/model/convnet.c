/* SPDX-License-Identifier: BSD-3-Clause */
/* LeNet-5 with ReLU and max pooling: conv 6@5x5, pool, conv 16@5x5, pool, 120, 84, classes. */
#include "train/model/graph.h"

static void build(struct graph *graph, const struct model *model, enum model_stem stem)
{
	int value = graph_conv2d(graph, "conv1", 0, 6, 5, 1, 0, true);

	value = graph_relu(graph, value);
	value = graph_maxpool2d(graph, value, 2, 2, 0);
	value = graph_conv2d(graph, "conv2", value, 16, 5, 1, 0, true);
	value = graph_relu(graph, value);
	value = graph_maxpool2d(graph, value, 2, 2, 0);
	value = graph_linear(graph, "fc1", value, 120);
	value = graph_relu(graph, value);
	value = graph_linear(graph, "fc2", value, 84);
	value = graph_relu(graph, value);
	graph_linear(graph, "fc3", value, graph->classes);
}

const struct model model_convnet = {
	.name = "convnet",
	.build = build,
	.batch = 64,
	.epochs = 5,
	.lr = 0.05,
	.momentum = 0.9,
	.weight_decay = 5e-4,
	.schedule = SCHEDULE_COSINE,
};
