/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions with cuDNN: NHWC tensors, filters [O][k][k][C], sums in float32. Each pass has an
 * algorithm of the legacy API (which cuDNN 9 keeps), and an engine of the graph API if one was
 * found to be faster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/convolution_internal.h"
#include "train/device/cuda/lowered_graph.h"

cudnnDataType_t cudnn_type(enum number number)
{
	return number == NUMBER_F16    ? CUDNN_DATA_HALF
	       : number == NUMBER_BF16 ? CUDNN_DATA_BFLOAT16
				       : CUDNN_DATA_FLOAT;
}

/* Float32 stays float32 unless TF32 was requested: the default math type would use it. */
static cudnnMathType_t math_type(const struct layer_rules *rules)
{
	if (rules->number != NUMBER_F32)
		return CUDNN_TENSOR_OP_MATH;
	return rules->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

static int describe_convolution(struct convolution *conv, struct error *err)
{
	const struct layer_rules *rules = &conv->rules;
	const struct conv_shape *s = &conv->shape;
	cudnnDataType_t type = cudnn_type(rules->number);
	struct op_attributes window = {s->kernel, s->stride, s->pad};
	int out_h = (int)op_side(s->h, &window), out_w = (int)op_side(s->w, &window);
	size_t size = number_size(rules->number);
	cudnnStatus_t rc = cudnnCreateTensorDescriptor(&conv->x);

	if (!rc)
		rc = cudnnSetTensor4dDescriptor(conv->x, CUDNN_TENSOR_NHWC, type, s->n, s->c, s->h,
						s->w);
	if (!rc)
		rc = cudnnCreateTensorDescriptor(&conv->y);
	if (!rc)
		rc = cudnnSetTensor4dDescriptor(conv->y, CUDNN_TENSOR_NHWC, type, s->n, s->outputs,
						out_h, out_w);
	if (!rc)
		rc = cudnnCreateFilterDescriptor(&conv->w);
	if (!rc)
		rc = cudnnSetFilter4dDescriptor(conv->w, type, CUDNN_TENSOR_NHWC, s->outputs, s->c,
						s->kernel, s->kernel);
	for (int i = 0; !rc && i < PASSES; i++) {
		rc = cudnnCreateConvolutionDescriptor(&conv->descriptors[i]);
		if (!rc)
			rc = cudnnSetConvolution2dDescriptor(
				conv->descriptors[i], s->pad, s->pad, s->stride, s->stride, 1, 1,
				CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
		if (!rc)
			rc = cudnnSetConvolutionMathType(conv->descriptors[i], math_type(rules));
	}
	conv->rows = (int64_t)s->n * out_h * out_w;
	conv->x_bytes = (size_t)s->n * (size_t)s->h * (size_t)s->w * (size_t)s->c * size;
	conv->y_bytes = (size_t)s->n * (size_t)out_h * (size_t)out_w * (size_t)s->outputs * size;
	conv->w_bytes =
		(size_t)s->outputs * (size_t)s->kernel * (size_t)s->kernel * (size_t)s->c * size;
	return cudnn_check(rc, conv->name, err);
}

/* ---- public functions ---- */

int convolution_new(struct cuda *cuda, const char *name, const struct conv_shape *shape,
		    const struct layer_rules *rules, struct convolution **out, struct error *err)
{
	struct convolution *conv = calloc(1, sizeof *conv);
	int rc;

	if (!conv)
		return error_memory(err, "a layer");
	conv->cuda = cuda;
	conv->shape = *shape;
	conv->rules = *rules;
	conv->used[PASS_FORWARD] = true;
	conv->used[PASS_INPUT] = rules->dx;
	conv->used[PASS_WEIGHTS] = rules->train;
	snprintf(conv->name, sizeof conv->name, "%s", name);
	rc = describe_convolution(conv, err);
	if (!rc)
		rc = convolution_choose(conv, err);
	if (rc)
		convolution_free(conv);
	else
		*out = conv;
	return rc;
}

void convolution_free(struct convolution *conv)
{
	if (!conv)
		return;
	for (int i = 0; i < CONV_ENGINES; i++)
		engines_free(conv->engines[i]);
	for (int i = 0; i < PASSES; i++)
		if (conv->descriptors[i])
			cudnnDestroyConvolutionDescriptor(conv->descriptors[i]);
	if (conv->w)
		cudnnDestroyFilterDescriptor(conv->w);
	if (conv->x)
		cudnnDestroyTensorDescriptor(conv->x);
	if (conv->y)
		cudnnDestroyTensorDescriptor(conv->y);
	free(conv);
}

size_t convolution_workspace(const struct convolution *conv)
{
	size_t max = 0;

	for (int i = 0; i < PASSES; i++)
		if (conv->used[i] && conv->workspace[i] > max)
			max = conv->workspace[i];
	for (int i = 0; i < CONV_ENGINES; i++)
		if (conv->engines[i] && engines_workspace(conv->engines[i], conv->engine[i]) > max)
			max = engines_workspace(conv->engines[i], conv->engine[i]);
	return max;
}

bool convolution_makes_sums(const struct convolution *conv)
{
	return conv->engines[ENGINE_SUMS] || conv->engines[ENGINE_NORM_SUMS];
}

bool convolution_fuses_norm(const struct convolution *conv)
{
	return conv->engines[ENGINE_NORM_SUMS] && conv->engines[ENGINE_NORM_WEIGHTS];
}

bool convolution_makes_back_sums(const struct convolution *conv)
{
	return conv->engines[ENGINE_INPUT_NORM];
}

static float *saved_row(const struct convolution *conv, const struct conv_source *source, int row)
{
	return source->saved + (size_t)row * (size_t)conv->shape.c;
}

/* Replace x by the batch norm's own input, with its scale and shift. */
static void set_norm_input(const struct convolution *conv, const struct conv_source *source,
			   struct engine_call *call)
{
	const char *apply_params = (const char *)saved_row(conv, source, SAVED_APPLY);

	call->x = source->x;
	call->scale = apply_params;
	call->shift = apply_params + (size_t)conv->shape.c * number_size(conv->rules.number);
}

static void set_norm_backward(const struct convolution *conv, const struct conv_source *source,
			      struct engine_call *call)
{
	call->norm[0] = saved_row(conv, source, 0);
	call->norm[1] = saved_row(conv, source, 1);
	call->norm[2] = saved_row(conv, source, SAVED_APPLY + 1);
	call->norm[3] = saved_row(conv, source, SAVED_APPLY + 2);
	call->norm_x = source->x;
	call->sums = saved_row(conv, source, SAVED_SUMS);
	call->rest = saved_row(conv, source, SAVED_REST);
}

/* Run the engine chosen for pass. */
static int run_engine(const struct convolution *conv, enum engine_pass pass, cudaStream_t stream,
		      const struct conv_source *source, struct engine_call *call, struct error *err)
{
	if (pass == ENGINE_NORM_SUMS || pass == ENGINE_NORM_WEIGHTS)
		set_norm_input(conv, source, call);
	else if (pass == ENGINE_INPUT_NORM)
		set_norm_backward(conv, source, call);
	return engines_run(conv->engines[pass], conv->engine[pass], stream, call, conv->name, err);
}

static const float one = 1, zero = 0;

int convolution_forward(const struct convolution *conv, cudaStream_t stream, const void *x,
			const void *w, void *y, float *sums, const struct conv_source *source,
			void *workspace, struct error *err)
{
	struct engine_call call = {.x = x, .w = w, .y = y, .sums = sums, .workspace = workspace};
	enum engine_pass pass = source && conv->engines[ENGINE_NORM_SUMS] ? ENGINE_NORM_SUMS
				: sums && conv->engines[ENGINE_SUMS]	  ? ENGINE_SUMS
									  : ENGINE_FORWARD;
	cudnnStatus_t rc;

	if (conv->engines[pass])
		return run_engine(conv, pass, stream, source, &call, err);
	rc = cudnnSetStream(conv->cuda->cudnn, stream);
	if (!rc)
		rc = cudnnConvolutionForward(
			conv->cuda->cudnn, &one, conv->x, x, conv->w, w,
			conv->descriptors[PASS_FORWARD],
			(cudnnConvolutionFwdAlgo_t)conv->algorithm[PASS_FORWARD], workspace,
			conv->workspace[PASS_FORWARD], &zero, conv->y, y);
	return cudnn_check(rc, conv->name, err);
}

int convolution_back_input(const struct convolution *conv, cudaStream_t stream, const void *w,
			   const void *dy, void *dx, bool add, const struct conv_source *source,
			   void *workspace, struct error *err)
{
	struct engine_call call = {.x = dx, .w = w, .y = dy, .workspace = workspace};
	cudnnStatus_t rc;

	if (source && conv->engines[ENGINE_INPUT_NORM])
		return run_engine(conv, ENGINE_INPUT_NORM, stream, source, &call, err);
	/* An engine's beta is part of its graph. */
	if (conv->engines[ENGINE_INPUT] && add == conv->rules.add_dx)
		return run_engine(conv, ENGINE_INPUT, stream, NULL, &call, err);
	rc = cudnnSetStream(conv->cuda->cudnn, stream);
	if (!rc)
		rc = cudnnConvolutionBackwardData(
			conv->cuda->cudnn, &one, conv->w, w, conv->y, dy,
			conv->descriptors[PASS_INPUT],
			(cudnnConvolutionBwdDataAlgo_t)conv->algorithm[PASS_INPUT], workspace,
			conv->workspace[PASS_INPUT], add ? &one : &zero, conv->x, dx);
	return cudnn_check(rc, conv->name, err);
}

int convolution_back_weights(const struct convolution *conv, cudaStream_t stream, const void *x,
			     const void *dy, void *dw, bool add, const struct conv_source *source,
			     void *workspace, struct error *err)
{
	struct engine_call call = {.x = x, .w = dw, .y = dy, .workspace = workspace};
	cudnnStatus_t rc;

	if (source && conv->engines[ENGINE_NORM_WEIGHTS])
		return run_engine(conv, ENGINE_NORM_WEIGHTS, stream, source, &call, err);
	if (conv->engines[ENGINE_WEIGHTS] && !add)
		return run_engine(conv, ENGINE_WEIGHTS, stream, NULL, &call, err);
	rc = cudnnSetStream(conv->cuda->cudnn, stream);
	if (!rc)
		rc = cudnnConvolutionBackwardFilter(
			conv->cuda->cudnn, &one, conv->x, x, conv->y, dy,
			conv->descriptors[PASS_WEIGHTS],
			(cudnnConvolutionBwdFilterAlgo_t)conv->algorithm[PASS_WEIGHTS], workspace,
			conv->workspace[PASS_WEIGHTS], add ? &one : &zero, conv->w, dw);
	return cudnn_check(rc, conv->name, err);
}
