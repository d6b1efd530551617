/* SPDX-License-Identifier: BSD-3-Clause */
/* A network as data: values (activations), ops in order, parameters and buffers by name. */
#ifndef BERTH_TRAIN_MODEL_GRAPH_H
#define BERTH_TRAIN_MODEL_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/device/device.h"
#include "train/model/schedule.h"

struct shape {
	int channels, height, width; /* of one sample; a vector of n is {n, 1, 1} */
};
int64_t shape_count(const struct shape *shape);

/* How PyTorch initialises a parameter. DEFAULT: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), one draw per
 * element. KAIMING_NORMAL: the same first, as the constructor does; then, after all modules are
 * constructed, normal_(0, sqrt(2 / fan_out)). */
enum param_init { INIT_DEFAULT, INIT_KAIMING_NORMAL, INIT_ONE, INIT_ZERO };

struct graph_param {
	char name[64]; /* torchvision's: "layer1.0.conv1.weight" */
	int rank;
	int64_t shape[TENSOR_MAX_RANK]; /* OIHW, [out][in], [out] */
	int64_t count;
	int64_t fan_in; /* inputs of one output, for the initialisation */
	enum param_init init;
	/* Parameters draw in the order of this number. It is twice the index, or odd if a model
	 * constructs the parameter elsewhere. */
	int constructed;
};

/* A running statistic: [C] floats at offset in the flat buffers. */
struct graph_buffer {
	char name[64]; /* "bn1.running_mean" */
	int64_t count;
	size_t offset; /* elements */
	float initial;
};

struct graph_op {
	enum op_kind kind;
	struct op_attributes attributes;
	int input, output;   /* values */
	int input2;	     /* of OP_ADD, else -1 */
	int weight, bias;    /* parameters, -1 where none */
	int mean, variance;  /* buffers of OP_BATCHNORM, else -1 */
	float eps, momentum; /* of OP_BATCHNORM */
};

/* Value 0 is the input. Ops are in forward order. Each value is written once and read by at least
 * one op (several: a fork). Parameters and buffers have the order of PyTorch's modules. */
struct graph {
	char model[32];
	int classes;
	int value_count, op_count, param_count, buffer_count;
	struct shape *values;
	struct graph_op *ops;
	struct graph_param *params;
	struct graph_buffer *buffers;
	int output;	      /* the value that goes to the loss: {classes, 1, 1} */
	int64_t weight_count; /* elements of all parameters */
	int64_t buffer_total; /* elements of all buffers */
	/* The first error while building; later calls then do nothing harmful. */
	struct error error;
};

/* Building a graph. Each function takes a value and returns the new one. name is the module's
 * ("conv1"; "" for a bare "weight"). Errors are kept in graph->error: check it at the end. */
struct graph *graph_new(const char *model, const struct shape *input,
			int classes); /* NULL: memory */
void graph_free(struct graph *graph); /* NULL is fine */
int graph_conv2d(struct graph *graph, const char *name, int value, int channels, int kernel,
		 int stride, int pad, bool bias);
int graph_batchnorm(struct graph *graph, const char *name, int value);
int graph_relu(struct graph *graph, int value);
int graph_add(struct graph *graph, int value, int value2);
int graph_maxpool2d(struct graph *graph, int value, int kernel, int stride, int pad);
int graph_avgpool(struct graph *graph, int value);
int graph_linear(struct graph *graph, const char *name, int value, int outputs);

/* A model: one row of the table in model.c. A large family has a file of its own. */
enum model_stem {
	STEM_DEFAULT,
	STEM_CIFAR, /* of ResNets: a 3x3 convolution and no pooling, for small images */
};
struct model {
	const char *name;
	void (*build)(struct graph *graph, const struct model *model, enum model_stem stem);
	/* Default settings that train it well. */
	int batch, epochs;
	double lr, momentum, weight_decay;
	enum schedule_kind schedule;
	/* Of a ResNet. */
	bool bottleneck; /* 1x1, 3x3, 1x1 with four times the channels; else two 3x3 */
	int blocks[4];
};
void resnet_build(struct graph *graph, const struct model *model, enum model_stem stem);

/* NULL with -ERR_USAGE, which lists the models, if there is none of that name. */
const struct model *model_find(const char *name, struct error *err);
const char *model_names(char *text, size_t size); /* "convnet, linear" */

/* Build the model. Return 0, or -ERR_USAGE: err lists the models, names the op for which the input
 * is too small, or says that the model has only one stem. */
int model_build(const char *name, const struct shape *input, int classes, enum model_stem stem,
		struct graph **out, struct error *err);

/* PyTorch's initialisation: torch.manual_seed(seed), then each parameter by its init in the order
 * of constructed, with one mt19937 draw per element; then the normal ones in module order. Uniform
 * values are PyTorch's bit for bit, normal ones within 1e-6 (PyTorch uses vectorised log and cos).
 * flat is host memory of weight_count elements; offsets gives the start of each parameter. Return
 * 0, or -ERR_UNAVAILABLE if memory is out. */
int graph_initialise(const struct graph *graph, uint64_t seed, const size_t *offsets, float *flat,
		     struct error *err);
/* The running statistics of an untrained network. flat has buffer_total elements. */
void graph_initialise_buffers(const struct graph *graph, float *flat);

#endif
