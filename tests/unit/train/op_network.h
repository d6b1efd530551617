/* SPDX-License-Identifier: BSD-3-Clause */
/* Single ops of a device, for the conformance suite. The reference device runs an op by itself. The
 * other devices have ops only as nodes of a training step, so their emitters run a network that
 * consists of the op. Each test program is linked with one emitter: emit_reference.c, emit_cpu.c or
 * emit_cuda.c. */
#ifndef BERTH_TESTS_OP_NETWORK_H
#define BERTH_TESTS_OP_NETWORK_H

#include "train/comm/ddp.h"
#include "train/executor/executor.h"
#include "train/model/graph.h"

struct op_emitter {
	const struct device_ops *device;
	/* Run call, whose tensors are in the device's memory. It has passed op_check. */
	int (*run)(struct device_queue *queue, const struct op_call *call, struct error *err);
	bool network;	    /* ops are nodes: no batches without samples, no dx2 */
	bool adds;	    /* add_dx is supported, except for what a network does in place */
	bool checks_labels; /* an invalid label is an error, not a NaN */
};
extern const struct op_emitter op_emitter;

/* The network of one call. A backward call that wants dx gets an identity (a 1x1 pooling) before
 * the op, because no network computes the gradient of its input. */
struct op_network {
	struct device_queue *queue;
	const struct op_call *call;
	struct graph *graph;
	struct buckets buckets;
	/* With the call's weights, gradients (to which it may add) and running statistics. */
	struct executor_request request;
	int node;      /* the op's */
	int samples;   /* of the batch */
	float *x, *dy; /* host memory, dense; dy is NULL in a forward call */
	int y_channels, y_plane;
};

/* Everything is copied from call, which is borrowed. OP_BATCHNORM must have graph_batchnorm's eps
 * and momentum; OP_ADD's x2 is taken to be the ReLU of x. */
int op_network_new(struct device_queue *queue, const struct op_call *call, struct op_network *out,
		   struct error *err);
/* Write the gradients and running statistics to the call's tensors. */
int op_network_store(const struct op_network *network, struct error *err);
void op_network_free(struct op_network *network);

#endif
