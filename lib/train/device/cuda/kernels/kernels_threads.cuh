/* SPDX-License-Identifier: BSD-3-Clause */
/* Numbers of each type, and the mapping of threads. Part of kernels.cuh. */

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

/* V numbers that are read and written together. */
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

/* ---- mapping of threads ---- */

int blocks_for(const struct kernel_config *config, int64_t items)
{
	int64_t wanted = (items + THREADS - 1) / THREADS;
	int64_t limit = (int64_t)config->multiprocessors * BLOCKS_EACH;

	return (int)(wanted < 1 ? 1 : wanted < limit ? wanted : limit);
}

/* A block's threads form lanes (groups of V channels) by rows_at_once; the grid is groups by parts
 * of the rows. */
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
	int64_t across, parts, limit;

	out.lanes = lanes_for(groups);
	out.rows_at_once = THREADS / out.lanes;
	across = (groups + out.lanes - 1) / out.lanes;
	limit = ((int64_t)multiprocessors * 4 + across - 1) / across;
	parts = (rows + out.rows_at_once - 1) / out.rows_at_once;
	parts = parts < limit ? parts : limit;
	parts = parts < PARTS_MAX ? parts : PARTS_MAX;
	out.grid = dim3((unsigned)across, (unsigned)(parts < 1 ? 1 : parts), 1);
	return out;
}

/* The position of a thread in tiles. */
struct thread_position {
	int channel; /* the first of V; >= c: none */
	int64_t row, end, step;
};

template <int V>
__device__ __forceinline__ thread_position thread_position_of(int lanes, int64_t rows)
{
	thread_position out;
	int64_t each = (rows + gridDim.y - 1) / gridDim.y;
	int64_t begin = each * blockIdx.y, end = begin + each;

	out.channel = (int)(blockIdx.x * lanes + threadIdx.x % lanes) * V;
	out.step = blockDim.x / lanes;
	out.row = begin + threadIdx.x / lanes;
	out.end = end < rows ? end : rows;
	return out;
}

/* A thread's rows, in order. The loads of U rows are issued before the first is used, because one
 * 16-byte load per thread does not keep an H200's memory busy. Held is the type that holds a
 * row. */
template <int U, typename Held, typename Load, typename Use>
__device__ __forceinline__ void each_row(const thread_position &at, Load load_row, Use use_row)
{
	Held held[U];
	int64_t row = at.row;

	for (; row + (U - 1) * at.step < at.end; row += U * at.step) {
#pragma unroll
		for (int u = 0; u < U; u++)
			load_row(row + u * at.step, held[u]);
#pragma unroll
		for (int u = 0; u < U; u++)
			use_row(row + u * at.step, held[u]);
	}
	for (; row < at.end; row += at.step) {
		load_row(row, held[0]);
		use_row(row, held[0]);
	}
}

/* Sums of two numbers a channel over a block's rows, to parts [2][gridDim.y][c]. */
template <int V>
__device__ __forceinline__ void sum_rows(float (&one)[V], float (&two)[V],
					 const thread_position &at, int lanes, int c, float *parts)
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

/* The parts of a channel, some hundred, summed by 32 threads: there are few such blocks, and each
 * thread's loads are sequential. The threads with threadIdx.y 0 get the total. */
#define FINISH_LANES 32
#define FINISH_ROWS 32
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

} // namespace
