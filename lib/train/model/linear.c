/* SPDX-License-Identifier: BSD-3-Clause */
/* One linear layer on samples of any shape: regression, or softmax regression. */
#include "train/model/graph.h"

static void build(struct graph *graph, const struct model *model, enum model_stem stem)
{
	graph_linear(graph, "", 0, graph->classes);
}

const struct model model_linear = {
	.name = "linear",
	.build = build,
	.batch = 32,
	.epochs = 5,
	.lr = 0.01,
	.momentum = 0.9,
	.weight_decay = 0,
	.schedule = SCHEDULE_CONSTANT,
};
