/* SPDX-License-Identifier: BSD-3-Clause */
/* What training changes: the flat buffers on the device, and their copies in host memory. */
#ifndef BERTH_TRAIN_RUN_OPTIM_H
#define BERTH_TRAIN_RUN_OPTIM_H

#include "base/error.h"
#include "train/checkpoint/variables.h"
#include "train/comm/ddp.h"
#include "train/device/device.h"

/* Device memory in the layouts of struct variables. */
struct optim {
	struct device_queue *queue;
	size_t count, buffer_count;
	float *weights, *gradients,
		*momentum;	/* gradients: one element more, for executor_request.vote */
	bool gradients_of_comm; /* not ours to free */
	float *buffers;		/* NULL where the graph has none */
};

/* Reserve for buckets and graph; all but the gradients are zeros. The gradients lie where comm
 * reduces them best: free it before comm closes. Collective. */
int optim_new(struct device_queue *queue, const struct graph *graph, const struct buckets *buckets,
	      struct comm *comm, struct optim *out, struct error *err);
void optim_free(struct optim *optim); /* clears it */

/* Host to device, of the same sizes. */
int optim_load(struct optim *optim, const struct variables *variables, struct error *err);
/* Device to host: variables of the same sizes, waits for the queue. */
int optim_store(const struct optim *optim, struct variables *variables, struct error *err);

/* Send the running statistics of rank 0 to all ranks, as PyTorch's DDP does: each rank has those of
 * its own samples. Collective; nothing without buffers. */
int optim_broadcast_buffers(struct optim *optim, struct comm *comm, struct error *err);

#endif
