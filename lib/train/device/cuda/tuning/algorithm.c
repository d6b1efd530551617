/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of the legacy API's algorithms each pass of a convolution uses. */
#include "train/device/cuda/convolution_internal.h"

#define ALGORITHMS_MAX 16

/* What cuDNN reports about an algorithm, for any pass. */
struct perf {
	int algorithm, math_type;
	bool usable, deterministic, winograd;
};

/* Copies of cuDNN's three variants of the same struct. */
#define COPY_PERFS(from, winograd_test)                                                            \
	for (int i = 0; i < *count; i++)                                                           \
		out[i] = (struct perf)                                                             \
		{                                                                                  \
			(int)(from)[i].algo, (int)(from)[i].mathType,                              \
				(from)[i].status == CUDNN_STATUS_SUCCESS,                          \
				(from)[i].determinism == CUDNN_DETERMINISTIC, (winograd_test)      \
		}

/* List algorithms, fastest first; *count of them. tuning NULL: ask the heuristics. */
static cudnnStatus_t list_forward(const struct convolution *conv, const struct tuning *tuning,
				  struct perf *out, int *count)
{
	cudnnConvolutionFwdAlgoPerf_t perfs[ALGORITHMS_MAX];
	cudnnConvolutionDescriptor_t descriptor = conv->descriptors[PASS_FORWARD];
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	cudnnStatus_t rc = tuning ? cudnnFindConvolutionForwardAlgorithmEx(
					    cudnn, conv->x, tuning->x, conv->w, tuning->w,
					    descriptor, conv->y, tuning->y, ALGORITHMS_MAX, count,
					    perfs, tuning->workspace, tuning->workspace_bytes)
				  : cudnnGetConvolutionForwardAlgorithm_v7(
					    cudnn, conv->x, conv->w, descriptor, conv->y,
					    ALGORITHMS_MAX, count, perfs);

	COPY_PERFS(perfs, perfs[i].algo == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD ||
				  perfs[i].algo == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED);
	return rc;
}

static cudnnStatus_t list_input(const struct convolution *conv, const struct tuning *tuning,
				struct perf *out, int *count)
{
	cudnnConvolutionBwdDataAlgoPerf_t perfs[ALGORITHMS_MAX];
	cudnnConvolutionDescriptor_t descriptor = conv->descriptors[PASS_INPUT];
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	cudnnStatus_t rc = tuning ? cudnnFindConvolutionBackwardDataAlgorithmEx(
					    cudnn, conv->w, tuning->w, conv->y, tuning->y,
					    descriptor, conv->x, tuning->x, ALGORITHMS_MAX, count,
					    perfs, tuning->workspace, tuning->workspace_bytes)
				  : cudnnGetConvolutionBackwardDataAlgorithm_v7(
					    cudnn, conv->w, conv->y, descriptor, conv->x,
					    ALGORITHMS_MAX, count, perfs);

	COPY_PERFS(perfs,
		   perfs[i].algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD ||
			   perfs[i].algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED);
	return rc;
}

static cudnnStatus_t list_weights(const struct convolution *conv, const struct tuning *tuning,
				  struct perf *out, int *count)
{
	cudnnConvolutionBwdFilterAlgoPerf_t perfs[ALGORITHMS_MAX];
	cudnnConvolutionDescriptor_t descriptor = conv->descriptors[PASS_WEIGHTS];
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	cudnnStatus_t rc = tuning ? cudnnFindConvolutionBackwardFilterAlgorithmEx(
					    cudnn, conv->x, tuning->x, conv->y, tuning->y,
					    descriptor, conv->w, tuning->w, ALGORITHMS_MAX, count,
					    perfs, tuning->workspace, tuning->workspace_bytes)
				  : cudnnGetConvolutionBackwardFilterAlgorithm_v7(
					    cudnn, conv->x, conv->y, descriptor, conv->w,
					    ALGORITHMS_MAX, count, perfs);

	COPY_PERFS(perfs,
		   perfs[i].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD ||
			   perfs[i].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED);
	return rc;
}

static cudnnStatus_t list(const struct convolution *conv, enum pass pass,
			  const struct tuning *tuning, struct perf *out, int *count)
{
	if (pass == PASS_FORWARD)
		return list_forward(conv, tuning, out, count);
	return pass == PASS_INPUT ? list_input(conv, tuning, out, count)
				  : list_weights(conv, tuning, out, count);
}

/* The workspace of an algorithm; descriptors[pass] has its math type. */
static cudnnStatus_t query_workspace(struct convolution *conv, enum pass pass)
{
	cudnnHandle_t cudnn = conv->cuda->cudnn;
	size_t *size = &conv->workspace[pass];
	int algorithm = conv->algorithm[pass];

	if (pass == PASS_FORWARD)
		return cudnnGetConvolutionForwardWorkspaceSize(
			cudnn, conv->x, conv->w, conv->descriptors[pass], conv->y,
			(cudnnConvolutionFwdAlgo_t)algorithm, size);
	if (pass == PASS_INPUT)
		return cudnnGetConvolutionBackwardDataWorkspaceSize(
			cudnn, conv->w, conv->y, conv->descriptors[pass], conv->x,
			(cudnnConvolutionBwdDataAlgo_t)algorithm, size);
	return cudnnGetConvolutionBackwardFilterWorkspaceSize(
		cudnn, conv->x, conv->y, conv->descriptors[pass], conv->w,
		(cudnnConvolutionBwdFilterAlgo_t)algorithm, size);
}

bool algorithm_apply(struct convolution *conv, enum pass pass, int algorithm, int math_type)
{
	conv->algorithm[pass] = algorithm;
	return !cudnnSetConvolutionMathType(conv->descriptors[pass], (cudnnMathType_t)math_type) &&
	       !query_workspace(conv, pass) && conv->workspace[pass] <= conv->cuda->workspace_limit;
}

bool algorithm_find_best(struct convolution *conv, enum pass pass, const struct tuning *tuning,
			 int *math_type)
{
	const struct layer_rules *rules = &conv->rules;
	struct perf perfs[ALGORITHMS_MAX];
	int count = 0;

	if (list(conv, pass, tuning, perfs, &count))
		return false;
	for (int i = 0; i < count; i++) {
		const struct perf *perf = &perfs[i];

		if (!perf->usable || (rules->deterministic && !perf->deterministic) ||
		    (rules->direct && perf->winograd))
			continue;
		/* cuDNN may also answer for its default math type, which in float32 is TF32. */
		*math_type = rules->number == NUMBER_F32 && !rules->tf32 ? CUDNN_FMA_MATH
									 : perf->math_type;
		if (algorithm_apply(conv, pass, perf->algorithm, *math_type))
			return true;
	}
	return false;
}
