/* SPDX-License-Identifier: BSD-3-Clause */
/* A network as data: values (what flows), ops in order, parameters by name. */
#ifndef BERTH_TRAIN_MODEL_GRAPH_H
#define BERTH_TRAIN_MODEL_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/device/device.h"
#include "train/schedule.h"

struct shape {
	int channels, height, width; /* of one sample; a vector of n is {n, 1, 1} */
};
int64_t shape_count(const struct shape *shape);

struct graph_param {
	char name[64]; /* torchvision's: "conv1.weight" */
	int rank;
	int64_t shape[TENSOR_MAX_RANK]; /* OIHW, [out][in], [out] */
	int64_t count;
	int64_t fan_in; /* inputs of one output, for the initialisation */
};

struct graph_op {
	enum op_kind kind;
	struct op_attributes attributes;
	int input, output; /* values */
	int weight, bias;  /* parameters, -1 where none */
};

/* Value 0 is the input. Ops are in the order of the forward pass; each value is written once.
 * Parameters are in the order of PyTorch's modules. */
struct graph {
	char model[32];
	int classes;
	int value_count, op_count, param_count;
	struct shape *values;
	struct graph_op *ops;
	struct graph_param *params;
	int output;	      /* the value that goes to the loss: {classes, 1, 1} */
	int64_t weight_count; /* elements of all parameters */
	struct error error;   /* the first that building met; building goes on harmlessly */
};

/* Building: each takes the value it works on and returns the new one. name: the module's
 * ("conv1"; "" for a bare "weight"). Errors are kept in graph->error: check it at the end. */
struct graph *graph_new(const char *model, const struct shape *input,
			int classes); /* NULL: memory */
void graph_free(struct graph *graph); /* NULL is fine */
int graph_conv2d(struct graph *graph, const char *name, int value, int channels, int kernel,
		 int stride, int pad);
int graph_relu(struct graph *graph, int value);
int graph_maxpool2d(struct graph *graph, int value, int kernel, int stride, int pad);
int graph_linear(struct graph *graph, const char *name, int value, int outputs);

/* A model: one row of the table in graph.c, one file a family. */
struct model {
	const char *name, *summary;
	void (*build)(struct graph *graph);
	/* What trains it well where the user says nothing. */
	int batch, epochs;
	double lr, momentum, weight_decay;
	enum schedule_kind schedule;
};
extern const struct model model_linear, model_convnet;
const struct model *model_find(const char *name); /* NULL: none */
const char *model_names(char *text, size_t size); /* "convnet, linear" */

/* Build it. -ERR_USAGE: err lists the models, or says which op the input is too small for. */
int model_build(const char *name, const struct shape *input, int classes, struct graph **out,
		struct error *err);

/* PyTorch's default initialisation: torch.manual_seed(seed), then each module's weight and bias
 * in order, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), an mt19937 draw an element.
 * flat: host memory, weight_count elements; offsets: where each parameter begins in it. */
void graph_initialise(const struct graph *graph, uint64_t seed, const size_t *offsets, float *flat);

#endif
