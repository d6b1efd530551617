/* SPDX-License-Identifier: BSD-3-Clause */
/* One convolution; shared by convolution.c (its calls), algorithm.c (the legacy API's algorithms) and
 * tuning.c (which way each pass takes). */
#ifndef BERTH_TRAIN_CUDA_CONVOLUTION_INTERNAL_H
#define BERTH_TRAIN_CUDA_CONVOLUTION_INTERNAL_H

#include "train/device/cuda/cuda.h"
#include "train/device/cuda/engine.h"

enum pass { PASS_FORWARD, PASS_INPUT, PASS_WEIGHTS, PASSES };
#define WAYS 4 /* enum engine_pass */

struct convolution {
	struct cuda *cuda;
	char name[64];
	struct conv_shape shape;
	struct layer_rules rules;
	cudnnTensorDescriptor_t x, y;
	cudnnFilterDescriptor_t w;
	/* The legacy API's, of each pass that is used: what runs where no engine was taken. */
	cudnnConvolutionDescriptor_t how[PASSES]; /* with the mathematics of its algorithm */
	int algorithm[PASSES];
	size_t workspace[PASSES];
	bool used[PASSES];
	/* The graph API's, by enum engine_pass; NULL: none was taken. */
	struct engines *engines[WAYS];
	int engine[WAYS];
	size_t x_bytes, y_bytes, w_bytes;
	int64_t rows; /* of y */
};

/* Memory in which ways are tried, full of numbers, and the stream on which. */
struct tuning {
	void *x, *y, *w, *workspace;
	size_t workspace_bytes;
	float *norm; /* tuning_norm's; NULL without rules.sums */
	cudaStream_t stream, before; /* before: cuDNN's */
	cudaEvent_t begin, end;
};

/* The legacy API: conv->algorithm[pass] becomes the best one that rules allow, by time where tuning
 * is there, else by the heuristics. false: there is none. */
bool algorithm_best(struct convolution *conv, enum pass pass, const struct tuning *tuning,
		    int *mathematics);
/* false: cuDNN does not know it, as where a cache was written by another build of it. */
bool algorithm_take(struct convolution *conv, enum pass pass, int algorithm, int mathematics);

/* Choose for each pass that is used. -ERR_UNAVAILABLE: there is nothing for one. */
int convolution_choose(struct convolution *conv, struct error *err);

#endif
