/* SPDX-License-Identifier: BSD-3-Clause */
/* Compiled once per instruction set, as KERNELS_NAME: see meson.build. Pooling is in
 * kernels_pool.c. */
#include "train/device/cpu/kernels_vector.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* value, or 0 where gate <= 0; where gate is NaN, value passes. */
static inline vector gated(vector value, vector gate)
{
	mask stops = gate <= (vector){0};

	return (vector)((mask)value & ~stops);
}

static inline vector positive(vector value)
{
	mask stops = value < (vector){0};

	return (vector)((mask)value & ~stops);
}

static inline float gated_one(float value, float gate)
{
	return gate <= 0 ? 0 : value;
}

/* This thread's share of count items. */
static void share(size_t count, size_t *begin, size_t *end)
{
	size_t thread = (size_t)omp_get_thread_num(), threads = (size_t)omp_get_num_threads();

	*begin = count * thread / threads;
	*end = count * (thread + 1) / threads;
}

/* ---- batch norm ---- */

/* Per-lane factors and terms: one array [blocks][LANES] for each name. */
enum lane { LANE_MEAN, LANE_SCALE, LANE_SHIFT, LANE_DZ, LANE_SLOPE };

static float *lane(const struct norm_call *call, enum lane kind, size_t block)
{
	return call->lanes + ((size_t)kind * call->planes.blocks + block) * LANES;
}

/* Sums of floats in a few vectors, whose totals are then summed in double: [LANES] of a, [LANES] of
 * b. */
struct sums {
	vector a[4], b[4];
};

static inline void sums_end(struct sums *sums, double *to)
{
	vector a = (sums->a[0] + sums->a[1]) + (sums->a[2] + sums->a[3]);
	vector b = (sums->b[0] + sums->b[1]) + (sums->b[2] + sums->b[3]);

	for (int i = 0; i < LANES; i++) {
		to[i] += (double)a[i];
		to[LANES + i] += (double)b[i];
	}
	*sums = (struct sums){0};
}

#define STRETCH (LANES * 64) /* elements between two calls of sums_end */

/* Sums of x - shift and of its squares over one plane. */
static void plane_moments(const float *x, size_t size, const float *shift, double *to)
{
	vector k = load(shift);
	struct sums sums = {0};
	size_t i = 0;

	memset(to, 0, 2 * LANES * sizeof *to);
	while (i + LANES <= size) {
		size_t end = size - i < STRETCH ? size : i + STRETCH;

		for (; i + 4 * LANES <= end; i += 4 * LANES)
			for (int j = 0; j < 4; j++) {
				vector d = load(x + i + j * LANES) - k;

				sums.a[j] += d;
				sums.b[j] += d * d;
			}
		for (; i + LANES <= end; i += LANES) {
			vector d = load(x + i) - k;

			sums.a[0] += d;
			sums.b[0] += d * d;
		}
		sums_end(&sums, to);
	}
	for (; i < size; i++) {
		double d = (double)x[i] - (double)shift[i % LANES];

		to[i % LANES] += d;
		to[LANES + i % LANES] += d * d;
	}
}

/* Combine the sums of one channel's planes. */
static void channel_sums(const struct norm_call *call, size_t channel, double *a, double *b)
{
	const struct planes *planes = &call->planes;
	size_t block = channel / planes->block;

	*a = *b = 0;
	for (size_t n = 0; n < planes->n; n++) {
		const double *from = call->sums + (n * planes->blocks + block) * 2 * LANES;

		for (size_t i = channel % planes->block; i < LANES; i += planes->block) {
			*a += from[i];
			*b += from[LANES + i];
		}
	}
}

static void spread(const struct norm_call *call, enum lane kind, size_t channel, float value)
{
	const struct planes *planes = &call->planes;
	float *to = lane(call, kind, channel / planes->block);

	for (size_t i = channel % planes->block; i < LANES; i += planes->block)
		to[i] = value;
}

/* Mean and variance of one channel: of the batch, or the running ones. */
static void channel_moments(const struct norm_call *call, size_t channel)
{
	const struct planes *planes = &call->planes;
	double count = (double)(planes->n * planes->height * planes->width);
	double mean, variance;

	if (call->training) {
		double a, b;
		/* Sum after subtracting the channel's first value, so that no precision is lost if
		 * the mean is far from 0. */
		double shift = (double)lane(call, LANE_MEAN,
					    channel / planes->block)[channel % planes->block];

		channel_sums(call, channel, &a, &b);
		variance = b / count - a / count * (a / count);
		variance = variance < 0 ? 0 : variance;
		mean = shift + a / count;
		call->mean[channel] =
			(float)((1 - (double)call->momentum) * (double)call->mean[channel] +
				(double)call->momentum * mean);
		call->variance[channel] =
			(float)((1 - (double)call->momentum) * (double)call->variance[channel] +
				(double)call->momentum * variance * count / (count - 1));
	} else {
		mean = (double)call->mean[channel];
		variance = (double)call->variance[channel];
	}

	double invstd = 1 / sqrt(variance + (double)call->eps);

	if (call->training) {
		call->saved_mean[channel] = (float)mean;
		call->saved_invstd[channel] = (float)invstd;
	}
	spread(call, LANE_MEAN, channel, (float)mean);
	spread(call, LANE_SCALE, channel, (float)invstd * call->w[channel]);
	spread(call, LANE_SHIFT, channel, call->b[channel]);
}

/* Clear the lanes of channels that only pad a block. */
static void clear_padding(const struct norm_call *call)
{
	const struct planes *planes = &call->planes;

	for (size_t c = planes->channels; c < planes->blocks * planes->block; c++)
		for (int kind = 0; kind < NORM_LANE_KINDS; kind++)
			spread(call, (enum lane)kind, c, 0);
}

static void plane_forward(const struct norm_call *call, size_t plane)
{
	size_t size = plane_size(&call->planes), block = plane % call->planes.blocks, i = 0;
	const float *x = call->x + plane * size;
	const float *residual = call->residual ? call->residual + plane * size : NULL;
	const float *means = lane(call, LANE_MEAN, block), *scales = lane(call, LANE_SCALE, block),
		    *shifts = lane(call, LANE_SHIFT, block);
	float *y = call->y + plane * size;
	vector mean = load(means), scale = load(scales), shift = load(shifts);

	if (residual && call->relu) {
		for (; i + LANES <= size; i += LANES)
			store(y + i,
			      positive((load(x + i) - mean) * scale + shift + load(residual + i)));
	} else if (call->relu) {
		for (; i + LANES <= size; i += LANES)
			store(y + i, positive((load(x + i) - mean) * scale + shift));
	} else {
		for (; i + LANES <= size; i += LANES) {
			vector value = (load(x + i) - mean) * scale + shift;

			store(y + i, residual ? value + load(residual + i) : value);
		}
	}
	for (; i < size; i++) {
		float value = (x[i] - means[i % LANES]) * scales[i % LANES] + shifts[i % LANES];

		if (residual)
			value += residual[i];
		y[i] = call->relu && value < 0 ? 0 : value;
	}
}

static void norm_forward(const struct norm_call *call)
{
	const struct planes *planes = &call->planes;
	size_t count = planes->n * planes->blocks, size = plane_size(planes);

	if (!count || !size)
		return;
#pragma omp parallel if (count * size > SMALL)
	{
		size_t begin, end, first, last;

		share(count, &begin, &end);
		share(planes->channels, &first, &last);
		if (call->training) {
			for (size_t c = first; c < last; c++)
				spread(call, LANE_MEAN, c,
				       call->x[c / planes->block * size + c % planes->block]);
			if (!omp_get_thread_num())
				clear_padding(call);
#pragma omp barrier
			for (size_t i = begin; i < end; i++)
				plane_moments(call->x + i * size, size,
					      lane(call, LANE_MEAN, i % planes->blocks),
					      call->sums + i * 2 * LANES);
		} else if (!omp_get_thread_num()) {
			clear_padding(call);
		}
#pragma omp barrier
		for (size_t c = first; c < last; c++)
			channel_moments(call, c);
#pragma omp barrier
		/* Go backwards: the planes that were read last are still in the cache. */
		for (size_t i = end; i-- > begin;)
			plane_forward(call, i);
	}
}

/* dz of one vector: from dy, dy2 and the ReLU's mask. */
struct sources {
	const float *x, *y, *dy, *dy2;
	vector mean, scale, shift;
};

static inline __attribute__((always_inline)) vector
source(const struct sources *from, size_t i, vector centred, bool relu, bool by_y, bool two)
{
	vector dz = load(from->dy + i);

	if (two)
		dz += load(from->dy2 + i);
	if (relu && by_y)
		dz = gated(dz, load(from->y + i));
	else if (relu)
		dz = gated(dz, centred * from->scale + from->shift);
	return dz;
}

static float source_one(const struct norm_call *call, const struct sources *from, size_t i,
			float centred)
{
	float dz = from->dy[i] + (from->dy2 ? from->dy2[i] : 0);

	if (!call->relu)
		return dz;
	return gated_one(dz, call->residual
				     ? from->y[i]
				     : centred * from->scale[i % LANES] + from->shift[i % LANES]);
}

static struct sources sources_of(const struct norm_call *call, size_t plane)
{
	size_t size = plane_size(&call->planes), block = plane % call->planes.blocks;

	return (struct sources){
		.x = call->x + plane * size,
		.y = call->y ? call->y + plane * size : NULL,
		.dy = call->dy + plane * size,
		.dy2 = call->dy2 ? call->dy2 + plane * size : NULL,
		.mean = load(lane(call, LANE_MEAN, block)),
		.scale = load(lane(call, LANE_SCALE, block)),
		.shift = load(lane(call, LANE_SHIFT, block)),
	};
}

/* Sums of dz and of dz (x - mean) over one plane; dz is stored if it is wanted. */
static inline __attribute__((always_inline)) void
plane_sums(const struct norm_call *call, size_t plane, bool relu, bool by_y, bool two, bool keep)
{
	const struct sources from = sources_of(call, plane);
	size_t size = plane_size(&call->planes), i = 0;
	double *to = call->sums + plane * 2 * LANES;
	float *kept = keep ? call->dz + plane * size : NULL;
	struct sums sums = {0};

	memset(to, 0, 2 * LANES * sizeof *to);
	while (i + LANES <= size) {
		size_t end = size - i < STRETCH ? size : i + STRETCH;

		for (; i + 4 * LANES <= end; i += 4 * LANES)
			for (int j = 0; j < 4; j++) {
				size_t at = i + (size_t)j * LANES;
				vector centred = load(from.x + at) - from.mean;
				vector dz = source(&from, at, centred, relu, by_y, two);

				if (keep)
					store(kept + at, dz);
				sums.a[j] += dz;
				sums.b[j] += dz * centred;
			}
		for (; i + LANES <= end; i += LANES) {
			vector centred = load(from.x + i) - from.mean;
			vector dz = source(&from, i, centred, relu, by_y, two);

			if (keep)
				store(kept + i, dz);
			sums.a[0] += dz;
			sums.b[0] += dz * centred;
		}
		sums_end(&sums, to);
	}
	for (; i < size; i++) {
		float centred = from.x[i] - from.mean[i % LANES];
		float dz = source_one(call, &from, i, centred);

		if (keep)
			kept[i] = dz;
		to[i % LANES] += (double)dz;
		to[LANES + i % LANES] += (double)dz * (double)centred;
	}
}

static inline __attribute__((always_inline)) void plane_gradient(const struct norm_call *call,
								 size_t plane, bool relu, bool by_y,
								 bool two, bool kept)
{
	const struct sources from = sources_of(call, plane);
	size_t size = plane_size(&call->planes), block = plane % call->planes.blocks, i = 0;
	const float *dz_kept = kept ? call->dz + plane * size : NULL;
	float *dx = call->dx + plane * size;
	vector less = load(lane(call, LANE_DZ, block)), slope = load(lane(call, LANE_SLOPE, block));

	for (; i + LANES <= size; i += LANES) {
		vector centred = load(from.x + i) - from.mean;
		vector dz = kept ? load(dz_kept + i) : source(&from, i, centred, relu, by_y, two);

		store(dx + i, (dz - less) * from.scale - centred * slope);
	}
	for (; i < size; i++) {
		float centred = from.x[i] - from.mean[i % LANES];
		float dz = kept ? dz_kept[i] : source_one(call, &from, i, centred);

		dx[i] = (dz - less[i % LANES]) * from.scale[i % LANES] - centred * slope[i % LANES];
	}
}

/* Instantiate the loops above for each kind of call, without branches inside. */
static void plane_backward(const struct norm_call *call, size_t plane, bool gradient)
{
	bool by_y = call->residual, two = call->dy2, keep = call->dz;

#define CASE(RELU, BY_Y, TWO, KEEP)                                                                \
	if (call->relu == (RELU) && by_y == (BY_Y) && two == (TWO) && keep == (KEEP)) {            \
		if (gradient)                                                                      \
			plane_gradient(call, plane, RELU, BY_Y, TWO, KEEP);                        \
		else                                                                               \
			plane_sums(call, plane, RELU, BY_Y, TWO, KEEP);                            \
		return;                                                                            \
	}
	CASE(true, false, false, false)
	CASE(true, false, true, false)
	CASE(true, true, false, true)
	CASE(true, true, true, true)
	CASE(false, false, false, false)
#undef CASE
	if (gradient)
		plane_gradient(call, plane, call->relu, by_y, two, keep);
	else
		plane_sums(call, plane, call->relu, by_y, two, keep);
}

static void channel_prepare(const struct norm_call *call, size_t channel)
{
	spread(call, LANE_MEAN, channel, call->saved_mean[channel]);
	spread(call, LANE_SCALE, channel, call->saved_invstd[channel] * call->w[channel]);
	spread(call, LANE_SHIFT, channel, call->b ? call->b[channel] : 0);
}

static void channel_gradient(const struct norm_call *call, size_t channel)
{
	const struct planes *planes = &call->planes;
	double count = (double)(planes->n * planes->height * planes->width);
	double invstd = (double)call->saved_invstd[channel], dz, centred;

	channel_sums(call, channel, &dz, &centred);
	if (call->dw)
		call->dw[channel] =
			(float)((call->add_dw ? (double)call->dw[channel] : 0) + centred * invstd);
	if (call->db)
		call->db[channel] = (float)((call->add_dw ? (double)call->db[channel] : 0) + dz);
	spread(call, LANE_DZ, channel, (float)(dz / count));
	spread(call, LANE_SLOPE, channel,
	       (float)((double)call->w[channel] * invstd * invstd * invstd * centred / count));
}

static void norm_backward(const struct norm_call *call)
{
	const struct planes *planes = &call->planes;
	size_t count = planes->n * planes->blocks, size = plane_size(planes);

	if (!count || !size)
		return;
#pragma omp parallel if (count * size > SMALL)
	{
		size_t begin, end, first, last;

		share(count, &begin, &end);
		share(planes->channels, &first, &last);
		for (size_t c = first; c < last; c++)
			channel_prepare(call, c);
		if (!omp_get_thread_num())
			clear_padding(call);
#pragma omp barrier
		for (size_t i = begin; i < end; i++)
			plane_backward(call, i, false);
#pragma omp barrier
		for (size_t c = first; c < last; c++)
			channel_gradient(call, c);
#pragma omp barrier
		if (call->dx)
			for (size_t i = end; i-- > begin;)
				plane_backward(call, i, true);
	}
}

/* ---- element by element ---- */

static void relu_forward(const float *x, float *y, size_t count)
{
#pragma omp parallel for simd schedule(static) if (parallel : count > SMALL)
	for (size_t i = 0; i < count; i++)
		y[i] = x[i] < 0 ? 0 : x[i];
}

static void relu_backward(const float *y, const float *dy, float *dx, size_t count)
{
#pragma omp parallel for simd schedule(static) if (parallel : count > SMALL)
	for (size_t i = 0; i < count; i++)
		dx[i] = y[i] <= 0 ? 0 : dy[i];
}

static void add_arrays(const float *a, const float *b, float *to, size_t count)
{
#pragma omp parallel for simd schedule(static) if (parallel : count > SMALL)
	for (size_t i = 0; i < count; i++)
		to[i] = a[i] + b[i];
}

static void sgd(const struct op_sgd *how, float *w, const float *dw, float *state, size_t count)
{
	float lr = how->lr, momentum = how->momentum, decay = how->weight_decay;
	bool nesterov = how->nesterov;

	if (momentum == 0) {
#pragma omp parallel for simd schedule(static) if (parallel : count > SMALL)
		for (size_t i = 0; i < count; i++)
			w[i] -= lr * (dw[i] + decay * w[i]);
		return;
	}
#pragma omp parallel for simd schedule(static) if (parallel : count > SMALL)
	for (size_t i = 0; i < count; i++) {
		float g = dw[i] + decay * w[i];
		float m = momentum * state[i] + g;

		state[i] = m;
		w[i] -= lr * (nesterov ? g + momentum * m : m);
	}
}

const struct kernels KERNELS_NAME = {
	.name = KERNELS_TEXT,
	.winograd = KERNELS_WINOGRAD,
	.norm_forward = norm_forward,
	.norm_backward = norm_backward,
	.relu_forward = relu_forward,
	.relu_backward = relu_backward,
	.add = add_arrays,
	.maxpool_forward = KERNEL(maxpool_forward),
	.maxpool_backward = KERNEL(maxpool_backward),
	.avgpool_forward = KERNEL(avgpool_forward),
	.avgpool_backward = KERNEL(avgpool_backward),
	.sgd = sgd,
};
