/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/engine_graph.h"

#include <float.h>

#define ALIGNMENT 16 /* bytes; alignment of every tensor */
#define OPERATIONS 8

struct descriptor descriptor_new(struct engine_graph *graph, cudnnBackendDescriptorType_t type)
{
	struct descriptor descriptor = {.graph = graph};

	if (graph->all_count == DESCRIPTORS)
		descriptor.rc = CUDNN_STATUS_INTERNAL_ERROR;
	else
		descriptor.rc = cudnnBackendCreateDescriptor(type, &descriptor.handle);
	if (!descriptor.rc)
		graph->all[graph->all_count++] = descriptor.handle;
	return descriptor;
}

void descriptor_set(struct descriptor *descriptor, cudnnBackendAttributeName_t name,
		    cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
	if (!descriptor->rc)
		descriptor->rc =
			cudnnBackendSetAttribute(descriptor->handle, name, type, count, values);
}

void descriptor_set_handle(struct descriptor *descriptor, cudnnBackendAttributeName_t name,
			   cudnnBackendDescriptor_t value)
{
	if (!value)
		descriptor->rc = descriptor->rc ? descriptor->rc : CUDNN_STATUS_BAD_PARAM;
	descriptor_set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_integers(struct descriptor *descriptor, cudnnBackendAttributeName_t name,
			 int64_t count, const int64_t *values)
{
	descriptor_set(descriptor, name, CUDNN_TYPE_INT64, count, values);
}

static void set_type(struct descriptor *descriptor, cudnnBackendAttributeName_t name,
		     cudnnDataType_t type)
{
	descriptor_set(descriptor, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void set_float(struct descriptor *descriptor, cudnnBackendAttributeName_t name, float value)
{
	descriptor_set(descriptor, name, CUDNN_TYPE_FLOAT, 1, &value);
}

static void set_double(struct descriptor *descriptor, cudnnBackendAttributeName_t name,
		       double value)
{
	descriptor_set(descriptor, name, CUDNN_TYPE_DOUBLE, 1, &value);
}

cudnnBackendDescriptor_t descriptor_finish(struct descriptor *descriptor)
{
	if (!descriptor->rc)
		descriptor->rc = cudnnBackendFinalize(descriptor->handle);
	return descriptor->rc ? NULL : descriptor->handle;
}

/* ---- tensors ---- */

struct graph_builder {
	struct engine_graph *graph;
	const struct conv_shape *shape;
	cudnnDataType_t type;
	int64_t h, w; /* of y */
	bool add;
	cudnnBackendDescriptor_t operations[OPERATIONS]; /* in execution order */
	int count;
	bool good;
};

/* A tensor [n][h][w][c] in cuDNN's order of dimensions n, c, h, w. Ids from UID_END on are virtual
 * tensors without memory. */
static cudnnBackendDescriptor_t tensor(struct graph_builder *builder, int64_t uid,
				       cudnnDataType_t type, int64_t n, int64_t c, int64_t h,
				       int64_t w)
{
	struct descriptor described =
		descriptor_new(builder->graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	const int64_t sizes[] = {n, c, h, w}, strides[] = {h * w * c, 1, w * c, c};
	const int64_t alignment = ALIGNMENT;
	const bool nowhere = true;

	set_type(&described, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
	set_integers(&described, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, sizes);
	set_integers(&described, CUDNN_ATTR_TENSOR_STRIDES, 4, strides);
	set_integers(&described, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &uid);
	set_integers(&described, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &alignment);
	if (uid >= UID_END)
		descriptor_set(&described, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1,
			       &nowhere);
	return descriptor_finish(&described);
}

/* Like x, in the graph's type. */
static cudnnBackendDescriptor_t input_tensor(struct graph_builder *builder, int64_t uid)
{
	return tensor(builder, uid, builder->type, builder->shape->n, builder->shape->c,
		      builder->shape->h, builder->shape->w);
}

/* Like x, but float32 and virtual: the result of an intermediate operation. */
static cudnnBackendDescriptor_t virtual_tensor(struct graph_builder *builder)
{
	return tensor(builder, UID_END + builder->graph->all_count, CUDNN_DATA_FLOAT,
		      builder->shape->n, builder->shape->c, builder->shape->h, builder->shape->w);
}

static cudnnBackendDescriptor_t channel_tensor(struct graph_builder *builder, int64_t uid,
					       cudnnDataType_t type, int64_t c)
{
	return tensor(builder, uid, type, 1, c, 1, 1);
}

static void add_operation(struct graph_builder *builder, struct descriptor *operation)
{
	cudnnBackendDescriptor_t finished = descriptor_finish(operation);

	if (finished && builder->count < OPERATIONS)
		builder->operations[builder->count++] = finished;
	else
		builder->good = false;
}

/* ---- operations ---- */

static cudnnBackendDescriptor_t conv_descriptor(struct graph_builder *builder)
{
	struct descriptor conv =
		descriptor_new(builder->graph, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
	const struct conv_shape *shape = builder->shape;
	const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
	const int64_t sides = 2, pads[] = {shape->pad, shape->pad}, dilations[] = {1, 1};
	const int64_t strides[] = {shape->stride, shape->stride};

	set_type(&conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
	descriptor_set(&conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1,
		       &mode);
	set_integers(&conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &sides);
	set_integers(&conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, pads);
	set_integers(&conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, pads);
	set_integers(&conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, strides);
	set_integers(&conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, dilations);
	return descriptor_finish(&conv);
}

/* cuDNN's names for each pass's operation. */
struct pass_attributes {
	cudnnBackendDescriptorType_t type;
	cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
};
static const struct pass_attributes forward = {
	CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
	CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
	CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
	CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
	CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
	CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
	CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
static const struct pass_attributes back_input = {
	CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
static const struct pass_attributes back_weights = {
	CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
	CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

/* Add the convolution of x; returns y. */
static cudnnBackendDescriptor_t add_convolution(struct graph_builder *builder,
						const struct pass_attributes *attributes,
						cudnnBackendDescriptor_t x)
{
	const struct conv_shape *shape = builder->shape;
	cudnnBackendDescriptor_t conv = conv_descriptor(builder);
	cudnnBackendDescriptor_t w = tensor(builder, UID_W, builder->type, shape->outputs, shape->c,
					    shape->kernel, shape->kernel);
	cudnnBackendDescriptor_t y = tensor(builder, UID_Y, builder->type, shape->n, shape->outputs,
					    builder->h, builder->w);
	struct descriptor operation = descriptor_new(builder->graph, attributes->type);

	descriptor_set_handle(&operation, attributes->x, x);
	descriptor_set_handle(&operation, attributes->w, w);
	descriptor_set_handle(&operation, attributes->y, y);
	descriptor_set_handle(&operation, attributes->conv, conv);
	set_float(&operation, attributes->alpha, 1);
	set_float(&operation, attributes->beta, builder->add ? 1 : 0);
	add_operation(builder, &operation);
	return y;
}

/* y = mode(x, b); for RELU_BWD y = b where x is above 0. b NULL: mode takes one tensor. */
static cudnnBackendDescriptor_t add_pointwise(struct graph_builder *builder,
					      cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
					      cudnnBackendDescriptor_t b,
					      cudnnBackendDescriptor_t y)
{
	struct descriptor pointwise =
		descriptor_new(builder->graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	bool back = mode == CUDNN_POINTWISE_RELU_BWD;
	cudnnBackendDescriptor_t finished;
	struct descriptor operation;

	descriptor_set(&pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
	set_type(&pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
	if (back || mode == CUDNN_POINTWISE_RELU_FWD) {
		set_double(&pointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0);
		set_double(&pointwise, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, FLT_MAX);
		set_double(&pointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0);
	}
	finished = descriptor_finish(&pointwise);
	operation = descriptor_new(builder->graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
	descriptor_set_handle(&operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finished);
	descriptor_set_handle(&operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
	if (b)
		descriptor_set_handle(&operation,
				      back ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC
					   : CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
				      b);
	descriptor_set_handle(&operation,
			      back ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC
				   : CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
			      y);
	set_float(&operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1);
	set_float(&operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1);
	add_operation(builder, &operation);
	return y;
}

/* relu(scale x + shift), virtual. Only a last operation in the storage type lets cuDNN compile it
 * where it has no kernel. */
static cudnnBackendDescriptor_t add_norm_relu(struct graph_builder *builder)
{
	const int64_t c = builder->shape->c;
	cudnnBackendDescriptor_t x = input_tensor(builder, UID_X), result;

	x = add_pointwise(builder, CUDNN_POINTWISE_MUL, x,
			  channel_tensor(builder, UID_SCALE, builder->type, c),
			  virtual_tensor(builder));
	x = add_pointwise(builder, CUDNN_POINTWISE_ADD, x,
			  channel_tensor(builder, UID_SHIFT, builder->type, c),
			  virtual_tensor(builder));
	result = input_tensor(builder, UID_END + builder->graph->all_count);
	return add_pointwise(builder, CUDNN_POINTWISE_RELU_FWD, x, NULL, result);
}

static void add_sums(struct graph_builder *builder, cudnnBackendDescriptor_t y)
{
	const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
	const int64_t c = builder->shape->outputs;
	cudnnBackendDescriptor_t sum = channel_tensor(builder, UID_SUM, CUDNN_DATA_FLOAT, c);
	cudnnBackendDescriptor_t square = channel_tensor(builder, UID_SQUARE, CUDNN_DATA_FLOAT, c);
	struct descriptor stats =
		descriptor_new(builder->graph, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);

	descriptor_set(&stats, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1,
		       &mode);
	set_type(&stats, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
	descriptor_set_handle(&stats, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
	descriptor_set_handle(&stats, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sum);
	descriptor_set_handle(&stats, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, square);
	add_operation(builder, &stats);
}

/* The gradient g that a ReLU after a batch norm of x lets through, and that batch norm's sums. The
 * operations are in cuDNN's own order for this graph, for which 9.8 and later have a single
 * kernel. */
static void add_norm_backward(struct graph_builder *builder)
{
	static const cudnnBackendAttributeName_t rest[] = {
		CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
		CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
		CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS};
	const cudnnDataType_t type = CUDNN_DATA_FLOAT;
	const int64_t c = builder->shape->c;
	cudnnBackendDescriptor_t raw = virtual_tensor(builder),
				 x = input_tensor(builder, UID_NORM_X), g, value;
	cudnnBackendDescriptor_t mean = channel_tensor(builder, UID_NORM_MEAN, type, c);
	cudnnBackendDescriptor_t invstd = channel_tensor(builder, UID_NORM_INVSTD, type, c);
	cudnnBackendDescriptor_t w = channel_tensor(builder, UID_NORM_W, type, c);
	cudnnBackendDescriptor_t b = channel_tensor(builder, UID_NORM_B, type, c);
	cudnnBackendDescriptor_t sum = channel_tensor(builder, UID_SUM, type, c);
	cudnnBackendDescriptor_t product = channel_tensor(builder, UID_SQUARE, type, c);
	struct descriptor norm;

	add_convolution(builder, &back_input, raw);
	value = add_pointwise(builder, CUDNN_POINTWISE_SUB, x, mean, virtual_tensor(builder));
	value = add_pointwise(builder, CUDNN_POINTWISE_MUL, value, invstd, virtual_tensor(builder));
	value = add_pointwise(builder, CUDNN_POINTWISE_MUL, value, w, virtual_tensor(builder));
	value = add_pointwise(builder, CUDNN_POINTWISE_ADD, value, b, virtual_tensor(builder));
	g = add_pointwise(builder, CUDNN_POINTWISE_RELU_BWD, value, raw,
			  input_tensor(builder, UID_X));
	norm = descriptor_new(builder->graph, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
	set_type(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, type);
	descriptor_set_handle(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean);
	descriptor_set_handle(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, invstd);
	descriptor_set_handle(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, w);
	descriptor_set_handle(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x);
	descriptor_set_handle(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, g);
	descriptor_set_handle(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, product);
	descriptor_set_handle(&norm, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, sum);
	for (int i = 0; i < 3; i++)
		descriptor_set_handle(&norm, rest[i],
				      channel_tensor(builder, UID_REST + i, type, c));
	add_operation(builder, &norm);
}

/* ---- the graph ---- */

static void add_pass(struct graph_builder *builder, enum engine_pass pass)
{
	switch (pass) {
	case ENGINE_FORWARD:
		add_convolution(builder, &forward, input_tensor(builder, UID_X));
		break;
	case ENGINE_SUMS:
		add_sums(builder, add_convolution(builder, &forward, input_tensor(builder, UID_X)));
		break;
	case ENGINE_NORM_SUMS:
		add_sums(builder, add_convolution(builder, &forward, add_norm_relu(builder)));
		break;
	case ENGINE_INPUT:
		add_convolution(builder, &back_input, input_tensor(builder, UID_X));
		break;
	case ENGINE_INPUT_NORM:
		add_norm_backward(builder);
		break;
	case ENGINE_WEIGHTS:
		add_convolution(builder, &back_weights, input_tensor(builder, UID_X));
		break;
	case ENGINE_NORM_WEIGHTS:
		add_convolution(builder, &back_weights, add_norm_relu(builder));
		break;
	}
}

bool engine_graph_make(struct engine_graph *graph, const struct cuda *cuda, enum engine_pass pass,
		       const struct conv_shape *shape, const struct layer_rules *rules, bool add)
{
	const struct op_attributes attributes = {shape->kernel, shape->stride, shape->pad};
	struct graph_builder builder = {.graph = graph,
					.shape = shape,
					.type = cudnn_type(rules->number),
					.h = op_side(shape->h, &attributes),
					.w = op_side(shape->w, &attributes),
					.add = add,
					.good = true};
	struct descriptor operations;

	add_pass(&builder, pass);
	if (!builder.good)
		return false;
	operations = descriptor_new(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
	if (cuda->cudnn)
		descriptor_set(&operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
			       &cuda->cudnn);
	descriptor_set(&operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
		       builder.count, builder.operations);
	graph->handle = descriptor_finish(&operations);
	return graph->handle;
}

void engine_graph_free(struct engine_graph *graph)
{
	while (graph->all_count)
		cudnnBackendDestroyDescriptor(graph->all[--graph->all_count]);
}

/* ---- the tensors of a call ---- */

int engine_tensors(enum engine_pass pass, const struct engine_call *call, size_t summed,
		   int64_t uids[UID_END], const void *pointers[UID_END])
{
	const bool sums =
		pass == ENGINE_SUMS || pass == ENGINE_NORM_SUMS || pass == ENGINE_INPUT_NORM;
	const bool scaled = pass == ENGINE_NORM_SUMS || pass == ENGINE_NORM_WEIGHTS;
	const void *all[UID_END] = {
		[UID_X] = call->x,
		[UID_W] = call->w,
		[UID_Y] = call->y,
		[UID_SUM] = call->sums,
		[UID_SQUARE] = call->sums ? call->sums + summed : NULL,
		[UID_SCALE] = call->scale,
		[UID_SHIFT] = call->shift,
		[UID_NORM_X] = call->norm_x,
	};
	int count = 0;

	for (int i = 0; i < 4; i++)
		all[UID_NORM_MEAN + i] = call->norm[i];
	for (size_t i = 0; i < 3; i++)
		all[UID_REST + i] = call->rest ? call->rest + i * summed : NULL;
	for (int uid = UID_X; uid < UID_END; uid++) {
		bool used = uid <= UID_Y	? true
			    : uid <= UID_SQUARE ? sums
			    : uid <= UID_SHIFT	? scaled
						: pass == ENGINE_INPUT_NORM;

		if (!used)
			continue;
		uids[count] = uid;
		pointers[count++] = all[uid];
	}
	return count;
}
