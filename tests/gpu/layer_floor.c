/* SPDX-License-Identifier: BSD-3-Clause */
#include "layer_floor.h"
#include "step_cost.h"

#include "train/device/cuda/cuda.h"

static double pass_ms(const struct lowered_graph *lowered, const struct lowered_node *node,
		      enum step_pass pass, const struct floor_rates *rates)
{
	const struct step_cost cost = step_node_cost(&lowered->plan, node->step, pass,
						     lowered->batch, number_size(rates->number));
	double a = cost.flop / rates->flop_s, b = cost.bytes / rates->bytes_s;

	return 1e3 * (a > b ? a : b);
}

double node_floor(const struct lowered_graph *lowered, const struct lowered_node *node,
		  bool backward, const struct floor_rates *rates)
{
	return backward ? pass_ms(lowered, node, STEP_WEIGHTS, rates) +
				  pass_ms(lowered, node, STEP_INPUT, rates)
			: pass_ms(lowered, node, STEP_FORWARD, rates);
}
