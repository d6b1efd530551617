/* SPDX-License-Identifier: BSD-3-Clause */
/* Batch norm, with what is fused into it. Part of kernels.cuh. */

namespace
{

/* ---- batch norm ---- */

/* saved's rows */
#define SAVED_MEAN 0
#define SAVED_INVSTD 1
#define SAVED_SCALE 2
#define SAVED_SHIFT 3

/* Rows that are loaded together: as many as registers allow. */
#define ROWS_SUMS 4
#define ROWS_APPLY 2
#define ROWS_BACK 2

/* The channels of a row, from one to three tensors. */
template <int V> struct loaded1 {
	float x[V];
};
template <int V> struct loaded2 {
	float x[V], z[V];
};
template <int V> struct loaded3 {
	float x[V], g[V], y[V];
};

template <typename T, int V> __global__ void norm_sums_kernel(struct kernel_norm call, int lanes)
{
	const T *x = (const T *)call.x;
	thread_position at = thread_position_of<V>(lanes, call.rows);
	float sums[V] = {}, squares[V] = {}, shift[V];

	if (at.channel < call.c) {
		load<T, V>(x + at.channel, shift);
		each_row<ROWS_SUMS, loaded1<V>>(
			at,
			[&](int64_t row, loaded1<V> &held) {
				load<T, V>(x + row * call.c + at.channel, held.x);
			},
			[&](int64_t, const loaded1<V> &held) {
#pragma unroll
				for (int v = 0; v < V; v++) {
					float off = held.x[v] - shift[v];

					sums[v] += off;
					squares[v] = fmaf(off, off, squares[v]);
				}
			});
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
	if (call.apply_params) {
		float *wide = (float *)((T *)call.apply_params + 2 * c);

		number_out((T *)call.apply_params + channel, scale);
		number_out((T *)call.apply_params + c + channel,
			   call.saved[SAVED_SHIFT * c + channel]);
		wide[channel] = call.w[channel];
		wide[c + channel] = call.b[channel];
	}
	call.mean[channel] = norm_running(call.mean[channel], now.mean, call.momentum);
	call.variance[channel] = norm_running(
		call.variance[channel], norm_unbiased(now.variance, call.rows), call.momentum);
}

/* For evaluation: use the running statistics. */
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

template <typename T, int V> __global__ void norm_apply_kernel(struct kernel_norm call, int lanes)
{
	int c = call.c;
	thread_position at = thread_position_of<V>(lanes, call.rows);
	float scale[V], shift[V];

	if (at.channel >= c)
		return;
#pragma unroll
	for (int v = 0; v < V; v++) {
		scale[v] = call.saved[SAVED_SCALE * c + at.channel + v];
		shift[v] = call.saved[SAVED_SHIFT * c + at.channel + v];
	}
	/* From the end: what the sums read last is still in the cache. */
	each_row<ROWS_APPLY, loaded2<V>>(
		at,
		[&](int64_t row, loaded2<V> &held) {
			int64_t place = (call.rows - 1 - row) * c + at.channel;

			load<T, V>((const T *)call.x + place, held.x);
			if (call.z)
				load<T, V>((const T *)call.z + place, held.z);
		},
		[&](int64_t row, const loaded2<V> &held) {
			float values[V];

#pragma unroll
			for (int v = 0; v < V; v++) {
				values[v] = norm_value(held.x[v], scale[v], shift[v]) +
					    (call.z ? held.z[v] : 0);
				if (call.relu)
					values[v] = relu(values[v]);
			}
			store<T, V>((T *)call.y + (call.rows - 1 - row) * c + at.channel, values);
		});
}

/* Store to to, or add to what is there. */
template <typename T, int V> __device__ __forceinline__ void put(T *to, bool add, float *values)
{
	float there[V];

	if (add) {
		load<T, V>(to, there);
#pragma unroll
		for (int v = 0; v < V; v++)
			values[v] += there[v];
	}
	store<T, V>(to, values);
}

template <typename T, int V>
__device__ __forceinline__ void norm_back_load(const struct kernel_norm &call, int64_t place,
					       loaded3<V> &held)
{
	load<T, V>((const T *)call.x + place, held.x);
	load<T, V>((const T *)call.dy + place, held.g);
	if (call.relu && call.z_added)
		load<T, V>((const T *)call.y + place, held.y);
}

/* The part of the result's gradient that reaches the batch norm itself. With a ReLU it is what the
 * ReLU let through; y shows that if something was added, else x. */
template <int V>
__device__ __forceinline__ void norm_relu_gradient(const struct kernel_norm &call,
						   const loaded3<V> &held, const float *scale,
						   const float *shift, float *g)
{
#pragma unroll
	for (int v = 0; v < V; v++)
		g[v] = !call.relu     ? held.g[v]
		       : call.z_added ? relu_gradient(held.y[v], held.g[v])
				      : relu_gradient(norm_value(held.x[v], scale[v], shift[v]),
						      held.g[v]);
}

template <typename T, int V>
__global__ void norm_back_sums_kernel(struct kernel_norm call, int lanes)
{
	int c = call.c;
	thread_position at = thread_position_of<V>(lanes, call.rows);
	float sums[V] = {}, products[V] = {}, mean[V], invstd[V], scale[V], shift[V];

	if (at.channel < c) {
#pragma unroll
		for (int v = 0; v < V; v++) {
			mean[v] = call.saved[SAVED_MEAN * c + at.channel + v];
			invstd[v] = call.saved[SAVED_INVSTD * c + at.channel + v];
			scale[v] = call.saved[SAVED_SCALE * c + at.channel + v];
			shift[v] = call.saved[SAVED_SHIFT * c + at.channel + v];
		}
		each_row<ROWS_BACK, loaded3<V>>(
			at,
			[&](int64_t row, loaded3<V> &held) {
				norm_back_load<T, V>(call, row * c + at.channel, held);
			},
			[&](int64_t row, const loaded3<V> &held) {
				int64_t place = row * c + at.channel;
				float g[V];

				norm_relu_gradient<V>(call, held, scale, shift, g);
#pragma unroll
				for (int v = 0; v < V; v++) {
					sums[v] += g[v];
					products[v] = fmaf(g[v], (held.x[v] - mean[v]) * invstd[v],
							   products[v]);
				}
				if (call.dz)
					put<T, V>((T *)call.dz + place, call.add_dz, g);
			});
	}
	sum_rows<V>(sums, products, at, lanes, c, call.scratch);
}

/* sums: [2][c], the means of g and of g xhat, stored in place of the first parts. */
__global__ void norm_back_finish_kernel(struct kernel_norm call, int parts, float *means)
{
	int channel = blockIdx.x * FINISH_LANES + threadIdx.x, c = call.c;
	double sum, product;

	if (!call.back_sums)
		sum_parts(call.scratch, parts, c, channel, &sum, &product);
	if (threadIdx.y || channel >= c)
		return;
	if (call.back_sums) {
		sum = (double)call.back_sums[channel];
		product = (double)call.back_sums[c + channel];
	}
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
	thread_position at = thread_position_of<V>(lanes, call.rows);
	float mean[V], invstd[V], scale[V], shift[V], mean_g[V], mean_gx[V];

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
	each_row<ROWS_BACK, loaded3<V>>(
		at,
		[&](int64_t row, loaded3<V> &held) {
			norm_back_load<T, V>(call, (call.rows - 1 - row) * c + at.channel, held);
		},
		[&](int64_t row, const loaded3<V> &held) {
			float g[V];

			norm_relu_gradient<V>(call, held, scale, shift, g);
#pragma unroll
			for (int v = 0; v < V; v++)
				g[v] = norm_gradient(g[v], held.x[v], mean[v], invstd[v], scale[v],
						     mean_g[v], mean_gx[v]);
			put<T, V>((T *)call.dx + (call.rows - 1 - row) * c + at.channel,
				  call.add_dx, g);
		});
}

} // namespace
