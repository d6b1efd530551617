/* SPDX-License-Identifier: BSD-3-Clause */
/* What training changes: the flat buffers on the device, and their copies in host memory. */
#ifndef BERTH_TRAIN_RUN_OPTIM_H
#define BERTH_TRAIN_RUN_OPTIM_H

#include "base/error.h"
#include "train/checkpoint/variables.h"
#include "train/comm/ddp.h"
#include "train/executor/executor.h"

/* Device memory in the layouts of struct variables. */
struct optim {
	struct device_queue *queue;
	size_t count, buffer_count;
	float *weights, *gradients, *momentum; /* gradients has one more element, the vote */
	bool gradients_of_comm;		       /* allocated by comm, not ours to free */
	float *buffers;			       /* NULL if the graph has none */
};

/* Allocate memory for buckets and graph, zeroed except for the gradients. comm chooses the memory
 * of the gradients, so call optim_free before comm closes. Collective. */
int optim_new(struct device_queue *queue, const struct graph *graph, const struct buckets *buckets,
	      struct comm *comm, struct optim *out, struct error *err);
void optim_free(struct optim *optim); /* clears it */

/* Copy variables of the same sizes from host to device. */
int optim_load(struct optim *optim, const struct variables *variables, struct error *err);
/* Copy to variables of the same sizes, from device to host. Waits for the queue. */
int optim_store(const struct optim *optim, struct variables *variables, struct error *err);

/* Send the running statistics of rank 0 to all ranks, as PyTorch's DDP does, because each rank has
 * computed those of its own samples. Does nothing without buffers. Collective. */
int optim_broadcast_buffers(struct optim *optim, struct comm *comm, struct error *err);

#endif
