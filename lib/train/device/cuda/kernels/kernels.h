/* SPDX-License-Identifier: BSD-3-Clause */
/* berth's own GPU kernels, as C calls that put them on a stream: everything that cuDNN and cuBLASLt
 * do not do better. Activations are NHWC in one of three types, channels fastest. Sums are float32
 * or wider and always in one order, so that the same input gives the same bits on the same GPU.
 *
 * Pointers are device memory. Calls do not wait and report nothing: a failed launch shows in
 * cudaGetLastError after them. A CUDA graph can capture all of them. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_KERNELS_KERNELS_H
#define BERTH_TRAIN_DEVICE_CUDA_KERNELS_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum number { NUMBER_F32, NUMBER_F16, NUMBER_BF16 };

/* The stream and the number type of a call. multiprocessors is the GPU's; it determines the number
 * of blocks. */
struct kernel_config {
	cudaStream_t stream;
	enum number number;
	int multiprocessors;
};

/* Does the module contain code for this GPU? cudaSuccess, or the error. */
cudaError_t kernels_usable(void);

/* ---- input and layouts ---- */

/* Convert a batch [n][c][h][w] to [n][h][w][padded]. crops (top, left, flip per sample; NULL: none)
 * says how to crop and flip. Bytes are mapped through table [c][256]; floats stay (table NULL).
 * Further channels are 0. */
struct kernel_input {
	const void *raw;
	const uint32_t *index; /* position of each sample in raw; NULL: in order */
	const int32_t *crops;
	const float *table;
	void *out;
	int n, c, h, w, padded, pad;
};
void kernel_input(const struct kernel_config *config, const struct kernel_input *call);

/* A weight, float32 [outputs][channels][inner], converted to [outputs][inner][padded] in the
 * type. */
struct kernel_weight {
	const float *from;
	void *to;
	int outputs, channels, inner, padded;
};
/* Convert count weights at once; list is device memory. */
void kernel_weights(const struct kernel_config *config, const struct kernel_weight *list,
		    int count);
/* Convert a weight's gradient back; add: add to what is there. */
void kernel_weight_gradient(const struct kernel_config *config, const void *from, float *to,
			    int outputs, int channels, int inner, int padded, bool add);

/* Fill with count numbers between -1 and 1, the same for the same seed: test data for the
 * tuning. */
void kernel_fill(const struct kernel_config *config, void *to, size_t count, unsigned seed);

/* ---- layers ---- */

/* count elements. y may be x; dx may be dy unless add. */
void kernel_relu(const struct kernel_config *config, const void *x, void *y, size_t count);
void kernel_relu_back(const struct kernel_config *config, const void *y, const void *dy, void *dx,
		      size_t count, bool add);
void kernel_sum(const struct kernel_config *config, const void *a, const void *b, void *y,
		size_t count);
/* to = from, or to += from. */
void kernel_copy(const struct kernel_config *config, const void *from, void *to, size_t count,
		 bool add);

/* [rows][c] += b [c], in place. */
void kernel_bias(const struct kernel_config *config, void *y, const float *b, int64_t rows, int c);

/* Sums down the rows are made in parts. Return how many, for c channels of rows rows. Scratch is 2
 * * parts * c floats. */
int kernel_parts(int multiprocessors, int64_t rows, int c);
/* db (+)= sums of dy down its rows. */
void kernel_bias_back(const struct kernel_config *config, const void *dy, float *db, int64_t rows,
		      int c, bool add, float *scratch);

/* Batch norm of x [rows][c], with an addition and a ReLU. saved: [4][c], written forward: mean,
 * 1/std, scale, shift. */
struct kernel_norm {
	int64_t rows;
	int c;
	float eps, momentum;
	bool training, relu;
	const void *x, *z; /* z: added before the ReLU, or NULL */
	void *y;
	const float *w, *b;
	float *mean, *variance; /* running statistics; training changes them */
	float *saved;
	const float *sums; /* [2][c]: sums of x and of its squares, from the kernel that made x;
			      NULL: computed here */
	float *scratch;	   /* 2 * kernel_parts * c */
	/* Written with saved for a convolution that applies this batch norm itself; NULL: not. Only
	 * for 16-bit types: [2][c] in the type, scale and shift; then [2][c] float32, w and b. */
	void *apply_params;
	/* Backward. y is read if there are both z and a ReLU. z_added: there was a z. */
	bool z_added, add_dx, add_dz, add_dw;
	const void *dy;
	void *dx, *dz; /* or NULL; dz may be dy */
	float *dw, *db;
	/* [2][c]: sums of dy and of dy (x - mean) / std, already past the ReLU, from the kernel
	 * that made dy. NULL: computed here. */
	const float *back_sums;
};
void kernel_norm(const struct kernel_config *config, const struct kernel_norm *call);
/* Its first half only, in training: saved and the running statistics. */
void kernel_norm_moments(const struct kernel_config *config, const struct kernel_norm *call);
/* Its second half only: y from saved. */
void kernel_norm_apply(const struct kernel_config *config, const struct kernel_norm *call);
void kernel_norm_back(const struct kernel_config *config, const struct kernel_norm *call);

/* Pooling of [n][h][w][c] to [n][out_h][out_w][c]. argmax: one byte per element of y, the position
 * of the maximum in its window. Written forward (NULL: not), read backward. */
struct kernel_pool {
	int n, h, w, c, out_h, out_w, kernel, stride, pad;
	const void *x, *dy;
	void *y, *dx;
	unsigned char *argmax;
	bool add;
};
void kernel_maxpool(const struct kernel_config *config, const struct kernel_pool *call);
void kernel_maxpool_back(const struct kernel_config *config, const struct kernel_pool *call);
/* The mean of each plane. It uses n, h, w, c, x, y, dy, dx and add of the pool. */
void kernel_avgpool(const struct kernel_config *config, const struct kernel_pool *call);
void kernel_avgpool_back(const struct kernel_config *config, const struct kernel_pool *call);

/* ---- loss, counts, update ---- */

/* Parameters of one run in device memory, where a captured graph reads them. */
struct kernel_run_params {
	float lr;
	float share; /* 1 / samples of the update */
	int32_t count;
	int32_t first; /* the first run of an update */
	int64_t step;
	float vote;
};

/* struct executor_totals (executor.h) in device memory. */
struct kernel_totals {
	double loss_sum, last_loss_sum;
	int64_t samples, top1, top5, last_samples, first_nonfinite_step;
};

/* The loss scale, and whether a non-finite gradient was found. */
struct kernel_scaler {
	float scale;
	int32_t growth_tracker;
	int32_t found_inf;
	int32_t skipped; /* updates skipped since the last read */
};

/* For logits [n][classes], compute losses [n]; label_ranks [n] as OP_LABEL_RANK (NULL: not); and dx
 * in the type (NULL: not). dx is multiplied by share, and by scaler's scale if there is one. A
 * target outside 0..classes - 1 makes the loss NaN. */
struct kernel_loss {
	const void *x;
	const void *target; /* int32 [n]; mse: float [n][classes] */
	float *losses;
	int32_t *label_ranks;
	void *dx;
	const float *share;
	const struct kernel_scaler *scaler; /* or NULL */
	int n, classes;
	bool mse;
	float smoothing;
};
void kernel_loss(const struct kernel_config *config, const struct kernel_loss *call);
/* Add a run's losses to totals; label_ranks NULL: no top counts. vote (may be NULL) becomes NaN if
 * a loss since totals was cleared is not finite. */
void kernel_count(const struct kernel_config *config, const float *losses,
		  const int32_t *label_ranks, const struct kernel_run_params *run,
		  struct kernel_totals *totals, float *vote);

/* Parts of the flat buffers; list: device memory. */
struct kernel_param_range {
	int64_t offset, count;
	float weight_decay;
};
struct kernel_update {
	float *weights, *momentum;
	const float *gradients;
	const struct kernel_param_range *list;
	int count;
	float momentum_factor;
	bool nesterov;
	const float *lr;
	const struct kernel_scaler *scaler; /* or NULL; if found_inf is set, nothing changes */
};
void kernel_update(const struct kernel_config *config, const struct kernel_update *call);
/* Set scaler->found_inf if a gradient is not finite. */
void kernel_finite(const struct kernel_config *config, const float *gradients, size_t count,
		   struct kernel_scaler *scaler);
/* After the update: compute the next scale and clear found_inf. */
void kernel_scaler_next(const struct kernel_config *config, struct kernel_scaler *scaler);

#ifdef __cplusplus
}
#endif
#endif
