/* SPDX-License-Identifier: BSD-3-Clause */
/* The body of kernels.cu, separate so that tests can compile it for the host with their own LAUNCH,
 * threadIdx and __syncthreads.
 *
 * Rows and channels: most kernels see [rows][c]. They give a thread V adjacent channels (16 bytes)
 * of every so many rows, so that per-channel data are read once. */
#include "train/device/cuda/kernels/kernels.h"

#include "train/device/cuda/kernels/element.h"

#define THREADS 256
#define BLOCKS_EACH 8 /* per multiprocessor, for kernels that stream through memory */
#define PARTS_MAX 1024

#include "train/device/cuda/kernels/kernels_threads.cuh"
#include "train/device/cuda/kernels/kernels_input.cuh"
#include "train/device/cuda/kernels/kernels_norm.cuh"
#include "train/device/cuda/kernels/kernels_loss.cuh"

namespace
{

/* ---- on a stream ---- */

dim3 finish_grid(int c)
{
	return dim3((unsigned)((c + FINISH_LANES - 1) / FINISH_LANES), 1, 1);
}

#define FINISH_BLOCK dim3(FINISH_LANES, FINISH_ROWS, 1)

template <typename T, int V>
void norm_moments_as(const struct kernel_config *config, const struct kernel_norm &call)
{
	tiles at = tiles_for(config->multiprocessors, call.rows, call.c / V);

	if (!call.sums)
		LAUNCH((norm_sums_kernel<T, V>), at.grid, THREADS, config->stream, call, at.lanes);
	LAUNCH(norm_finish_kernel<T>, finish_grid(call.c), FINISH_BLOCK, config->stream, call,
	       (int)at.grid.y);
}

template <typename T, int V>
void norm_apply_as(const struct kernel_config *config, const struct kernel_norm &call)
{
	tiles at = tiles_for(config->multiprocessors, call.rows, call.c / V);

	LAUNCH((norm_apply_kernel<T, V>), at.grid, THREADS, config->stream, call, at.lanes);
}

template <typename T, int V>
void norm_back_as(const struct kernel_config *config, struct kernel_norm call)
{
	tiles at = tiles_for(config->multiprocessors, call.rows, call.c / V);
	/* The totals lie behind the parts. */
	float *means = call.scratch + 2 * (size_t)at.grid.y * (size_t)call.c;
	bool kept = call.dz && !call.add_dz;

	if (call.back_sums)
		call.relu = false;
	else
		LAUNCH((norm_back_sums_kernel<T, V>), at.grid, THREADS, config->stream, call,
		       at.lanes);
	LAUNCH(norm_back_finish_kernel, finish_grid(call.c), FINISH_BLOCK, config->stream, call,
	       (int)at.grid.y, means);
	if (!call.dx)
		return;
	/* dz is what reached it, so dy and y need not be read again. */
	if (kept) {
		call.dy = call.dz;
		call.relu = false;
	}
	LAUNCH((norm_back_apply_kernel<T, V>), at.grid, THREADS, config->stream, call,
	       (const float *)means, at.lanes);
}

template <typename T, int V>
void bias_back_as(const struct kernel_config *config, const T *dy, float *db, int64_t rows, int c,
		  bool add, float *scratch)
{
	tiles at = tiles_for(config->multiprocessors, rows, c / V);

	LAUNCH((bias_sums_kernel<T, V>), at.grid, THREADS, config->stream, dy, rows, c, at.lanes,
	       scratch);
	LAUNCH(bias_finish_kernel, finish_grid(c), FINISH_BLOCK, config->stream,
	       (const float *)scratch, (int)at.grid.y, c, db, add);
}

} // namespace

/* The statement for config's number type, as T. */
#define BY_NUMBER(...)                                                                             \
	switch (config->number) {                                                                  \
	case NUMBER_F32: {                                                                         \
		typedef float T;                                                                   \
		__VA_ARGS__;                                                                       \
		break;                                                                             \
	}                                                                                          \
	case NUMBER_F16: {                                                                         \
		typedef f16 T;                                                                     \
		__VA_ARGS__;                                                                       \
		break;                                                                             \
	}                                                                                          \
	case NUMBER_BF16: {                                                                        \
		typedef bf16 T;                                                                    \
		__VA_ARGS__;                                                                       \
		break;                                                                             \
	}                                                                                          \
	}

/* The same, with the channels that a thread takes at once as V: 16 bytes if c is a multiple of
 * that, else one channel. */
#define BY_VECTOR(c, ...)                                                                          \
	BY_NUMBER(                                                                                 \
		if ((c) % (16 / sizeof(T))) {                                                      \
			constexpr int V = 1;                                                       \
			__VA_ARGS__;                                                               \
		} else {                                                                           \
			constexpr int V = 16 / sizeof(T);                                          \
			__VA_ARGS__;                                                               \
		})

extern "C" {

void kernel_input(const struct kernel_config *config, const struct kernel_input *call)
{
	int64_t pixels = (int64_t)call->n * call->h * call->w;

	BY_NUMBER(
		LAUNCH(input_kernel<T>, blocks_for(config, pixels), THREADS, config->stream, *call))
}

void kernel_weights(const struct kernel_config *config, const struct kernel_weight *list, int count)
{
	/* The largest weight takes 72 rounds of this. */
	dim3 grid(128, (unsigned)count, 1);

	if (count > 0)
		BY_NUMBER(LAUNCH(weights_kernel<T>, grid, THREADS, config->stream, list))
}

void kernel_weight_gradient(const struct kernel_config *config, const void *from, float *to,
			    int outputs, int channels, int inner, int padded, bool add)
{
	int64_t count = (int64_t)outputs * channels * inner;

	BY_NUMBER(LAUNCH(weight_gradient_kernel<T>, blocks_for(config, count), THREADS,
			 config->stream, (const T *)from, to, count, channels, inner, padded, add))
}

void kernel_fill(const struct kernel_config *config, void *to, size_t count, unsigned seed)
{
	BY_NUMBER(LAUNCH(fill_kernel<T>, blocks_for(config, (int64_t)count), THREADS,
			 config->stream, (T *)to, (int64_t)count, seed))
}

void kernel_relu(const struct kernel_config *config, const void *x, void *y, size_t count)
{
	BY_NUMBER(LAUNCH(relu_kernel<T>, blocks_for(config, (int64_t)count), THREADS,
			 config->stream, (const T *)x, (T *)y, (int64_t)count))
}

void kernel_relu_back(const struct kernel_config *config, const void *y, const void *dy, void *dx,
		      size_t count, bool add)
{
	BY_NUMBER(LAUNCH(relu_back_kernel<T>, blocks_for(config, (int64_t)count), THREADS,
			 config->stream, (const T *)y, (const T *)dy, (T *)dx, (int64_t)count, add))
}

void kernel_sum(const struct kernel_config *config, const void *a, const void *b, void *y,
		size_t count)
{
	BY_NUMBER(LAUNCH(sum_kernel<T>, blocks_for(config, (int64_t)count), THREADS, config->stream,
			 (const T *)a, (const T *)b, (T *)y, (int64_t)count))
}

void kernel_copy(const struct kernel_config *config, const void *from, void *to, size_t count,
		 bool add)
{
	BY_NUMBER(LAUNCH(copy_kernel<T>, blocks_for(config, (int64_t)count), THREADS,
			 config->stream, (const T *)from, (T *)to, (int64_t)count, add))
}

void kernel_bias(const struct kernel_config *config, void *y, const float *b, int64_t rows, int c)
{
	BY_NUMBER(LAUNCH(bias_kernel<T>, blocks_for(config, rows * c), THREADS, config->stream,
			 (T *)y, b, rows * c, c))
}

int kernel_parts(int multiprocessors, int64_t rows, int c)
{
	/* Any number of channels per thread may be used, so take the most parts; one more holds the
	 * totals. */
	int most = 0;

	for (int v = 1; v <= 8; v *= 2) {
		int parts = (int)tiles_for(multiprocessors, rows, (c + v - 1) / v).grid.y;

		most = parts > most ? parts : most;
	}
	return most + 1;
}

void kernel_bias_back(const struct kernel_config *config, const void *dy, float *db, int64_t rows,
		      int c, bool add, float *scratch)
{
	BY_VECTOR(c, bias_back_as<T, V>(config, (const T *)dy, db, rows, c, add, scratch))
}

void kernel_norm(const struct kernel_config *config, const struct kernel_norm *call)
{
	if (call->training)
		kernel_norm_moments(config, call);
	else
		LAUNCH(norm_running_kernel, (call->c + THREADS - 1) / THREADS, THREADS,
		       config->stream, *call);
	kernel_norm_apply(config, call);
}

void kernel_norm_moments(const struct kernel_config *config, const struct kernel_norm *call)
{
	BY_VECTOR(call->c, norm_moments_as<T, V>(config, *call))
}

void kernel_norm_apply(const struct kernel_config *config, const struct kernel_norm *call)
{
	BY_VECTOR(call->c, norm_apply_as<T, V>(config, *call))
}

void kernel_norm_back(const struct kernel_config *config, const struct kernel_norm *call)
{
	BY_VECTOR(call->c, norm_back_as<T, V>(config, *call))
}

void kernel_maxpool(const struct kernel_config *config, const struct kernel_pool *call)
{
	int64_t items = (int64_t)call->n * call->out_h * call->out_w * call->c;

	BY_VECTOR(call->c, LAUNCH((maxpool_kernel<T, V>), blocks_for(config, items / V), THREADS,
				  config->stream, *call))
}

void kernel_maxpool_back(const struct kernel_config *config, const struct kernel_pool *call)
{
	int64_t items = (int64_t)call->n * call->h * call->w * call->c;

	BY_VECTOR(call->c, LAUNCH((maxpool_back_kernel<T, V>), blocks_for(config, items / V),
				  THREADS, config->stream, *call))
}

void kernel_avgpool(const struct kernel_config *config, const struct kernel_pool *call)
{
	BY_NUMBER(LAUNCH(avgpool_kernel<T>, blocks_for(config, (int64_t)call->n * call->c), THREADS,
			 config->stream, *call))
}

void kernel_avgpool_back(const struct kernel_config *config, const struct kernel_pool *call)
{
	BY_NUMBER(LAUNCH(avgpool_back_kernel<T>,
			 blocks_for(config, (int64_t)call->n * call->h * call->w * call->c),
			 THREADS, config->stream, *call))
}

void kernel_loss(const struct kernel_config *config, const struct kernel_loss *call)
{
	if (call->n < 1)
		return;
	if (call->mse)
		BY_NUMBER(LAUNCH(mse_kernel<T>, call->n, LOSS_THREADS, config->stream, *call))
	else
		BY_NUMBER(LAUNCH(entropy_kernel<T>, call->n, LOSS_THREADS, config->stream, *call))
}

void kernel_count(const struct kernel_config *config, const float *losses,
		  const int32_t *label_ranks, const struct kernel_run_params *run,
		  struct kernel_totals *totals, float *vote)
{
	LAUNCH(count_kernel, 1, THREADS, config->stream, losses, label_ranks, run, totals, vote);
}

void kernel_update(const struct kernel_config *config, const struct kernel_update *call)
{
	dim3 grid((unsigned)(call->count > 8 ? 128 : config->multiprocessors * BLOCKS_EACH),
		  (unsigned)call->count, 1);

	if (call->count > 0)
		LAUNCH(update_kernel, grid, THREADS, config->stream, *call);
}

void kernel_finite(const struct kernel_config *config, const float *gradients, size_t count,
		   struct kernel_scaler *scaler)
{
	LAUNCH(finite_kernel, blocks_for(config, (int64_t)count), THREADS, config->stream,
	       gradients, (int64_t)count, scaler);
}

void kernel_scaler_next(const struct kernel_config *config, struct kernel_scaler *scaler)
{
	LAUNCH(scaler_kernel, 1, 1, config->stream, scaler);
}

} // extern "C"
