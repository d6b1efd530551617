/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/engine.h"

#include <assert.h>
#include <stdlib.h>

#define DESCRIPTORS 16 /* of a graph; the engines' own are counted apart */
#define NOTES_MOST 16
#define ALIGNMENT 16 /* bytes, of every tensor */

/* Unique numbers of the tensors. */
enum { UID_X = 1, UID_W, UID_Y, UID_SUM, UID_SQUARE, UID_END };

struct engines {
	struct cuda *cuda;
	enum engine_pass pass;
	/* All that plans are made of lives as long as they do. */
	cudnnBackendDescriptor_t all[DESCRIPTORS];
	int all_count;
	cudnnBackendDescriptor_t graph;
	cudnnBackendDescriptor_t configs[ENGINES_MOST];
	int64_t names[ENGINES_MOST]; /* cuDNN's numbers of them */
	int count;
	cudnnBackendDescriptor_t plans[ENGINES_MOST]; /* NULL: not ready */
	size_t workspaces[ENGINES_MOST];
	int64_t outputs;
};

/* A descriptor being filled: after the first call that fails the others do nothing. */
struct making {
	struct engines *engines;
	cudnnBackendDescriptor_t it;
	cudnnStatus_t rc;
};

static struct making make(struct engines *engines, cudnnBackendDescriptorType_t type)
{
	struct making making = {.engines = engines};

	if (engines->all_count == DESCRIPTORS)
		making.rc = CUDNN_STATUS_INTERNAL_ERROR;
	else
		making.rc = cudnnBackendCreateDescriptor(type, &making.it);
	if (!making.rc)
		engines->all[engines->all_count++] = making.it;
	return making;
}

static void set(struct making *making, cudnnBackendAttributeName_t name,
		cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
	if (!making->rc)
		making->rc = cudnnBackendSetAttribute(making->it, name, type, count, values);
}

static void set_descriptor(struct making *making, cudnnBackendAttributeName_t name,
			   cudnnBackendDescriptor_t value)
{
	if (!value)
		making->rc = making->rc ? making->rc : CUDNN_STATUS_BAD_PARAM;
	set(making, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* The finished descriptor, or NULL. */
static cudnnBackendDescriptor_t made(struct making *making)
{
	if (!making->rc)
		making->rc = cudnnBackendFinalize(making->it);
	return making->rc ? NULL : making->it;
}

/* ---- the graph ---- */

/* [n][h][w][c], named in cuDNN's order n, c, h, w. */
static cudnnBackendDescriptor_t tensor(struct engines *engines, int64_t uid, cudnnDataType_t type,
				       int64_t n, int64_t c, int64_t h, int64_t w)
{
	struct making making = make(engines, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	const int64_t sizes[] = {n, c, h, w}, strides[] = {h * w * c, 1, w * c, c};
	const int64_t alignment = ALIGNMENT;

	set(&making, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set(&making, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes);
	set(&making, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
	set(&making, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
	set(&making, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
	return made(&making);
}

static cudnnBackendDescriptor_t window(struct engines *engines, const struct conv_shape *shape)
{
	struct making making = make(engines, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
	const cudnnDataType_t type = CUDNN_DATA_FLOAT;
	const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
	const int64_t sides = 2, pads[] = {shape->pad, shape->pad}, dilations[] = {1, 1};
	const int64_t strides[] = {shape->stride, shape->stride};

	set(&making, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set(&making, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
	set(&making, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &sides);
	set(&making, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
	set(&making, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
	set(&making, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
	set(&making, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
	return made(&making);
}

/* How each pass is called in cuDNN. */
static const struct pass_words {
	cudnnBackendDescriptorType_t type;
	cudnnBackendAttributeName_t x, w, y, how, alpha, beta;
} words[] = {
	[ENGINE_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
	[ENGINE_INPUT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
			  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
			  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
			  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
			  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
			  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
			  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
	[ENGINE_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
			    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static cudnnBackendDescriptor_t convolve(struct engines *engines, const struct conv_shape *shape,
					 cudnnDataType_t type, bool add, cudnnBackendDescriptor_t *y)
{
	const struct pass_words *word =
		&words[engines->pass == ENGINE_SUMS ? ENGINE_FORWARD : engines->pass];
	const struct op_attributes attributes = {shape->kernel, shape->stride, shape->pad};
	const float alpha = 1, beta = add ? 1 : 0;
	cudnnBackendDescriptor_t x, w, how = window(engines, shape);
	struct making making;

	x = tensor(engines, UID_X, type, shape->n, shape->c, shape->h, shape->w);
	w = tensor(engines, UID_W, type, shape->outputs, shape->c, shape->kernel, shape->kernel);
	*y = tensor(engines, UID_Y, type, shape->n, shape->outputs, op_side(shape->h, &attributes),
		    op_side(shape->w, &attributes));
	making = make(engines, word->type);
	set_descriptor(&making, word->x, x);
	set_descriptor(&making, word->w, w);
	set_descriptor(&making, word->y, *y);
	set_descriptor(&making, word->how, how);
	set(&making, word->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
	set(&making, word->beta, CUDNN_TYPE_FLOAT, 1, &beta);
	return made(&making);
}

static cudnnBackendDescriptor_t sum_up(struct engines *engines, cudnnBackendDescriptor_t y)
{
	struct making making = make(engines, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
	const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
	const cudnnDataType_t type = CUDNN_DATA_FLOAT;

	set(&making, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
	set(&making, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
	set_descriptor(&making, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC,
		       tensor(engines, UID_SUM, type, 1, engines->outputs, 1, 1));
	set_descriptor(&making, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC,
		       tensor(engines, UID_SQUARE, type, 1, engines->outputs, 1, 1));
	return made(&making);
}

static bool describe(struct engines *engines, const struct conv_shape *shape,
		     const struct layer_rules *rules, bool add)
{
	cudnnBackendDescriptor_t operations[2], y;
	int64_t count = 1;
	struct making making;

	operations[0] = convolve(engines, shape, cudnn_type(rules->number), add, &y);
	if (operations[0] && engines->pass == ENGINE_SUMS)
		operations[count++] = sum_up(engines, y);
	if (!operations[count - 1])
		return false;
	making = make(engines, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
	set(&making, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &engines->cuda->cudnn);
	set(&making, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
	    operations);
	engines->graph = made(&making);
	return engines->graph;
}

/* ---- engines ---- */

static bool forbidden(cudnnBackendNumericalNote_t note, const struct layer_rules *rules)
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

/* May config be taken by rules? What says nothing of itself may not. *name: its engine's number. */
static bool allowed(cudnnBackendDescriptor_t config, const struct layer_rules *rules, int64_t *name)
{
	cudnnBackendNumericalNote_t notes[NOTES_MOST];
	cudnnBackendDescriptor_t engine;
	int64_t count = 0, named = 0;
	bool good;

	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine))
		return false;
	good = !cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
					 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) &&
	       !cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
					 CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MOST, &count, notes) &&
	       !cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
					 1, &named, name);
	for (int64_t i = 0; good && i < count && i < NOTES_MOST; i++)
		good = !forbidden(notes[i], rules);
	cudnnBackendDestroyDescriptor(engine);
	return good;
}

/* Fills configs with what the heuristics of mode name, as far as there is room. */
static void ask(struct engines *engines, cudnnBackendHeurMode_t mode, const struct layer_rules *rules)
{
	struct making making = make(engines, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
	cudnnBackendDescriptor_t named[ENGINES_MOST] = {NULL};
	int64_t room = 0, count = 0;

	set_descriptor(&making, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, engines->graph);
	set(&making, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
	if (!made(&making))
		return;
	while (room < ENGINES_MOST &&
	       !cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &named[room]))
		room++;
	if (cudnnBackendGetAttribute(making.it, CUDNN_ATTR_ENGINEHEUR_RESULTS,
				     CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count, named))
		count = 0;
	for (int64_t i = 0; i < room; i++) {
		if (i < count && engines->count < ENGINES_MOST &&
		    allowed(named[i], rules, &engines->names[engines->count]))
			engines->configs[engines->count++] = named[i];
		else
			cudnnBackendDestroyDescriptor(named[i]);
	}
}

struct engines *engines_new(struct cuda *cuda, enum engine_pass pass, const struct conv_shape *shape,
			    const struct layer_rules *rules, bool add)
{
	struct engines *engines = calloc(1, sizeof *engines);

	if (!engines)
		return NULL;
	engines->cuda = cuda;
	engines->pass = pass;
	engines->outputs = shape->outputs;
	if (describe(engines, shape, rules, add)) {
		ask(engines, CUDNN_HEUR_MODE_A, rules);
		if (!engines->count)
			ask(engines, CUDNN_HEUR_MODE_FALLBACK, rules);
	}
	if (engines->count)
		return engines;
	engines_free(engines);
	return NULL;
}

void engines_free(struct engines *engines)
{
	if (!engines)
		return;
	for (int i = 0; i < engines->count; i++) {
		engines_drop(engines, i);
		cudnnBackendDestroyDescriptor(engines->configs[i]);
	}
	while (engines->all_count)
		cudnnBackendDestroyDescriptor(engines->all[--engines->all_count]);
	free(engines);
}

int engines_count(const struct engines *engines)
{
	return engines ? engines->count : 0;
}

int engines_name(const struct engines *engines, int index)
{
	return index >= 0 && index < engines->count ? (int)engines->names[index] : -1;
}

/* ---- plans ---- */

/* -1: it cannot be had. */
static int64_t build(struct engines *engines, int index)
{
	cudnnBackendDescriptor_t *plan = &engines->plans[index];
	int64_t count = 0, bytes = -1;

	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan)) {
		*plan = NULL;
		return -1;
	}
	if (cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
				     &engines->cuda->cudnn) ||
	    cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
				     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engines->configs[index]) ||
	    cudnnBackendFinalize(*plan) ||
	    cudnnBackendGetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
				     CUDNN_TYPE_INT64, 1, &count, &bytes))
		return -1;
	return bytes;
}

bool engines_build(struct engines *engines, int index, size_t most)
{
	int64_t bytes;

	if (index < 0 || index >= engines->count)
		return false;
	engines_drop(engines, index);
	bytes = build(engines, index);
	if (bytes < 0 || (uint64_t)bytes > most) {
		engines_drop(engines, index);
		return false;
	}
	engines->workspaces[index] = (size_t)bytes;
	return true;
}

void engines_drop(struct engines *engines, int index)
{
	if (engines->plans[index])
		cudnnBackendDestroyDescriptor(engines->plans[index]);
	engines->plans[index] = NULL;
}

size_t engines_workspace(const struct engines *engines, int index)
{
	return engines->workspaces[index];
}

int engines_run(const struct engines *engines, int index, cudaStream_t stream,
		const struct engine_call *call, const char *name, struct error *err)
{
	const int64_t uids[] = {UID_X, UID_W, UID_Y, UID_SUM, UID_SQUARE};
	const void *places[] = {call->x, call->w, call->y, call->sums,
				call->sums ? call->sums + engines->outputs : NULL};
	int64_t count = engines->pass == ENGINE_SUMS ? 5 : 3;
	cudnnHandle_t cudnn = engines->cuda->cudnn;
	cudnnBackendDescriptor_t pack = NULL;
	cudnnStatus_t rc = cudnnSetStream(cudnn, stream);

	assert(engines->plans[index]);
	if (!rc)
		rc = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
	if (!rc)
		rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
					      CUDNN_TYPE_INT64, count, uids);
	if (!rc)
		rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
					      CUDNN_TYPE_VOID_PTR, count, places);
	if (!rc)
		rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
					      CUDNN_TYPE_VOID_PTR, 1, &call->workspace);
	if (!rc)
		rc = cudnnBackendFinalize(pack);
	if (!rc)
		rc = cudnnBackendExecute(cudnn, engines->plans[index], pack);
	if (pack)
		cudnnBackendDestroyDescriptor(pack);
	return cudnn_check(rc, name, err);
}
