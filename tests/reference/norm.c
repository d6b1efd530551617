/* SPDX-License-Identifier: BSD-3-Clause */
/* What residual networks need besides convolutions: batch norm, additions, the mean of a plane. All
 * sums are float64, because this device is the oracle. */
#include <math.h>

#include "reference.h"

/* An image's size, seen as n samples of channels planes. */
struct planes {
	size_t n, channels, plane;
};

static struct planes planes_of(const struct tensor *x)
{
	return (struct planes){(size_t)x->shape[0], (size_t)x->shape[1],
			       (size_t)(x->shape[2] * x->shape[3])};
}

static size_t plane_at(const struct planes *planes, size_t n, size_t channel)
{
	return (n * planes->channels + channel) * planes->plane;
}

/* ---- batch norm ---- */

struct moments {
	double mean, variance; /* biased */
};

/* Reads the data twice, so that no precision is lost if the mean is large compared with the
 * deviations. */
static struct moments measure(const struct planes *planes, const float *x, size_t channel)
{
	double count = (double)(planes->n * planes->plane), sum = 0, squares = 0;

	for (size_t n = 0; n < planes->n; n++)
		for (size_t i = 0; i < planes->plane; i++)
			sum += (double)x[plane_at(planes, n, channel) + i];

	double mean = sum / count;

	for (size_t n = 0; n < planes->n; n++)
		for (size_t i = 0; i < planes->plane; i++) {
			double off = (double)x[plane_at(planes, n, channel) + i] - mean;

			squares += off * off;
		}
	return (struct moments){mean, squares / count};
}

static float blend(float running, double now, double momentum)
{
	return (float)((1 - momentum) * (double)running + momentum * now);
}

static void batchnorm_forward(const struct op_call *call, const struct planes *planes)
{
	const float *x = call->x.data, *w = call->w.data, *b = call->b.data;
	float *y = call->y.data, *mean = call->mean.data, *variance = call->variance.data;
	double count = (double)(planes->n * planes->plane);
	double momentum = (double)call->batchnorm.momentum;

	for (size_t c = 0; c < planes->channels; c++) {
		const struct moments now =
			call->batchnorm.training
				? measure(planes, x, c)
				: (struct moments){(double)mean[c], (double)variance[c]};
		double invstd = 1 / sqrt(now.variance + (double)call->batchnorm.eps);

		if (call->batchnorm.training) {
			((float *)call->saved_mean.data)[c] = (float)now.mean;
			((float *)call->saved_invstd.data)[c] = (float)invstd;
			mean[c] = blend(mean[c], now.mean, momentum);
			variance[c] =
				blend(variance[c], now.variance * count / (count - 1), momentum);
		}
		for (size_t n = 0; n < planes->n; n++)
			for (size_t i = 0; i < planes->plane; i++) {
				size_t at = plane_at(planes, n, c) + i;

				y[at] = (float)(((double)x[at] - now.mean) * invstd * (double)w[c] +
						(double)b[c]);
			}
	}
}

/* With h = (x - m) invstd over count elements of a channel: db = sum dy, dw = sum dy h,
 * dx = w invstd (dy - db / count - h dw / count). */
static void batchnorm_backward_channel(const struct op_call *call, const struct planes *planes,
				       size_t c)
{
	const float *x = call->x.data, *dy = call->dy.data;
	double mean = (double)((const float *)call->saved_mean.data)[c];
	double invstd = (double)((const float *)call->saved_invstd.data)[c];
	double factor = (double)((const float *)call->w.data)[c] * invstd;
	double count = (double)(planes->n * planes->plane), db = 0, dw = 0;

	for (size_t n = 0; n < planes->n; n++)
		for (size_t i = 0; i < planes->plane; i++) {
			size_t at = plane_at(planes, n, c) + i;

			db += (double)dy[at];
			dw += (double)dy[at] * (((double)x[at] - mean) * invstd);
		}
	if (call->dw.data)
		reference_put((float *)call->dw.data + c, dw, call->add_dw);
	if (call->db.data)
		reference_put((float *)call->db.data + c, db, call->add_dw);
	for (size_t n = 0; call->dx.data && n < planes->n; n++)
		for (size_t i = 0; i < planes->plane; i++) {
			size_t at = plane_at(planes, n, c) + i;
			double h = ((double)x[at] - mean) * invstd;

			reference_put((float *)call->dx.data + at,
				      factor * ((double)dy[at] - db / count - h * dw / count),
				      call->add_dx);
		}
}

void reference_batchnorm(const struct op_call *call)
{
	struct planes planes = planes_of(&call->x);

	if (call->pass == OP_FORWARD) {
		/* A batch without samples leaves the running statistics unchanged. */
		if (planes.n)
			batchnorm_forward(call, &planes);
		return;
	}
	for (size_t c = 0; c < planes.channels; c++)
		batchnorm_backward_channel(call, &planes, c);
}

/* ---- add, mean of a plane ---- */

void reference_add(const struct op_call *call)
{
	size_t count = (size_t)tensor_count(&call->x);

	if (call->pass == OP_FORWARD) {
		const float *x = call->x.data, *x2 = call->x2.data;
		float *y = call->y.data;

		for (size_t i = 0; i < count; i++)
			y[i] = x[i] + x2[i];
		return;
	}

	const float *dy = call->dy.data;

	for (size_t i = 0; call->dx.data && i < count; i++)
		reference_put((float *)call->dx.data + i, (double)dy[i], call->add_dx);
	for (size_t i = 0; call->dx2.data && i < count; i++)
		reference_put((float *)call->dx2.data + i, (double)dy[i], call->add_dx2);
}

void reference_avgpool(const struct op_call *call)
{
	struct planes planes = planes_of(&call->x);
	const float *x = call->x.data, *dy = call->dy.data;
	float *y = call->y.data, *dx = call->dx.data;

	for (size_t p = 0; p < planes.n * planes.channels; p++) {
		double sum = 0;

		for (size_t i = 0; i < planes.plane; i++)
			if (call->pass == OP_FORWARD)
				sum += (double)x[p * planes.plane + i];
			else if (dx)
				reference_put(dx + p * planes.plane + i,
					      (double)dy[p] / (double)planes.plane, call->add_dx);
		if (call->pass == OP_FORWARD)
			y[p] = (float)(sum / (double)planes.plane);
	}
}
