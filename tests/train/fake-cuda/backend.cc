/* SPDX-License-Identifier: BSD-3-Clause */
/* cuDNN's graph API by its definition: descriptors as what was set in them, a graph of one
 * convolution, with or without the sums of its result, and engines of which some fail.
 *
 * FAKE_CUDNN_ENGINES: "fast" (the default), "slow" (than the legacy API), "none". */
#include "libraries.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

enum { ENGINE_FAILS, ENGINE_GREEDY, ENGINE_LOSSY, ENGINE_WRONG, ENGINE_GOOD, ENGINE_BEST, ENGINES };

#define FAKE_ENGINE_NAME 100 /* of the first */

struct value {
	cudnnBackendAttributeType_t type;
	std::vector<char> bytes;
	int64_t count;
};

struct fake_descriptor {
	cudnnBackendDescriptorType_t type;
	std::map<int, value> values;
	bool final;
	int engine; /* of configurations and of what is made of them */
	fake_descriptor *graph;
};

static fake_descriptor *of(cudnnBackendDescriptor_t it)
{
	return (fake_descriptor *)it;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
	switch (type) {
	case CUDNN_TYPE_HANDLE:
	case CUDNN_TYPE_VOID_PTR:
	case CUDNN_TYPE_BACKEND_DESCRIPTOR:
	case CUDNN_TYPE_INT64:
	case CUDNN_TYPE_DOUBLE:
		return 8;
	case CUDNN_TYPE_BOOLEAN:
		return 1;
	default:
		return 4;
	}
}

/* The value, of this type and count, or NULL. */
template <typename T>
static const T *get(const fake_descriptor *it, int name, cudnnBackendAttributeType_t type,
		    int64_t count)
{
	auto found = it->values.find(name);

	if (found == it->values.end() || found->second.type != type || found->second.count != count ||
	    size_of(type) != sizeof(T))
		return nullptr;
	return (const T *)found->second.bytes.data();
}

static fake_descriptor *part(const fake_descriptor *it, int name, cudnnBackendDescriptorType_t type)
{
	auto found = get<fake_descriptor *>(it, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1);

	return found && (*found)->final && (*found)->type == type ? *found : nullptr;
}

/* ---- what a graph says ---- */

/* n, c, h, w, dense with the channels the fastest. */
static bool tensor_of(const fake_descriptor *it, int64_t uid, cudnnDataType_t *type, int64_t sizes[4])
{
	auto t = it ? get<cudnnDataType_t>(it, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1)
		    : nullptr;
	auto d = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4) : nullptr;
	auto s = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4) : nullptr;
	auto u = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1) : nullptr;
	auto a = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1)
		    : nullptr;

	if (!t || !d || !s || !u || !a || (uid && *u != uid) || *a != 16 || s[1] != 1 ||
	    s[3] != d[1] || s[2] != d[3] * d[1] || s[0] != d[2] * d[3] * d[1])
		return false;
	*type = *t;
	memcpy(sizes, d, 4 * sizeof *sizes);
	return true;
}

struct names {
	int x, w, y, how, alpha, beta;
	char out;
};

static bool names_of(cudnnBackendDescriptorType_t type, names *out)
{
	switch (type) {
	case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
		*out = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
			CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
			CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
			CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
			CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
			CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
			'y'};
		return true;
	case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
		*out = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
			'x'};
		return true;
	case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
		*out = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
			CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
			'w'};
		return true;
	default:
		return false;
	}
}

/* A graph as the call that it is. */
struct meaning {
	fake_pass pass;
	char out;
	float beta;
	bool sums;
};

static bool window_of(const fake_descriptor *how, cudnnConvolutionStruct *out)
{
	auto type = get<cudnnDataType_t>(how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1);
	auto mode = get<cudnnConvolutionMode_t>(how, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
						CUDNN_TYPE_CONVOLUTION_MODE, 1);
	auto sides = get<int64_t>(how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1);
	auto before = get<int64_t>(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2);
	auto after = get<int64_t>(how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2);
	auto stride = get<int64_t>(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2);
	auto dilation = get<int64_t>(how, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2);

	if (!type || !mode || !sides || !before || !after || !stride || !dilation ||
	    *type != CUDNN_DATA_FLOAT || *mode != CUDNN_CROSS_CORRELATION || *sides != 2 ||
	    before[0] != after[0] || before[0] != after[1] || before[0] != before[1] ||
	    stride[0] != stride[1] || dilation[0] != 1 || dilation[1] != 1)
		return false;
	*out = {(int)before[0], (int)stride[0], CUDNN_TENSOR_OP_MATH};
	return true;
}

static bool convolution_of(const fake_descriptor *it, meaning *out)
{
	names name;
	cudnnDataType_t tx, tw, ty;
	int64_t x[4], w[4], y[4];

	if (!names_of(it->type, &name))
		return false;

	auto how = part(it, name.how, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
	auto alpha = get<float>(it, name.alpha, CUDNN_TYPE_FLOAT, 1);
	auto beta = get<float>(it, name.beta, CUDNN_TYPE_FLOAT, 1);

	if (!how || !alpha || !beta || *alpha != 1 ||
	    !tensor_of(part(it, name.x, CUDNN_BACKEND_TENSOR_DESCRIPTOR), 1, &tx, x) ||
	    !tensor_of(part(it, name.w, CUDNN_BACKEND_TENSOR_DESCRIPTOR), 2, &tw, w) ||
	    !tensor_of(part(it, name.y, CUDNN_BACKEND_TENSOR_DESCRIPTOR), 3, &ty, y) ||
	    !window_of(how, &out->pass.how))
		return false;
	out->pass.x = {fake_number(tx), (int)x[0], (int)x[1], (int)x[2], (int)x[3]};
	out->pass.w = {fake_number(tw), (int)w[0], (int)w[1], (int)w[2], (int)w[3]};
	out->pass.y = {fake_number(ty), (int)y[0], (int)y[1], (int)y[2], (int)y[3]};
	out->out = name.out;
	out->beta = *beta;
	return fake_fits(out->pass);
}

static bool sums_of(const fake_descriptor *it, const fake_descriptor *conv, const meaning &of)
{
	auto mode = get<cudnnGenStatsMode_t>(it, CUDNN_ATTR_OPERATION_GENSTATS_MODE,
					     CUDNN_TYPE_GENSTATS_MODE, 1);
	auto type = get<cudnnDataType_t>(it, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC,
					 CUDNN_TYPE_DATA_TYPE, 1);
	cudnnDataType_t ts, tq;
	int64_t s[4], q[4];

	return it->type == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR && mode && type &&
	       *mode == CUDNN_GENSTATS_SUM_SQSUM && *type == CUDNN_DATA_FLOAT && of.out == 'y' &&
	       part(it, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR) ==
		       part(conv, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
			    CUDNN_BACKEND_TENSOR_DESCRIPTOR) &&
	       tensor_of(part(it, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC,
			      CUDNN_BACKEND_TENSOR_DESCRIPTOR),
			 4, &ts, s) &&
	       tensor_of(part(it, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC,
			      CUDNN_BACKEND_TENSOR_DESCRIPTOR),
			 5, &tq, q) &&
	       ts == CUDNN_DATA_FLOAT && tq == ts && s[0] == 1 && s[1] == of.pass.y.c && s[2] == 1 &&
	       s[3] == 1 && !memcmp(s, q, sizeof s) && of.pass.y.number != NUMBER_F32;
}

static bool meaning_of(const fake_descriptor *graph, meaning *out)
{
	auto found = graph->values.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);

	if (!get<cudnnHandle_t>(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1) ||
	    found == graph->values.end() || found->second.count < 1 || found->second.count > 2)
		return false;

	auto operations = (fake_descriptor *const *)found->second.bytes.data();

	out->sums = found->second.count == 2;
	return operations[0]->final && convolution_of(operations[0], out) &&
	       (!out->sums || (operations[1]->final && sums_of(operations[1], operations[0], *out)));
}

/* ---- engines ---- */

static std::string wish(void)
{
	const char *said = getenv("FAKE_CUDNN_ENGINES");

	return said ? said : "fast";
}

static double engine_ms(int engine)
{
	double ms = engine == ENGINE_GOOD ? 0.7 : engine == ENGINE_BEST ? 0.5 : 0.1;

	return wish() == "slow" ? ms + FAKE_LEGACY_MS : ms;
}

/* [2][c]: of y as it was rounded. */
static void sum_up(const fake_pass &pass, const void *y, float *sum, float *square)
{
	size_t rows = (size_t)pass.y.n * pass.y.h * pass.y.w, c = pass.y.c;

	for (size_t i = 0; i < c; i++) {
		double one = 0, two = 0;

		for (size_t row = 0; row < rows; row++) {
			double v = fake_read(y, row * c + i, pass.y.number);

			one += v;
			two += v * v;
		}
		sum[i] = (float)one;
		square[i] = (float)two;
	}
}

static void run_engine(const meaning &what, int engine, void *const *at)
{
	const void *x = at[0], *w = at[1], *y = at[2];
	void *to = what.out == 'x' ? at[0] : what.out == 'w' ? at[1] : at[2];
	fake_pass pass = what.pass;

	if (engine == ENGINE_LOSSY)
		pass.how.math = CUDNN_DEFAULT_MATH; /* in float32: TF32's */
	fake_cost(engine_ms(engine));
	fake_convolve(pass, what.out, what.out == 'x' ? nullptr : x,
		      what.out == 'w' ? nullptr : w, what.out == 'y' ? nullptr : y, to, what.beta);
	if (what.sums)
		sum_up(what.pass, to, (float *)at[3], (float *)at[4]);
	if (engine != ENGINE_WRONG)
		return;
	/* It is off where nobody would look first: in the sums, or in the last number. */
	if (what.sums)
		*(float *)at[4] *= 2;
	else
		fake_write(to, fake_count(what.pass, what.out) - 1, what.pass.x.number, 1000);
}

/* Is what this engine computes in float32? */
static bool in_f32(const fake_descriptor *engine)
{
	meaning what;

	return engine->graph && meaning_of(engine->graph, &what) &&
	       what.pass.x.number == NUMBER_F32;
}

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
					   cudnnBackendDescriptor_t *out)
{
	*out = (cudnnBackendDescriptor_t) new fake_descriptor{type, {}, false, -1, nullptr};
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t it)
{
	delete of(it);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t it, cudnnBackendAttributeName_t name,
				       cudnnBackendAttributeType_t type, int64_t count,
				       const void *values)
{
	if (of(it)->final || count < 1)
		return CUDNN_STATUS_BAD_PARAM;

	const char *from = (const char *)values;

	of(it)->values[name] = {type, {from, from + count * size_of(type)}, count};
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
	fake_descriptor *it = of(descriptor), *from;
	meaning what;

	switch (it->type) {
	case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
		if (!meaning_of(it, &what))
			return CUDNN_STATUS_BAD_PARAM;
		break;
	case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
		it->graph = part(it, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
				 CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
		if (!it->graph || wish() == "none")
			return CUDNN_STATUS_NOT_SUPPORTED;
		break;
	case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
		from = part(it, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
			    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
		if (!from || from->engine == ENGINE_FAILS)
			return CUDNN_STATUS_NOT_SUPPORTED;
		it->engine = from->engine;
		it->graph = from->graph;
		break;
	case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
		cudnnDataType_t type;
		int64_t sizes[4];

		if (!tensor_of(it, 0, &type, sizes))
			return CUDNN_STATUS_BAD_PARAM;
		break;
	}
	default:
		break;
	}
	it->final = true;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
				       cudnnBackendAttributeName_t name,
				       cudnnBackendAttributeType_t type, int64_t wanted,
				       int64_t *count, void *values)
{
	const fake_descriptor *it = of(descriptor);

	if (!it->final)
		return CUDNN_STATUS_BAD_PARAM;
	if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
		for (*count = 0; *count < wanted && *count < ENGINES; ++*count) {
			fake_descriptor *config = ((fake_descriptor **)values)[*count];

			if (config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
				return CUDNN_STATUS_BAD_PARAM;
			config->engine = (int)*count;
			config->graph = it->graph;
			config->final = true;
		}
		return CUDNN_STATUS_SUCCESS;
	}
	if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
		fake_descriptor *engine = *(fake_descriptor **)values;

		engine->engine = it->engine;
		engine->graph = it->graph;
		engine->final = true;
		*count = 1;
		return CUDNN_STATUS_SUCCESS;
	}
	if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE) {
		*count = it->engine == ENGINE_LOSSY;
		if (*count && wanted)
			*(cudnnBackendNumericalNote_t *)values =
				in_f32(it) ? CUDNN_NUMERICAL_NOTE_TENSOR_CORE
					   : CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
		return CUDNN_STATUS_SUCCESS;
	}
	if (name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE && type == CUDNN_TYPE_BEHAVIOR_NOTE) {
		*count = 0;
		return CUDNN_STATUS_SUCCESS;
	}
	if (name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX && type == CUDNN_TYPE_INT64 && wanted == 1) {
		*count = 1;
		*(int64_t *)values = FAKE_ENGINE_NAME + it->engine;
		return CUDNN_STATUS_SUCCESS;
	}
	if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
		*count = 1;
		*(int64_t *)values = it->engine == ENGINE_GREEDY ? (int64_t)8 << 30 : 2 * FAKE_WORKSPACE;
		return CUDNN_STATUS_SUCCESS;
	}
	return CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
				  cudnnBackendDescriptor_t pack)
{
	const fake_descriptor *it = of(plan);
	meaning what;

	if (!it->final || !of(pack)->final || !it->graph || !meaning_of(it->graph, &what))
		return CUDNN_STATUS_BAD_PARAM;

	int64_t count = what.sums ? 5 : 3;
	auto uids = get<int64_t>(of(pack), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count);
	auto at = get<void *>(of(pack), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
			      count);
	auto work = get<void *>(of(pack), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1);
	size_t sizes[] = {fake_bytes(what.pass.x), fake_bytes(what.pass.w), fake_bytes(what.pass.y),
			  what.pass.y.c * sizeof(float), what.pass.y.c * sizeof(float)};

	if (!uids || !at || !work)
		return CUDNN_STATUS_BAD_PARAM;
	for (int64_t i = 0; i < count; i++) {
		if (uids[i] != i + 1 || (uintptr_t)at[i] % 16)
			return CUDNN_STATUS_BAD_PARAM;
		fake_expect(at[i], sizes[i], "a tensor of an engine");
	}
	fake_expect(*work, 2 * FAKE_WORKSPACE, "workspace of an engine");

	std::vector<void *> places(at, at + count);
	void *workspace = *work;
	int engine = it->engine;

	fake_put(fake_stream(handle), [=] {
		memset(workspace, 0xff, 2 * FAKE_WORKSPACE);
		run_engine(what, engine, places.data());
	});
	return CUDNN_STATUS_SUCCESS;
}

} // extern "C"
