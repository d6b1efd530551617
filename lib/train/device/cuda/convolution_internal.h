/* SPDX-License-Identifier: BSD-3-Clause */
/* One convolution; shared by convolution.c (its calls), train/device/cuda/tuning/algorithm.c (the
 * legacy API's algorithms) and train/device/cuda/tuning/tuning.c (which way each pass takes). */
#ifndef BERTH_TRAIN_CUDA_CONVOLUTION_INTERNAL_H
#define BERTH_TRAIN_CUDA_CONVOLUTION_INTERNAL_H

#include "train/device/cuda/cuda.h"
#include "train/device/cuda/engine.h"

enum pass { PASS_FORWARD, PASS_INPUT, PASS_WEIGHTS, PASSES };
#define CONV_ENGINES ENGINE_PASSES

struct convolution {
	struct cuda *cuda;
	char name[64];
	struct conv_shape shape;
	struct layer_rules rules;
	cudnnTensorDescriptor_t x, y;
	cudnnFilterDescriptor_t w;
	/* The legacy API's, of each pass that is used: what runs where no engine was taken. */
	cudnnConvolutionDescriptor_t
		descriptors[PASSES]; /* with the mathematics of its algorithm */
	int algorithm[PASSES];
	size_t workspace[PASSES];
	bool used[PASSES];
	/* The graph API's, by enum engine_pass; NULL: none was taken. */
	struct engines *engines[CONV_ENGINES];
	int engine[CONV_ENGINES];
	size_t x_bytes, y_bytes, w_bytes;
	int64_t rows; /* of y */
};

/* Memory in which ways are tried, full of numbers, and the stream on which. */
struct tuning {
	void *x, *y, *w, *workspace;
	size_t workspace_bytes;
	float *norm;  /* of y; NULL without rules.sums */
	void *source; /* like x, and a batch norm of it; NULL without rules.through, or room */
	float *source_norm;
	cudaStream_t stream, before; /* before: cuDNN's */
	cudaEvent_t begin, end;
};

/* The legacy API: conv->algorithm[pass] becomes the best one that rules allow, by time where tuning
 * is there, else by the heuristics. false: there is none. */
bool algorithm_find_best(struct convolution *conv, enum pass pass, const struct tuning *tuning,
			 int *math_type);
/* false: cuDNN does not know it, as where a cache was written by another build of it. */
bool algorithm_apply(struct convolution *conv, enum pass pass, int algorithm, int math_type);

/* ---- train/device/cuda/tuning/benchmark.c ---- */

/* Where memory is short by less room for algorithms, or (false) not at all. */
bool tuning_begin(const struct convolution *conv, struct tuning *tuning);
/* Not what memory held before: numbers that are none take other times, and zeros hide what is
 * wrong. */
bool tuning_fill(const struct convolution *conv, const struct tuning *tuning);
void tuning_end(const struct convolution *conv, struct tuning *tuning);
/* conv->engines[pass], where one is better than what runs without. */
void choose_engine(struct convolution *conv, enum engine_pass pass, struct tuning *tuning);
/* ENGINE_NORM_SUMS and ENGINE_NORM_WEIGHTS, where both together are better than what runs without.
 */
void choose_fused_norm(struct convolution *conv, struct tuning *tuning);

/* ---- train/device/cuda/tuning/tuning.c ---- */

/* Choose for each pass that is used. -ERR_UNAVAILABLE: there is nothing for one. */
int convolution_choose(struct convolution *conv, struct error *err);

#endif
