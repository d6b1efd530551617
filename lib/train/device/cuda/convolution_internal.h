/* SPDX-License-Identifier: BSD-3-Clause */
/* One convolution. Shared by convolution.c (its calls), tuning/algorithm.c (the legacy API's
 * algorithms) and tuning/tuning.c (which candidate each pass uses). */
#ifndef BERTH_TRAIN_CUDA_CONVOLUTION_INTERNAL_H
#define BERTH_TRAIN_CUDA_CONVOLUTION_INTERNAL_H

#include "train/device/cuda/cuda.h"
#include "train/device/cuda/engine.h"

enum pass { PASS_FORWARD, PASS_INPUT, PASS_WEIGHTS, PASSES };
#define CONV_ENGINES ENGINE_PASSES

/* Do the pass's engines take over work of the batch norm before the convolution? */
static inline bool engine_reads_norm(enum engine_pass pass)
{
	return pass == ENGINE_NORM_SUMS || pass == ENGINE_NORM_WEIGHTS || pass == ENGINE_INPUT_NORM;
}

struct convolution {
	struct cuda *cuda;
	char name[64];
	struct conv_shape shape;
	struct layer_rules rules;
	cudnnTensorDescriptor_t x, y;
	cudnnFilterDescriptor_t w;
	/* The legacy API's setup of each used pass: what runs if no engine was chosen. */
	cudnnConvolutionDescriptor_t
		descriptors[PASSES]; /* each with the math type of its algorithm */
	int algorithm[PASSES];
	size_t workspace[PASSES];
	bool used[PASSES];
	/* The graph API's engines, by enum engine_pass; NULL: none was chosen. */
	struct engines *engines[CONV_ENGINES];
	int engine[CONV_ENGINES];
	size_t x_bytes, y_bytes, w_bytes;
	int64_t rows; /* of y */
};

/* Memory filled with numbers, and the stream, on which candidates are timed. */
struct tuning {
	void *x, *y, *w, *workspace;
	size_t workspace_bytes;
	float *norm;  /* for y; NULL without rules.sums */
	void *source; /* like x, for the x of a batch norm; NULL without rules.fused_norm or memory
		       */
	float *source_norm;
	cudaStream_t stream, before; /* before: cuDNN's own stream */
	cudaEvent_t begin, end;
};

/* The legacy API: set conv->algorithm[pass] to the best algorithm that rules allow, by time if
 * tuning is not NULL, else by cuDNN's heuristics. false: there is none. */
bool algorithm_find_best(struct convolution *conv, enum pass pass, const struct tuning *tuning,
			 int *math_type);
/* false: cuDNN does not know it, for instance because another build wrote the cache. */
bool algorithm_apply(struct convolution *conv, enum pass pass, int algorithm, int math_type);

/* ---- train/device/cuda/tuning/benchmark.c ---- */

/* Reserve the memory. If memory is short, leave less workspace for algorithms. false: it does not
 * fit at all. */
bool tuning_begin(const struct convolution *conv, struct tuning *tuning);
/* Fill the memory with numbers instead of leaving what it held. NaNs change the timing, and zeros
 * hide wrong results. */
bool tuning_fill(const struct convolution *conv, const struct tuning *tuning);
void tuning_end(const struct convolution *conv, struct tuning *tuning);
/* Set conv->engines[pass] if an engine beats what runs without one. */
void choose_engine(struct convolution *conv, enum engine_pass pass, struct tuning *tuning);
/* Choose ENGINE_NORM_SUMS and ENGINE_NORM_WEIGHTS if both together beat what runs without them. */
void choose_fused_norm(struct convolution *conv, struct tuning *tuning);

/* ---- train/device/cuda/tuning/tuning.c ---- */

/* Choose for each used pass. Return 0, or -ERR_UNAVAILABLE if there is nothing for one. */
int convolution_choose(struct convolution *conv, struct error *err);

#endif
