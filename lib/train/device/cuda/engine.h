/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions with cuDNN's graph API, from C. Each pass is described as a graph of operations.
 * cuDNN's heuristics list engines for it, some of which cannot run on this GPU. NHWC, filters
 * [O][k][k][C], sums in float32, as in convolution.c. */
#ifndef BERTH_TRAIN_CUDA_ENGINE_H
#define BERTH_TRAIN_CUDA_ENGINE_H

#include "train/device/cuda/cuda.h"

enum engine_pass {
	ENGINE_FORWARD, /* y = x * w */
	ENGINE_SUMS,	/* the same, plus per channel of y its sum and sum of squares, float32 */
	ENGINE_INPUT,	/* dx = dy * w */
	ENGINE_WEIGHTS, /* dw = dy * x */
	/* The same on a batch norm's result relu(scale x + shift), which is never stored. */
	ENGINE_NORM_SUMS,
	ENGINE_NORM_WEIGHTS,
	/* dx = dy * w where that ReLU let x through. It also produces per channel, in float32, the
	 * sums of dx and of dx (x - mean) invstd. They are the gradients of the batch norm's shift
	 * and scale. */
	ENGINE_INPUT_NORM,
};
#define ENGINE_PASSES 7

#define ENGINES_MAX 40 /* engines requested; the most promising come first */

struct engines; /* opaque: a pass and the engines that the heuristics list for it */

/* List engines for a pass. Those that rules exclude (tf32, direct, deterministic) are left out.
 * add: dx is added to what is there. The order is the same in every process with one GPU model and
 * one version of cuDNN. NULL: cuDNN cannot describe the pass or lists no engine; use the legacy API
 * then. */
struct engines *engines_new(struct cuda *cuda, enum engine_pass pass,
			    const struct conv_shape *shape, const struct layer_rules *rules,
			    bool add);
void engines_free(
	struct engines *engines); /* NULL is allowed; shared ones are freed with their last user */
/* Layers of one shape share prepared engines, since compiling one can take seconds. engines_share
 * offers engine index under key; it must be and stay ready. engines_find_shared returns an offered
 * one, or NULL. */
void engines_share(struct engines *engines, const char *key, int index);
struct engines *engines_find_shared(const struct cuda *cuda, enum engine_pass pass, const char *key,
				    int index);
int engines_count(const struct engines *engines);
/* cuDNN's own number of engine index, which identifies it if the order changes. -1: no such
 * index. */
int engines_global_index(const struct engines *engines, int index);

/* Prepare engine index (0 to count - 1). false: it is unavailable on this GPU, or needs more than
 * max bytes of workspace. Several may be ready. */
bool engines_build(struct engines *engines, int index, size_t max);
void engines_drop(struct engines *engines, int index); /* does nothing if it is not ready */
/* In bytes; the engine must be ready. */
size_t engines_workspace(const struct engines *engines, int index);

/* x, w, y: the pass's tensors, with gradients in their places. sums: [2][channels], for passes that
 * produce them. scale, shift: [c] in the type. norm_x: the batch norm's input; norm: its mean,
 * invstd, weight and bias, each [c]; rest: [3][c] output that is not needed. All are 16-byte
 * aligned. */
struct engine_call {
	const void *x, *w, *y;
	float *sums;
	const void *scale, *shift, *norm_x;
	const float *norm[4];
	float *rest;
	void *workspace;
};
/* Run a ready engine; messages call it name. */
int engines_run(const struct engines *engines, int index, cudaStream_t stream,
		const struct engine_call *call, const char *name, struct error *err);

#endif
