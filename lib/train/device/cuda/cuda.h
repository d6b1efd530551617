/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the CUDA device (module device-cuda.so). cuDNN computes convolutions, cuBLASLt linear
 * layers, and berth's own kernels (kernels/kernels.h) the rest. Activations are NHWC.
 *
 * lowered_graph.c adds to a step's plan (executor/step_plan.h) what only this device
 * needs. compiled_graph.c runs that for one number of samples. executor.c feeds it, captures it in
 * CUDA graphs and updates the weights. */
#ifndef BERTH_TRAIN_CUDA_H
#define BERTH_TRAIN_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "train/device/cuda/kernels/kernels.h"
#include "train/executor/executor.h"

struct tuning_cache; /* train/device/cuda/tuning/tuning_cache.h */
struct engines;	     /* engine.h */

struct cuda {
	struct device device;
	int ordinal, multiprocessors;
	char name[256]; /* "NVIDIA H200" */
	int major, minor;
	cudnnHandle_t cudnn;
	cudnnBackendDescriptor_t described_device; /* for tests: describes a GPU that this machine
						      lacks; cudnn is then NULL */
	cublasLtHandle_t blas;
	struct tuning_cache *tuning_cache;
	bool tuning_given_up;		/* a warning has said so */
	struct engines *shared_engines; /* engine.h: prepared engines in use */
	/* Bytes of workspace that a pass may use: TUNING_WORKSPACE, or less if memory is short. */
	size_t workspace_limit;
};
#define TUNING_WORKSPACE ((size_t)1 << 30)

struct cuda_queue {
	struct device_queue queue;
	cudaStream_t stream;
};

size_t number_size(enum number number); /* bytes */

/* ---- cuda.c: turn codes into errors; 0 on success ---- */

int cuda_check(cudaError_t code, const char *what, struct error *err);
int cudnn_check(cudnnStatus_t code, const char *what, struct error *err);
int blas_check(cublasStatus_t code, const char *what, struct error *err);
/* Check kernels launched since the last check. */
int cuda_launched(const char *what, struct error *err);
/* Wait for stream. Return 0, or -ERR_NETWORK after timeout_ms. */
int cuda_wait(cudaStream_t stream, int timeout_ms, struct error *err);
/* Allocate device memory. what names the memory in the error message: "a batch's targets". */
int cuda_memory(size_t size_bytes, const char *what, void **out, struct error *err);
/* Set the error for missing memory: what needs size_bytes. hint tells the user what to do, or is
 * "". */
int cuda_memory_short(size_t size_bytes, const char *what, const char *hint, struct error *err);
#define CUDA_WAIT_MS 600000 /* deadline of waits for work that only computes */

/* ---- layers (convolution.c, linear.c) ---- */

cudnnDataType_t cudnn_type(enum number number);

/* How a layer may be computed. */
struct layer_rules {
	enum number number;
	bool tf32;	    /* float32 products in tensor cores */
	bool direct;	    /* no Winograd algorithms */
	bool deterministic; /* no choice by time, and no algorithm with an arbitrary order of
			       summation */
	bool tune;	    /* choose by measured time; else by cuDNN's heuristics */
	bool train, dx;
	bool add_dx;	 /* dx is added to what is there; timing must match that */
	bool sums;	 /* a batch norm of y follows, whose sums may be made in the same pass */
	bool fused_norm; /* x is a batch norm's ReLU with no other reader */
};

struct conv_shape {
	int n, c, h, w, outputs, kernel, stride, pad;
};

struct convolution; /* opaque */

/* Create a convolution; messages call it name. Return 0, or -ERR_UNAVAILABLE if cuDNN cannot
 * compute it. */
int convolution_new(struct cuda *cuda, const char *name, const struct conv_shape *shape,
		    const struct layer_rules *rules, struct convolution **out, struct error *err);
void convolution_free(struct convolution *conv);	      /* NULL is fine */
size_t convolution_workspace(const struct convolution *conv); /* bytes that its calls need */

/* Does it produce the sums? */
bool convolution_makes_sums(const struct convolution *conv);
/* Does it read the batch norm's own x, so that the ReLU's result need not exist? */
bool convolution_fuses_norm(const struct convolution *conv);
/* Does its input gradient include that ReLU's mask and produce the batch norm's sums? */
bool convolution_makes_back_sums(const struct convolution *conv);

/* That batch norm: its x and its statistics, in lowered_graph.h's rows. */
struct conv_source {
	const void *x;
	float *saved;
};

/* x [n][h][w][c], w [outputs][k][k][c], y and dy [n][h'][w'][outputs]. add: add to what is there.
 * sums [2][outputs]: per channel of y the sum and the sum of squares, written if
 * convolution_makes_sums; NULL: not wanted. source: the preceding batch norm, read if
 * convolution_fuses_norm or convolution_makes_back_sums; NULL: x itself is there. */
int convolution_forward(const struct convolution *conv, cudaStream_t stream, const void *x,
			const void *w, void *y, float *sums, const struct conv_source *source,
			void *workspace, struct error *err);
int convolution_back_input(const struct convolution *conv, cudaStream_t stream, const void *w,
			   const void *dy, void *dx, bool add, const struct conv_source *source,
			   void *workspace, struct error *err);
int convolution_back_weights(const struct convolution *conv, cudaStream_t stream, const void *x,
			     const void *dy, void *dw, bool add, const struct conv_source *source,
			     void *workspace, struct error *err);

struct cuda_linear; /* opaque */

struct cuda_linear_shape {
	int n, inputs, outputs;
	/* dw is float32 whatever the type, and may begin at any float. */
	bool dw_f32;
	size_t dw_alignment; /* bytes */
};

int cuda_linear_new(struct cuda *cuda, const char *name, const struct cuda_linear_shape *shape,
		    const struct layer_rules *rules, struct cuda_linear **out, struct error *err);
void cuda_linear_free(struct cuda_linear *linear); /* NULL is fine */
#define LINEAR_WORKSPACE ((size_t)32 << 20)

/* x [n][inputs], w [outputs][inputs], y [n][outputs]. workspace: LINEAR_WORKSPACE bytes. */
int cuda_linear_forward(const struct cuda_linear *linear, cudaStream_t stream, const void *x,
			const void *w, void *y, void *workspace, struct error *err);
int cuda_linear_back_input(const struct cuda_linear *linear, cudaStream_t stream, const void *w,
			   const void *dy, void *dx, bool add, void *workspace, struct error *err);
int cuda_linear_back_weights(const struct cuda_linear *linear, cudaStream_t stream, const void *x,
			     const void *dy, void *dw, bool add, void *workspace,
			     struct error *err);

extern const struct executor_ops cuda_executor; /* executor.c */

#endif
