/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of the legacy API's algorithms a convolution's passes take. */
#include "train/device/cuda/convolution_internal.h"

#define MOST_ALGORITHMS 16

/* What cuDNN tells of an algorithm, of any pass. */
struct perf {
	int algorithm, mathematics;
	bool usable, deterministic, winograd;
	size_t workspace;
};

/* Copies of cuDNN's three kinds of the same struct. */
#define COPY_PERFS(from, winograd_test)                                                            \
	for (int i = 0; i < count; i++)                                                            \
	out[i] = (struct perf){(int)(from)[i].algo,                                                \
			       (int)(from)[i].mathType,                                            \
			       (from)[i].status == CUDNN_STATUS_SUCCESS,                           \
			       (from)[i].determinism == CUDNN_DETERMINISTIC,                       \
			       (winograd_test),                                                    \
			       (from)[i].memory}

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

bool algorithm_take(struct convolution *conv, enum pass pass, int algorithm, int mathematics)
{
	conv->algorithm[pass] = algorithm;
	return !cudnnSetConvolutionMathType(conv->how[pass], (cudnnMathType_t)mathematics) &&
	       !ask_workspace(conv, pass) && conv->workspace[pass] <= conv->cuda->workspace_most;
}

bool algorithm_best(struct convolution *conv, enum pass pass, const struct tuning *try,
		    int *mathematics)
{
	const struct layer_rules *rules = &conv->rules;
	struct perf perfs[MOST_ALGORITHMS];
	int count = 0;

	if (list(conv, pass, try, perfs, &count))
		return false;
	for (int i = 0; i < count; i++) {
		const struct perf *perf = &perfs[i];

		if (!perf->usable || (rules->deterministic && !perf->deterministic) ||
		    (rules->direct && perf->winograd))
			continue;
		/* cuDNN may answer for its default mathematics too, which in float32 is TF32. */
		*mathematics = rules->number == NUMBER_F32 && !rules->tf32 ? CUDNN_FMA_MATH
									   : perf->mathematics;
		if (algorithm_take(conv, pass, perf->algorithm, *mathematics))
			return true;
	}
	return false;
}
