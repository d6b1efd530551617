/* SPDX-License-Identifier: BSD-3-Clause */
/* What kernels.cu is made of; beside it so that the tests can compile it for the host, where
 * LAUNCH, threadIdx and __syncthreads are others.
 *
 * Rows and channels: most kernels see [rows][c] and give a thread V neighbouring channels (16
 * bytes) of every so many rows, so that what belongs to a channel is read once. */
#include "train/device/cuda/kernels.h"

#include "train/device/cuda/element.h"

#define THREADS 256
#define BLOCKS_EACH 8 /* of a multiprocessor, for what runs through memory */
#define PARTS_MOST 1024

namespace
{

__device__ __forceinline__ float number_in(float value)
{
	return value;
}
__device__ __forceinline__ float number_in(f16 value)
{
	return f32_of_f16(value);
}
__device__ __forceinline__ float number_in(bf16 value)
{
	return f32_of_bf16(value);
}
__device__ __forceinline__ void number_out(float *to, float value)
{
	*to = value;
}
__device__ __forceinline__ void number_out(f16 *to, float value)
{
	*to = f16_of_f32(value);
}
__device__ __forceinline__ void number_out(bf16 *to, float value)
{
	*to = bf16_of_f32(value);
}

/* V numbers that are read and written at once. */
template <typename T, int V> struct alignas(sizeof(T) * V) pack {
	T at[V];
};

template <typename T, int V> __device__ __forceinline__ void load(const T *from, float *out)
{
	const pack<T, V> all = *reinterpret_cast<const pack<T, V> *>(from);

#pragma unroll
	for (int v = 0; v < V; v++)
		out[v] = number_in(all.at[v]);
}

template <typename T, int V> __device__ __forceinline__ void store(T *to, const float *values)
{
	pack<T, V> all;

#pragma unroll
	for (int v = 0; v < V; v++)
		number_out(&all.at[v], values[v]);
	*reinterpret_cast<pack<T, V> *>(to) = all;
}

__device__ __forceinline__ int64_t thread_index()
{
	return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t thread_count()
{
	return (int64_t)gridDim.x * blockDim.x;
}

/* ---- where threads work ---- */

int blocks_for(const struct kernel_on *on, int64_t items)
{
	int64_t wanted = (items + THREADS - 1) / THREADS;
	int64_t most = (int64_t)on->multiprocessors * BLOCKS_EACH;

	return (int)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* A block's threads as lanes (groups of V channels) by rows_at_once, the grid as groups by parts of
 * the rows. */
struct tiles {
	int lanes, rows_at_once;
	dim3 grid;
};

int lanes_for(int groups)
{
	int lanes = 1;

	while (lanes < groups && lanes < 64)
		lanes *= 2;
	return lanes;
}

tiles tiles_for(int multiprocessors, int64_t rows, int groups)
{
	tiles out;
	int64_t across, parts, most;

	out.lanes = lanes_for(groups);
	out.rows_at_once = THREADS / out.lanes;
	across = (groups + out.lanes - 1) / out.lanes;
	most = ((int64_t)multiprocessors * 4 + across - 1) / across;
	parts = (rows + out.rows_at_once - 1) / out.rows_at_once;
	parts = parts < most ? parts : most;
	parts = parts < PARTS_MOST ? parts : PARTS_MOST;
	out.grid = dim3((unsigned)across, (unsigned)(parts < 1 ? 1 : parts), 1);
	return out;
}

/* How many channels a thread takes at once: those of 16 bytes where c is a multiple of it. */
int vector_of(enum number number, int c)
{
	int v = number == NUMBER_F32 ? 4 : 8;

	return c % v ? 1 : v;
}

/* A thread's place in tiles. */
struct seat {
	int channel; /* the first of V; >= c: none */
	int64_t row, end, step;
};

template <int V> __device__ __forceinline__ seat seat_of(int lanes, int64_t rows)
{
	seat out;
	int64_t each = (rows + gridDim.y - 1) / gridDim.y;
	int64_t begin = each * blockIdx.y, end = begin + each;

	out.channel = (int)(blockIdx.x * lanes + threadIdx.x % lanes) * V;
	out.step = blockDim.x / lanes;
	out.row = begin + threadIdx.x / lanes;
	out.end = end < rows ? end : rows;
	return out;
}

/* Sums of two numbers a channel over a block's rows, to parts [2][gridDim.y][c]. */
template <int V>
__device__ __forceinline__ void sum_rows(float (&one)[V], float (&two)[V], const seat &at,
					 int lanes, int c, float *parts)
{
	__shared__ float shared[2][THREADS][V];

#pragma unroll
	for (int v = 0; v < V; v++) {
		shared[0][threadIdx.x][v] = one[v];
		shared[1][threadIdx.x][v] = two[v];
	}
	for (int half = blockDim.x / 2; half >= lanes; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
#pragma unroll
			for (int v = 0; v < V; v++) {
				shared[0][threadIdx.x][v] += shared[0][threadIdx.x + half][v];
				shared[1][threadIdx.x][v] += shared[1][threadIdx.x + half][v];
			}
		}
	}
	__syncthreads();
	if ((int)threadIdx.x < lanes && at.channel < c) {
#pragma unroll
		for (int v = 0; v < V; v++) {
			int64_t place = (int64_t)blockIdx.y * c + at.channel + v;

			parts[place] = shared[0][threadIdx.x][v];
			parts[(int64_t)gridDim.y * c + place] = shared[1][threadIdx.x][v];
		}
	}
}

/* The parts of a channel, summed by 8 threads: for blocks of (32, 8). What the threads with
 * threadIdx.y 0 get back is the whole. */
#define FINISH_LANES 32
#define FINISH_ROWS 8
__device__ __forceinline__ void sum_parts(const float *parts, int count, int c, int channel,
					  double *one, double *two)
{
	__shared__ double shared[2][FINISH_ROWS][FINISH_LANES];
	double sums[2] = {0, 0};

	if (channel < c)
		for (int i = threadIdx.y; i < count; i += FINISH_ROWS) {
			sums[0] += (double)parts[(int64_t)i * c + channel];
			sums[1] += (double)parts[(int64_t)(count + i) * c + channel];
		}
	shared[0][threadIdx.y][threadIdx.x] = sums[0];
	shared[1][threadIdx.y][threadIdx.x] = sums[1];
	__syncthreads();
	for (int i = 1; threadIdx.y == 0 && i < FINISH_ROWS; i++) {
		sums[0] += shared[0][i][threadIdx.x];
		sums[1] += shared[1][i][threadIdx.x];
	}
	*one = sums[0];
	*two = sums[1];
}

/* ---- input and layouts ---- */

template <typename T> __global__ void input_kernel(struct kernel_input call)
{
	int64_t pixels = (int64_t)call.n * call.h * call.w;

	for (int64_t i = thread_index(); i < pixels; i += thread_count()) {
		int x = (int)(i % call.w), y = (int)(i / call.w % call.h);
		int64_t n = i / call.w / call.h;
		int64_t sample = call.index ? (int64_t)call.index[n] : n;
		int top = call.pad, left = call.pad, flip = 0, from_y, from_x;

		if (call.places) {
			top = call.places[n * 3];
			left = call.places[n * 3 + 1];
			flip = call.places[n * 3 + 2];
		}

		bool inside = crop_source(call.h, call.w, call.pad, top, left, flip != 0, y, x,
					  &from_y, &from_x);
		T *out = (T *)call.out + i * call.padded;

		for (int c = 0; c < call.padded; c++) {
			int64_t at = ((sample * call.c + c) * call.h + from_y) * call.w + from_x;
			float value = 0;

			if (c < call.c && call.table)
				value = call.table[c * 256 +
						   (inside ? ((const unsigned char *)call.raw)[at]
							   : 0)];
			else if (c < call.c && inside)
				value = ((const float *)call.raw)[at];
			number_out(out + c, value);
		}
	}
}

template <typename T>
__global__ void output_kernel(const T *from, float *to, int n, int c, int hw, bool add)
{
	int64_t count = (int64_t)n * c * hw;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		float value = number_in(from[weight_place(i, c, hw, c)]);

		to[i] = add ? to[i] + value : value;
	}
}

template <typename T> __global__ void weights_kernel(const struct kernel_weight *list)
{
	const struct kernel_weight part = list[blockIdx.y];
	int64_t count = (int64_t)part.outputs * part.inner * part.padded;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		int64_t from;
		bool real = weight_source(i, part.channels, part.inner, part.padded, &from);

		number_out((T *)part.to + i, real ? part.from[from] : 0);
	}
}

template <typename T>
__global__ void weight_gradient_kernel(const T *from, float *to, int64_t count, int channels,
				       int inner, int padded, bool add)
{
	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		float value = number_in(from[weight_place(i, channels, inner, padded)]);

		to[i] = add ? to[i] + value : value;
	}
}

template <typename T> __global__ void fill_kernel(T *to, int64_t count, unsigned seed)
{
	for (int64_t i = thread_index(); i < count; i += thread_count())
		number_out(to + i, made_number(seed, (uint64_t)i));
}

/* ---- elements ---- */

template <typename T> __global__ void relu_kernel(const T *x, T *y, int64_t count)
{
	for (int64_t i = thread_index(); i < count; i += thread_count())
		number_out(y + i, relu(number_in(x[i])));
}

template <typename T>
__global__ void relu_back_kernel(const T *y, const T *dy, T *dx, int64_t count, bool add)
{
	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		float value = relu_gradient(number_in(y[i]), number_in(dy[i]));

		number_out(dx + i, add ? number_in(dx[i]) + value : value);
	}
}

template <typename T> __global__ void sum_kernel(const T *a, const T *b, T *y, int64_t count)
{
	for (int64_t i = thread_index(); i < count; i += thread_count())
		number_out(y + i, number_in(a[i]) + number_in(b[i]));
}

template <typename T> __global__ void copy_kernel(const T *from, T *to, int64_t count, bool add)
{
	for (int64_t i = thread_index(); i < count; i += thread_count())
		number_out(to + i, add ? number_in(to[i]) + number_in(from[i]) : number_in(from[i]));
}

template <typename T> __global__ void bias_kernel(T *y, const float *b, int64_t count, int c)
{
	for (int64_t i = thread_index(); i < count; i += thread_count())
		number_out(y + i, number_in(y[i]) + b[i % c]);
}

template <typename T, int V>
__global__ void bias_sums_kernel(const T *dy, int64_t rows, int c, int lanes, float *parts)
{
	seat at = seat_of<V>(lanes, rows);
	float sums[V] = {}, none[V] = {}, values[V];

	if (at.channel < c)
		for (int64_t row = at.row; row < at.end; row += at.step) {
			load<T, V>(dy + row * c + at.channel, values);
#pragma unroll
			for (int v = 0; v < V; v++)
				sums[v] += values[v];
		}
	sum_rows<V>(sums, none, at, lanes, c, parts);
}

__global__ void bias_finish_kernel(const float *parts, int count, int c, float *db, bool add)
{
	int channel = blockIdx.x * FINISH_LANES + threadIdx.x;
	double sum, none;

	sum_parts(parts, count, c, channel, &sum, &none);
	if (threadIdx.y == 0 && channel < c)
		db[channel] = (float)(add ? (double)db[channel] + sum : sum);
}

/* ---- batch norm ---- */

/* saved's rows */
#define SAVED_MEAN 0
#define SAVED_INVSTD 1
#define SAVED_SCALE 2
#define SAVED_SHIFT 3

template <typename T, int V>
__global__ void norm_sums_kernel(struct kernel_norm call, int lanes)
{
	const T *x = (const T *)call.x;
	seat at = seat_of<V>(lanes, call.rows);
	float sums[V] = {}, squares[V] = {}, values[V], shift[V];

	if (at.channel < call.c) {
		load<T, V>(x + at.channel, shift);
		for (int64_t row = at.row; row < at.end; row += at.step) {
			load<T, V>(x + row * call.c + at.channel, values);
#pragma unroll
			for (int v = 0; v < V; v++) {
				float off = values[v] - shift[v];

				sums[v] += off;
				squares[v] = fmaf(off, off, squares[v]);
			}
		}
	}
	sum_rows<V>(sums, squares, at, lanes, call.c, call.scratch);
}

template <typename T> __global__ void norm_finish_kernel(struct kernel_norm call, int parts)
{
	int channel = blockIdx.x * FINISH_LANES + threadIdx.x, c = call.c;
	struct norm_sums sums;
	float shift = 0;

	if (!call.sums)
		sum_parts(call.scratch, parts, c, channel, &sums.sum, &sums.square);
	if (threadIdx.y || channel >= c)
		return;
	if (call.sums) {
		sums.sum = (double)call.sums[channel];
		sums.square = (double)call.sums[c + channel];
	} else {
		shift = number_in(((const T *)call.x)[channel]);
	}

	struct norm_moments now = norm_moments(sums, shift, call.rows, call.eps);
	float scale = call.w[channel] * now.invstd;

	call.saved[SAVED_MEAN * c + channel] = now.mean;
	call.saved[SAVED_INVSTD * c + channel] = now.invstd;
	call.saved[SAVED_SCALE * c + channel] = scale;
	call.saved[SAVED_SHIFT * c + channel] = norm_shift(now.mean, scale, call.b[channel]);
	call.mean[channel] = norm_running(call.mean[channel], now.mean, call.momentum);
	call.variance[channel] =
		norm_running(call.variance[channel], norm_unbiased(now.variance, call.rows),
			     call.momentum);
}

/* Of an evaluation: by the running statistics. */
__global__ void norm_running_kernel(struct kernel_norm call)
{
	int channel = (int)thread_index(), c = call.c;

	if (channel >= c)
		return;

	float invstd = (float)(1 / sqrt((double)call.variance[channel] + (double)call.eps));
	float scale = call.w[channel] * invstd;

	call.saved[SAVED_SCALE * c + channel] = scale;
	call.saved[SAVED_SHIFT * c + channel] =
		norm_shift(call.mean[channel], scale, call.b[channel]);
}

template <typename T, int V>
__global__ void norm_apply_kernel(struct kernel_norm call, int lanes)
{
	int c = call.c;
	seat at = seat_of<V>(lanes, call.rows);
	float scale[V], shift[V], values[V], added[V] = {};

	if (at.channel >= c)
		return;
#pragma unroll
	for (int v = 0; v < V; v++) {
		scale[v] = call.saved[SAVED_SCALE * c + at.channel + v];
		shift[v] = call.saved[SAVED_SHIFT * c + at.channel + v];
	}
	for (int64_t row = at.row; row < at.end; row += at.step) {
		/* From the end: what the sums read last is still near. */
		int64_t place = (call.rows - 1 - row) * c + at.channel;

		load<T, V>((const T *)call.x + place, values);
		if (call.z)
			load<T, V>((const T *)call.z + place, added);
#pragma unroll
		for (int v = 0; v < V; v++) {
			values[v] = norm_value(values[v], scale[v], shift[v]) + added[v];
			if (call.relu)
				values[v] = relu(values[v]);
		}
		store<T, V>((T *)call.y + place, values);
	}
}

/* What reaches the batch norm itself of its result's gradient: with a ReLU only where that let it
 * through, told by y where something was added, else by x. */
template <typename T, int V>
__device__ __forceinline__ void norm_reached(const struct kernel_norm &call, int64_t place,
					     const float *x, const float *scale, const float *shift,
					     float *g)
{
	load<T, V>((const T *)call.dy + place, g);
	if (!call.relu)
		return;
	if (call.z_added) {
		float y[V];

		load<T, V>((const T *)call.y + place, y);
#pragma unroll
		for (int v = 0; v < V; v++)
			g[v] = relu_gradient(y[v], g[v]);
		return;
	}
#pragma unroll
	for (int v = 0; v < V; v++)
		g[v] = relu_gradient(norm_value(x[v], scale[v], shift[v]), g[v]);
}

template <typename T, int V>
__global__ void norm_back_sums_kernel(struct kernel_norm call, int lanes)
{
	int c = call.c;
	seat at = seat_of<V>(lanes, call.rows);
	float sums[V] = {}, products[V] = {}, x[V], g[V], mean[V], invstd[V], scale[V], shift[V];

	if (at.channel < c) {
#pragma unroll
		for (int v = 0; v < V; v++) {
			mean[v] = call.saved[SAVED_MEAN * c + at.channel + v];
			invstd[v] = call.saved[SAVED_INVSTD * c + at.channel + v];
			scale[v] = call.saved[SAVED_SCALE * c + at.channel + v];
			shift[v] = call.saved[SAVED_SHIFT * c + at.channel + v];
		}
		for (int64_t row = at.row; row < at.end; row += at.step) {
			int64_t place = row * c + at.channel;

			load<T, V>((const T *)call.x + place, x);
			norm_reached<T, V>(call, place, x, scale, shift, g);
#pragma unroll
			for (int v = 0; v < V; v++) {
				sums[v] += g[v];
				products[v] = fmaf(g[v], (x[v] - mean[v]) * invstd[v], products[v]);
			}
			if (!call.dz)
				continue;
			if (call.add_dz) {
				float there[V];

				load<T, V>((const T *)call.dz + place, there);
#pragma unroll
				for (int v = 0; v < V; v++)
					g[v] += there[v];
			}
			store<T, V>((T *)call.dz + place, g);
		}
	}
	sum_rows<V>(sums, products, at, lanes, c, call.scratch);
}

/* sums: [2][c], the means of g and of g xhat, where the first of the parts were. */
__global__ void norm_back_finish_kernel(struct kernel_norm call, int parts, float *means)
{
	int channel = blockIdx.x * FINISH_LANES + threadIdx.x, c = call.c;
	double sum, product;

	sum_parts(call.scratch, parts, c, channel, &sum, &product);
	if (threadIdx.y || channel >= c)
		return;
	means[channel] = (float)(sum / (double)call.rows);
	means[c + channel] = (float)(product / (double)call.rows);
	if (call.dw)
		call.dw[channel] =
			(float)(call.add_dw ? (double)call.dw[channel] + product : product);
	if (call.db)
		call.db[channel] = (float)(call.add_dw ? (double)call.db[channel] + sum : sum);
}

template <typename T, int V>
__global__ void norm_back_apply_kernel(struct kernel_norm call, const float *means, int lanes)
{
	int c = call.c;
	seat at = seat_of<V>(lanes, call.rows);
	float x[V], g[V], mean[V], invstd[V], scale[V], shift[V], mean_g[V], mean_gx[V];

	if (at.channel >= c)
		return;
#pragma unroll
	for (int v = 0; v < V; v++) {
		mean[v] = call.saved[SAVED_MEAN * c + at.channel + v];
		invstd[v] = call.saved[SAVED_INVSTD * c + at.channel + v];
		scale[v] = call.saved[SAVED_SCALE * c + at.channel + v];
		shift[v] = call.saved[SAVED_SHIFT * c + at.channel + v];
		mean_g[v] = means[at.channel + v];
		mean_gx[v] = means[c + at.channel + v];
	}
	for (int64_t row = at.row; row < at.end; row += at.step) {
		int64_t place = (call.rows - 1 - row) * c + at.channel;

		load<T, V>((const T *)call.x + place, x);
		norm_reached<T, V>(call, place, x, scale, shift, g);
#pragma unroll
		for (int v = 0; v < V; v++)
			g[v] = norm_gradient(g[v], x[v], mean[v], invstd[v], scale[v], mean_g[v],
					     mean_gx[v]);
		if (call.add_dx) {
			float there[V];

			load<T, V>((const T *)call.dx + place, there);
#pragma unroll
			for (int v = 0; v < V; v++)
				g[v] += there[v];
		}
		store<T, V>((T *)call.dx + place, g);
	}
}

/* ---- pooling ---- */

template <typename T> __global__ void maxpool_kernel(struct kernel_pool call)
{
	int64_t count = (int64_t)call.n * call.out_h * call.out_w * call.c;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		int c = (int)(i % call.c), ox = (int)(i / call.c % call.out_w);
		int oy = (int)(i / call.c / call.out_w % call.out_h);
		int64_t n = i / call.c / call.out_w / call.out_h;
		int y0 = oy * call.stride - call.pad, x0 = ox * call.stride - call.pad;
		int place = -1;
		float best = 0;

		for (int k = 0; k < call.kernel * call.kernel; k++) {
			int y = y0 + k / call.kernel, x = x0 + k % call.kernel;

			if (y < 0 || y >= call.h || x < 0 || x >= call.w)
				continue;

			float value = number_in(((
				const T *)call.x)[((n * call.h + y) * call.w + x) * call.c + c]);

			if (place < 0 || pool_better(value, best)) {
				best = value;
				place = k;
			}
		}
		number_out((T *)call.y + i, best);
		if (call.places)
			call.places[i] = (unsigned char)place;
	}
}

/* Each pixel looks at the windows that it is part of: nothing is added twice or out of order. */
template <typename T> __global__ void maxpool_back_kernel(struct kernel_pool call)
{
	int64_t count = (int64_t)call.n * call.h * call.w * call.c;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		int c = (int)(i % call.c), x = (int)(i / call.c % call.w);
		int y = (int)(i / call.c / call.w % call.h);
		int64_t n = i / call.c / call.w / call.h;
		int y_end = (y + call.pad) / call.stride, x_end = (x + call.pad) / call.stride;
		int y_room = y + call.pad - call.kernel + 1, x_room = x + call.pad - call.kernel + 1;
		int y_begin = y_room <= 0 ? 0 : (y_room + call.stride - 1) / call.stride;
		int x_begin = x_room <= 0 ? 0 : (x_room + call.stride - 1) / call.stride;
		float sum = call.add ? number_in(((const T *)call.dx)[i]) : 0;

		for (int oy = y_begin; oy <= y_end && oy < call.out_h; oy++)
			for (int ox = x_begin; ox <= x_end && ox < call.out_w; ox++) {
				int64_t at = ((n * call.out_h + oy) * call.out_w + ox) * call.c + c;
				int k = (y + call.pad - oy * call.stride) * call.kernel + x +
					call.pad - ox * call.stride;

				if (call.places[at] == k)
					sum += number_in(((const T *)call.dy)[at]);
			}
		number_out((T *)call.dx + i, sum);
	}
}

template <typename T> __global__ void avgpool_kernel(struct kernel_pool call)
{
	int64_t count = (int64_t)call.n * call.c;
	int hw = call.h * call.w;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		const T *x = (const T *)call.x + (i / call.c * hw) * call.c + i % call.c;
		float sum = 0;

		for (int s = 0; s < hw; s++)
			sum += number_in(x[(int64_t)s * call.c]);
		number_out((T *)call.y + i, sum / (float)hw);
	}
}

template <typename T> __global__ void avgpool_back_kernel(struct kernel_pool call)
{
	int hw = call.h * call.w;
	int64_t count = (int64_t)call.n * hw * call.c;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		int64_t from = i / call.c / hw * call.c + i % call.c;
		float value = number_in(((const T *)call.dy)[from]) / (float)hw;

		number_out((T *)call.dx + i, call.add ? number_in(((T *)call.dx)[i]) + value : value);
	}
}

/* ---- loss ---- */

#define LOSS_THREADS 128

/* A sum over a block of LOSS_THREADS, the same for all its threads. */
__device__ __forceinline__ float block_sum(float value)
{
	__shared__ float shared[LOSS_THREADS];

	__syncthreads();
	shared[threadIdx.x] = value;
	for (int half = LOSS_THREADS / 2; half; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half)
			shared[threadIdx.x] += shared[threadIdx.x + half];
	}
	__syncthreads();
	return shared[0];
}

__device__ __forceinline__ struct soft block_soft(struct soft value)
{
	__shared__ float most[LOSS_THREADS], sum[LOSS_THREADS];

	most[threadIdx.x] = value.most;
	sum[threadIdx.x] = value.sum;
	for (int half = LOSS_THREADS / 2; half; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			struct soft a = {most[threadIdx.x], sum[threadIdx.x]};
			struct soft b = {most[threadIdx.x + half], sum[threadIdx.x + half]};

			a = soft_merge(a, b);
			most[threadIdx.x] = a.most;
			sum[threadIdx.x] = a.sum;
		}
	}
	__syncthreads();
	value.most = most[0];
	value.sum = sum[0];
	return value;
}

template <typename T>
__device__ __forceinline__ void put_gradient(const struct kernel_loss &call, int64_t at,
					     float value)
{
	T *dx = (T *)call.dx + at;

	number_out(dx, call.add ? number_in(*dx) + value : value);
}

__device__ __forceinline__ float gradient_scale(const struct kernel_loss &call)
{
	return call.scaler ? *call.share * call.scaler->scale : *call.share;
}

template <typename T> __global__ void entropy_kernel(struct kernel_loss call)
{
	int64_t n = blockIdx.x, row = n * call.classes;
	const T *x = (const T *)call.x + row;
	int target = ((const int32_t *)call.target)[n];
	bool known = target >= 0 && target < call.classes;
	float target_x = known ? number_in(x[target]) : NAN, all = 0, before = 0;
	struct soft soft = {0, 0};

	for (int k = threadIdx.x; k < call.classes; k += blockDim.x)
		soft = soft_merge(soft, soft_of(number_in(x[k])));
	soft = block_soft(soft);

	float log_sum = soft_log(soft);

	for (int k = threadIdx.x; k < call.classes; k += blockDim.x) {
		float value = number_in(x[k]);

		all += log_sum - value;
		before += ranks_before(value, k, target_x, target);
		if (call.dx)
			put_gradient<T>(call, row + k,
					entropy_gradient(value, soft, k == target, call.smoothing,
							 call.classes, gradient_scale(call)));
	}
	all = block_sum(all);
	before = block_sum(before);
	if (threadIdx.x)
		return;
	if (call.losses)
		call.losses[n] = known ? entropy_loss(log_sum, target_x, all, call.smoothing,
						      call.classes)
				       : NAN;
	/* Nothing is larger than a NaN: without this it would count as right. */
	if (call.places)
		call.places[n] = target_x != target_x ? call.classes : (int32_t)before;
}

template <typename T> __global__ void mse_kernel(struct kernel_loss call)
{
	int64_t row = (int64_t)blockIdx.x * call.classes;
	float sum = 0;

	for (int k = threadIdx.x; k < call.classes; k += blockDim.x) {
		float off = number_in(((const T *)call.x)[row + k]) -
			    ((const float *)call.target)[row + k];

		sum += off * off;
		if (call.dx)
			put_gradient<T>(call, row + k,
					2 * off / (float)call.classes * gradient_scale(call));
	}
	sum = block_sum(sum);
	if (!threadIdx.x && call.losses)
		call.losses[blockIdx.x] = sum / (float)call.classes;
}

/* One block: a batch has some hundred samples. */
__global__ void count_kernel(const float *losses, const int32_t *places, const kernel_run *run,
			     kernel_totals *totals)
{
	__shared__ double sums[THREADS];
	__shared__ int firsts[THREADS], fives[THREADS];
	double sum = 0;
	int first = 0, five = 0;

	for (int i = threadIdx.x; i < run->count; i += blockDim.x) {
		sum += (double)losses[i];
		first += places && places[i] < 1;
		five += places && places[i] < 5;
	}
	sums[threadIdx.x] = sum;
	firsts[threadIdx.x] = first;
	fives[threadIdx.x] = five;
	for (int half = THREADS / 2; half; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			sums[threadIdx.x] += sums[threadIdx.x + half];
			firsts[threadIdx.x] += firsts[threadIdx.x + half];
			fives[threadIdx.x] += fives[threadIdx.x + half];
		}
	}
	if (threadIdx.x)
		return;
	if (run->first)
		totals->last_loss_sum = 0, totals->last_samples = 0;
	if (sums[0] - sums[0] != 0 && totals->first_bad < 0)
		totals->first_bad = run->step;
	totals->loss_sum += sums[0];
	totals->last_loss_sum += sums[0];
	totals->samples += run->count;
	totals->last_samples += run->count;
	totals->top1 += firsts[0];
	totals->top5 += fives[0];
}

/* ---- update ---- */

__global__ void update_kernel(struct kernel_update call)
{
	const struct kernel_stretch part = call.list[blockIdx.y];
	struct sgd_rule rule = {call.momentum_factor, part.weight_decay, call.nesterov};
	float lr = *call.lr, inverse = 1;

	if (call.scaler) {
		if (call.scaler->bad)
			return;
		inverse = loss_scale_inverse(call.scaler->scale);
	}
	for (int64_t i = thread_index(); i < part.count; i += thread_count()) {
		int64_t at = part.offset + i;

		call.weights[at] = sgd_element(rule, lr, call.weights[at],
					       call.gradients[at] * inverse, call.momentum + at);
	}
}

__global__ void finite_kernel(const float *gradients, int64_t count, kernel_scaler *scaler)
{
	bool bad = false;

	for (int64_t i = thread_index(); i < count; i += thread_count())
		bad = bad || !finite_f32(gradients[i]);
	if (bad)
		scaler->bad = 1; /* whoever writes it writes the same */
}

__global__ void scaler_kernel(kernel_scaler *scaler)
{
	struct loss_scale now = {scaler->scale, scaler->good};

	now = loss_scale_next(now, scaler->bad != 0);
	scaler->scale = now.scale;
	scaler->good = now.good;
	scaler->skipped += scaler->bad;
	scaler->bad = 0;
}

/* ---- on a stream ---- */

dim3 finish_grid(int c)
{
	return dim3((unsigned)((c + FINISH_LANES - 1) / FINISH_LANES), 1, 1);
}

#define FINISH_BLOCK dim3(FINISH_LANES, FINISH_ROWS, 1)

template <typename T> void norm_moments_as(const struct kernel_on *on, const struct kernel_norm &call)
{
	int v = vector_of(on->number, call.c);
	tiles at = tiles_for(on->multiprocessors, call.rows, call.c / v);
	constexpr int V = 16 / sizeof(T);

	if (!call.sums && v == V)
		LAUNCH((norm_sums_kernel<T, V>), at.grid, THREADS, on->stream, call, at.lanes);
	else if (!call.sums)
		LAUNCH((norm_sums_kernel<T, 1>), at.grid, THREADS, on->stream, call, at.lanes);
	LAUNCH(norm_finish_kernel<T>, finish_grid(call.c), FINISH_BLOCK, on->stream, call,
	       (int)at.grid.y);
}

template <typename T> void norm_forward_as(const struct kernel_on *on, const struct kernel_norm &call)
{
	int v = vector_of(on->number, call.c);
	tiles at = tiles_for(on->multiprocessors, call.rows, call.c / v);
	constexpr int V = 16 / sizeof(T);

	if (call.training) {
		norm_moments_as<T>(on, call);
	} else {
		LAUNCH(norm_running_kernel, (call.c + THREADS - 1) / THREADS, THREADS, on->stream,
		       call);
	}
	if (v == V)
		LAUNCH((norm_apply_kernel<T, V>), at.grid, THREADS, on->stream, call, at.lanes);
	else
		LAUNCH((norm_apply_kernel<T, 1>), at.grid, THREADS, on->stream, call, at.lanes);
}

template <typename T> void norm_back_as(const struct kernel_on *on, struct kernel_norm call)
{
	int v = vector_of(on->number, call.c);
	tiles at = tiles_for(on->multiprocessors, call.rows, call.c / v);
	constexpr int V = 16 / sizeof(T);
	/* Behind the parts. */
	float *means = call.scratch + 2 * (size_t)at.grid.y * (size_t)call.c;
	bool kept = call.dz && !call.add_dz;

	if (v == V)
		LAUNCH((norm_back_sums_kernel<T, V>), at.grid, THREADS, on->stream, call, at.lanes);
	else
		LAUNCH((norm_back_sums_kernel<T, 1>), at.grid, THREADS, on->stream, call, at.lanes);
	LAUNCH(norm_back_finish_kernel, finish_grid(call.c), FINISH_BLOCK, on->stream, call,
	       (int)at.grid.y, means);
	if (!call.dx)
		return;
	/* dz is what reached it: neither dy nor y is read again. */
	if (kept) {
		call.dy = call.dz;
		call.relu = false;
	}
	if (v == V)
		LAUNCH((norm_back_apply_kernel<T, V>), at.grid, THREADS, on->stream, call,
		       (const float *)means, at.lanes);
	else
		LAUNCH((norm_back_apply_kernel<T, 1>), at.grid, THREADS, on->stream, call,
		       (const float *)means, at.lanes);
}

template <typename T>
void bias_back_as(const struct kernel_on *on, const void *dy, float *db, int64_t rows, int c,
		  bool add, float *scratch)
{
	int v = vector_of(on->number, c);
	tiles at = tiles_for(on->multiprocessors, rows, c / v);
	constexpr int V = 16 / sizeof(T);

	if (v == V)
		LAUNCH((bias_sums_kernel<T, V>), at.grid, THREADS, on->stream, (const T *)dy, rows,
		       c, at.lanes, scratch);
	else
		LAUNCH((bias_sums_kernel<T, 1>), at.grid, THREADS, on->stream, (const T *)dy, rows,
		       c, at.lanes, scratch);
	LAUNCH(bias_finish_kernel, finish_grid(c), FINISH_BLOCK, on->stream, (const float *)scratch,
	       (int)at.grid.y, c, db, add);
}

} // namespace

/* The statement for the type of on, T. */
#define BY_NUMBER(statement)                                                                       \
	switch (on->number) {                                                                      \
	case NUMBER_F32: {                                                                         \
		typedef float T;                                                                   \
		statement;                                                                         \
		break;                                                                             \
	}                                                                                          \
	case NUMBER_F16: {                                                                         \
		typedef f16 T;                                                                     \
		statement;                                                                         \
		break;                                                                             \
	}                                                                                          \
	case NUMBER_BF16: {                                                                        \
		typedef bf16 T;                                                                    \
		statement;                                                                         \
		break;                                                                             \
	}                                                                                          \
	}

extern "C" {

void kernel_input(const struct kernel_on *on, const struct kernel_input *call)
{
	int64_t pixels = (int64_t)call->n * call->h * call->w;

	BY_NUMBER(LAUNCH(input_kernel<T>, blocks_for(on, pixels), THREADS, on->stream, *call))
}

void kernel_output(const struct kernel_on *on, const void *from, float *to, int n, int c, int hw,
		   bool add)
{
	int blocks = blocks_for(on, (int64_t)n * c * hw);

	BY_NUMBER(LAUNCH(output_kernel<T>, blocks, THREADS, on->stream, (const T *)from, to, n, c,
			 hw, add))
}

void kernel_weights(const struct kernel_on *on, const struct kernel_weight *list, int count)
{
	dim3 grid(32, (unsigned)count, 1);

	if (count > 0)
		BY_NUMBER(LAUNCH(weights_kernel<T>, grid, THREADS, on->stream, list))
}

void kernel_weight_gradient(const struct kernel_on *on, const void *from, float *to, int outputs,
			    int channels, int inner, int padded, bool add)
{
	int64_t count = (int64_t)outputs * channels * inner;

	BY_NUMBER(LAUNCH(weight_gradient_kernel<T>, blocks_for(on, count), THREADS, on->stream,
			 (const T *)from, to, count, channels, inner, padded, add))
}

void kernel_fill(const struct kernel_on *on, void *to, size_t count, unsigned seed)
{
	int blocks = blocks_for(on, (int64_t)count);

	BY_NUMBER(LAUNCH(fill_kernel<T>, blocks, THREADS, on->stream, (T *)to, (int64_t)count, seed))
}

void kernel_relu(const struct kernel_on *on, const void *x, void *y, size_t count)
{
	int blocks = blocks_for(on, (int64_t)count);

	BY_NUMBER(LAUNCH(relu_kernel<T>, blocks, THREADS, on->stream, (const T *)x, (T *)y,
			 (int64_t)count))
}

void kernel_relu_back(const struct kernel_on *on, const void *y, const void *dy, void *dx,
		      size_t count, bool add)
{
	int blocks = blocks_for(on, (int64_t)count);

	BY_NUMBER(LAUNCH(relu_back_kernel<T>, blocks, THREADS, on->stream, (const T *)y,
			 (const T *)dy, (T *)dx, (int64_t)count, add))
}

void kernel_sum(const struct kernel_on *on, const void *a, const void *b, void *y, size_t count)
{
	int blocks = blocks_for(on, (int64_t)count);

	BY_NUMBER(LAUNCH(sum_kernel<T>, blocks, THREADS, on->stream, (const T *)a, (const T *)b,
			 (T *)y, (int64_t)count))
}

void kernel_copy(const struct kernel_on *on, const void *from, void *to, size_t count, bool add)
{
	int blocks = blocks_for(on, (int64_t)count);

	BY_NUMBER(LAUNCH(copy_kernel<T>, blocks, THREADS, on->stream, (const T *)from, (T *)to,
			 (int64_t)count, add))
}

void kernel_bias(const struct kernel_on *on, void *y, const float *b, int64_t rows, int c)
{
	int blocks = blocks_for(on, rows * c);

	BY_NUMBER(LAUNCH(bias_kernel<T>, blocks, THREADS, on->stream, (T *)y, b, rows * c, c))
}

int kernel_parts(int multiprocessors, int64_t rows, int c)
{
	/* By single channels there are the most; one more holds what comes of them. */
	int most = 0;

	for (int v = 1; v <= 8; v *= 2) {
		int parts = (int)tiles_for(multiprocessors, rows, (c + v - 1) / v).grid.y;

		most = parts > most ? parts : most;
	}
	return most + 1;
}

void kernel_bias_back(const struct kernel_on *on, const void *dy, float *db, int64_t rows, int c,
		      bool add, float *scratch)
{
	BY_NUMBER(bias_back_as<T>(on, dy, db, rows, c, add, scratch))
}

void kernel_norm(const struct kernel_on *on, const struct kernel_norm *call)
{
	BY_NUMBER(norm_forward_as<T>(on, *call))
}

void kernel_norm_moments(const struct kernel_on *on, const struct kernel_norm *call)
{
	BY_NUMBER(norm_moments_as<T>(on, *call))
}

void kernel_norm_back(const struct kernel_on *on, const struct kernel_norm *call)
{
	BY_NUMBER(norm_back_as<T>(on, *call))
}

void kernel_maxpool(const struct kernel_on *on, const struct kernel_pool *call)
{
	int blocks = blocks_for(on, (int64_t)call->n * call->out_h * call->out_w * call->c);

	BY_NUMBER(LAUNCH(maxpool_kernel<T>, blocks, THREADS, on->stream, *call))
}

void kernel_maxpool_back(const struct kernel_on *on, const struct kernel_pool *call)
{
	int blocks = blocks_for(on, (int64_t)call->n * call->h * call->w * call->c);

	BY_NUMBER(LAUNCH(maxpool_back_kernel<T>, blocks, THREADS, on->stream, *call))
}

void kernel_avgpool(const struct kernel_on *on, const struct kernel_pool *call)
{
	int blocks = blocks_for(on, (int64_t)call->n * call->c);

	BY_NUMBER(LAUNCH(avgpool_kernel<T>, blocks, THREADS, on->stream, *call))
}

void kernel_avgpool_back(const struct kernel_on *on, const struct kernel_pool *call)
{
	int blocks = blocks_for(on, (int64_t)call->n * call->h * call->w * call->c);

	BY_NUMBER(LAUNCH(avgpool_back_kernel<T>, blocks, THREADS, on->stream, *call))
}

void kernel_loss(const struct kernel_on *on, const struct kernel_loss *call)
{
	if (call->n < 1)
		return;
	if (call->mse)
		BY_NUMBER(LAUNCH(mse_kernel<T>, call->n, LOSS_THREADS, on->stream, *call))
	else
		BY_NUMBER(LAUNCH(entropy_kernel<T>, call->n, LOSS_THREADS, on->stream, *call))
}

void kernel_count(const struct kernel_on *on, const float *losses, const int32_t *places,
		  const struct kernel_run *run, struct kernel_totals *totals)
{
	LAUNCH(count_kernel, 1, THREADS, on->stream, losses, places, run, totals);
}

void kernel_update(const struct kernel_on *on, const struct kernel_update *call)
{
	dim3 grid((unsigned)(call->count > 8 ? 32 : on->multiprocessors * BLOCKS_EACH),
		  (unsigned)call->count, 1);

	if (call->count > 0)
		LAUNCH(update_kernel, grid, THREADS, on->stream, *call);
}

void kernel_finite(const struct kernel_on *on, const float *gradients, size_t count,
		   struct kernel_scaler *scaler)
{
	LAUNCH(finite_kernel, blocks_for(on, (int64_t)count), THREADS, on->stream, gradients,
	       (int64_t)count, scaler);
}

void kernel_scaler_next(const struct kernel_on *on, struct kernel_scaler *scaler)
{
	LAUNCH(scaler_kernel, 1, 1, on->stream, scaler);
}

} // extern "C"
