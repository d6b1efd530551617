/* SPDX-License-Identifier: BSD-3-Clause */
/* The graphs of engine.c's passes, described to cuDNN, and the tensors that each reads and writes.
 */
#ifndef BERTH_TRAIN_CUDA_ENGINE_GRAPH_H
#define BERTH_TRAIN_CUDA_ENGINE_GRAPH_H

#include "train/device/cuda/engine.h"

/* Unique numbers of the tensors. */
enum {
	UID_X = 1,
	UID_W,
	UID_Y,
	UID_SUM,
	UID_SQUARE, /* ENGINE_INPUT_NORM: the sum of products */
	UID_SCALE,
	UID_SHIFT,
	UID_NORM_X,
	UID_NORM_MEAN,
	UID_NORM_INVSTD,
	UID_NORM_W,
	UID_NORM_B,
	UID_REST, /* and two more: what cuDNN writes besides */
	UID_END = UID_REST + 3
};

#define DESCRIPTORS 56 /* of a graph and what is asked about it */

/* All that plans are made of, which lives as long as they do. */
struct engine_graph {
	cudnnBackendDescriptor_t all[DESCRIPTORS];
	int all_count;
	cudnnBackendDescriptor_t handle;
};

/* A descriptor being filled: after the first call that fails the others do nothing. */
struct descriptor {
	struct engine_graph *graph;
	cudnnBackendDescriptor_t handle;
	cudnnStatus_t rc;
};
struct descriptor descriptor_new(struct engine_graph *graph, cudnnBackendDescriptorType_t type);
void descriptor_set(struct descriptor *descriptor, cudnnBackendAttributeName_t name,
		    cudnnBackendAttributeType_t type, int64_t count, const void *values);
void descriptor_set_handle(struct descriptor *descriptor, cudnnBackendAttributeName_t name,
			   cudnnBackendDescriptor_t value);
/* The finished descriptor, the graph's, or NULL. */
cudnnBackendDescriptor_t descriptor_finish(struct descriptor *descriptor);

/* graph: zeroed. false: cuDNN cannot describe it. */
bool engine_graph_make(struct engine_graph *graph, const struct cuda *cuda, enum engine_pass pass,
		       const struct conv_shape *shape, const struct layer_rules *rules, bool add);
void engine_graph_free(struct engine_graph *graph);

/* The tensors of pass, by their numbers, UID_END of them at the most. */
int engine_uids(enum engine_pass pass, int64_t *uids);
/* Where each lies, by its number; summed: channels of call->sums. */
void engine_pointers(const struct engine_call *call, size_t summed, const void *pointers[UID_END]);

#endif
