/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions by cuDNN's legacy API (cuDNN 9 keeps it): NHWC tensors, filters [O][k][k][C], sums
 * in float32. Each of the three passes has an algorithm of its own, found by timing. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/cuda.h"
#include "train/device/cuda/plan_cache.h"

#define MOST_ALGORITHMS 16
#define TUNING_WORKSPACE ((size_t)1 << 30)
#define LEAST_WORKSPACE ((size_t)32 << 20)

enum pass { PASS_FORWARD, PASS_INPUT, PASS_WEIGHTS, PASSES };

struct convolution {
	struct cuda *cuda;
	char name[64];
	struct conv_shape shape;
	cudnnTensorDescriptor_t x, y;
	cudnnFilterDescriptor_t w;
	cudnnConvolutionDescriptor_t how[PASSES]; /* with the mathematics of its algorithm */
	int algorithm[PASSES];
	size_t workspace[PASSES];
	bool used[PASSES];
	size_t x_bytes, y_bytes, w_bytes;
};

/* What cuDNN tells of an algorithm, of any pass. */
struct perf {
	int algorithm, mathematics;
	bool usable, deterministic, winograd;
	size_t workspace;
};

static cudnnDataType_t data_type(enum number number)
{
	return number == NUMBER_F16    ? CUDNN_DATA_HALF
	       : number == NUMBER_BF16 ? CUDNN_DATA_BFLOAT16
				       : CUDNN_DATA_FLOAT;
}

/* Float32 stays float32 unless TF32 was asked for: the default mathematics would take it. */
static cudnnMathType_t mathematics(const struct layer_rules *rules)
{
	if (rules->number != NUMBER_F32)
		return CUDNN_TENSOR_OP_MATH;
	return rules->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

static int describe(struct convolution *conv, const struct layer_rules *rules, struct error *err)
{
	const struct conv_shape *s = &conv->shape;
	cudnnDataType_t type = data_type(rules->number);
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
		rc = cudnnCreateConvolutionDescriptor(&conv->how[i]);
		if (!rc)
			rc = cudnnSetConvolution2dDescriptor(
				conv->how[i], s->pad, s->pad, s->stride, s->stride, 1, 1,
				CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
		if (!rc)
			rc = cudnnSetConvolutionMathType(conv->how[i], mathematics(rules));
	}
	conv->x_bytes = (size_t)s->n * (size_t)s->h * (size_t)s->w * (size_t)s->c * size;
	conv->y_bytes = (size_t)s->n * (size_t)out_h * (size_t)out_w * (size_t)s->outputs * size;
	conv->w_bytes =
		(size_t)s->outputs * (size_t)s->kernel * (size_t)s->kernel * (size_t)s->c * size;
	return cudnn_check(rc, conv->name, err);
}

/* ---- which algorithm ---- */

/* Copies of cuDNN's three kinds of the same struct. */
#define COPY_PERFS(from, winograd_test)                                                            \
	for (int i = 0; i < count; i++)                                                            \
	out[i] = (struct perf){(int)(from)[i].algo,                                                \
			       (int)(from)[i].mathType,                                            \
			       (from)[i].status == CUDNN_STATUS_SUCCESS,                           \
			       (from)[i].determinism == CUDNN_DETERMINISTIC,                       \
			       (winograd_test),                                                    \
			       (from)[i].memory}

/* Memory in which algorithms are tried. */
struct tuning {
	void *x, *y, *w, *workspace;
	size_t workspace_bytes;
};

/* try NULL: ask the heuristics. The fastest first. *count: how many. */
static cudnnStatus_t list_forward(const struct convolution *conv, const struct tuning *try,
				  struct perf *out, int *found)
{
	cudnnConvolutionFwdAlgoPerf_t perfs[MOST_ALGORITHMS];
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	int count = 0;
	cudnnStatus_t rc =
		try ? cudnnFindConvolutionForwardAlgorithmEx(
			      cudnn, conv->x, try->x, conv->w, try->w, conv->how[PASS_FORWARD],
			      conv->y, try->y, MOST_ALGORITHMS, &count, perfs, try->workspace,
			      try->workspace_bytes)
		    : cudnnGetConvolutionForwardAlgorithm_v7(cudnn, conv->x, conv->w,
							     conv->how[PASS_FORWARD], conv->y,
							     MOST_ALGORITHMS, &count, perfs);

	COPY_PERFS(perfs, perfs[i].algo == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD ||
				  perfs[i].algo == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED);
	*found = count;
	return rc;
}

static cudnnStatus_t list_input(const struct convolution *conv, const struct tuning *try,
				struct perf *out, int *found)
{
	cudnnConvolutionBwdDataAlgoPerf_t perfs[MOST_ALGORITHMS];
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	int count = 0;
	cudnnStatus_t rc =
		try ? cudnnFindConvolutionBackwardDataAlgorithmEx(
			      cudnn, conv->w, try->w, conv->y, try->y, conv->how[PASS_INPUT],
			      conv->x, try->x, MOST_ALGORITHMS, &count, perfs, try->workspace,
			      try->workspace_bytes)
		    : cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnn, conv->w, conv->y,
								  conv->how[PASS_INPUT], conv->x,
								  MOST_ALGORITHMS, &count, perfs);

	COPY_PERFS(perfs,
		   perfs[i].algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD ||
			   perfs[i].algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED);
	*found = count;
	return rc;
}

static cudnnStatus_t list_weights(const struct convolution *conv, const struct tuning *try,
				  struct perf *out, int *found)
{
	cudnnConvolutionBwdFilterAlgoPerf_t perfs[MOST_ALGORITHMS];
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	int count = 0;
	cudnnStatus_t rc =
		try ? cudnnFindConvolutionBackwardFilterAlgorithmEx(
			      cudnn, conv->x, try->x, conv->y, try->y, conv->how[PASS_WEIGHTS],
			      conv->w, try->w, MOST_ALGORITHMS, &count, perfs, try->workspace,
			      try->workspace_bytes)
		    : cudnnGetConvolutionBackwardFilterAlgorithm_v7(
			      cudnn, conv->x, conv->y, conv->how[PASS_WEIGHTS], conv->w,
			      MOST_ALGORITHMS, &count, perfs);

	COPY_PERFS(perfs,
		   perfs[i].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD ||
			   perfs[i].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED);
	*found = count;
	return rc;
}

static cudnnStatus_t list(const struct convolution *conv, enum pass pass, const struct tuning *try,
			  struct perf *out, int *count)
{
	if (pass == PASS_FORWARD)
		return list_forward(conv, try, out, count);
	return pass == PASS_INPUT ? list_input(conv, try, out, count)
				  : list_weights(conv, try, out, count);
}

/* What an algorithm needs; how[pass] has its mathematics. */
static cudnnStatus_t ask_workspace(struct convolution *conv, enum pass pass)
{
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	size_t *size = &conv->workspace[pass];
	int algorithm = conv->algorithm[pass];

	if (pass == PASS_FORWARD)
		return cudnnGetConvolutionForwardWorkspaceSize(
			cudnn, conv->x, conv->w, conv->how[pass], conv->y,
			(cudnnConvolutionFwdAlgo_t)algorithm, size);
	if (pass == PASS_INPUT)
		return cudnnGetConvolutionBackwardDataWorkspaceSize(
			cudnn, conv->w, conv->y, conv->how[pass], conv->x,
			(cudnnConvolutionBwdDataAlgo_t)algorithm, size);
	return cudnnGetConvolutionBackwardFilterWorkspaceSize(
		cudnn, conv->x, conv->y, conv->how[pass], conv->w,
		(cudnnConvolutionBwdFilterAlgo_t)algorithm, size);
}

/* false: cuDNN does not know it, as where a cache was written by another build of it. */
static bool take(struct convolution *conv, enum pass pass, int algorithm, int mathematics)
{
	conv->algorithm[pass] = algorithm;
	return !cudnnSetConvolutionMathType(conv->how[pass], (cudnnMathType_t)mathematics) &&
	       !ask_workspace(conv, pass) && conv->workspace[pass] <= TUNING_WORKSPACE;
}

static bool take_best(struct convolution *conv, enum pass pass, const struct layer_rules *rules,
		      const struct tuning *try, int *mathematics)
{
	struct perf perfs[MOST_ALGORITHMS];
	int count = 0;

	if (list(conv, pass, try, perfs, &count))
		return false;
	for (int i = 0; i < count; i++) {
		const struct perf *perf = &perfs[i];

		if (!perf->usable || (rules->deterministic && !perf->deterministic) ||
		    (rules->direct && perf->winograd))
			continue;
		*mathematics = perf->mathematics;
		if (take(conv, pass, perf->algorithm, perf->mathematics))
			return true;
	}
	return false;
}

static void tuning_end(struct tuning *try)
{
	cudaFree(try->x);
	cudaFree(try->y);
	cudaFree(try->w);
	cudaFree(try->workspace);
	*try = (struct tuning){0};
}

/* Where memory is short by less room for algorithms, or (false) not at all. */
static bool tuning_begin(const struct convolution *conv, struct tuning *try)
{
	*try = (struct tuning){.workspace_bytes = TUNING_WORKSPACE};
	if (cudaMalloc(&try->x, conv->x_bytes) || cudaMalloc(&try->y, conv->y_bytes) ||
	    cudaMalloc(&try->w, conv->w_bytes))
		goto none;
	while (cudaMalloc(&try->workspace, try->workspace_bytes)) {
		try->workspace_bytes /= 2;
		if (try->workspace_bytes < LEAST_WORKSPACE)
			goto none;
	}
	/* Not what memory held before: numbers that are none take other times. */
	if (!cudaMemset(try->x, 0, conv->x_bytes) && !cudaMemset(try->y, 0, conv->y_bytes) &&
	    !cudaMemset(try->w, 0, conv->w_bytes))
		return true;
none:
	tuning_end(try);
	cudaGetLastError();
	return false;
}

static void make_key(const struct convolution *conv, const struct layer_rules *rules, char *key)
{
	static const char *const types[] = {
		[NUMBER_F32] = "f32", [NUMBER_F16] = "f16", [NUMBER_BF16] = "bf16"};
	const struct conv_shape *s = &conv->shape;

	snprintf(key, CHOICE_KEY, "conv %s%s%s %dx%dx%dx%d o%d k%d s%d p%d%s%s", types[rules->number],
		 rules->tf32 ? " tf32" : "", rules->direct ? " direct" : "", s->n, s->c, s->h, s->w,
		 s->outputs, s->kernel, s->stride, s->pad, rules->train ? " train" : "",
		 rules->dx ? " dx" : "");
}

/* The choice of an earlier run. */
static bool take_known(struct convolution *conv, const char *key)
{
	int numbers[CHOICE_NUMBERS];

	if (!choices_find(conv->cuda->choices, key, numbers))
		return false;
	for (int i = 0; i < PASSES; i++)
		if (conv->used[i] && !take(conv, (enum pass)i, numbers[2 * i], numbers[2 * i + 1]))
			return false;
	return true;
}

static int choose(struct convolution *conv, const struct layer_rules *rules, struct error *err)
{
	bool timed = rules->tune && !rules->deterministic;
	int numbers[CHOICE_NUMBERS] = {0};
	struct tuning tuning, *try = NULL;
	char key[CHOICE_KEY];
	int rc = 0;

	make_key(conv, rules, key);
	if (timed && take_known(conv, key))
		return 0;
	if (timed && tuning_begin(conv, &tuning))
		try = &tuning;
	for (int i = 0; !rc && i < PASSES; i++) {
		enum pass pass = (enum pass)i;

		if (!conv->used[i])
			continue;
		if (!(try && take_best(conv, pass, rules, try, &numbers[2 * i + 1])) &&
		    !take_best(conv, pass, rules, NULL, &numbers[2 * i + 1]))
			rc = error_set(err, ERR_UNAVAILABLE,
				       "cuDNN %zu has no algorithm for convolution %s on %s (%s)%s",
				       cudnnGetVersion(), conv->name, conv->cuda->name, key,
				       rules->deterministic ? " that is deterministic" : "");
		numbers[2 * i] = conv->algorithm[i];
	}
	if (try) {
		tuning_end(try);
		if (!rc)
			choices_add(conv->cuda->choices, key, numbers);
	}
	return rc;
}

/* ---- seen from outside ---- */

int convolution_new(struct cuda *cuda, const char *name, const struct conv_shape *shape,
		    const struct layer_rules *rules, struct convolution **out, struct error *err)
{
	struct convolution *conv = calloc(1, sizeof *conv);
	int rc;

	if (!conv)
		return error_memory(err, "a layer");
	conv->cuda = cuda;
	conv->shape = *shape;
	conv->used[PASS_FORWARD] = true;
	conv->used[PASS_INPUT] = rules->dx;
	conv->used[PASS_WEIGHTS] = rules->train;
	snprintf(conv->name, sizeof conv->name, "%s", name);
	rc = describe(conv, rules, err);
	if (!rc)
		rc = choose(conv, rules, err);
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
	for (int i = 0; i < PASSES; i++)
		if (conv->how[i])
			cudnnDestroyConvolutionDescriptor(conv->how[i]);
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
	size_t most = 0;

	for (int i = 0; i < PASSES; i++)
		if (conv->used[i] && conv->workspace[i] > most)
			most = conv->workspace[i];
	return most;
}

static const float one = 1, zero = 0;

int convolution_forward(const struct convolution *conv, cudaStream_t stream, const void *x,
			const void *w, void *y, void *workspace, struct error *err)
{
	cudnnStatus_t rc = cudnnSetStream(conv->cuda->cudnn, stream);

	if (!rc)
		rc = cudnnConvolutionForward(
			conv->cuda->cudnn, &one, conv->x, x, conv->w, w, conv->how[PASS_FORWARD],
			(cudnnConvolutionFwdAlgo_t)conv->algorithm[PASS_FORWARD], workspace,
			conv->workspace[PASS_FORWARD], &zero, conv->y, y);
	return cudnn_check(rc, conv->name, err);
}

int convolution_back_input(const struct convolution *conv, cudaStream_t stream, const void *w,
			   const void *dy, void *dx, bool add, void *workspace, struct error *err)
{
	cudnnStatus_t rc = cudnnSetStream(conv->cuda->cudnn, stream);

	if (!rc)
		rc = cudnnConvolutionBackwardData(
			conv->cuda->cudnn, &one, conv->w, w, conv->y, dy, conv->how[PASS_INPUT],
			(cudnnConvolutionBwdDataAlgo_t)conv->algorithm[PASS_INPUT], workspace,
			conv->workspace[PASS_INPUT], add ? &one : &zero, conv->x, dx);
	return cudnn_check(rc, conv->name, err);
}

int convolution_back_weights(const struct convolution *conv, cudaStream_t stream, const void *x,
			     const void *dy, void *dw, bool add, void *workspace, struct error *err)
{
	cudnnStatus_t rc = cudnnSetStream(conv->cuda->cudnn, stream);

	if (!rc)
		rc = cudnnConvolutionBackwardFilter(
			conv->cuda->cudnn, &one, conv->x, x, conv->y, dy, conv->how[PASS_WEIGHTS],
			(cudnnConvolutionBwdFilterAlgo_t)conv->algorithm[PASS_WEIGHTS], workspace,
			conv->workspace[PASS_WEIGHTS], add ? &one : &zero, conv->w, dw);
	return cudnn_check(rc, conv->name, err);
}
