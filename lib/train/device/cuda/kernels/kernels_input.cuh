/* SPDX-License-Identifier: BSD-3-Clause */
/* Input conversion, layouts and element-wise kernels. Part of kernels.cuh. */

namespace
{

/* ---- input and layouts ---- */

template <typename T> __global__ void input_kernel(struct kernel_input call)
{
	int64_t pixels = (int64_t)call.n * call.h * call.w;

	for (int64_t i = thread_index(); i < pixels; i += thread_count()) {
		int x = (int)(i % call.w), y = (int)(i / call.w % call.h);
		int64_t n = i / call.w / call.h;
		int64_t sample = call.index ? (int64_t)call.index[n] : n;
		int top = call.pad, left = call.pad, flip = 0, from_y, from_x;

		if (call.crops) {
			top = call.crops[n * 3];
			left = call.crops[n * 3 + 1];
			flip = call.crops[n * 3 + 2];
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
		number_out(to + i,
			   add ? number_in(to[i]) + number_in(from[i]) : number_in(from[i]));
}

template <typename T> __global__ void bias_kernel(T *y, const float *b, int64_t count, int c)
{
	for (int64_t i = thread_index(); i < count; i += thread_count())
		number_out(y + i, number_in(y[i]) + b[i % c]);
}

template <typename T, int V>
__global__ void bias_sums_kernel(const T *dy, int64_t rows, int c, int lanes, float *parts)
{
	thread_position at = thread_position_of<V>(lanes, rows);
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

} // namespace
