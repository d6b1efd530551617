/* SPDX-License-Identifier: BSD-3-Clause */
/* Pooling, the loss, the update. Part of kernels.cuh. */

namespace
{

/* ---- pooling ---- */

/* The position of element i in [n][h][w][groups] of V channels. */
struct pixel {
	int64_t n;
	int y, x, c;
};

template <int V> __device__ __forceinline__ pixel pixel_of(int64_t i, int groups, int h, int w)
{
	pixel out;

	out.c = (int)(i % groups) * V;
	i /= groups;
	out.x = (int)(i % w);
	i /= w;
	out.y = (int)(i % h);
	out.n = i / h;
	return out;
}

template <typename T, int V> __global__ void maxpool_kernel(struct kernel_pool call)
{
	int groups = call.c / V;
	int64_t count = (int64_t)call.n * call.out_h * call.out_w * groups;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		pixel at = pixel_of<V>(i, groups, call.out_h, call.out_w);
		int y0 = at.y * call.stride - call.pad, x0 = at.x * call.stride - call.pad;
		bool first = true;
		float best[V] = {}, values[V];
		pack<unsigned char, V> argmax = {};

		for (int ky = 0; ky < call.kernel; ky++)
			for (int kx = 0; kx < call.kernel; kx++) {
				int y = y0 + ky, x = x0 + kx;

				if (y < 0 || y >= call.h || x < 0 || x >= call.w)
					continue;
				load<T, V>((const T *)call.x +
						   ((at.n * call.h + y) * call.w + x) * call.c +
						   at.c,
					   values);
#pragma unroll
				for (int v = 0; v < V; v++)
					if (first || pool_better(values[v], best[v])) {
						best[v] = values[v];
						argmax.at[v] =
							(unsigned char)(ky * call.kernel + kx);
					}
				first = false;
			}
		store<T, V>((T *)call.y + i * V, best);
		if (call.argmax)
			*(pack<unsigned char, V> *)(call.argmax + i * V) = argmax;
	}
}

/* Each pixel visits the windows that contain it: nothing is added twice or out of order. */
template <typename T, int V> __global__ void maxpool_back_kernel(struct kernel_pool call)
{
	int groups = call.c / V;
	int64_t count = (int64_t)call.n * call.h * call.w * groups;

	for (int64_t i = thread_index(); i < count; i += thread_count()) {
		pixel in = pixel_of<V>(i, groups, call.h, call.w);
		int y = in.y + call.pad, x = in.x + call.pad;
		int y_room = y - call.kernel + 1, x_room = x - call.kernel + 1;
		int y_begin = y_room <= 0 ? 0 : (y_room + call.stride - 1) / call.stride;
		int x_begin = x_room <= 0 ? 0 : (x_room + call.stride - 1) / call.stride;
		int y_end = y / call.stride, x_end = x / call.stride;
		float sums[V] = {}, values[V];

		if (call.add)
			load<T, V>((const T *)call.dx + i * V, sums);
		for (int oy = y_begin; oy <= y_end && oy < call.out_h; oy++)
			for (int ox = x_begin; ox <= x_end && ox < call.out_w; ox++) {
				int64_t at = ((in.n * call.out_h + oy) * call.out_w + ox) * call.c +
					     in.c;
				int k = (y - oy * call.stride) * call.kernel + x - ox * call.stride;
				const pack<unsigned char, V> argmax =
					*(const pack<unsigned char, V> *)(call.argmax + at);

				load<T, V>((const T *)call.dy + at, values);
#pragma unroll
				for (int v = 0; v < V; v++)
					if (argmax.at[v] == k)
						sums[v] += values[v];
			}
		store<T, V>((T *)call.dx + i * V, sums);
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

		number_out((T *)call.dx + i,
			   call.add ? number_in(((T *)call.dx)[i]) + value : value);
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
	__shared__ float max_logit[LOSS_THREADS], sum[LOSS_THREADS];

	max_logit[threadIdx.x] = value.max_logit;
	sum[threadIdx.x] = value.sum;
	for (int half = LOSS_THREADS / 2; half; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			struct soft a = {max_logit[threadIdx.x], sum[threadIdx.x]};
			struct soft b = {max_logit[threadIdx.x + half], sum[threadIdx.x + half]};

			a = soft_merge(a, b);
			max_logit[threadIdx.x] = a.max_logit;
			sum[threadIdx.x] = a.sum;
		}
	}
	__syncthreads();
	value.max_logit = max_logit[0];
	value.sum = sum[0];
	return value;
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
			number_out((T *)call.dx + row + k,
				   entropy_gradient(value, soft, k == target, call.smoothing,
						    call.classes, gradient_scale(call)));
	}
	all = block_sum(all);
	before = block_sum(before);
	if (threadIdx.x)
		return;
	if (call.losses)
		call.losses[n] =
			known ? entropy_loss(log_sum, target_x, all, call.smoothing, call.classes)
			      : NAN;
	/* Nothing is larger than a NaN: without this check it would count as correct. */
	if (call.label_ranks)
		call.label_ranks[n] = target_x != target_x ? call.classes : (int32_t)before;
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
			number_out((T *)call.dx + row + k,
				   2 * off / (float)call.classes * gradient_scale(call));
	}
	sum = block_sum(sum);
	if (!threadIdx.x && call.losses)
		call.losses[blockIdx.x] = sum / (float)call.classes;
}

/* One block: a batch has some hundred samples. */
__global__ void count_kernel(const float *losses, const int32_t *label_ranks,
			     const kernel_run_params *run, kernel_totals *totals, float *vote)
{
	__shared__ double sums[THREADS];
	__shared__ int firsts[THREADS], fives[THREADS];
	double sum = 0;
	int first = 0, five = 0;

	for (int i = threadIdx.x; i < run->count; i += blockDim.x) {
		sum += (double)losses[i];
		first += label_ranks && label_ranks[i] < 1;
		five += label_ranks && label_ranks[i] < 5;
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
	if (sums[0] - sums[0] != 0 && totals->first_nonfinite_step < 0)
		totals->first_nonfinite_step = run->step;
	if (vote && totals->first_nonfinite_step >= 0)
		*vote = NAN;
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
	const struct kernel_param_range part = call.list[blockIdx.y];
	struct sgd_rule rule = {call.momentum_factor, part.weight_decay, call.nesterov};
	float lr = *call.lr, inverse = 1;

	if (call.scaler) {
		if (call.scaler->found_inf)
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
		scaler->found_inf = 1; /* all threads write the same value */
}

__global__ void scaler_kernel(kernel_scaler *scaler)
{
	struct loss_scale now = {scaler->scale, scaler->growth_tracker};

	now = loss_scale_next(now, scaler->found_inf != 0);
	scaler->scale = now.scale;
	scaler->growth_tracker = now.growth_tracker;
	scaler->skipped += scaler->found_inf;
	scaler->found_inf = 0;
}

} // namespace
