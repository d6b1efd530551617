/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions by cuDNN's graph API, from C: one pass is described as a graph of operations,
 * cuDNN's heuristics name engines for it, each of which may or may not be able to do it on this
 * GPU. NHWC, filters [O][k][k][C], sums in float32, as in convolution.c. */
#ifndef BERTH_TRAIN_CUDA_ENGINE_H
#define BERTH_TRAIN_CUDA_ENGINE_H

#include "train/device/cuda/cuda.h"

enum engine_pass {
	ENGINE_FORWARD, /* y = x * w */
	ENGINE_SUMS,	/* and of each channel of y its sum and the sum of its squares, float32 */
	ENGINE_INPUT,	/* dx = dy * w */
	ENGINE_WEIGHTS, /* dw = dy * x */
	/* The same of a batch norm's result relu(scale x + shift), which is never written. */
	ENGINE_NORM_SUMS,
	ENGINE_NORM_WEIGHTS,
	/* dx = dy * w where that ReLU let x through, and of each channel the sums of dx and of
	 * dx (x - mean) invstd, float32: the gradients of the batch norm's shift and scale. */
	ENGINE_INPUT_NORM,
};
#define ENGINE_PASSES 7

#define ENGINES_MAX 40 /* that are asked for; the most promising come first */

struct engines; /* opaque: a pass and what the heuristics name for it */

/* rules: what must not be taken (tf32, direct, deterministic) is not named. add: dx is added to
 * what is there. The order is the same in each process of one GPU model and one version of cuDNN.
 * NULL: cuDNN cannot describe it, or knows none; the legacy API is there. */
struct engines *engines_new(struct cuda *cuda, enum engine_pass pass,
			    const struct conv_shape *shape, const struct layer_rules *rules,
			    bool add);
void engines_free(
	struct engines *engines); /* NULL is fine; those that are shared when nobody is left */
/* Layers of one shape share what was made ready: it may have taken seconds to compile. Offer index
 * of engines, which is and stays ready, under key; take what is offered, or NULL. */
void engines_share(struct engines *engines, const char *key, int index);
struct engines *engines_find_shared(const struct cuda *cuda, enum engine_pass pass, const char *key,
				    int index);
int engines_count(const struct engines *engines);
/* cuDNN's own number of engine index, by which it is known again where the order is another; -1:
 * there is no such index. */
int engines_global_index(const struct engines *engines, int index);

/* Make number index (0 to count - 1) ready. false: it cannot be had on this GPU, or wants more than
 * most bytes of workspace. Several may be ready. */
bool engines_build(struct engines *engines, int index, size_t max);
void engines_drop(struct engines *engines, int index);		    /* not ready: nothing happens */
size_t engines_workspace(const struct engines *engines, int index); /* bytes; it is ready */

/* x, w, y: of the pass's tensors, gradients in their places. sums: [2][channels], of the passes
 * that make them. scale, shift: [c] in the type. norm_x: what the batch norm read; norm: its mean,
 * invstd, weight, bias, [c]; rest: [3][c] that nobody reads. All 16-byte aligned. */
struct engine_call {
	const void *x, *w, *y;
	float *sums;
	const void *scale, *shift, *norm_x;
	const float *norm[4];
	float *rest;
	void *workspace;
};
/* index: one that is ready. name: for messages. */
int engines_run(const struct engines *engines, int index, cudaStream_t stream,
		const struct engine_call *call, const char *name, struct error *err);

#endif
