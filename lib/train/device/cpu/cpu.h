/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the CPU device (module device-cpu.so). oneDNN computes convolutions and linear layers
 * (dnnl.h), and berth's own kernels (kernels.h) the rest. What runs only once per step comes from
 * the reference device.
 *
 * Upper level: compiled_graph.c compiles a graph for one number of samples into nodes: an op, or a
 * batch norm with what follows it. Each node has its layouts and its places in one arena.
 * compiled_graph_run.c runs them. executor.c keeps the compiled graphs, the totals and the
 * update. */
#ifndef BERTH_TRAIN_CPU_H
#define BERTH_TRAIN_CPU_H

#include "train/device/cpu/dnnl.h"
#include "train/device/cpu/kernels.h"
#include "train/device/device.h"
#include "train/executor/executor_common.h"
#include "train/executor/fuse.h"
#include "train/executor/memory_plan.h"

struct cpu {
	struct device device;
	struct dnnl_context *dnnl;
	const struct kernels *kernels;
};

struct planes planes_of(const struct layout *layout);

int cpu_op(struct cpu *cpu, const struct op_call *call, struct error *err);

/* ---- compiled graphs ---- */

#define NO_SLOT 0     /* slots[0] is empty */
#define MAX_READERS 8 /* of one value */

/* One node, which runs forward and backward. Times: node i runs forward at i, the loss at
 * node_count, and node i backward at 2 * node_count - i. */
struct node {
	struct fused fused;
	struct layout x, y; /* layouts of the values */
	/* The layouts that a convolution or linear layer prefers for x and for its gradient. With
	 * an input2: the layouts it needs for input2 and for input2's gradient. */
	struct layout preferred, preferred_dx;
	struct cpu_conv *conv;
	struct cpu_linear *linear;
	/* Copies x or x2 into the node's own layout; NULL if it already has that layout. */
	struct cpu_reorder *copy_in;
	/* Copies preferred_dx into the value's layout, or NULL. */
	struct cpu_reorder *copy_out;
	size_t scratch;	    /* floats */
	int preferred_slot; /* what copy_in writes */
	int argmax_slot;    /* OP_MAXPOOL2D */
	/* Backward. dy: slots of the parts of y's gradient; sum_slot: where parts that the node
	 * cannot read separately are summed. dx_slot and dx2_slot receive the gradients of x and
	 * x2; NO_SLOT: not needed. preferred_dx_slot and dz_slot hold them before copy_out. */
	int dy[MAX_READERS], dy_count, sum_slot, dx_slot, preferred_dx_slot, dz_slot, dx2_slot;
	float *saved, *lanes; /* OP_BATCHNORM, malloced: mean and 1/std; the kernel's scratch */
};

/* A graph compiled for count samples. */
struct compiled_graph {
	struct cpu *cpu;
	const struct executor_request *request; /* borrowed */
	int count;
	int node_count, slot_count;
	struct node *nodes;
	struct memory_item *slots; /* places in the arena */
	struct layout *layouts;	   /* per value */
	int *value_slots;	   /* per value; NO_SLOT for the input */
	int loss_gradient;	   /* slot */
	int scratch_slot, sums_slot;
	size_t arena_bytes;
};

/* count: 1 to request->batch. */
int compiled_graph_new(struct cpu *cpu, const struct executor_request *request, int count,
		       struct compiled_graph **out, struct error *err);
void compiled_graph_free(struct compiled_graph *compiled); /* NULL is fine */

/* Run forward in arena (arena_bytes, 64-byte aligned). Backward reads what forward left there. */
int compiled_graph_forward(struct compiled_graph *compiled, char *arena, const float *x,
			   struct error *err);
const float *compiled_graph_output(const struct compiled_graph *compiled, char *arena);
float *compiled_graph_output_gradient(const struct compiled_graph *compiled, char *arena);
/* In an update's last run, backward reports each node whose parameters have their gradients to
 * common; NULL in earlier runs. */
int compiled_graph_backward(struct compiled_graph *compiled, char *arena, const float *x, bool add,
			    struct executor_common *common, struct error *err);

/* ---- executors ---- */

int cpu_executor_new(struct device_queue *queue, const struct executor_request *request,
		     struct executor **out, struct error *err);
int cpu_executor_run(struct executor *executor, const struct executor_input *input,
		     struct error *err);
int cpu_executor_read(struct executor *executor, struct executor_totals *out, struct error *err);
void cpu_executor_free(struct executor *executor);

#endif
