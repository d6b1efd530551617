/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/engine_graph.h"

#include <float.h>

#define ALIGNMENT 16 /* bytes, of every tensor */
#define OPERATIONS 8

struct making make(struct engine_graph *graph, cudnnBackendDescriptorType_t type)
{
	struct making making = {.graph = graph};

	if (graph->all_count == DESCRIPTORS)
		making.rc = CUDNN_STATUS_INTERNAL_ERROR;
	else
		making.rc = cudnnBackendCreateDescriptor(type, &making.it);
	if (!making.rc)
		graph->all[graph->all_count++] = making.it;
	return making;
}

void set(struct making *making, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
	 int64_t count, const void *values)
{
	if (!making->rc)
		making->rc = cudnnBackendSetAttribute(making->it, name, type, count, values);
}

void set_descriptor(struct making *making, cudnnBackendAttributeName_t name,
		    cudnnBackendDescriptor_t value)
{
	if (!value)
		making->rc = making->rc ? making->rc : CUDNN_STATUS_BAD_PARAM;
	set(making, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

cudnnBackendDescriptor_t made(struct making *making)
{
	if (!making->rc)
		making->rc = cudnnBackendFinalize(making->it);
	return making->rc ? NULL : making->it;
}

/* ---- tensors ---- */

struct describing {
	struct engine_graph *graph;
	const struct conv_shape *shape;
	cudnnDataType_t type;
	int64_t h, w; /* of y */
	bool add;
	cudnnBackendDescriptor_t operations[OPERATIONS]; /* in the order of their work */
	int count;
	bool good;
};

/* [n][h][w][c], named in cuDNN's order n, c, h, w. UID_END and beyond: virtual, in no memory. */
static cudnnBackendDescriptor_t tensor(struct describing *it, int64_t uid, cudnnDataType_t type,
				       int64_t n, int64_t c, int64_t h, int64_t w)
{
	struct making making = make(it->graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	const int64_t sizes[] = {n, c, h, w}, strides[] = {h * w * c, 1, w * c, c};
	const int64_t alignment = ALIGNMENT;
	const bool nowhere = true;

	set(&making, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set(&making, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes);
	set(&making, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
	set(&making, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
	set(&making, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
	if (uid >= UID_END)
		set(&making, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &nowhere);
	return made(&making);
}

/* Like x, in the graph's type. */
static cudnnBackendDescriptor_t input(struct describing *it, int64_t uid)
{
	return tensor(it, uid, it->type, it->shape->n, it->shape->c, it->shape->h, it->shape->w);
}

/* Like x, float32, in no memory: after what is already there. */
static cudnnBackendDescriptor_t between(struct describing *it)
{
	return tensor(it, UID_END + it->graph->all_count, CUDNN_DATA_FLOAT, it->shape->n,
		      it->shape->c, it->shape->h, it->shape->w);
}

static cudnnBackendDescriptor_t channels(struct describing *it, int64_t uid, cudnnDataType_t type,
					 int64_t c)
{
	return tensor(it, uid, type, 1, c, 1, 1);
}

static void done(struct describing *it, struct making *operation)
{
	cudnnBackendDescriptor_t made_it = made(operation);

	if (made_it && it->count < OPERATIONS)
		it->operations[it->count++] = made_it;
	else
		it->good = false;
}

/* ---- operations ---- */

static cudnnBackendDescriptor_t window(struct describing *it)
{
	struct making making = make(it->graph, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
	const struct conv_shape *shape = it->shape;
	const cudnnDataType_t type = CUDNN_DATA_FLOAT;
	const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
	const int64_t sides = 2, pads[] = {shape->pad, shape->pad}, dilations[] = {1, 1};
	const int64_t strides[] = {shape->stride, shape->stride};

	set(&making, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set(&making, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
	set(&making, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &sides);
	set(&making, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
	set(&making, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
	set(&making, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
	set(&making, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
	return made(&making);
}

/* How each pass is called in cuDNN. */
struct pass_words {
	cudnnBackendDescriptorType_t type;
	cudnnBackendAttributeName_t x, w, y, how, alpha, beta;
};
static const struct pass_words forward = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
					  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
					  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
					  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
					  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
					  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
					  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
static const struct pass_words back_input = {
	CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
static const struct pass_words back_weights = {
	CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

/* Of x as given; returns y. */
static cudnnBackendDescriptor_t convolve(struct describing *it, const struct pass_words *words,
					 cudnnBackendDescriptor_t x)
{
	const struct conv_shape *shape = it->shape;
	const float alpha = 1, beta = it->add ? 1 : 0;
	cudnnBackendDescriptor_t w, y, how = window(it);
	struct making making;

	w = tensor(it, UID_W, it->type, shape->outputs, shape->c, shape->kernel, shape->kernel);
	y = tensor(it, UID_Y, it->type, shape->n, shape->outputs, it->h, it->w);
	making = make(it->graph, words->type);
	set_descriptor(&making, words->x, x);
	set_descriptor(&making, words->w, w);
	set_descriptor(&making, words->y, y);
	set_descriptor(&making, words->how, how);
	set(&making, words->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
	set(&making, words->beta, CUDNN_TYPE_FLOAT, 1, &beta);
	done(it, &making);
	return y;
}

/* y = mode(x, b); of RELU_BWD y = b where x is above 0. b NULL: mode takes one tensor. */
static cudnnBackendDescriptor_t pointwise(struct describing *it, cudnnPointwiseMode_t mode,
					  cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
					  cudnnBackendDescriptor_t y)
{
	struct making making = make(it->graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	const cudnnDataType_t type = CUDNN_DATA_FLOAT;
	const double lowest = 0, highest = FLT_MAX;
	const float alpha = 1;
	bool back = mode == CUDNN_POINTWISE_RELU_BWD;
	cudnnBackendDescriptor_t how;

	set(&making, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
	set(&making, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
	if (back || mode == CUDNN_POINTWISE_RELU_FWD) {
		set(&making, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_TYPE_DOUBLE, 1, &lowest);
		set(&making, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, CUDNN_TYPE_DOUBLE, 1, &highest);
		set(&making, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1,
		    &lowest);
	}
	how = made(&making);
	making = make(it->graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
	if (b)
		set_descriptor(&making,
			       back ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC
				    : CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
			       b);
	set_descriptor(&making,
		       back ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC
			    : CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
		       y);
	set(&making, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &alpha);
	set(&making, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &alpha);
	done(it, &making);
	return y;
}

/* relu(scale x + shift), in no memory. Only a last step in the type lets cuDNN compile it where it
 * has no kernel. */
static cudnnBackendDescriptor_t normed(struct describing *it)
{
	const int64_t c = it->shape->c;
	cudnnBackendDescriptor_t x = input(it, UID_X), result;

	x = pointwise(it, CUDNN_POINTWISE_MUL, x, channels(it, UID_SCALE, it->type, c), between(it));
	x = pointwise(it, CUDNN_POINTWISE_ADD, x, channels(it, UID_SHIFT, it->type, c), between(it));
	result = input(it, UID_END + it->graph->all_count);
	return pointwise(it, CUDNN_POINTWISE_RELU_FWD, x, NULL, result);
}

static void sum_up(struct describing *it, cudnnBackendDescriptor_t y)
{
	const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
	const cudnnDataType_t type = CUDNN_DATA_FLOAT;
	cudnnBackendDescriptor_t sum = channels(it, UID_SUM, type, it->shape->outputs);
	cudnnBackendDescriptor_t square = channels(it, UID_SQUARE, type, it->shape->outputs);
	struct making making = make(it->graph, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);

	set(&making, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
	set(&making, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sum);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, square);
	done(it, &making);
}

/* g = the gradient that a ReLU after a batch norm of x lets through, and that batch norm's sums. The
 * operations in cuDNN's own order of this graph (its 9.8 and later have one kernel for it). */
static void back_to_norm(struct describing *it)
{
	static const cudnnBackendAttributeName_t rest[] = {
		CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
		CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
		CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS};
	const cudnnDataType_t type = CUDNN_DATA_FLOAT;
	const int64_t c = it->shape->c;
	cudnnBackendDescriptor_t raw = between(it), x = input(it, UID_NORM_X), g, value;
	cudnnBackendDescriptor_t mean = channels(it, UID_NORM_MEAN, type, c);
	cudnnBackendDescriptor_t invstd = channels(it, UID_NORM_INVSTD, type, c);
	cudnnBackendDescriptor_t w = channels(it, UID_NORM_W, type, c);
	cudnnBackendDescriptor_t b = channels(it, UID_NORM_B, type, c);
	cudnnBackendDescriptor_t sum = channels(it, UID_SUM, type, c);
	cudnnBackendDescriptor_t product = channels(it, UID_SQUARE, type, c);
	struct making making;

	convolve(it, &back_input, raw);
	value = pointwise(it, CUDNN_POINTWISE_SUB, x, mean, between(it));
	value = pointwise(it, CUDNN_POINTWISE_MUL, value, invstd, between(it));
	value = pointwise(it, CUDNN_POINTWISE_MUL, value, w, between(it));
	value = pointwise(it, CUDNN_POINTWISE_ADD, value, b, between(it));
	g = pointwise(it, CUDNN_POINTWISE_RELU_BWD, value, raw, input(it, UID_X));
	making = make(it->graph, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
	set(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, invstd);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, w);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, g);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, product);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, sum);
	for (int i = 0; i < 3; i++)
		set_descriptor(&making, rest[i], channels(it, UID_REST + i, type, c));
	done(it, &making);
}

/* ---- the graph ---- */

static void describe(struct describing *it, enum engine_pass pass)
{
	switch (pass) {
	case ENGINE_FORWARD:
		convolve(it, &forward, input(it, UID_X));
		break;
	case ENGINE_SUMS:
		sum_up(it, convolve(it, &forward, input(it, UID_X)));
		break;
	case ENGINE_NORM_SUMS:
		sum_up(it, convolve(it, &forward, normed(it)));
		break;
	case ENGINE_INPUT:
		convolve(it, &back_input, input(it, UID_X));
		break;
	case ENGINE_INPUT_NORM:
		back_to_norm(it);
		break;
	case ENGINE_WEIGHTS:
		convolve(it, &back_weights, input(it, UID_X));
		break;
	case ENGINE_NORM_WEIGHTS:
		convolve(it, &back_weights, normed(it));
		break;
	}
}

bool engine_graph_make(struct engine_graph *graph, const struct cuda *cuda, enum engine_pass pass,
		       const struct conv_shape *shape, const struct layer_rules *rules, bool add)
{
	const struct op_attributes attributes = {shape->kernel, shape->stride, shape->pad};
	struct describing it = {.graph = graph,
				.shape = shape,
				.type = cudnn_type(rules->number),
				.h = op_side(shape->h, &attributes),
				.w = op_side(shape->w, &attributes),
				.add = add,
				.good = true};
	struct making making;

	describe(&it, pass);
	if (!it.good)
		return false;
	making = make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
	if (cuda->cudnn)
		set(&making, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &cuda->cudnn);
	set(&making, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, it.count,
	    it.operations);
	graph->it = made(&making);
	return graph->it;
}

void engine_graph_free(struct engine_graph *graph)
{
	while (graph->all_count)
		cudnnBackendDestroyDescriptor(graph->all[--graph->all_count]);
}

/* ---- where the tensors are ---- */

int engine_uids(enum engine_pass pass, int64_t *uids)
{
	static const int first[] = {UID_X, UID_W, UID_Y}, sums[] = {UID_SUM, UID_SQUARE};
	static const int scales[] = {UID_SCALE, UID_SHIFT};
	bool summed = pass == ENGINE_SUMS || pass == ENGINE_NORM_SUMS || pass == ENGINE_INPUT_NORM;
	bool scaled = pass == ENGINE_NORM_SUMS || pass == ENGINE_NORM_WEIGHTS;
	int count = 0;

	for (int i = 0; i < 3; i++)
		uids[count++] = first[i];
	for (int i = 0; summed && i < 2; i++)
		uids[count++] = sums[i];
	for (int i = 0; scaled && i < 2; i++)
		uids[count++] = scales[i];
	for (int i = UID_NORM_X; pass == ENGINE_INPUT_NORM && i < UID_END; i++)
		uids[count++] = i;
	return count;
}

void engine_places(const struct engine_call *call, size_t summed, const void *places[UID_END])
{
	places[UID_X] = call->x;
	places[UID_W] = call->w;
	places[UID_Y] = call->y;
	places[UID_SUM] = call->sums;
	places[UID_SQUARE] = call->sums ? call->sums + summed : NULL;
	places[UID_SCALE] = call->scale;
	places[UID_SHIFT] = call->shift;
	places[UID_NORM_X] = call->norm_x;
	for (int i = 0; i < 4; i++)
		places[UID_NORM_MEAN + i] = call->norm[i];
	for (size_t i = 0; i < 3; i++)
		places[UID_REST + i] = call->rest ? call->rest + i * summed : NULL;
}
