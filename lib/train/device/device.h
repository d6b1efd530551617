/* SPDX-License-Identifier: BSD-3-Clause */
/* The device seam: everything that computes docks here, at one of two heights.
 *
 * Ops: one call computes one operation, forward or backward. Every device has them; the op
 * conformance suite checks each against float64, and the default step walks them.
 *
 * Graph: executor_new takes the whole network with its shapes, precision, buckets and comm and
 * gives a step that runs forward, backward, reduction and update at once. A device that leaves
 * executor_new NULL gets the default (device/step.c), which walks the ops in order; a faster one
 * chooses its own layouts, fusions, workspaces and capture.
 *
 * Seen from outside, images are NCHW, convolution weights OIHW, linear weights [out][in], all
 * dense. Calls on a queue happen in order; the host sees results after queue_wait or copy_out. */
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

/* A dense row-major tensor in a device's memory; a value, owns nothing. data NULL: absent (an
 * input that there is not, a result that nobody wants). */
struct tensor {
	void *data;
	enum element_type type;
	int rank;
	int64_t shape[TENSOR_MAX_RANK];
};
int64_t tensor_count(const struct tensor *tensor); /* elements; 1 for rank 0 */
struct tensor tensor_make(void *data, enum element_type type, int rank, const int64_t *shape);

/* ---- lower height: ops ---- */

enum op_kind {
	OP_CONV2D,    /* x [N,C,H,W], w [O,C,k,k], b [O] or absent -> y [N,O,H',W'] */
	OP_LINEAR,    /* x [N,...] seen as [N,I], w [O,I], b [O] or absent -> y [N,O] */
	OP_RELU,      /* x -> y, any shape; a NaN stays one */
	OP_MAXPOOL2D, /* x [N,C,H,W] -> y [N,C,H',W']; the first of equal ones gets dy; a NaN wins
		       */
	OP_BATCHNORM, /* x [N,C,H,W], w, b, mean, variance [C] -> y; see op_batchnorm */
	OP_ADD,	      /* x, x2 -> y, one shape; backward gives dx and dx2, each present one */
	OP_AVGPOOL,   /* x [N,C,H,W] -> y [N,C,1,1], the mean of each plane */
	OP_CROSS_ENTROPY, /* x logits [N,K], target I32 [N] -> y [N], the loss of each sample, with
			   * smoothing; see op_call */
	OP_MSE,		  /* x [N,K], target F32 [N,K] -> y [N], mean over K of the squares */
	OP_LABEL_RANK,	  /* x [N,K], target I32 [N] -> y I32 [N]: how many classes come before the
			   * target (0: top-1 is right); equal logits: the lower class first; NaN: K */
	OP_SGD,		  /* update: w, dw, state (momentum) of one flat length; see op_sgd */
	OP_KINDS
};
const char *op_name(enum op_kind kind);

enum op_pass { OP_FORWARD, OP_BACKWARD };

/* Of convolution and pooling: square kernels. y's side = (side + 2 pad - kernel) / stride + 1. */
struct op_attributes {
	int kernel, stride, pad;
};

/* torch.optim.SGD: g += weight_decay w; m = momentum m + g; w -= lr (nesterov ? g + momentum m :
 * m). m begins as zeros, which makes PyTorch's first step. momentum 0: m is not touched. */
struct op_sgd {
	float lr, momentum, weight_decay;
	bool nesterov;
};

/* torch.nn.BatchNorm2d, over N, H, W of each channel: y = (x - m) / sqrt(v + eps) w + b.
 * training: m and v (biased) are the batch's; saved_mean and saved_invstd (1/sqrt(v + eps)), [C],
 * are written for the backward pass, and mean and variance, the running ones, become
 * (1 - momentum) running + momentum m, and of v n/(n-1). Otherwise m and v are the running ones
 * and nothing is written but y. Backward is that of training. N H W must be 2 or more in
 * training (-ERR_DATA); a batch of no samples leaves all as it is (and gives gradients of
 * zero). */
struct op_batchnorm {
	float eps, momentum;
	bool training;
};

/* One call. Forward writes y. Backward reads x, w, dy, and y where it is there (what it tells, x
 * tells too); of OP_ADD and OP_AVGPOOL dy alone: x gives the shape, its memory may be another
 * value's by then. It writes those of dx, dx2, dw, db that are present: overwrites, whatever was
 * there (NaN, too), or adds to it where add_* says so: dx of a value that several ops read, dw and
 * db (add_dw) of a second micro-batch.
 * OP_RELU may have y in x's place and dx in dy's; others alias nothing.
 * Losses have no dy: backward writes dx = scale * d(y[n])/dx for each sample n, so that scale = 1 /
 * samples of the global batch makes the sum over ranks the gradient of the mean.
 * smoothing e of cross-entropy over K classes, as PyTorch's label_smoothing:
 * y = (1 - e) (-log p[target]) + e/K sum over k of (-log p[k]). */
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

/* Do the shapes and types of call fit together and is what must be there present? Pure; devices
 * call it first. -ERR_INTERNAL: err names op and tensor; -ERR_DATA: see op_batchnorm. */
int op_check(const struct op_call *call, struct error *err);
/* The side of a convolution's or pooling's result, or -1 where the kernel does not fit. */
int64_t op_side(int64_t side, const struct op_attributes *attributes);

/* ---- upper height: a step ---- */

/* Of activations and of what multiplies them. Sums, weights, momentum, gradients in their buckets
 * and batch norm's statistics are float32 with each. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16 };
enum loss_kind { LOSS_CROSS_ENTROPY, LOSS_MSE };

/* What a step is made from. All is borrowed until executor_free. */
struct executor_request {
	const struct graph *graph;
	int batch; /* the most samples a run brings */
	enum precision precision;
	enum loss_kind loss;
	bool train;	/* false: forward, loss and counts only */
	bool evaluates; /* a step of train = false, else the same, is made beside this one later: it
			 * counts in what fits */
	const struct buckets *buckets; /* where each parameter lies in the flat buffers */
	struct comm *comm;	       /* reduces the buckets */
	float *weights, *gradients,
		*momentum; /* flat, device memory; the last two NULL without train */
	bool vote; /* gradients has one element more, which is reduced with the last bucket: each
		    * update's executor_input.vote, so that device_executor_start_votes learns the
		    * sum over ranks */
	float *buffers;	   /* flat, device memory: the graph's buffers (running statistics), changed
			    * by training; NULL where the graph has none */
	struct op_sgd sgd; /* lr comes with each run */
	bool decay_vectors; /* weight decay also on parameters of rank 1: biases, batch norm */
	float smoothing;    /* of labels, with LOSS_CROSS_ENTROPY */
	bool direct; /* no algorithm that trades accuracy for speed (Winograd's convolutions) */
	bool tf32;   /* float32 products may be TF32's */
	bool deterministic; /* the same bits each time */
	bool no_graph;	    /* launch each kernel by itself: no CUDA graph */
	/* What raw samples are (device_ops.accepts_raw). table: [channels][256] of augment_table,
	 * host memory; NULL: raw samples are floats. */
	const float *table;
	int crop_pad;
};

/* How one sample is augmented, as data/augment.h draws it. top, left: where the crop begins in the
 * padded image, 0 to 2 crop_pad. */
struct augment_params {
	int top, left;
	bool flip;
};

/* One run's batch, in host memory, borrowed until executor_run returns.
 *
 * An update may be made of several runs (gradient accumulation): the first begins new gradients
 * (first), later ones add to them, the last one (last) reduces and updates. */
struct executor_input {
	const float *x;	 /* [count][C][H][W]; NULL with raw */
	const void *raw; /* the same before normalisation and augmentation, or NULL */
	const struct augment_params *augments; /* of raw: [count] */
	/* Instead of raw: samples indices[count] of resident, device memory that holds all of a
	 * data set as raw samples, one after another. */
	const void *resident;
	const uint32_t *indices;
	const void *target; /* I32 [count], or F32 [count][classes] with LOSS_MSE */
	int count;	    /* 0 to batch: a rank may have nothing in the last batch of an epoch */
	int64_t global_count; /* samples of this update over all its runs and ranks, >= 1 */
	int64_t step;	      /* the number by which first_nonfinite_step names this run */
	float lr;
	bool first, last; /* of an update's runs; both in a run of train = false are ignored */
	float vote;	  /* see executor_request; of the update's last run */
};

/* What this rank's runs added up since the last executor_read (last_*: of the last run alone). */
struct executor_totals {
	double loss_sum, last_loss_sum; /* sums over samples; last: of the last update's runs */
	int64_t samples, top1, top5;	/* top counts are 0 with LOSS_MSE */
	int64_t last_samples;
	int64_t first_nonfinite_step; /* the first step whose loss was not finite; -1: none */
};

/* PyTorch's GradScaler, for PRECISION_F16: the loss is multiplied by scale, gradients divided. */
struct grad_scaler_state {
	float scale;
	int32_t growth_tracker; /* updates since it was changed */
	int64_t skipped;	/* updates left out since it was asked: a gradient was not finite */
};

struct executor; /* opaque, the device's own */

/* ---- the device ---- */

struct device {
	const struct device_ops *ops;
};
/* An ordered queue of work. Embedded as the first member of a device's own. */
struct device_queue {
	struct device *device;
};

struct device_ops {
	const char *name; /* "cpu" */
	/* index: which of this node's devices (LOCAL_RANK). -ERR_UNAVAILABLE says what is missing.
	 */
	int (*open)(int index, struct device **out, struct error *err);
	void (*close)(struct device *device); /* NULL is fine */
	/* What computes, for people: "cpu (oneDNN 2.6.3, 2 threads)". NULL: there is no more to
	 * say than the name. */
	void (*describe)(const struct device *device, char *text, size_t size);

	/* The GPU's name for NVML: "GPU-8a1b...", "" where it is not known. NULL: not a GPU. */
	void (*uuid)(const struct device *device, char text[48]);

	/* Device memory, 64-byte aligned, not cleared. */
	int (*memory_new)(struct device *device, size_t size_bytes, void **out, struct error *err);
	void (*memory_free)(struct device *device, void *memory);
	/* Bytes of it that are free. NULL: its memory is the host's. */
	size_t (*memory_available)(struct device *device);

	int (*queue_new)(struct device *device, struct device_queue **out, struct error *err);
	void (*queue_free)(struct device_queue *queue);
	/* The host waits until all work so far is done. -ERR_NETWORK past the deadline. */
	int (*queue_wait)(struct device_queue *queue, int timeout_ms, struct error *err);
	/* Later work on queue waits for what is on other now. */
	int (*queue_after)(struct device_queue *queue, struct device_queue *other,
			   struct error *err);
	/* For comm: the native handle (a cudaStream_t), NULL where the host computes; then memory
	 * is the host's, too. */
	void *(*queue_native)(struct device_queue *queue);

	/* Host to device and back; host memory may be reused on return. */
	int (*copy_in)(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
		       struct error *err);
	int (*copy_out)(struct device_queue *queue, void *to, const void *from, size_t size_bytes,
			struct error *err);

	/* Host memory that copy_out fills fastest (page-locked), for snapshots; both NULL: any
	 * does. memory_new's rules. */
	int (*host_memory_new)(struct device *device, size_t size_bytes, void **out,
			       struct error *err);
	void (*host_memory_free)(struct device *device, void *memory);

	/* Lower height. supports: pure; run: -ERR_UNAVAILABLE for what supports denies. */
	bool (*supports)(const struct device *device, const struct op_call *call);
	int (*run)(struct device_queue *queue, const struct op_call *call, struct error *err);

	/* Upper height; all four NULL: the default walks the ops. accepts_raw: executor_input may
	 * bring raw, or resident, instead of x; a device without a step of its own does not.
	 * reduced: precisions other than PRECISION_F32, tf32 and no_graph mean something. */
	bool accepts_raw, reduced;
	bool accepts_vote; /* executor_run puts executor_input.vote in its place itself */
	int (*executor_new)(struct device_queue *queue, const struct executor_request *request,
			    struct executor **out, struct error *err);
	int (*executor_run)(struct executor *executor, const struct executor_input *input,
			    struct error *err);
	int (*executor_read)(struct executor *executor, struct executor_totals *out,
			     struct error *err);
	void (*executor_free)(struct executor *executor);
	/* device_executor_start_votes and device_executor_finish_votes, where work is done beside
	 * the host; else both NULL. */
	int (*executor_start_votes)(struct executor *executor, struct error *err);
	int (*executor_finish_votes)(struct executor *executor, float *out, struct error *err);
	/* begin: set the scale, NULL: leave it. now: what it is, NULL: do not ask. Of a training
	 * step of PRECISION_F16; NULL where reduced is not set. */
	int (*executor_grad_scaler)(struct executor *executor,
				    const struct grad_scaler_state *begin,
				    struct grad_scaler_state *now, struct error *err);
};

extern const struct device_ops device_cpu_reference; /* "cpu-reference" */
#define DEVICE_CPU_MODULE "device-cpu"		     /* device-cpu.so; symbol "device_cpu" */
#define DEVICE_CUDA_MODULE "device-cuda"	     /* device-cuda.so; symbol "device_cuda" */

/* Is there a device of that name? -ERR_USAGE lists them. Nothing is loaded. */
int device_check_name(const char *name, struct error *err);
/* Open "cuda", "cpu" (oneDNN's where its module is there, else the reference; the device's name
 * tells which), "cpu-reference", or "auto": cuda where there is a GPU, else cpu. gpu_error (NULL
 * is fine): why "auto" did not take a GPU, where its module is installed and a driver there; else
 * its text is empty. search_path: see base/module.h.
 * -ERR_USAGE: no device of that name. */
int device_find(const char *name, int index, const char *search_path, struct device **out,
		struct error *gpu_error, struct error *err);
/* The same without gpu_error. */
int device_open(const char *name, int index, const char *search_path, struct device **out,
		struct error *err);

/* The upper height on any device: its own, or the default. executor_read waits for the queue and
 * begins new sums. executor_free(NULL) is fine. */
struct device_executor; /* opaque */
int device_executor_new(struct device_queue *queue, const struct executor_request *request,
			struct device_executor **out, struct error *err);
int device_executor_run(struct device_executor *executor, const struct executor_input *input,
			struct error *err);
int device_executor_read(struct device_executor *executor, struct executor_totals *out,
			 struct error *err);
/* With executor_request.vote: ask what the ranks' votes of the last update come to. Does not wait;
 * one question at a time. */
int device_executor_start_votes(struct device_executor *executor, struct error *err);
/* The answer to the last question. Waits for that update where the device runs beside the host:
 * not where some updates were run since. */
int device_executor_finish_votes(struct device_executor *executor, float *out, struct error *err);
/* device_ops.grad_scaler_state; without one begin is passed over and now says that nothing is
 * scaled. */
int device_executor_grad_scaler(struct device_executor *executor,
				const struct grad_scaler_state *begin,
				struct grad_scaler_state *now, struct error *err);
void device_executor_free(struct device_executor *executor);

#endif
