/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of models, and the two small ones. */
#include <string.h>

#include "base/bytes.h"
#include "base/spelling.h"
#include "train/model/graph.h"

/* LeNet-5 with ReLU and max pooling: conv 6@5x5, pool, conv 16@5x5, pool, 120, 84, classes. */
static void build_convnet(struct graph *graph, const struct model *model, enum model_stem stem)
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

/* One linear layer on samples of any shape: regression, or softmax regression. */
static void build_linear(struct graph *graph, const struct model *model, enum model_stem stem)
{
	graph_linear(graph, "", 0, graph->classes);
}

/* torchvision's: 18 and 34 with basic blocks, the others (v1.5) with bottleneck blocks. */
#define RESNET(N, BOTTLENECK, ...)                                                                 \
	{                                                                                          \
		"resnet" #N, resnet_build, 32, 90, 0.1, 0.9, 1e-4, SCHEDULE_COSINE, BOTTLENECK,    \
			__VA_ARGS__                                                                \
	}

static const struct model models[] = {
	{"convnet", build_convnet, 64, 5, 0.05, 0.9, 5e-4, SCHEDULE_COSINE},
	{"linear", build_linear, 32, 5, 0.01, 0.9, 0, SCHEDULE_CONSTANT},
	RESNET(18, false, {2, 2, 2, 2}),
	RESNET(34, false, {3, 4, 6, 3}),
	RESNET(50, true, {3, 4, 6, 3}),
	RESNET(101, true, {3, 4, 23, 3}),
	RESNET(152, true, {3, 8, 36, 3}),
};
#define MODELS (sizeof models / sizeof *models)

const char *model_names(char *text, size_t size)
{
	*text = '\0';
	for (size_t i = 0; i < MODELS; i++)
		text_append(text, size, "%s%s", i ? ", " : "", models[i].name);
	return text;
}

const struct model *model_find(const char *name, struct error *err)
{
	const char *names[MODELS], *meant;
	char known[256];

	for (size_t i = 0; i < MODELS; i++) {
		names[i] = models[i].name;
		if (!strcmp(name, names[i]))
			return &models[i];
	}
	meant = spelling_closest(name, names, MODELS);
	error_set(err, ERR_USAGE, "unknown model '%s'%s%s%s; expected one of: %s", name,
		  meant ? " (did you mean '" : "", meant ? meant : "", meant ? "'?)" : "",
		  model_names(known, sizeof known));
	return NULL;
}

int model_build(const char *name, const struct shape *input, int classes, enum model_stem stem,
		struct graph **out, struct error *err)
{
	const struct model *model = model_find(name, err);

	if (!model)
		return -ERR_USAGE;
	if (stem != STEM_DEFAULT && model->build != resnet_build)
		return error_set(err, ERR_USAGE,
				 "--stem requires a resnet; model %s has only one stem", name);

	struct graph *graph = graph_new(name, input, classes);

	if (!graph)
		return error_memory(err, "the network");
	if (!graph->error.code)
		model->build(graph, model, stem);
	if (graph->error.code) {
		int code = graph->error.code;

		if (err)
			*err = graph->error;
		graph_free(graph);
		return -code;
	}
	*out = graph;
	return 0;
}
