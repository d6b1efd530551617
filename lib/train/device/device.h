/* SPDX-License-Identifier: BSD-3-Clause */
/* The device interface: every backend that computes implements it, at one of two levels.
 *
 * Ops: one call computes one operation, forward or backward. Every device has them. The op
 * conformance suite checks each against float64, and the default executor (executor/op_executor.c)
 * runs them in order.
 *
 * Graph: executor_new takes the whole network with its shapes, precision, buckets and comm. It
 * returns an executor whose run does forward, backward, reduction and update at once. A device that
 * leaves executor_new NULL gets the default executor. A faster one chooses its own layouts,
 * fusions, workspaces and graph capture.
 *
 * To callers, images are NCHW, convolution weights OIHW, linear weights [out][in], all dense. Calls
 * on a queue happen in order. The host sees results after queue_wait or copy_out. */
#ifndef BERTH_TRAIN_DEVICE_DEVICE_H
#define BERTH_TRAIN_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct graph;
struct buckets;
struct comm;

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

/* ---- lower level: ops ---- */

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
 * In training N H W must be 2 or more (-ERR_DATA). A batch without samples changes nothing, and its
 * gradients are zero. */
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
 * OP_RELU may have y in x's place and dx in dy's; no other op may alias.
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

/* Check that call's shapes and types match and that required tensors are present. Pure; devices
 * call it first. Return 0, -ERR_INTERNAL (err names op and tensor), or -ERR_DATA (see
 * op_batchnorm). */
int op_check(const struct op_call *call, struct error *err);
/* The side of a convolution's or pooling's result, or -1 if the kernel does not fit. */
int64_t op_side(int64_t side, const struct op_attributes *attributes);

/* ---- upper level: an executor ---- */

/* Precision of activations and of the weights that multiply them. Sums, master weights, momentum,
 * gradients in their buckets and batch norm's statistics are always float32. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16 };
enum loss_kind { LOSS_CROSS_ENTROPY, LOSS_MSE };

/* What an executor is made from. Everything is borrowed until executor_free. */
struct executor_request {
	const struct graph *graph;
	int batch; /* the most samples in one run */
	enum precision precision;
	enum loss_kind loss;
	bool train; /* false: only forward, loss and counts */
	/* An executor for evaluation (train false, otherwise the same) will follow, so count its
	 * memory too. */
	bool evaluates;
	const struct buckets *buckets; /* where each parameter lies in the flat buffers */
	struct comm *comm;	       /* reduces the buckets across ranks */
	/* Flat, device memory. gradients and momentum are NULL without train. */
	float *weights, *gradients, *momentum;
	/* gradients has one more element, which the last bucket's reduction includes: the update's
	 * executor_input.vote. device_executor_start_votes then gets the sum over ranks. */
	bool vote;
	bool vote_nonfinite; /* with vote: a rank whose loss is not finite votes NaN */
	/* Flat, device memory: the graph's buffers (running statistics), which training changes.
	 * NULL if the graph has none. */
	float *buffers;
	struct op_sgd sgd;  /* each run brings its own lr */
	bool decay_vectors; /* apply weight decay also to parameters of rank 1: biases, batch norm
			     */
	float smoothing;    /* label smoothing, with LOSS_CROSS_ENTROPY */
	bool direct; /* no algorithm that trades accuracy for speed (Winograd convolutions) */
	bool tf32;   /* float32 products may use TF32 */
	bool deterministic; /* the same bits every time */
	bool no_graph;	    /* launch each kernel separately instead of capturing a CUDA graph */
	/* The form of raw samples (device_ops.accepts_raw). table is augment_table's
	 * [channels][256] in host memory. NULL: raw samples are floats. */
	const float *table;
	int crop_pad;
};

/* How one sample is augmented, as data/augment.h draws it. The crop begins at top, left of the
 * padded image, each from 0 to 2 crop_pad. */
struct augment_params {
	int top, left;
	bool flip;
};

/* The batch of one run, in host memory, borrowed until executor_run returns.
 *
 * An update may consist of several runs (gradient accumulation). The first run (first) starts new
 * gradients, later runs add to them, and the last run (last) reduces and updates. */
struct executor_input {
	const float *x;	 /* [count][C][H][W]; NULL with raw */
	const void *raw; /* the samples before normalisation and augmentation, or NULL */
	const struct augment_params *augments; /* for raw: [count] */
	/* Instead of raw: the samples indices[count] of resident. That is device memory with a
	 * whole data set as raw samples, one after another. */
	const void *resident;
	const uint32_t *indices;
	const void *target; /* I32 [count], or F32 [count][classes] with LOSS_MSE */
	/* 0 to batch: a rank may have no samples in an epoch's last batch. */
	int count;
	int64_t global_count; /* samples of this update over all its runs and ranks, >= 1 */
	int64_t step;	      /* the number that first_nonfinite_step reports for this run */
	float lr;
	bool first, last; /* position among an update's runs; ignored if train is false */
	float vote;	  /* see executor_request.vote; read from the update's last run */
};

/* What this rank's runs added up since the last executor_read. */
struct executor_totals {
	double loss_sum, last_loss_sum; /* sums over samples; last: over the last update's runs */
	int64_t samples, top1, top5;	/* top counts are 0 with LOSS_MSE */
	int64_t last_samples;
	int64_t first_nonfinite_step; /* the first step whose loss was not finite; -1: none */
};

/* PyTorch's GradScaler, for PRECISION_F16: the loss is multiplied by scale, and gradients are
 * divided by it. */
struct grad_scaler_state {
	float scale;
	int32_t growth_tracker; /* updates since scale changed */
	int64_t skipped; /* updates skipped since the last query because a gradient was not finite
			  */
};

struct executor; /* opaque; belongs to the device */

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

	/* Device memory, 64-byte aligned, not cleared. */
	int (*memory_new)(struct device *device, size_t size_bytes, void **out, struct error *err);
	void (*memory_free)(struct device *device, void *memory);
	/* Bytes of device memory that are free. NULL: the device uses host memory. */
	size_t (*memory_available)(struct device *device);

	int (*queue_new)(struct device *device, struct device_queue **out, struct error *err);
	void (*queue_free)(struct device_queue *queue);
	/* Block the host until all work so far is done. Return 0, or -ERR_NETWORK after timeout_ms.
	 */
	int (*queue_wait)(struct device_queue *queue, int timeout_ms, struct error *err);
	/* For comm: the native handle (a cudaStream_t). NULL if the host computes; its memory is
	 * then host memory. */
	void *(*queue_native)(struct device_queue *queue);

	/* Copy from host to device and back; host memory may be reused on return. */
	int (*copy_in)(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		       struct error *err);
	int (*copy_out)(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
			struct error *err);

	/* Host memory that copy_out fills fastest (page-locked), for snapshots. Both NULL: any
	 * memory will do. Same rules as memory_new. */
	int (*host_memory_new)(struct device *device, size_t size_bytes, void **out,
			       struct error *err);
	void (*host_memory_free)(struct device *device, void *memory);

	/* Lower level. Returns -ERR_UNAVAILABLE for an op that the device lacks. */
	int (*run)(struct device_queue *queue, const struct op_call *call, struct error *err);

	/* Upper level. If all four are NULL, the default executor runs the ops. accepts_raw:
	 * executor_input may bring raw or resident instead of x; only a device with its own
	 * executor may set it. reduced: precisions other than PRECISION_F32, tf32 and no_graph have
	 * an effect. */
	bool accepts_raw, reduced;
	int (*executor_new)(struct device_queue *queue, const struct executor_request *request,
			    struct executor **out, struct error *err);
	int (*executor_run)(struct executor *executor, const struct executor_input *input,
			    struct error *err);
	int (*executor_read)(struct executor *executor, struct executor_totals *out,
			     struct error *err);
	void (*executor_free)(struct executor *executor);
	/* Implement device_executor_start_votes and device_executor_finish_votes on devices that
	 * work asynchronously to the host; else both NULL. */
	int (*executor_start_votes)(struct executor *executor, struct error *err);
	int (*executor_finish_votes)(struct executor *executor, float *out, struct error *err);
	/* begin sets the scale (NULL: keep it); now receives the present state (NULL: not wanted).
	 * For a training executor with PRECISION_F16. NULL unless reduced is set. */
	int (*executor_grad_scaler)(struct executor *executor,
				    const struct grad_scaler_state *begin,
				    struct grad_scaler_state *now, struct error *err);
};

extern const struct device_ops device_cpu_reference; /* "cpu-reference" */
#define DEVICE_CPU_MODULE "device-cpu"		     /* device-cpu.so; symbol "device_cpu" */
#define DEVICE_CUDA_MODULE "device-cuda"	     /* device-cuda.so; symbol "device_cuda" */

/* Check that a device of that name exists, without loading anything. Return 0, or -ERR_USAGE with
 * the list of devices. */
int device_check_name(const char *name, struct error *err);
/* Open "cuda", "cpu", "cpu-reference" or "auto". "cpu" is oneDNN's device if its module is
 * installed, else the reference; the device's name shows which. "auto" is cuda if there is a GPU,
 * else cpu. gpu_error (may be NULL) receives why "auto" did not take a GPU although its module and
 * a driver are installed; otherwise its text is empty. search_path: see base/module.h. Return 0, or
 * -ERR_USAGE if no device has that name. */
int device_find(const char *name, int index, const char *search_path, struct device **out,
		struct error *gpu_error, struct error *err);

/* An executor on any device: the device's own, or the default. device_executor_read waits for the
 * queue and starts new sums. device_executor_free accepts NULL. */
struct device_executor; /* opaque */
int device_executor_new(struct device_queue *queue, const struct executor_request *request,
			struct device_executor **out, struct error *err);
int device_executor_run(struct device_executor *executor, const struct executor_input *input,
			struct error *err);
int device_executor_read(struct device_executor *executor, struct executor_totals *out,
			 struct error *err);
/* With executor_request.vote: request the sum of the ranks' votes in the last update. Does not
 * wait; one request at a time. */
int device_executor_start_votes(struct device_executor *executor, struct error *err);
/* Get the answer to the last request. If the device runs asynchronously this waits for that update,
 * but not if further updates have run since. */
int device_executor_finish_votes(struct device_executor *executor, float *out, struct error *err);
/* As device_ops.executor_grad_scaler. Devices without it ignore begin and report in now that
 * nothing is scaled. */
int device_executor_grad_scaler(struct device_executor *executor,
				const struct grad_scaler_state *begin,
				struct grad_scaler_state *now, struct error *err);
void device_executor_free(struct device_executor *executor);

#endif
