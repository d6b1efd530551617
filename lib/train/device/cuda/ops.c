/* SPDX-License-Identifier: BSD-3-Clause */
/* The lower level: one op on dense NCHW float32 tensors, through the layouts and calls that the
 * executor uses. For the conformance suite: it allocates memory for each call and waits for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/cuda.h"

#define PIECES 16

/* One call, with its device memory. */
struct ops_call {
	struct cuda *cuda;
	cudaStream_t stream;
	struct kernel_config config;
	const struct op_call *call;
	void *pieces[PIECES];
	int count;
	struct error *err;
};

static int rows(const struct tensor *tensor)
{
	return tensor->rank ? (int)tensor->shape[0] : 1;
}

/* The product of the dimensions after the channels. */
static int plane(const struct tensor *tensor)
{
	int64_t count = 1;

	for (int i = 2; i < tensor->rank; i++)
		count *= tensor->shape[i];
	return (int)count;
}

static int channels(const struct tensor *tensor)
{
	return tensor->rank > 1 ? (int)tensor->shape[1] : 1;
}

static int piece(struct ops_call *ops, size_t bytes, void *out)
{
	void *memory;
	int rc = ops->count == PIECES ? error_set(ops->err, ERR_INTERNAL,
						  "an op needs more than %d buffers", PIECES)
				      : cuda_memory(bytes, "an op's tensor", &memory, ops->err);

	if (rc)
		return rc;
	ops->pieces[ops->count++] = memory;
	memcpy(out, &memory, sizeof memory);
	return 0;
}

/* Copy a tensor to NHWC; NULL if it is absent. */
static int bring(struct ops_call *ops, const struct tensor *tensor, float **out)
{
	int rc;

	*out = NULL;
	if (!tensor->data)
		return 0;
	rc = piece(ops, (size_t)tensor_count(tensor) * sizeof(float), out);
	if (rc)
		return rc;

	const struct kernel_input call = {.raw = tensor->data,
					  .out = *out,
					  .n = rows(tensor),
					  .c = channels(tensor),
					  .h = 1,
					  .w = plane(tensor),
					  .padded = channels(tensor)};

	kernel_input(&ops->config, &call);
	return 0;
}

/* Allocate a result shaped like tensor; NULL if it is absent. */
static int room(struct ops_call *ops, const struct tensor *tensor, float **out)
{
	*out = NULL;
	return tensor->data ? piece(ops, (size_t)tensor_count(tensor) * sizeof(float), out) : 0;
}

/* Copy an NHWC result to where the caller wants it. */
static void put(struct ops_call *ops, const float *from, const struct tensor *to, bool add)
{
	if (to->data)
		kernel_output(&ops->config, from, to->data, rows(to), channels(to), plane(to), add);
}

static int sums_room(struct ops_call *ops, const struct tensor *of, float **out)
{
	int64_t count = (int64_t)rows(of) * plane(of);
	size_t parts = (size_t)kernel_parts(ops->cuda->multiprocessors, count, channels(of));

	return piece(ops, 2 * parts * (size_t)channels(of) * sizeof(float), out);
}

static struct layer_rules layer_rules(const struct op_call *call)
{
	return (struct layer_rules){.number = NUMBER_F32,
				    .deterministic = true,
				    .direct = true,
				    .train = call->pass == OP_BACKWARD,
				    .dx = call->pass == OP_BACKWARD};
}

/* ---- layers with weights ---- */

/* Its inputs in the layer's own layout, and memory for its results. */
struct layer {
	float *x, *w, *y, *dy, *dx, *dw, *sums;
	void *workspace;
};

static int layer_room(struct ops_call *ops, size_t workspace, struct layer *layer)
{
	const struct op_call *call = ops->call;
	bool back = call->pass == OP_BACKWARD;
	int rc = bring(ops, &call->x, &layer->x);

	if (!rc)
		rc = bring(ops, &call->w, &layer->w);
	if (!rc && !back)
		rc = room(ops, &call->y, &layer->y);
	if (!rc && back)
		rc = bring(ops, &call->dy, &layer->dy);
	if (!rc && back)
		rc = room(ops, &call->dx, &layer->dx);
	if (!rc && back)
		rc = room(ops, &call->w, &layer->dw);
	if (!rc && back)
		rc = sums_room(ops, &call->dy, &layer->sums);
	return rc ? rc : piece(ops, workspace, &layer->workspace);
}

static void layer_bias(struct ops_call *ops, const struct layer *layer)
{
	const struct op_call *call = ops->call;

	if (call->pass == OP_FORWARD && call->b.data)
		kernel_bias(&ops->config, layer->y, call->b.data,
			    (int64_t)rows(&call->y) * plane(&call->y), channels(&call->y));
	if (call->pass == OP_BACKWARD && call->db.data)
		kernel_bias_back(&ops->config, layer->dy, call->db.data,
				 (int64_t)rows(&call->dy) * plane(&call->dy), channels(&call->dy),
				 call->add_dw, layer->sums);
}

static void layer_put(struct ops_call *ops, const struct layer *layer)
{
	const struct op_call *call = ops->call;

	if (call->pass == OP_FORWARD) {
		put(ops, layer->y, &call->y, false);
		return;
	}
	put(ops, layer->dx, &call->dx, call->add_dx);
	put(ops, layer->dw, &call->dw, call->add_dw);
}

static int op_conv(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	const struct conv_shape shape = {
		rows(&call->x),		 channels(&call->x),	(int)call->x.shape[2],
		(int)call->x.shape[3],	 (int)call->w.shape[0], call->attributes.kernel,
		call->attributes.stride, call->attributes.pad,
	};
	const struct layer_rules rules = layer_rules(call);
	struct layer layer = {0};
	struct convolution *conv = NULL;
	int rc = convolution_new(ops->cuda, "op conv2d", &shape, &rules, &conv, ops->err);

	if (!rc)
		rc = layer_room(ops, convolution_workspace(conv), &layer);
	if (!rc && call->pass == OP_FORWARD)
		rc = convolution_forward(conv, ops->stream, layer.x, layer.w, layer.y, NULL, NULL,
					 layer.workspace, ops->err);
	if (!rc && call->pass == OP_BACKWARD && call->dw.data)
		rc = convolution_back_weights(conv, ops->stream, layer.x, layer.dy, layer.dw, false,
					      NULL, layer.workspace, ops->err);
	if (!rc && call->pass == OP_BACKWARD && layer.dx)
		rc = convolution_back_input(conv, ops->stream, layer.w, layer.dy, layer.dx, false,
					    NULL, layer.workspace, ops->err);
	if (!rc) {
		layer_bias(ops, &layer);
		layer_put(ops, &layer);
		rc = cuda_wait(ops->stream, CUDA_WAIT_MS, ops->err);
	}
	convolution_free(conv);
	return rc;
}

/* x [N,C,H,W] becomes [N,HW,C], and the columns of w are reordered alike. */
static int op_linear(struct ops_call *ops)
{
	struct op_call call = *ops->call;
	const struct op_call *given = ops->call;
	int64_t w_shape[4] = {call.w.shape[0], channels(&call.x), plane(&call.x), 1};
	const struct layer_rules rules = layer_rules(&call);
	struct layer layer = {0};
	struct cuda_linear *linear = NULL;
	const struct cuda_linear_shape shape = {.n = rows(&call.x),
						.inputs = (int)(w_shape[1] * w_shape[2]),
						.outputs = (int)w_shape[0],
						.dw_f32 = true,
						.dw_alignment = 16};
	int rc = cuda_linear_new(ops->cuda, "op linear", &shape, &rules, &linear, ops->err);

	call.w = tensor_make(call.w.data, ELEMENT_F32, 4, w_shape);
	if (call.dw.data)
		call.dw = tensor_make(call.dw.data, ELEMENT_F32, 4, w_shape);
	ops->call = &call;
	if (!rc)
		rc = layer_room(ops, LINEAR_WORKSPACE, &layer);
	if (!rc && call.pass == OP_FORWARD)
		rc = cuda_linear_forward(linear, ops->stream, layer.x, layer.w, layer.y,
					 layer.workspace, ops->err);
	if (!rc && call.pass == OP_BACKWARD && call.dw.data)
		rc = cuda_linear_back_weights(linear, ops->stream, layer.x, layer.dy, layer.dw,
					      false, layer.workspace, ops->err);
	if (!rc && call.pass == OP_BACKWARD && layer.dx)
		rc = cuda_linear_back_input(linear, ops->stream, layer.w, layer.dy, layer.dx, false,
					    layer.workspace, ops->err);
	if (!rc) {
		layer_bias(ops, &layer);
		layer_put(ops, &layer);
		rc = cuda_wait(ops->stream, CUDA_WAIT_MS, ops->err);
	}
	ops->call = given;
	cuda_linear_free(linear);
	return rc;
}

/* ---- batch norm, pooling ---- */

static int norm_saved(struct ops_call *ops, float *saved, bool to_call)
{
	const struct op_call *call = ops->call;
	size_t c = (size_t)channels(&call->x), bytes = c * sizeof(float);
	cudaError_t code = 0;

	if (to_call && call->saved_mean.data)
		code = cudaMemcpyAsync(call->saved_mean.data, saved, bytes,
				       cudaMemcpyDeviceToDevice, ops->stream);
	if (to_call && !code && call->saved_invstd.data)
		code = cudaMemcpyAsync(call->saved_invstd.data, saved + c, bytes,
				       cudaMemcpyDeviceToDevice, ops->stream);
	if (to_call)
		return cuda_check(code, "op batchnorm", ops->err);

	/* Executors store the scale with the statistics; here the host computes it, since this is
	 * for tests. */
	float *host = malloc(4 * bytes + 1);
	int rc = host ? 0 : error_memory(ops->err, "an op");

	if (!rc)
		rc = cuda_check(
			cudaMemcpy(host, call->saved_mean.data, bytes, cudaMemcpyDeviceToHost),
			"op batchnorm", ops->err);
	if (!rc)
		rc = cuda_check(cudaMemcpy(host + c, call->saved_invstd.data, bytes,
					   cudaMemcpyDeviceToHost),
				"op batchnorm", ops->err);
	if (!rc)
		rc = cuda_check(
			cudaMemcpy(host + 2 * c, call->w.data, bytes, cudaMemcpyDeviceToHost),
			"op batchnorm", ops->err);
	for (size_t i = 0; !rc && i < c; i++) {
		host[2 * c + i] *= host[c + i];
		host[3 * c + i] = 0; /* read only with a ReLU, which is absent */
	}
	if (!rc)
		rc = cuda_check(cudaMemcpyAsync(saved, host, 4 * bytes, cudaMemcpyHostToDevice,
						ops->stream),
				"op batchnorm", ops->err);
	free(host);
	return rc;
}

static int norm(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	bool back = call->pass == OP_BACKWARD;
	int64_t count = (int64_t)rows(&call->x) * plane(&call->x);
	struct kernel_norm norm = {
		.rows = count,
		.c = channels(&call->x),
		.eps = call->batchnorm.eps,
		.momentum = call->batchnorm.momentum,
		.training = call->batchnorm.training,
		.w = call->w.data,
		.b = call->b.data,
		.mean = call->mean.data,
		.variance = call->variance.data,
		.add_dw = call->add_dw,
		.dw = call->dw.data,
		.db = call->db.data,
	};
	float *x, *y = NULL, *dy = NULL, *dx = NULL;
	int rc = bring(ops, &call->x, &x);

	if (!rc && back)
		rc = bring(ops, &call->dy, &dy);
	if (!rc && back)
		rc = room(ops, &call->dx, &dx);
	if (!rc && !back)
		rc = room(ops, &call->y, &y);
	if (!rc)
		rc = piece(ops, 4 * (size_t)norm.c * sizeof(float), &norm.saved);
	if (!rc)
		rc = sums_room(ops, &call->x, &norm.scratch);
	if (!rc && back)
		rc = norm_saved(ops, norm.saved, false);
	if (rc)
		return rc;
	norm.x = x;
	norm.y = y;
	norm.dy = dy;
	norm.dx = dx;
	if (back)
		kernel_norm_back(&ops->config, &norm);
	else
		kernel_norm(&ops->config, &norm);
	if (back)
		put(ops, dx, &call->dx, call->add_dx);
	else
		put(ops, y, &call->y, false);
	return !back && norm.training ? norm_saved(ops, norm.saved, true) : 0;
}

static int pool(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	bool back = call->pass == OP_BACKWARD, max = call->kind == OP_MAXPOOL2D;
	const struct tensor *out = back ? &call->dy : &call->y;
	struct kernel_pool pool = {
		.n = rows(&call->x),
		.h = (int)call->x.shape[2],
		.w = (int)call->x.shape[3],
		.c = channels(&call->x),
		.out_h = (int)out->shape[2],
		.out_w = (int)out->shape[3],
		.kernel = call->attributes.kernel,
		.stride = call->attributes.stride,
		.pad = call->attributes.pad,
	};
	size_t outputs = (size_t)tensor_count(out);
	float *x = NULL, *y, *dy = NULL, *dx = NULL;
	int rc = max || !back ? bring(ops, &call->x, &x) : 0;

	/* Repeated for backward, to find the maxima again. */
	if (!rc)
		rc = piece(ops, outputs * sizeof(float), &y);
	if (!rc && max)
		rc = piece(ops, outputs, &pool.argmax);
	if (!rc && back)
		rc = bring(ops, &call->dy, &dy);
	if (!rc && back)
		rc = room(ops, &call->dx, &dx);
	if (rc)
		return rc;
	pool.x = x;
	pool.y = y;
	pool.dy = dy;
	pool.dx = dx;
	if (max)
		kernel_maxpool(&ops->config, &pool);
	else if (!back)
		kernel_avgpool(&ops->config, &pool);
	if (!back) {
		put(ops, y, &call->y, false);
		return 0;
	}
	if (!dx)
		return 0;
	if (max)
		kernel_maxpool_back(&ops->config, &pool);
	else
		kernel_avgpool_back(&ops->config, &pool);
	put(ops, dx, &call->dx, call->add_dx);
	return 0;
}

/* ---- losses, update ---- */

/* The kernels turn an invalid label into NaN; this slow path can afford to report it. */
static int check_labels(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	size_t count = (size_t)rows(&call->x);
	int classes = channels(&call->x), rc;
	int32_t *labels = malloc(count * sizeof *labels + 1);

	if (!labels)
		return error_memory(ops->err, "an op");
	rc = cuda_check(cudaMemcpyAsync(labels, call->target.data, count * sizeof *labels,
					cudaMemcpyDeviceToHost, ops->stream),
			"op cross_entropy", ops->err);
	if (!rc)
		rc = cuda_wait(ops->stream, CUDA_WAIT_MS, ops->err);
	for (size_t i = 0; !rc && i < count; i++)
		if (labels[i] < 0 || labels[i] >= classes)
			rc = error_set(ops->err, ERR_DATA,
				       "label %d of sample %zu of the batch is outside 0 to %d",
				       labels[i], i, classes - 1);
	free(labels);
	return rc;
}

static int loss(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	struct kernel_loss loss = {
		.x = call->x.data,
		.target = call->target.data,
		.n = rows(&call->x),
		.classes = channels(&call->x),
		.mse = call->kind == OP_MSE,
		.add = call->add_dx,
		.smoothing = call->smoothing,
	};
	float *share;
	int rc = loss.mse || !loss.n ? 0 : check_labels(ops);

	if (!rc)
		rc = piece(ops, sizeof *share, &share);
	if (!rc)
		rc = cuda_check(cudaMemcpyAsync(share, &call->scale, sizeof *share,
						cudaMemcpyHostToDevice, ops->stream),
				"a loss", ops->err);
	if (rc)
		return rc;
	loss.share = share;
	if (call->pass == OP_BACKWARD)
		loss.dx = call->dx.data;
	else if (call->kind == OP_LABEL_RANK)
		loss.label_ranks = call->y.data;
	else
		loss.losses = call->y.data;
	kernel_loss(&ops->config, &loss);
	return 0;
}

static int sgd(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	const struct kernel_param_range part = {0, tensor_count(&call->w), call->sgd.weight_decay};
	struct kernel_param_range *list;
	float *lr;
	int rc = piece(ops, sizeof part, &list);

	if (!rc)
		rc = piece(ops, sizeof *lr, &lr);
	if (!rc)
		rc = cuda_check(cudaMemcpyAsync(list, &part, sizeof part, cudaMemcpyHostToDevice,
						ops->stream),
				"op sgd", ops->err);
	if (!rc)
		rc = cuda_check(cudaMemcpyAsync(lr, &call->sgd.lr, sizeof *lr,
						cudaMemcpyHostToDevice, ops->stream),
				"op sgd", ops->err);
	if (rc)
		return rc;

	const struct kernel_update update = {
		.weights = call->w.data,
		.momentum = call->state.data,
		.gradients = call->dw.data,
		.list = list,
		.count = 1,
		.momentum_factor = call->sgd.momentum,
		.nesterov = call->sgd.nesterov,
		.lr = lr,
	};

	kernel_update(&ops->config, &update);
	return 0;
}

/* ---- elements ---- */

static int relu_op(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	size_t count = (size_t)tensor_count(&call->x);

	if (call->pass == OP_FORWARD)
		kernel_relu(&ops->config, call->x.data, call->y.data, count);
	else if (call->dx.data)
		kernel_relu_back(&ops->config, call->x.data, call->dy.data, call->dx.data, count,
				 call->add_dx);
	return 0;
}

static int add_op(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	size_t count = (size_t)tensor_count(&call->x);

	if (call->pass == OP_FORWARD) {
		kernel_sum(&ops->config, call->x.data, call->x2.data, call->y.data, count);
		return 0;
	}
	if (call->dx.data)
		kernel_copy(&ops->config, call->dy.data, call->dx.data, count, call->add_dx);
	if (call->dx2.data)
		kernel_copy(&ops->config, call->dy.data, call->dx2.data, count, call->add_dx2);
	return 0;
}

static int dispatch(struct ops_call *ops)
{
	switch (ops->call->kind) {
	case OP_CONV2D:
		return op_conv(ops);
	case OP_LINEAR:
		return op_linear(ops);
	case OP_BATCHNORM:
		return norm(ops);
	case OP_MAXPOOL2D:
	case OP_AVGPOOL:
		return pool(ops);
	case OP_RELU:
		return relu_op(ops);
	case OP_ADD:
		return add_op(ops);
	case OP_CROSS_ENTROPY:
	case OP_MSE:
	case OP_LABEL_RANK:
		return loss(ops);
	case OP_SGD:
		return sgd(ops);
	default:
		return error_set(ops->err, ERR_UNAVAILABLE,
				 "the cuda device does not support op %s",
				 op_name(ops->call->kind));
	}
}

/* A batch without samples: parameter gradients become zero unless added to; nothing else has
 * elements. */
static int nothing(struct ops_call *ops)
{
	const struct op_call *call = ops->call;
	const struct tensor *zeros[] = {&call->dw, &call->db};
	cudaError_t code = 0;

	if (call->pass == OP_FORWARD || call->add_dw)
		return 0;
	for (int i = 0; !code && i < 2; i++)
		if (zeros[i]->data)
			code = cudaMemsetAsync(zeros[i]->data, 0,
					       (size_t)tensor_count(zeros[i]) * sizeof(float),
					       ops->stream);
	return cuda_check(code, op_name(call->kind), ops->err);
}

int cuda_op(struct cuda_queue *queue, const struct op_call *call, struct error *err)
{
	struct cuda *cuda = (struct cuda *)queue->queue.device;
	struct ops_call ops = {.cuda = cuda,
			       .stream = queue->stream,
			       .config = {queue->stream, NUMBER_F32, cuda->multiprocessors},
			       .call = call,
			       .err = err};
	bool empty = call->kind != OP_SGD && call->x.rank && !tensor_count(&call->x);
	int rc = empty ? nothing(&ops) : dispatch(&ops);
	int launched = cuda_launched(op_name(call->kind), rc ? NULL : err);
	int waited = cuda_wait(queue->stream, CUDA_WAIT_MS, rc || launched ? NULL : err);

	for (int i = 0; i < ops.count; i++)
		cudaFree(ops.pieces[i]);
	return rc ? rc : launched ? launched : waited;
}
