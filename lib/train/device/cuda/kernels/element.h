/* SPDX-License-Identifier: BSD-3-Clause */
/* The arithmetic of the GPU kernels, one element at a time: 16-bit numbers, indices, and the
 * formulas of each layer. Plain C, which nvcc compiles for the GPU and any compiler for the host,
 * where tests compare it with float64. All functions are pure. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_KERNELS_ELEMENT_H
#define BERTH_TRAIN_DEVICE_CUDA_KERNELS_ELEMENT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ELEMENT static __host__ __device__ __forceinline__
#else
#define ELEMENT static inline __attribute__((unused))
#endif

/* ---- 16-bit numbers ---- */

struct f16 {
	uint16_t bits;
};
struct bf16 {
	uint16_t bits;
};

ELEMENT uint32_t bits_of_f32(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof bits);
	return bits;
}

ELEMENT float f32_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof value);
	return value;
}

ELEMENT float f32_of_bf16(struct bf16 value)
{
	return f32_of_bits((uint32_t)value.bits << 16);
}

/* Round to nearest, ties to even; every NaN becomes CUDA's canonical one. */
ELEMENT struct bf16 bf16_of_f32(float value)
{
	struct bf16 out;
#ifdef __CUDA_ARCH__
	out.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
	uint32_t bits = bits_of_f32(value);

	out.bits = value != value ? 0x7fff : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
	return out;
}

ELEMENT float f32_of_f16(struct f16 value)
{
#ifdef __CUDA_ARCH__
	return __half2float(__ushort_as_half(value.bits));
#else
	uint32_t sign = (uint32_t)(value.bits & 0x8000) << 16, magnitude = value.bits & 0x7fff;

	if (magnitude >= 0x7c00)
		return f32_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
	if (magnitude < 0x400) { /* subnormal: a multiple of 2^-24 */
		float small = (float)magnitude * 5.9604644775390625e-8f;

		return sign ? -small : small;
	}
	return f32_of_bits(sign | ((magnitude << 13) + ((127 - 15) << 23)));
#endif
}

ELEMENT struct f16 f16_of_f32(float value)
{
	struct f16 out;
#ifdef __CUDA_ARCH__
	out.bits = __half_as_ushort(__float2half_rn(value));
#else
	uint32_t bits = bits_of_f32(value), magnitude = bits & 0x7fffffff;
	uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);

	if (value != value) {
		out.bits = 0x7fff;
	} else if (magnitude >= 0x477ff000) { /* 65520 and more round to infinity */
		out.bits = (uint16_t)(sign | 0x7c00);
	} else if (magnitude < 0x38800000) { /* below 2^-14: adding 1/2 rounds at 2^-24 */
		float at = f32_of_bits(magnitude) + 0.5f;

		out.bits = (uint16_t)(sign | (bits_of_f32(at) - 0x3f000000));
	} else {
		magnitude += 0xfff + ((magnitude >> 13) & 1);
		out.bits = (uint16_t)(sign | ((magnitude - ((127 - 15) << 23)) >> 13));
	}
#endif
	return out;
}

/* ---- indices ---- */

/* The padded channels of a 16-bit tensor if the network's input has few: tensor cores read 4 or a
 * multiple of 8. */
ELEMENT int padded_channels(int channels, bool sixteen_bits)
{
	if (!sixteen_bits)
		return channels;
	return channels <= 4 ? 4 : (channels + 7) / 8 * 8;
}

/* Crop the image padded by pad on all sides, and flip: where pixel (y, x) of the result comes from.
 * false: from the padding. top, left: see device/device.h. */
ELEMENT bool crop_source(int height, int width, int pad, int top, int left, bool flip, int y, int x,
			 int *from_y, int *from_x)
{
	*from_y = y + top - pad;
	*from_x = (flip ? width - 1 - x : x) + left - pad;
	return *from_y >= 0 && *from_y < height && *from_x >= 0 && *from_x < width;
}

/* Element (o, c, s) of a weight [outputs][channels][inner] whose gradient or copy is
 * [outputs][inner][padded]. index is the index in that copy. false: padding. */
ELEMENT bool weight_source(int64_t index, int channels, int inner, int padded, int64_t *from)
{
	int c = (int)(index % padded);
	int64_t rest = index / padded;

	*from = (rest / inner * channels + c) * inner + rest % inner;
	return c < channels;
}

/* The index in [outputs][inner][padded] of element index of [outputs][channels][inner]. */
ELEMENT int64_t weight_place(int64_t index, int channels, int inner, int padded)
{
	int64_t s = index % inner, rest = index / inner;

	return (rest / channels * inner + s) * padded + rest % channels;
}

/* A number between -1 and 1 from seed and index alone, random enough for benchmarking layers. */
ELEMENT float made_number(uint32_t seed, uint64_t index)
{
	uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u;

	mixed = (mixed ^ (mixed >> 31)) * 0x94d049bb133111ebu;
	mixed ^= mixed >> 29;
	return (float)(int32_t)(uint32_t)(mixed >> 32) * 4.656612873077393e-10f;
}

/* ---- batch norm ---- */

/* Sums of (x - shift) and of its square: with a shift near the mean no precision is lost. */
struct norm_sums {
	double sum, square;
};

struct norm_moments {
	float mean, variance, invstd; /* variance: biased */
};

ELEMENT struct norm_moments norm_moments(struct norm_sums sums, float shift, int64_t count,
					 float eps)
{
	struct norm_moments out;
	double mean = sums.sum / (double)count;
	double variance = sums.square / (double)count - mean * mean;

	/* A NaN stays one. */
	variance = variance < 0 ? 0 : variance;
	out.mean = (float)(mean + (double)shift);
	out.variance = (float)variance;
	out.invstd = (float)(1 / sqrt(variance + (double)eps));
	return out;
}

/* The running statistic after a batch. */
ELEMENT float norm_running(float running, float now, float momentum)
{
	return (1 - momentum) * running + momentum * now;
}

/* The unbiased variance of count numbers. */
ELEMENT float norm_unbiased(float variance, int64_t count)
{
	return (float)((double)variance * (double)count / (double)(count - 1));
}

/* y = x * scale + shift is (x - mean) * invstd * w + b. Forward and backward must agree on the side
 * of a ReLU, so both compute it here. */
ELEMENT float norm_shift(float mean, float scale, float b)
{
	return fmaf(-mean, scale, b);
}
ELEMENT float norm_value(float x, float scale, float shift)
{
	return fmaf(x, scale, shift);
}

/* dx of g = dy: scale (g - mean(g) - xhat mean(g xhat)), scale = w invstd. */
ELEMENT float norm_gradient(float g, float x, float mean, float invstd, float scale, float mean_g,
			    float mean_gx)
{
	return scale * (g - mean_g - (x - mean) * invstd * mean_gx);
}

/* ---- ReLU, pooling ---- */

ELEMENT float relu(float x)
{
	return x < 0 ? 0 : x; /* a NaN stays one */
}

/* y: the ReLU's result, or its input, which gives the same answer. */
ELEMENT float relu_gradient(float y, float dy)
{
	return y <= 0 ? 0 : dy;
}

/* Does x replace best as a window's maximum? The first among equal ones stays; a NaN wins. */
ELEMENT bool pool_better(float x, float best)
{
	return x > best || (x != x && best == best);
}

/* ---- losses ---- */

/* A sum of exp(x) over any numbers, stored as the maximum and the sum of exp(x - maximum): never
 * overflows. */
struct soft {
	float max_logit, sum;
};

ELEMENT struct soft soft_of(float x)
{
	struct soft out;

	/* Minus infinity adds nothing, and must not be subtracted from itself. */
	out.max_logit = x == -INFINITY ? 0 : x;
	out.sum = x == -INFINITY ? 0 : 1;
	return out;
}

ELEMENT struct soft soft_merge(struct soft a, struct soft b)
{
	struct soft out;

	/* Covers an empty sum, and a NaN, which no comparison would keep. */
	if (b.sum == 0)
		return a;
	if (a.sum == 0)
		return b;
	out.max_logit = a.max_logit > b.max_logit ? a.max_logit : b.max_logit;
	out.sum = a.sum * expf(a.max_logit - out.max_logit) +
		  b.sum * expf(b.max_logit - out.max_logit);
	return out;
}

ELEMENT float soft_log(struct soft soft)
{
	return soft.max_logit + logf(soft.sum);
}

/* The loss of a sample, from the log_sum of its logits, its target's logit, and the sum of all
 * log_sum - x. */
ELEMENT float entropy_loss(float log_sum, float target, float sum_all, float smoothing, int classes)
{
	/* Without smoothing, avoid a product 0 * infinity. */
	if (smoothing == 0)
		return log_sum - target;
	return (1 - smoothing) * (log_sum - target) + smoothing / (float)classes * sum_all;
}

ELEMENT float entropy_gradient(float x, struct soft soft, bool target, float smoothing, int classes,
			       float scale)
{
	float share = expf(x - soft.max_logit) / soft.sum;

	return (share - smoothing / (float)classes - (target ? 1 - smoothing : 0)) * scale;
}

/* Does class k rank before the target's? Among equal logits the lower class comes first. */
ELEMENT bool ranks_before(float x, int k, float target_x, int target)
{
	return x > target_x || (x == target_x && k < target);
}

/* ---- update ---- */

struct sgd_rule {
	float momentum, weight_decay;
	int nesterov;
};

/* One element of op_sgd (device.h). Returns the new weight; *state is not touched without
 * momentum. */
ELEMENT float sgd_element(struct sgd_rule rule, float lr, float w, float g, float *state)
{
	g = fmaf(rule.weight_decay, w, g);
	if (rule.momentum != 0) {
		float m = fmaf(rule.momentum, *state, g);

		*state = m;
		g = rule.nesterov ? fmaf(rule.momentum, m, g) : m;
	}
	return fmaf(-lr, g, w);
}

/* PyTorch's GradScaler. growth_tracker: updates since the scale was last changed. */
struct loss_scale {
	float scale;
	int32_t growth_tracker;
};

#define LOSS_SCALE_BEGIN 65536.0f
#define LOSS_SCALE_GROWTH 2.0f
#define LOSS_SCALE_BACKOFF 0.5f
#define LOSS_SCALE_INTERVAL 2000

/* The scale after an update; found_inf: a gradient was not finite, so the update was skipped. */
ELEMENT struct loss_scale loss_scale_next(struct loss_scale now, bool found_inf)
{
	float grown = now.scale * LOSS_SCALE_GROWTH;

	if (found_inf) {
		now.scale *= LOSS_SCALE_BACKOFF;
		now.growth_tracker = 0;
	} else if (now.growth_tracker + 1 == LOSS_SCALE_INTERVAL) {
		/* The largest number cannot grow: it stays as it is. */
		if (grown - grown == 0)
			now.scale = grown;
		now.growth_tracker = 0;
	} else {
		now.growth_tracker++;
	}
	return now;
}

/* The factor on a gradient that undoes the scale. */
ELEMENT float loss_scale_inverse(float scale)
{
	return (float)(1 / (double)scale);
}

ELEMENT bool finite_f32(float x)
{
	return (bits_of_f32(x) & 0x7f800000) != 0x7f800000;
}

#endif
