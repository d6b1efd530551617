/* SPDX-License-Identifier: BSD-3-Clause */
/* The CPU device's inside (module device-cpu.so): oneDNN's convolutions and linear layers (dnnl.h),
 * own passes for the rest (kernels.h), and what only runs once a step from the reference device.
 *
 * Upper height: compiled_graph.c compiles a graph for one number of samples into nodes (an op, or a
 * batch norm with what follows it), each with its layouts and its places in one arena;
 * compiled_graph_run.c runs them; executor.c keeps the programs of a step, its totals and the
 * update. */
#ifndef BERTH_TRAIN_CPU_H
#define BERTH_TRAIN_CPU_H

#include "train/device/cpu/dnnl.h"
#include "train/device/cpu/kernels.h"
#include "train/device/device.h"
#include "train/executor/memory_plan.h"
#include "train/model/graph.h"

struct cpu {
	struct device device;
	struct dnnl_context *dnnl;
	const struct kernels *kernels;
};

struct planes planes_of(const struct layout *layout);

/* Lower height (ops.c): as device_ops.run. */
int cpu_op(struct cpu *cpu, const struct op_call *call, struct error *err);

/* ---- programs ---- */

#define NO_SLOT (-1)
#define MAX_READERS 8 /* of one value */

enum node_kind {
	NODE_CONV,
	NODE_LINEAR,
	NODE_NORM,
	NODE_RELU,
	NODE_ADD,
	NODE_MAXPOOL,
	NODE_AVGPOOL,
};

/* One thing to do forward and backward. Times: node i runs forward at i, the loss at node_count,
 * node i backward at 2 node_count - i. */
struct node {
	enum node_kind kind;
	const struct graph_op *op; /* NODE_NORM: the batch norm */
	int input, input2, output; /* values; input2: what is added, or -1 */
	bool relu;		   /* NODE_NORM: with it */
	struct layout x, y;	   /* as the values lie */
	/* How a convolution or linear layer wants x and gives its gradient; where there is an
	 * input2 how that has to lie, and its gradient comes. */
	struct layout preferred, preferred_dx;
	struct cpu_conv *conv;
	struct cpu_linear *linear;
	struct cpu_reorder *copy_in;  /* x or x2 into own, or NULL where that is how it lies */
	struct cpu_reorder *copy_out; /* preferred_dx into the value's layout, or NULL */
	size_t scratch;		      /* floats */
	int preferred_slot;	      /* what copy_in writes */
	int argmax_slot;	      /* NODE_MAXPOOL */
	/* Backward: where the parts of y's gradient are; sum_slot: what more parts than the node
	 * can read are added up in. Where x's gradient goes, and x2's (dz_slot: before copy_out);
	 * NO_SLOT: nobody asks. preferred_dx_slot: x's before copy_out. */
	int dy[MAX_READERS], dy_count, sum_slot, dx_slot, preferred_dx_slot, dz_slot, dx2_slot;
	float *saved, *lanes; /* NODE_NORM, malloced: mean and 1/std, and the kernel's scratch */
};

/* A graph compiled for count samples. */
struct compiled_graph {
	struct cpu *cpu;
	const struct executor_request *request; /* borrowed */
	int count;
	bool input_read_in_place; /* the first op reads the caller's memory */
	int node_count, slot_count;
	struct node *nodes;
	struct memory_item *slots; /* places in the arena */
	struct layout *layouts;	   /* of each value */
	int *value_slots;	   /* of each value; NO_SLOT for the input */
	int loss_gradient;	   /* slot */
	int scratch_slot, sums_slot;
	size_t arena_bytes;
};

/* count: 1 to request->batch. */
int compiled_graph_new(struct cpu *cpu, const struct executor_request *request, int count,
		       struct compiled_graph **out, struct error *err);
void compiled_graph_free(struct compiled_graph *compiled); /* NULL is fine */

/* arena: arena_bytes, 64-byte aligned; what forward left in it, backward reads. */
int compiled_graph_forward(struct compiled_graph *compiled, char *arena, const float *x,
			   struct error *err);
const float *compiled_graph_output(const struct compiled_graph *compiled, char *arena);
float *compiled_graph_output_gradient(const struct compiled_graph *compiled, char *arena);
/* After each node whose parameters have their gradients, ready is called for it. */
struct gradient_sink {
	void *context;
	int (*ready)(void *context, const struct graph_op *op, struct error *err);
};
int compiled_graph_backward(struct compiled_graph *compiled, char *arena, const float *x, bool add,
			    const struct gradient_sink *sink, struct error *err);

/* ---- steps ---- */

int cpu_executor_new(struct device_queue *queue, const struct executor_request *request,
		     struct executor **out, struct error *err);
int cpu_executor_run(struct executor *executor, const struct executor_input *input,
		     struct error *err);
int cpu_executor_read(struct executor *executor, struct executor_totals *out, struct error *err);
void cpu_executor_free(struct executor *executor);

#endif
