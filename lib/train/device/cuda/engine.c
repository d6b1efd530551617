/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/engine_graph.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NOTES_MAX 16
#define RUNTIME_COMPILED_MAX 2 /* per pass, among engines that compile their kernel each time */

struct engines {
	struct cuda *cuda;
	/* For shared ones: the number of users, and the index in the list cuda->shared_engines. */
	int users, shared_index;
	char *shared_key;
	struct engines *next;
	enum engine_pass pass;
	struct engine_graph graph;
	cudnnBackendDescriptor_t configs[ENGINES_MAX];
	int64_t global_indices[ENGINES_MAX]; /* cuDNN's own numbers */
	int count, compiled;
	cudnnBackendDescriptor_t execution_plans[ENGINES_MAX]; /* NULL: not ready */
	size_t workspaces[ENGINES_MAX];
	size_t summed; /* number of channels in the sums */
};

/* ---- engines ---- */

static bool is_forbidden(cudnnBackendNumericalNote_t note, const struct layer_rules *rules)
{
	switch (note) {
	case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
		return rules->number == NUMBER_F32 && !rules->tf32;
	case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
	case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
		return true;
	case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
		return rules->deterministic;
	case CUDNN_NUMERICAL_NOTE_FFT:
	case CUDNN_NUMERICAL_NOTE_WINOGRAD:
	case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
	case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
	case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
		return rules->direct;
	default:
		return false;
	}
}

/* Does it compile its kernel when a plan is made, which takes seconds? */
static bool compiles_at_runtime(cudnnBackendDescriptor_t engine)
{
	cudnnBackendBehaviorNote_t notes[NOTES_MAX];
	int64_t count = 0;

	if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
				     CUDNN_TYPE_BEHAVIOR_NOTE, NOTES_MAX, &count, notes))
		return false;
	for (int64_t i = 0; i < count && i < NOTES_MAX; i++)
		if (notes[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)
			return true;
	return false;
}

/* Do rules allow config? A config that reports nothing about itself is excluded. *name: its
 * engine's number. */
static bool is_allowed(struct engines *engines, cudnnBackendDescriptor_t config,
		       const struct layer_rules *rules, int64_t *name)
{
	cudnnBackendNumericalNote_t notes[NOTES_MAX];
	cudnnBackendDescriptor_t engine;
	int64_t count = 0, named = 0;
	bool good;

	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine))
		return false;
	good = !cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
					 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) &&
	       !cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
					 CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, &count, notes) &&
	       !cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
					 1, &named, name);
	for (int64_t i = 0; good && i < count && i < NOTES_MAX; i++)
		good = !is_forbidden(notes[i], rules);
	if (good && compiles_at_runtime(engine))
		good = engines->compiled++ < RUNTIME_COMPILED_MAX;
	cudnnBackendDestroyDescriptor(engine);
	return good;
}

/* Fill configs with the engines that the heuristics of mode list, as far as there is room. */
static void query_heuristics(struct engines *engines, cudnnBackendHeurMode_t mode,
			     const struct layer_rules *rules)
{
	struct descriptor descriptor =
		descriptor_new(&engines->graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
	cudnnBackendDescriptor_t named[ENGINES_MAX] = {NULL};
	int64_t room = 0, count = 0;

	descriptor_set_handle(&descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
			      engines->graph.handle);
	descriptor_set(&descriptor, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
	if (engines->cuda->described_device)
		descriptor_set_handle(&descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
				      engines->cuda->described_device);
#endif
	if (!descriptor_finish(&descriptor))
		return;
	while (room < ENGINES_MAX &&
	       !cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &named[room]))
		room++;
	if (cudnnBackendGetAttribute(descriptor.handle, CUDNN_ATTR_ENGINEHEUR_RESULTS,
				     CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count, named))
		count = 0;
	for (int64_t i = 0; i < room; i++) {
		if (i < count && engines->count < ENGINES_MAX &&
		    is_allowed(engines, named[i], rules, &engines->global_indices[engines->count]))
			engines->configs[engines->count++] = named[i];
		else
			cudnnBackendDestroyDescriptor(named[i]);
	}
}

struct engines *engines_new(struct cuda *cuda, enum engine_pass pass,
			    const struct conv_shape *shape, const struct layer_rules *rules,
			    bool add)
{
	struct engines *engines = calloc(1, sizeof *engines);

	if (!engines)
		return NULL;
	engines->cuda = cuda;
	engines->users = 1;
	engines->pass = pass;
	engines->summed = (size_t)(pass == ENGINE_INPUT_NORM ? shape->c : shape->outputs);
	if (engine_graph_make(&engines->graph, cuda, pass, shape, rules, add)) {
		query_heuristics(engines, CUDNN_HEUR_MODE_A, rules);
		if (!engines->count)
			query_heuristics(engines, CUDNN_HEUR_MODE_FALLBACK, rules);
	}
	if (engines->count)
		return engines;
	engines_free(engines);
	return NULL;
}

void engines_free(struct engines *engines)
{
	if (!engines || --engines->users)
		return;
	for (struct engines **at = &engines->cuda->shared_engines; *at; at = &(*at)->next)
		if (*at == engines) {
			*at = engines->next;
			break;
		}
	free(engines->shared_key);
	for (int i = 0; i < engines->count; i++) {
		engines_drop(engines, i);
		cudnnBackendDestroyDescriptor(engines->configs[i]);
	}
	engine_graph_free(&engines->graph);
	free(engines);
}

void engines_share(struct engines *engines, const char *key, int index)
{
	char *copy = engines->shared_key ? NULL : strdup(key);

	if (!copy)
		return;
	engines->shared_key = copy;
	engines->shared_index = index;
	engines->next = engines->cuda->shared_engines;
	engines->cuda->shared_engines = engines;
}

struct engines *engines_find_shared(const struct cuda *cuda, enum engine_pass pass, const char *key,
				    int index)
{
	for (struct engines *it = cuda->shared_engines; it; it = it->next)
		if (it->pass == pass && it->shared_index == index && !strcmp(it->shared_key, key)) {
			it->users++;
			return it;
		}
	return NULL;
}

int engines_count(const struct engines *engines)
{
	return engines ? engines->count : 0;
}

int engines_global_index(const struct engines *engines, int index)
{
	return index >= 0 && index < engines->count ? (int)engines->global_indices[index] : -1;
}

/* ---- plans ---- */

/* A plan for this GPU, or for the one described. */
static cudnnStatus_t bind_execution_plan(const struct cuda *cuda,
					 cudnnBackendDescriptor_t execution_plan)
{
#if CUDNN_VERSION >= 90800
	if (cuda->described_device)
		return cudnnBackendSetAttribute(
			execution_plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
			CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &cuda->described_device);
#endif
	return cudnnBackendSetAttribute(execution_plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
					CUDNN_TYPE_HANDLE, 1, &cuda->cudnn);
}

/* Build engine index. Return its workspace in bytes, or -1 if it is unavailable. */
static int64_t build(struct engines *engines, int index)
{
	cudnnBackendDescriptor_t *execution_plan = &engines->execution_plans[index];
	int64_t count = 0, bytes = -1;

	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, execution_plan)) {
		*execution_plan = NULL;
		return -1;
	}
	if (bind_execution_plan(engines->cuda, *execution_plan) ||
	    cudnnBackendSetAttribute(*execution_plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
				     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engines->configs[index]) ||
	    cudnnBackendFinalize(*execution_plan) ||
	    cudnnBackendGetAttribute(*execution_plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
				     CUDNN_TYPE_INT64, 1, &count, &bytes))
		return -1;
	return bytes;
}

bool engines_build(struct engines *engines, int index, size_t max)
{
	int64_t bytes;

	if (index < 0 || index >= engines->count)
		return false;
	engines_drop(engines, index);
	bytes = build(engines, index);
	if (bytes < 0 || (uint64_t)bytes > max) {
		engines_drop(engines, index);
		return false;
	}
	engines->workspaces[index] = (size_t)bytes;
	return true;
}

void engines_drop(struct engines *engines, int index)
{
	if (engines->execution_plans[index])
		cudnnBackendDestroyDescriptor(engines->execution_plans[index]);
	engines->execution_plans[index] = NULL;
}

size_t engines_workspace(const struct engines *engines, int index)
{
	return engines->workspaces[index];
}

int engines_run(const struct engines *engines, int index, cudaStream_t stream,
		const struct engine_call *call, const char *name, struct error *err)
{
	const void *pointers[UID_END];
	int64_t uids[UID_END];
	int count = engine_tensors(engines->pass, call, engines->summed, uids, pointers);
	cudnnHandle_t cudnn = engines->cuda->cudnn;
	cudnnBackendDescriptor_t pack = NULL;
	cudnnStatus_t rc = cudnnSetStream(cudnn, stream);

	assert(engines->execution_plans[index]);
	if (!rc)
		rc = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
	if (!rc)
		rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
					      CUDNN_TYPE_INT64, count, uids);
	if (!rc)
		rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
					      CUDNN_TYPE_VOID_PTR, count, pointers);
	if (!rc)
		rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
					      CUDNN_TYPE_VOID_PTR, 1, &call->workspace);
	if (!rc)
		rc = cudnnBackendFinalize(pack);
	if (!rc)
		rc = cudnnBackendExecute(cudnn, engines->execution_plans[index], pack);
	if (pack)
		cudnnBackendDestroyDescriptor(pack);
	return cudnn_check(rc, name, err);
}
