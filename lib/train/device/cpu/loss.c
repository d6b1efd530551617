/* SPDX-License-Identifier: BSD-3-Clause */
/* Built without contraction into fused multiply-adds: ranks on different CPUs must compute the same
 * from the same logits. */
#include "train/device/cpu/loss.h"

#include <math.h>

/* Store a gradient: overwrite *to, or add to it. */
static void put(float *to, double value, bool add)
{
	*to = (float)(add ? (double)*to + value : value);
}

static int bad_label(const struct op_call *call, size_t n, struct error *err)
{
	return error_set(err, ERR_DATA, "label %d of sample %zu of the batch is outside 0 to %d",
			 ((const int32_t *)call->target.data)[n], n, (int)call->x.shape[1] - 1);
}

/* The loss of one sample; log_sum: log of the sum of exp(x). */
static double smoothed(const float *x, size_t classes, size_t target, double log_sum,
		       double smoothing)
{
	double all = 0, own = log_sum - (double)x[target];

	/* Without smoothing, avoid a product 0 * infinity. */
	if (smoothing == 0)
		return own;
	for (size_t k = 0; k < classes; k++)
		all += log_sum - (double)x[k];
	return (1 - smoothing) * own + smoothing / (double)classes * all;
}

static int cross_entropy(const struct op_call *call, struct error *err)
{
	size_t count = (size_t)call->x.shape[0], classes = (size_t)call->x.shape[1];
	const int32_t *target = call->target.data;
	double smoothing = (double)call->smoothing;

	for (size_t n = 0; n < count; n++) {
		const float *x = (const float *)call->x.data + n * classes;
		float max = x[0];
		double sum = 0;

		if (target[n] < 0 || (size_t)target[n] >= classes)
			return bad_label(call, n, err);
		for (size_t k = 1; k < classes; k++)
			max = x[k] > max ? x[k] : max;
		for (size_t k = 0; k < classes; k++)
			sum += exp((double)x[k] - (double)max);
		if (call->pass == OP_FORWARD) {
			((float *)call->y.data)[n] = (float)smoothed(
				x, classes, (size_t)target[n], log(sum) + (double)max, smoothing);
			continue;
		}

		float *dx = (float *)call->dx.data + n * classes;

		for (size_t k = 0; k < classes; k++) {
			double share = exp((double)x[k] - (double)max) / sum;
			double wanted = smoothing / (double)classes +
					(k == (size_t)target[n] ? 1 - smoothing : 0);

			put(dx + k, (share - wanted) * (double)call->scale, call->add_dx);
		}
	}
	return 0;
}

static void mse(const struct op_call *call)
{
	size_t count = (size_t)call->x.shape[0], classes = (size_t)call->x.shape[1];

	for (size_t n = 0; n < count; n++) {
		const float *x = (const float *)call->x.data + n * classes;
		const float *target = (const float *)call->target.data + n * classes;
		double sum = 0;

		for (size_t k = 0; k < classes; k++) {
			double off = (double)x[k] - (double)target[k];

			sum += off * off;
			if (call->pass == OP_BACKWARD)
				put((float *)call->dx.data + n * classes + k,
				    2 * off / (double)classes * (double)call->scale, call->add_dx);
		}
		if (call->pass == OP_FORWARD)
			((float *)call->y.data)[n] = (float)(sum / (double)classes);
	}
}

static int label_rank(const struct op_call *call, struct error *err)
{
	size_t count = (size_t)call->x.shape[0], classes = (size_t)call->x.shape[1];
	const int32_t *target = call->target.data;

	for (size_t n = 0; n < count; n++) {
		const float *x = (const float *)call->x.data + n * classes;
		int32_t before = 0;

		if (target[n] < 0 || (size_t)target[n] >= classes)
			return bad_label(call, n, err);

		float mine = x[target[n]];

		for (size_t k = 0; k < classes; k++)
			before += x[k] > mine || (x[k] == mine && k < (size_t)target[n]);
		/* Nothing is larger than a NaN: without this check it would count as correct. */
		((int32_t *)call->y.data)[n] = isnan(mine) ? (int32_t)classes : before;
	}
	return 0;
}

int host_loss(const struct op_call *call, struct error *err)
{
	if (call->kind == OP_CROSS_ENTROPY)
		return cross_entropy(call, err);
	if (call->kind == OP_LABEL_RANK)
		return label_rank(call, err);
	mse(call);
	return 0;
}
