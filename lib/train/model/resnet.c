/* SPDX-License-Identifier: BSD-3-Clause */
/* ResNets as torchvision builds them: He et al. 2015 with the stride on the 3x3 convolution of a
 * bottleneck (v1.5). Modules have torchvision's order, and so have parameters and the draws of
 * their initial values. */
#include <stdio.h>

#include "train/model/graph.h"

/* The modules block+conv and block+norm: a convolution without bias, initialised with
 * kaiming_normal fan_out, and its batch norm. */
static int conv_norm(struct graph *graph, const char *block, const char *conv, const char *norm,
		     int value, int channels, int kernel, int stride)
{
	char name[48];
	int first = graph->param_count;

	snprintf(name, sizeof name, "%s%s", block, conv);
	value = graph_conv2d(graph, name, value, channels, kernel, stride, kernel / 2, false);
	if (!graph->error.code)
		graph->params[first].init = INIT_KAIMING_NORMAL;
	snprintf(name, sizeof name, "%s%s", block, norm);
	return graph_batchnorm(graph, name, value);
}

static int shortcut(struct graph *graph, const char *block, int value, int channels, int stride,
		    int constructed)
{
	int first = graph->param_count;

	value = conv_norm(graph, block, ".downsample.0", ".downsample.1", value, channels, 1,
			  stride);
	/* torchvision constructs it before the block that it belongs to. */
	if (!graph->error.code)
		graph->params[first].constructed = constructed;
	return value;
}

static int block(struct graph *graph, const struct model *model, const char *name, int input,
		 int width, int stride)
{
	int first = graph->param_count, channels = model->bottleneck ? width * 4 : width;
	int value = input, identity = input;

	if (model->bottleneck) {
		value = graph_relu(graph,
				   conv_norm(graph, name, ".conv1", ".bn1", value, width, 1, 1));
		value = graph_relu(
			graph, conv_norm(graph, name, ".conv2", ".bn2", value, width, 3, stride));
		value = conv_norm(graph, name, ".conv3", ".bn3", value, channels, 1, 1);
	} else {
		value = graph_relu(
			graph, conv_norm(graph, name, ".conv1", ".bn1", value, width, 3, stride));
		value = conv_norm(graph, name, ".conv2", ".bn2", value, channels, 3, 1);
	}
	if (graph->error.code)
		return 0;
	/* -1: before the first of the block, whose numbers are even (below). */
	if (stride != 1 || graph->values[input].channels != channels)
		identity = shortcut(graph, name, input, channels, stride, 2 * first - 1);
	return graph_relu(graph, graph_add(graph, value, identity));
}

void resnet_build(struct graph *graph, const struct model *model, enum model_stem stem)
{
	bool small = stem == STEM_CIFAR;
	int value = conv_norm(graph, "", "conv1", "bn1", 0, 64, small ? 3 : 7, small ? 1 : 2);

	value = graph_relu(graph, value);
	if (!small)
		value = graph_maxpool2d(graph, value, 3, 2, 1);
	for (int layer = 0; layer < 4; layer++)
		for (int i = 0; i < model->blocks[layer]; i++) {
			char name[32];

			snprintf(name, sizeof name, "layer%d.%d", layer + 1, i);
			value = block(graph, model, name, value, 64 << layer, layer && !i ? 2 : 1);
		}
	graph_linear(graph, "fc", graph_avgpool(graph, value), graph->classes);
}
