/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the CPU device (module device-cpu.so). oneDNN computes convolutions and linear layers
 * (dnnl.h), and berth's own kernels (kernels.h) the rest; loss.c has the losses.
 *
 * compiled_graph.c makes the layers of a step's nodes (executor/step_plan.h) for one
 * number of samples, with the layouts that they prefer, and has them placed. compiled_graph_run.c
 * runs them. executor.c keeps the compiled graphs, the totals and the update. */
#ifndef BERTH_TRAIN_CPU_H
#define BERTH_TRAIN_CPU_H

#include "train/device/cpu/dnnl.h"
#include "train/device/cpu/kernels.h"
#include "train/device/device.h"
#include "train/executor/executor_common.h"
#include "train/executor/step_plan.h"

struct cpu {
	struct device device;
	struct dnnl_context *dnnl;
	const struct kernels *kernels;
};

struct planes planes_of(const struct layout *layout);

/* ---- compiled graphs ---- */

/* What this device adds to a node of the plan. */
struct cpu_node {
	const struct step_node *step;
	struct layout x, y; /* layouts of the values */
	/* The layouts that a convolution or linear layer prefers for x and for its gradient. With
	 * an input2: the layouts it needs for input2 and for input2's gradient. */
	struct layout preferred, preferred_dx;
	struct cpu_conv *conv;
	/* Copies x or x2 into the node's own layout; NULL if it already has that layout. */
	struct cpu_reorder *copy_in;
	/* Copies preferred_dx into the value's layout, or NULL. */
	struct cpu_reorder *copy_out;
	size_t scratch;	      /* floats */
	float *saved, *lanes; /* OP_BATCHNORM, malloced: mean and 1/std; the kernel's scratch */
};

enum { SCRATCH_LAYER, SCRATCH_SUMS }; /* step_plan.scratch */

/* A graph compiled for count samples. */
struct compiled_graph {
	struct cpu *cpu;
	const struct executor_request *request; /* borrowed */
	int count;
	struct step_plan plan;
	struct cpu_node *nodes; /* as the plan's */
	struct layout *layouts; /* per value */
};

/* count: 1 to request->batch. */
int compiled_graph_new(struct cpu *cpu, const struct executor_request *request, int count,
		       struct compiled_graph **out, struct error *err);
void compiled_graph_free(struct compiled_graph *compiled); /* NULL is fine */

/* Run forward in arena (plan.arena_bytes, 64-byte aligned). Backward reads what forward left there.
 */
int compiled_graph_forward(struct compiled_graph *compiled, char *arena, const float *x,
			   struct error *err);
const float *compiled_graph_output(const struct compiled_graph *compiled, char *arena);
float *compiled_graph_output_gradient(const struct compiled_graph *compiled, char *arena);
/* In an update's last run, backward reports each node whose parameters have their gradients to
 * common; NULL in earlier runs. */
int compiled_graph_backward(struct compiled_graph *compiled, char *arena, const float *x, bool add,
			    struct executor_common *common, struct error *err);

extern const struct executor_ops cpu_executor; /* executor.c */

#endif
