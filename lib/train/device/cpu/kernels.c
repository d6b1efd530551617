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

#define VECTORS (LANES / WIDTH)

/* One plane of a call: its values, NULL if absent, and its lanes. mask: what the ReLU's gradient
 * reads; NULL: it is recomputed from x. */
struct plane {
	size_t size;
	bool relu;
	vector mean[VECTORS], scale[VECTORS], shift[VECTORS], less[VECTORS], slope[VECTORS];
	const float *x, *residual, *dy, *dy2, *mask;
	float *y, *dz, *dx;
};

static inline vector lanes_of(const struct norm_call *call, enum lane kind, size_t block, size_t i)
{
	return load(lane(call, kind, block) + i * WIDTH, WIDTH);
}

static struct plane plane_of(const struct norm_call *call, size_t index)
{
	size_t size = plane_size(&call->planes), at = index * size;
	size_t block = index % call->planes.blocks;
	struct plane plane = {
		.size = size,
		.relu = call->relu,
		.x = call->x + at,
		.residual = call->residual ? call->residual + at : NULL,
		.dy = call->dy ? call->dy + at : NULL,
		.dy2 = call->dy2 ? call->dy2 + at : NULL,
		.mask = call->residual ? call->y + at : NULL,
		.y = call->y + at,
		.dz = call->dz ? call->dz + at : NULL,
		.dx = call->dx ? call->dx + at : NULL,
	};

	for (size_t i = 0; i < VECTORS; i++) {
		plane.mean[i] = lanes_of(call, LANE_MEAN, block, i);
		plane.scale[i] = lanes_of(call, LANE_SCALE, block, i);
		plane.shift[i] = lanes_of(call, LANE_SHIFT, block, i);
		plane.less[i] = lanes_of(call, LANE_DZ, block, i);
		plane.slope[i] = lanes_of(call, LANE_SLOPE, block, i);
	}
	return plane;
}

/* The functions below handle the plane's elements from i on, of which element k is in lane
 * k % LANES. count is WIDTH, or the number of the plane's last few elements. */

static inline INLINE size_t in_lanes(size_t i)
{
	return i / WIDTH % VECTORS;
}

static inline INLINE vector centred(const struct plane *plane, size_t i, size_t count)
{
	vector off = load(plane->x + i, count) - plane->mean[in_lanes(i)];

	for (size_t k = count; k < WIDTH; k++)
		off[k] = 0;
	return off;
}

/* The gradient before the ReLU. */
static inline INLINE vector source(const struct plane *plane, vector off, size_t i, size_t count)
{
	vector dz = load(plane->dy + i, count);

	if (plane->dy2)
		dz += load(plane->dy2 + i, count);
	if (plane->relu)
		dz = gated(dz, plane->mask ? load(plane->mask + i, count)
					   : off * plane->scale[in_lanes(i)] +
						     plane->shift[in_lanes(i)]);
	return dz;
}

struct sums {
	vector a[VECTORS], b[VECTORS];
};

static inline INLINE void add_sums(const struct plane *plane, struct sums *sums, size_t i,
				   size_t count)
{
	vector off = centred(plane, i, count), value = off;

	if (plane->dy)
		value = source(plane, off, i, count);
	if (plane->dz)
		store(plane->dz + i, value, count);
	sums->a[in_lanes(i)] += value;
	sums->b[in_lanes(i)] += value * off;
}

#define STRETCH (LANES * 16) /* elements whose sums are floats; their totals are doubles */

/* Forward, the sums of x - mean and of its squares over one plane; backward, those of dz and of
 * dz (x - mean). Backward stores dz if it is wanted. */
static void plane_sums(const struct norm_call *call, size_t index)
{
	const struct plane plane = plane_of(call, index);
	double *to = call->sums + index * 2 * LANES;
	size_t i = 0;

	memset(to, 0, 2 * LANES * sizeof *to);
	while (i < plane.size) {
		size_t end = plane.size - i < STRETCH ? plane.size : i + STRETCH;
		struct sums sums = {0};

		for (; i + WIDTH <= end; i += WIDTH)
			add_sums(&plane, &sums, i, WIDTH);
		if (i < end)
			add_sums(&plane, &sums, i, end - i);
		i = end;
		for (int k = 0; k < LANES; k++) {
			to[k] += (double)sums.a[k / WIDTH][k % WIDTH];
			to[LANES + k] += (double)sums.b[k / WIDTH][k % WIDTH];
		}
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

static inline INLINE void forward(const struct plane *plane, size_t i, size_t count)
{
	vector value =
		centred(plane, i, count) * plane->scale[in_lanes(i)] + plane->shift[in_lanes(i)];

	if (plane->residual)
		value += load(plane->residual + i, count);
	store(plane->y + i, plane->relu ? positive(value) : value, count);
}

static void plane_forward(const struct norm_call *call, size_t index)
{
	const struct plane plane = plane_of(call, index);
	size_t i = 0;

	for (; i + WIDTH <= plane.size; i += WIDTH)
		forward(&plane, i, WIDTH);
	if (i < plane.size)
		forward(&plane, i, plane.size - i);
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
				plane_sums(call, i);
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

static inline INLINE void gradient(const struct plane *plane, size_t i, size_t count)
{
	vector off = centred(plane, i, count);
	vector dz = plane->dz ? load(plane->dz + i, count) : source(plane, off, i, count);

	store(plane->dx + i,
	      (dz - plane->less[in_lanes(i)]) * plane->scale[in_lanes(i)] -
		      off * plane->slope[in_lanes(i)],
	      count);
}

static void plane_gradient(const struct norm_call *call, size_t index)
{
	const struct plane plane = plane_of(call, index);
	size_t i = 0;

	for (; i + WIDTH <= plane.size; i += WIDTH)
		gradient(&plane, i, WIDTH);
	if (i < plane.size)
		gradient(&plane, i, plane.size - i);
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
			plane_sums(call, i);
#pragma omp barrier
		for (size_t c = first; c < last; c++)
			channel_gradient(call, c);
#pragma omp barrier
		if (call->dx)
			for (size_t i = end; i-- > begin;)
				plane_gradient(call, i);
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
