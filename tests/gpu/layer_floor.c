/* SPDX-License-Identifier: BSD-3-Clause */
#include "layer_floor.h"

static double ms_of(double flop, double bytes, const struct floor_rates *rates)
{
	double a = flop / rates->flop_s, b = bytes / rates->bytes_s;

	return 1e3 * (a > b ? a : b);
}

/* x, y: bytes of the activations. */
static double layer(const struct lowered_node *node, bool backward, double samples, double x,
		    double y, const struct floor_rates *rates)
{
	const struct lowered_weight *w = &node->weight;
	double taps = (double)w->outputs * w->inner;
	double size = rates->number == NUMBER_F32 ? 4 : 2;
	double places = node->step->kind == OP_CONV2D
				? (double)node->y_shape.height * node->y_shape.width
				: 1;
	double flop = 2 * samples * places * taps * w->channels;
	double weight = taps * w->padded * size, ms;

	if (!backward)
		return ms_of(flop, x + y + weight, rates);
	/* The gradient is float32, like the bucket. */
	ms = ms_of(flop, x + y + taps * w->channels * 4, rates);
	if (node->step->dx != NO_SLOT)
		ms += ms_of(flop, y + weight + x * (node->step->add_dx ? 2 : 1), rates);
	return ms;
}

/* Reads and writes of its x and its y. */
static double elementwise(const struct lowered_node *node, bool backward, double x, double y)
{
	bool add = node->step->input2 >= 0;

	switch (node->step->kind) {
	case OP_BATCHNORM: /* statistics, then the result; sums, then the gradient */
		if (!backward)
			return 2 * x + y + (add ? x : 0);
		return 4 * x + (node->step->dx != NO_SLOT ? x : 0) + (add ? x : 0);
	case OP_RELU:
		return backward ? (node->step->dx != NO_SLOT ? 2 * y + x : 0) : x + y;
	case OP_ADD:
		if (!backward)
			return 2 * x + y;
		return (node->step->dz != NO_SLOT && node->step->dz != node->step->dy[0] ? 2 * y
											 : 0) +
		       (node->step->dx != NO_SLOT && node->step->dx != node->step->dy[0] ? 2 * y
											 : 0);
	default:
		return x + y;
	}
}

double node_floor(const struct lowered_graph *lowered, const struct lowered_node *node,
		  bool backward, const struct floor_rates *rates)
{
	double size = rates->number == NUMBER_F32 ? 4 : 2, samples = lowered->batch;
	double x = samples * (double)shape_count(&node->x_shape) * size;
	double y = samples * (double)shape_count(&node->y_shape) * size;
	double bytes;

	if (node->weight.param >= 0)
		return layer(node, backward, samples, x, y, rates);
	bytes = elementwise(node, backward, x, y);
	if (node->step->kind == OP_MAXPOOL2D)
		bytes += samples * (double)shape_count(&node->y_shape); /* places */
	return ms_of(0, bytes, rates);
}
