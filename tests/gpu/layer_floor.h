/* SPDX-License-Identifier: BSD-3-Clause */
/* The least time that a node of the lowered graph can take on a GPU with the given rates. */
#ifndef BERTH_TESTS_GPU_LAYER_FLOOR_H
#define BERTH_TESTS_GPU_LAYER_FLOOR_H

#include "train/device/cuda/lowered_graph.h"

struct floor_rates {
	enum number number;
	double bytes_s, flop_s;
};

/* Milliseconds: of each pass the larger of the times for its operations and for its bytes
 * (step_cost.h). Pure. */
double node_floor(const struct lowered_graph *lowered, const struct lowered_node *node,
		  bool backward, const struct floor_rates *rates);

#endif
