/* SPDX-License-Identifier: BSD-3-Clause */
/* An executor: it takes a network with its shapes, precision, buckets and comm, and does forward,
 * backward, reduction and update at once. Each device has its own (executor_ops). */
#ifndef BERTH_TRAIN_EXECUTOR_EXECUTOR_H
#define BERTH_TRAIN_EXECUTOR_EXECUTOR_H

#include "train/device/device.h"

struct graph;
struct buckets;
struct comm;

/* Precision of activations and of the weights that multiply them. Sums, master weights, momentum,
 * gradients in their buckets and batch norm's statistics are always float32. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16 };
enum loss_kind { LOSS_CROSS_ENTROPY, LOSS_MSE };

/* What an executor is made from. Everything is borrowed while the executor exists. */
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
	int timeout_ms;		       /* comm's, for waits that include the other ranks; or 0 */
	/* Flat, device memory. gradients and momentum are NULL without train; gradients has one
	 * element more than the others (see ddp.h). */
	float *weights, *gradients, *momentum;
	bool vote_nonfinite; /* a rank whose loss is not finite votes NaN */
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
	/* Called on one rank if the ranks cannot capture graphs; NULL: do so in silence. */
	void (*warn)(void *context, const char *text);
	void *context;
	/* The form of raw samples (executor_ops.accepts_raw). table is augment_table's
	 * [channels][256] in host memory. NULL: raw samples are floats. */
	const float *table;
	int crop_pad;
};

/* The batch of one run, in host memory, borrowed until device_executor_run returns.
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
	/* The update has as many samples as most, which all ranks know alike; without train: this
	 * rank's batch is full. Each rank's runs of a full update have the same counts each time.
	 */
	bool full;
	/* Summed over ranks (device_executor_start_votes); read from the update's last run. */
	float vote;
};

/* What this rank's runs added up since the last device_executor_read. */
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

/* A device's executor. Members that are not described here: as the functions below.
 * start_votes and finish_votes: both NULL unless the device works asynchronously to the host. */
struct executor_ops {
	/* executor_input may bring raw or resident instead of x. */
	bool accepts_raw;
	/* Precisions other than PRECISION_F32, tf32 and no_graph have an effect. */
	bool reduced;
	int (*open)(struct device_queue *queue, const struct executor_request *request,
		    struct executor **out, struct error *err);
	int (*run)(struct executor *executor, const struct executor_input *input,
		   struct error *err);
	int (*read)(struct executor *executor, struct executor_totals *out, struct error *err);
	void (*close)(struct executor *executor);
	int (*start_votes)(struct executor *executor, struct error *err);
	int (*finish_votes)(struct executor *executor, float *out, struct error *err);
	/* begin sets the scale (NULL: keep it); now receives the present state (NULL: not wanted).
	 * For a training executor with PRECISION_F16. NULL unless reduced is set. */
	int (*grad_scaler)(struct executor *executor, const struct grad_scaler_state *begin,
			   struct grad_scaler_state *now, struct error *err);
};
/* Those of device's executor. */
bool device_executor_accepts_raw(const struct device *device);
bool device_executor_reduced(const struct device *device);

/* An executor on any device. device_executor_read waits for the
 * queue and starts new sums. device_executor_free accepts NULL. */
struct device_executor; /* opaque */
int device_executor_new(struct device_queue *queue, const struct executor_request *request,
			struct device_executor **out, struct error *err);
int device_executor_run(struct device_executor *executor, const struct executor_input *input,
			struct error *err);
int device_executor_read(struct device_executor *executor, struct executor_totals *out,
			 struct error *err);
/* In training: request the sum of the ranks' votes in the last update. Does not wait; one request
 * at a time. */
int device_executor_start_votes(struct device_executor *executor, struct error *err);
/* Get the answer to the last request. If the device runs asynchronously this waits for that update,
 * but not if further updates have run since. */
int device_executor_finish_votes(struct device_executor *executor, float *out, struct error *err);
/* As executor_ops.grad_scaler. Devices without it ignore begin and report in now that nothing is
 * scaled. */
int device_executor_grad_scaler(struct device_executor *executor,
				const struct grad_scaler_state *begin,
				struct grad_scaler_state *now, struct error *err);
void device_executor_free(struct device_executor *executor);

#endif
