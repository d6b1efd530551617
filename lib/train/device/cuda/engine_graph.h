/* SPDX-License-Identifier: BSD-3-Clause */
/* The graphs of engine.c's passes, as described to cuDNN, and the tensors that each reads and
 * writes. */
#ifndef BERTH_TRAIN_CUDA_ENGINE_GRAPH_H
#define BERTH_TRAIN_CUDA_ENGINE_GRAPH_H

#include "train/device/cuda/engine.h"

/* Unique ids of the tensors: those of all passes, the sums, the scales, and ENGINE_INPUT_NORM's. */
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
	UID_REST, /* and two more: further output of cuDNN */
	UID_END = UID_REST + 3
};

#define DESCRIPTORS 56 /* of a graph and the queries about it */

/* Everything that plans are made of; it lives as long as they do. */
struct engine_graph {
	cudnnBackendDescriptor_t all[DESCRIPTORS];
	int all_count;
	cudnnBackendDescriptor_t handle;
};

/* A descriptor that is being filled in. After the first failing call, later calls do nothing. */
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
/* The finished descriptor, owned by the graph; or NULL. */
cudnnBackendDescriptor_t descriptor_finish(struct descriptor *descriptor);

/* graph must be zeroed. false: cuDNN cannot describe it. */
bool engine_graph_make(struct engine_graph *graph, const struct cuda *cuda, enum engine_pass pass,
		       const struct conv_shape *shape, const struct layer_rules *rules, bool add);
void engine_graph_free(struct engine_graph *graph);

/* List the tensors that pass reads and writes: the id of each, and its address in call. summed: the
 * number of channels in call->sums. Return how many there are. */
int engine_tensors(enum engine_pass pass, const struct engine_call *call, size_t summed,
		   int64_t uids[UID_END], const void *pointers[UID_END]);

#endif
