/* SPDX-License-Identifier: BSD-3-Clause */
/* The device interface: every backend that computes implements it. Its executor takes a whole
 * network and does its steps (executor/executor.h). It chooses its own layouts, fusions,
 * workspaces and graph capture. The op conformance suite (tests/unit/train/op_network.h) compares
 * each op with float64; the device "cpu-reference" of the tests (tests/reference) runs them one by
 * one.
 *
 * To callers, images are NCHW, convolution weights OIHW, linear weights [out][in], all dense. Calls
 * on a queue happen in order. The host sees results after copy_out. */
#ifndef BERTH_TRAIN_DEVICE_DEVICE_H
#define BERTH_TRAIN_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct executor_ops; /* train/executor/executor.h */

enum element_type { ELEMENT_F32, ELEMENT_I32, ELEMENT_I64, ELEMENT_F64 };
size_t element_size(enum element_type type); /* bytes */

#define TENSOR_MAX_RANK 4

/* A dense row-major tensor in a device's memory: a value that owns nothing. data NULL means absent:
 * an optional input, or a result that is not needed. */
struct tensor {
	void *data;
	enum element_type type;
	int rank;
	int64_t shape[TENSOR_MAX_RANK];
};
int64_t tensor_count(const struct tensor *tensor); /* elements; 1 for rank 0 */
struct tensor tensor_make(void *data, enum element_type type, int rank, const int64_t *shape);

/* ---- ops ---- */

enum op_kind {
	OP_CONV2D,    /* x [N,C,H,W], w [O,C,k,k], b [O] or absent -> y [N,O,H',W'] */
	OP_LINEAR,    /* x [N,...] seen as [N,I], w [O,I], b [O] or absent -> y [N,O] */
	OP_RELU,      /* x -> y, any shape; a NaN stays one */
	OP_MAXPOOL2D, /* x [N,C,H,W] -> y [N,C,H',W']; among equal values the first gets dy; a NaN
			 wins */
	OP_BATCHNORM, /* x [N,C,H,W], w, b, mean, variance [C] -> y; see op_batchnorm */
	OP_ADD,	      /* x, x2 -> y, same shapes; backward gives dx and dx2, if present */
	OP_AVGPOOL,   /* x [N,C,H,W] -> y [N,C,1,1], the mean of each plane */
	OP_CROSS_ENTROPY, /* x logits [N,K], target I32 [N] -> y [N], the loss of each sample, with
			   * smoothing; see op_call */
	OP_MSE,		  /* x [N,K], target F32 [N,K] -> y [N], mean over K of the squares */
	OP_LABEL_RANK,	  /* x [N,K], target I32 [N] -> y I32 [N]: how many classes rank before the
			     target (0: top-1 is right). Among equal logits the lower class comes
			     first; NaN gives K. */
	OP_SGD,		  /* update: w, dw, state (momentum) of one flat length; see op_sgd */
	OP_KINDS
};
const char *op_name(enum op_kind kind);

enum op_pass { OP_FORWARD, OP_BACKWARD };

/* Convolution and pooling: square kernels. The side of y is (side + 2 pad - kernel) / stride +
 * 1. */
struct op_attributes {
	int kernel, stride, pad;
};

/* torch.optim.SGD: g += weight_decay w; m = momentum m + g; w -= lr (nesterov ? g + momentum m :
 * m). m starts as zeros, which yields PyTorch's first step. With momentum 0, m is not touched. */
struct op_sgd {
	float lr, momentum, weight_decay;
	bool nesterov;
};

/* torch.nn.BatchNorm2d, over N, H, W of each channel: y = (x - m) / sqrt(v + eps) w + b.
 *
 * In training, m and v (biased) are the batch's. The call writes saved_mean and saved_invstd
 * (1/sqrt(v + eps)), [C], for the backward pass. The running mean becomes (1 - momentum) mean +
 * momentum m; the running variance likewise, with v n/(n-1). In evaluation m and v are the running
 * ones, and only y is written. Backward is that of training.
 *
 * In training N H W must not be 1 (executors refuse it). A batch without samples changes nothing,
 * and its gradients are zero. */
struct op_batchnorm {
	float eps, momentum;
	bool training;
};

/* One call.
 *
 * Forward writes y. Backward reads x, w and dy, and also y if present (y holds no information that
 * x lacks). For OP_ADD and OP_AVGPOOL it reads dy only: x gives the shape, but its memory may hold
 * another value by then. Backward writes those of dx, dx2, dw and db that are present. It
 * overwrites them whatever they held (even NaN), or adds to them if add_* is set. add_dx and
 * add_dx2 serve values that several ops read; add_dw, for dw and db, serves a second micro-batch.
 * OP_RELU may have y in x's place and dx in dy's; no other op may alias. A plan keeps less of the
 * forward pass for its nodes (executor/step_plan.h).
 *
 * Losses have no dy. Backward writes dx = scale * d(y[n])/dx for each sample n. With scale = 1 /
 * samples of the global batch, the sum over ranks is the gradient of the mean. smoothing is e of
 * cross-entropy over K classes, as PyTorch's label_smoothing:
 *   y = (1 - e) (-log p[target]) + e/K sum over k of (-log p[k]). */
struct op_call {
	enum op_kind kind;
	enum op_pass pass;
	struct op_attributes attributes;
	struct op_batchnorm batchnorm;
	struct op_sgd sgd;
	float scale, smoothing;
	bool add_dx, add_dx2, add_dw;
	struct tensor x, x2, w, b, target, y;
	struct tensor mean, variance, saved_mean, saved_invstd;
	struct tensor dy, dx, dx2, dw, db;
	struct tensor state;
};

/* The side of a convolution's or pooling's result, or -1 if the kernel does not fit. */
int64_t op_side(int64_t side, const struct op_attributes *attributes);

/* How one sample is augmented, as data/augment.h draws it. The crop begins at top, left of the
 * padded image, each from 0 to 2 crop_pad. */
struct augment_params {
	int top, left;
	bool flip;
};

/* ---- the device ---- */

struct device {
	const struct device_ops *ops;
};
/* An ordered queue of work. It is the first member of a device's own queue struct. */
struct device_queue {
	struct device *device;
};

struct device_ops {
	const char *name; /* "cpu" */
	/* index selects one of this node's devices (LOCAL_RANK). Return 0, or -ERR_UNAVAILABLE: err
	 * names what is missing. */
	int (*open)(int index, struct device **out, struct error *err);
	void (*close)(struct device *device); /* NULL is allowed */
	/* A description for people: "cpu (oneDNN 2.6.3, 2 threads)". NULL: the name is enough. */
	void (*describe)(const struct device *device, char *text, size_t size);

	/* The GPU's UUID for NVML: "GPU-8a1b...", or "" if unknown. NULL: not a GPU. */
	void (*uuid)(const struct device *device, char text[48]);

	/* What was measured on this device and serves all of its model, so that one of a job's
	 * ranks measures. tuned: what this process has used of it, as text; malloced, or NULL if
	 * memory is out. take_tuned changes the text. NULL: nothing is measured. */
	void (*tuned_model)(const struct device *device, char text[128]);
	char *(*tuned)(const struct device *device);
	void (*take_tuned)(struct device *device, char *text);

	/* Device memory, 64-byte aligned, not cleared. */
	int (*memory_new)(struct device *device, size_t size_bytes, void **out, struct error *err);
	void (*memory_free)(struct device *device, void *memory);
	/* Bytes of device memory that are free. NULL: the device uses host memory. */
	size_t (*memory_available)(struct device *device);

	int (*queue_new)(struct device *device, struct device_queue **out, struct error *err);
	void (*queue_free)(struct device_queue *queue);
	/* For comm: the native handle (a cudaStream_t). NULL if the host computes; its memory is
	 * then host memory. */
	void *(*queue_native)(struct device_queue *queue);

	/* Copy from host to device and back; host memory may be reused on return. */
	int (*copy_in)(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		       struct error *err);
	int (*copy_out)(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
			struct error *err);

	/* See device_host_memory_new. Both NULL: any memory will do. */
	int (*host_memory_new)(struct device *device, size_t size_bytes, void **out,
			       struct error *err);
	void (*host_memory_free)(struct device *device, void *memory);

	const struct executor_ops *executor;
};

/* Host memory that the device's copies to and from the host fill and read fastest (page-locked).
 * what names it in errors. Same rules as memory_new; free accepts NULL. */
int device_host_memory_new(struct device *device, size_t size_bytes, const char *what, void **out,
			   struct error *err);
void device_host_memory_free(struct device *device, void *memory);

/* The modules NAME.so, each with a symbol: "device_cpu" ... The last is built for tests only. */
#define DEVICE_CPU_MODULE "device-cpu"
#define DEVICE_CUDA_MODULE "device-cuda"
#define DEVICE_REFERENCE_MODULE "device-cpu-reference"

/* Check that a device of that name exists, without loading anything. Return 0, or -ERR_USAGE with
 * the list of devices. */
int device_check_name(const char *name, struct error *err);
/* Open "cuda", "cpu" (oneDNN's), "cpu-reference" or "auto": cuda if there is a GPU, else cpu.
 * gpu_error (may be NULL) receives why "auto" did not take a GPU although its module and
 * a driver are installed; otherwise its text is empty. search_path: see base/module.h. Return 0;
 * -ERR_USAGE if no device has that name; -ERR_UNAVAILABLE if its module or library is missing. */
int device_find(const char *name, int index, const char *search_path, struct device **out,
		struct error *gpu_error, struct error *err);

#endif
