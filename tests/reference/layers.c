/* SPDX-License-Identifier: BSD-3-Clause */
/* The ops with weights: convolution by unfolding windows (im2col), and linear. */
#include <string.h>

#include "reference.h"

/* A convolution's sizes, for one image. */
struct conv_dims {
	size_t n, channels, height, width, x_count;
	size_t outputs, out_height, out_width, places; /* places = out_height * out_width */
	size_t kernel, window;			       /* window = channels * kernel * kernel */
	size_t padded;				       /* window, rounded up to whole vectors */
	long stride, pad;
};

static struct conv_dims conv_sizes(const struct op_call *call)
{
	const int64_t *x = call->x.shape;
	struct conv_dims conv = {.n = (size_t)x[0],
				 .channels = (size_t)x[1],
				 .height = (size_t)x[2],
				 .width = (size_t)x[3],
				 .outputs = (size_t)call->w.shape[0],
				 .kernel = (size_t)call->attributes.kernel,
				 .stride = call->attributes.stride,
				 .pad = call->attributes.pad};

	conv.x_count = conv.channels * conv.height * conv.width;
	conv.out_height = (size_t)op_side(x[2], &call->attributes);
	conv.out_width = (size_t)op_side(x[3], &call->attributes);
	conv.places = conv.out_height * conv.out_width;
	conv.window = conv.channels * conv.kernel * conv.kernel;
	conv.padded = (conv.window + 31) / 32 * 32;
	return conv;
}

/* One row of the image for one row of windows: to[ox] = row[ox * stride + shift], 0 outside. */
static void unfold_row(const struct conv_dims *conv, const float *row, long shift, float *to)
{
	if (conv->stride == 1 && conv->pad == 0) {
		memcpy(to, row + shift, conv->out_width * sizeof *to);
		return;
	}
	for (size_t ox = 0; ox < conv->out_width; ox++) {
		long at = (long)ox * conv->stride + shift;

		to[ox] = at < 0 || at >= (long)conv->width ? 0 : row[at];
	}
}

/* columns[window][places]: row (c, i, j) holds x[c][y * stride + i - pad][...] for every place. */
static void unfold(const struct conv_dims *conv, const float *x, float *columns)
{
	for (size_t row = 0; row < conv->window; row++) {
		const float *plane =
			x + row / (conv->kernel * conv->kernel) * conv->height * conv->width;
		long i = (long)(row / conv->kernel % conv->kernel), j = (long)(row % conv->kernel);

		for (size_t oy = 0; oy < conv->out_height; oy++, columns += conv->out_width) {
			long y = (long)oy * conv->stride + i - conv->pad;

			if (y < 0 || y >= (long)conv->height)
				memset(columns, 0, conv->out_width * sizeof *columns);
			else
				unfold_row(conv, plane + (size_t)y * conv->width, j - conv->pad,
					   columns);
		}
	}
}

/* windows[places][padded]: the same transposed, with the window of one place per row, padded with
 * zeros. */
static void unfold_by_place(const struct conv_dims *conv, const float *x, float *windows)
{
	for (size_t place = 0; place < conv->places; place++) {
		long y0 = (long)(place / conv->out_width) * conv->stride - conv->pad;
		long x0 = (long)(place % conv->out_width) * conv->stride - conv->pad;
		bool inside = y0 >= 0 && x0 >= 0 && y0 + (long)conv->kernel <= (long)conv->height &&
			      x0 + (long)conv->kernel <= (long)conv->width;
		float *to = windows + place * conv->padded;

		for (size_t c = 0; c < conv->channels; c++)
			for (size_t i = 0; i < conv->kernel; i++, to += conv->kernel) {
				long y = y0 + (long)i;
				const float *plane = x + c * conv->height * conv->width;

				for (long j = 0; j < (long)conv->kernel; j++)
					to[j] = inside || (y >= 0 && y < (long)conv->height &&
							   x0 + j >= 0 &&
							   x0 + j < (long)conv->width)
							? plane[y * (long)conv->width + x0 + j]
							: 0;
			}
		memset(to, 0, (conv->padded - conv->window) * sizeof *to);
	}
}

/* The inverse of unfold: add to each element of dx the gradients of the windows that contain it. */
static void fold(const struct conv_dims *conv, const float *columns, float *dx)
{
	for (size_t row = 0; row < conv->window; row++) {
		float *plane =
			dx + row / (conv->kernel * conv->kernel) * conv->height * conv->width;
		long i = (long)(row / conv->kernel % conv->kernel), j = (long)(row % conv->kernel);

		for (size_t oy = 0; oy < conv->out_height; oy++, columns += conv->out_width) {
			long y = (long)oy * conv->stride + i - conv->pad;

			if (y < 0 || y >= (long)conv->height)
				continue;

			float *to = plane + (size_t)y * conv->width;

			if (conv->stride == 1 && conv->pad == 0) {
				for (size_t ox = 0; ox < conv->out_width; ox++)
					to[ox + (size_t)j] += columns[ox];
				continue;
			}
			for (size_t ox = 0; ox < conv->out_width; ox++) {
				long at = (long)ox * conv->stride + j - conv->pad;

				if (at >= 0 && at < (long)conv->width)
					to[at] += columns[ox];
			}
		}
	}
}

static void op_conv_forward(const struct conv_dims *conv, const struct op_call *call,
			    float *columns, float *pack)
{
	const float *b = call->b.data;
	struct matrix w = {call->w.data, conv->window, 1};

	for (size_t n = 0; n < conv->n; n++) {
		float *y = (float *)call->y.data + n * conv->outputs * conv->places;

		unfold(conv, (const float *)call->x.data + n * conv->x_count, columns);
		for (size_t o = 0; b && o < conv->outputs; o++)
			for (size_t p = 0; p < conv->places; p++)
				y[o * conv->places + p] = b[o];
		matrix_multiply(conv->outputs, conv->places, conv->window, w, columns, conv->places,
				y, conv->places, b != NULL, pack);
	}
}

static void op_conv_backward_bias(const struct conv_dims *conv, const struct op_call *call)
{
	float *db = call->db.data;

	for (size_t o = 0; o < conv->outputs; o++) {
		double sum = 0;

		for (size_t n = 0; n < conv->n; n++) {
			const float *dy = (const float *)call->dy.data +
					  (n * conv->outputs + o) * conv->places;
			float part[16] = {0};

			for (size_t p = 0; p < conv->places; p++)
				part[p % 16] += dy[p];
			for (int i = 0; i < 16; i++)
				sum += (double)part[i];
		}
		reference_put(db + o, sum, call->add_dw);
	}
}

/* sum: room for outputs * padded floats. */
static void op_conv_backward_weights(const struct conv_dims *conv, const struct op_call *call,
				     float *windows, float *sum, float *pack)
{
	float *dw = call->dw.data;

	memset(sum, 0, conv->outputs * conv->padded * sizeof *sum);
	for (size_t n = 0; n < conv->n; n++) {
		struct matrix dy = {(const float *)call->dy.data + n * conv->outputs * conv->places,
				    conv->places, 1};

		unfold_by_place(conv, (const float *)call->x.data + n * conv->x_count, windows);
		matrix_multiply(conv->outputs, conv->padded, conv->places, dy, windows,
				conv->padded, sum, conv->padded, true, pack);
	}
	for (size_t o = 0; o < conv->outputs; o++)
		for (size_t i = 0; i < conv->window; i++)
			reference_put(dw + o * conv->window + i, (double)sum[o * conv->padded + i],
				      call->add_dw);
}

static void op_conv_backward_input(const struct conv_dims *conv, const struct op_call *call,
				   float *columns, float *pack)
{
	struct matrix turned = {call->w.data, 1, conv->window};

	for (size_t n = 0; n < conv->n; n++) {
		const float *dy = (const float *)call->dy.data + n * conv->outputs * conv->places;
		float *dx = (float *)call->dx.data + n * conv->x_count;

		matrix_multiply(conv->window, conv->places, conv->outputs, turned, dy, conv->places,
				columns, conv->places, false, pack);
		if (!call->add_dx)
			memset(dx, 0, conv->x_count * sizeof *dx);
		fold(conv, columns, dx);
	}
}

static size_t largest(size_t a, size_t b, size_t c)
{
	size_t max = a > b ? a : b;

	return max > c ? max : c;
}

int reference_conv2d(struct reference *reference, const struct op_call *call, struct error *err)
{
	struct conv_dims conv = conv_sizes(call);
	size_t columns = conv.padded * conv.places, sum = conv.outputs * conv.padded;
	size_t depth = largest(conv.window, conv.places, conv.outputs);
	float *scratch = reference_scratch(reference, columns + sum + MATRIX_PACK(depth));

	if (!scratch)
		return error_memory(err, "a convolution");

	float *pack = scratch + columns + sum;

	if (call->pass == OP_FORWARD) {
		op_conv_forward(&conv, call, scratch, pack);
		return 0;
	}
	if (call->db.data)
		op_conv_backward_bias(&conv, call);
	if (call->dw.data)
		op_conv_backward_weights(&conv, call, scratch, scratch + columns, pack);
	if (call->dx.data)
		op_conv_backward_input(&conv, call, scratch, pack);
	return 0;
}

static void op_linear_forward(const struct op_call *call, size_t n, size_t inputs, size_t outputs,
			      float *turned, float *pack)
{
	struct matrix x = {call->x.data, inputs, 1};
	float *y = call->y.data;

	for (size_t i = 0; call->b.data && i < n; i++)
		memcpy(y + i * outputs, call->b.data, outputs * sizeof *y);
	matrix_transpose(outputs, inputs, call->w.data, turned);
	matrix_multiply(n, outputs, inputs, x, turned, outputs, y, outputs, call->b.data != NULL,
			pack);
}

static void op_linear_backward(const struct op_call *call, size_t n, size_t inputs, size_t outputs,
			       float *pack)
{
	const float *dy = call->dy.data;

	if (call->db.data) {
		float *db = call->db.data;

		if (!call->add_dw)
			memset(db, 0, outputs * sizeof *db);
		for (size_t i = 0; i < n; i++)
			for (size_t o = 0; o < outputs; o++)
				db[o] += dy[i * outputs + o];
	}
	if (call->dw.data) {
		struct matrix turned = {dy, 1, outputs};

		matrix_multiply(outputs, inputs, n, turned, call->x.data, inputs, call->dw.data,
				inputs, call->add_dw, pack);
	}
	if (call->dx.data) {
		struct matrix plain = {dy, outputs, 1};

		matrix_multiply(n, inputs, outputs, plain, call->w.data, inputs, call->dx.data,
				inputs, call->add_dx, pack);
	}
}

int reference_linear(struct reference *reference, const struct op_call *call, struct error *err)
{
	size_t n = (size_t)call->x.shape[0];
	size_t outputs = (size_t)call->w.shape[0], inputs = (size_t)call->w.shape[1];
	size_t pack = MATRIX_PACK(largest(n, inputs, outputs));
	float *scratch = reference_scratch(reference, inputs * outputs + pack);

	if (!scratch)
		return error_memory(err, "a linear layer");
	if (call->pass == OP_FORWARD)
		op_linear_forward(call, n, inputs, outputs, scratch, scratch + inputs * outputs);
	else
		op_linear_backward(call, n, inputs, outputs, scratch);
	return 0;
}
