/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of models. */
#include <stdio.h>
#include <string.h>

#include "train/model/graph.h"

static const struct model *const models[] = {
	&model_convnet,	 &model_linear,	   &model_resnet18,  &model_resnet34,
	&model_resnet50, &model_resnet101, &model_resnet152, NULL};

const struct model *model_find(const char *name)
{
	for (size_t i = 0; models[i]; i++)
		if (!strcmp(name, models[i]->name))
			return models[i];
	return NULL;
}

const char *model_names(char *text, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; models[i] && used < size; i++)
		used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
					 models[i]->name);
	return text;
}

int model_build(const char *name, const struct shape *input, int classes, enum model_stem stem,
		struct graph **out, struct error *err)
{
	const struct model *model = model_find(name);
	char known[256];

	if (!model)
		return error_set(err, ERR_USAGE, "there is no model '%s'; the models are: %s", name,
				 model_names(known, sizeof known));
	if (stem != STEM_DEFAULT && !model->stems)
		return error_set(err, ERR_USAGE,
				 "model %s has one stem only; --stem is for resnets", name);

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
