/* SPDX-License-Identifier: BSD-3-Clause */
/* What the nodes of a step cost at least. */
#ifndef BERTH_TESTS_GPU_STEP_COST_H
#define BERTH_TESTS_GPU_STEP_COST_H

#include "train/executor/step_plan.h"

/* Backward, a convolution or linear layer has two passes; other nodes have STEP_INPUT only. */
enum step_pass { STEP_FORWARD, STEP_WEIGHTS, STEP_INPUT, STEP_PASSES };

/* Floating point operations, and bytes that move to or from memory if nothing stays in a cache. */
struct step_cost {
	double flop, bytes;
};

/* The least that one pass of a node costs. samples: of the batch; element: bytes of an activation
 * (weights the same; their gradients are float32). All zeros for a pass that the node does not
 * have. A batch norm reads its input twice: for the statistics, then for the result. Pure. */
struct step_cost step_node_cost(const struct step_plan *plan, const struct step_node *node,
				enum step_pass pass, int samples, size_t element);

/* "batchnorm+add+relu". */
void step_node_name(const struct step_node *node, char *text, size_t size);

#endif
