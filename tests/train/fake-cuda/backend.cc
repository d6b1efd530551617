/* SPDX-License-Identifier: BSD-3-Clause */
/* cuDNN's graph API by its definition: descriptors store what was set; a graph holds one
 * convolution, with or without sums of its result or a batch norm; some engines fail. Like
 * cuDNN 9.19 on an H200, it has no bf16 engine for the backward pass through a batch norm.
 *
 * FAKE_CUDNN_ENGINES: "fast" (the default), "slow" (than the legacy API), "none". FAKE_CUDNN_MIB:
 * additional workspace of each engine. FAKE_CUDNN_BEST: what the best engine does when it runs,
 * "kill" the process, "fault", or "hang". */
#include "libraries.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <unistd.h>
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
	int engine; /* of configurations and of objects made from them */
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

	if (found == it->values.end() || found->second.type != type ||
	    found->second.count != count || size_of(type) != sizeof(T))
		return nullptr;
	return (const T *)found->second.bytes.data();
}

static fake_descriptor *part(const fake_descriptor *it, int name, cudnnBackendDescriptorType_t type)
{
	auto found = get<fake_descriptor *>(it, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1);

	return found && (*found)->final && (*found)->type == type ? *found : nullptr;
}

/* ---- what a graph describes ---- */

/* n, c, h, w, dense, channels fastest. */
static bool tensor_of(const fake_descriptor *it, int64_t uid, cudnnDataType_t *type,
		      int64_t sizes[4])
{
	auto t = it ? get<cudnnDataType_t>(it, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1)
		    : nullptr;
	auto d = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4) : nullptr;
	auto s = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4) : nullptr;
	auto u = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1) : nullptr;
	auto a = it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1)
		    : nullptr;

	if (!t || !d || !s || !u || !a || (uid > 0 && *u != uid) || *a != 16 || s[1] != 1 ||
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

/* A batch norm's x and parameters, and outputs that are not needed. */
enum role {
	X,
	W,
	Y,
	SUM,
	SQUARE,
	SCALE,
	SHIFT,
	NORM_X,
	MEAN,
	INVSTD,
	NORM_W,
	NORM_B,
	REST,
	ROLES = REST + 3
};

enum kind {
	PLAIN,
	THROUGH, /* x is relu(scale x + shift) */
	BACK,	 /* dx is masked by a batch norm's ReLU, and sums are computed */
};

/* A graph, interpreted as a call. uids: those of tensors in memory; 0 if absent. */
struct meaning {
	enum kind kind;
	fake_pass pass;
	char out;
	float beta;
	bool sums;
	int64_t uids[ROLES];
};

static bool window_of(const fake_descriptor *how, cudnnConvolutionStruct *out)
{
	auto type = get<cudnnDataType_t>(how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
					 CUDNN_TYPE_DATA_TYPE, 1);
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

static bool nowhere(const fake_descriptor *it)
{
	auto said = get<bool>(it, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1);

	return said && *said;
}

/* The uid of a tensor in memory; 0 for a virtual one. */
static int64_t uid_of(const fake_descriptor *it)
{
	auto uid =
		it ? get<int64_t>(it, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1) : nullptr;

	return uid && !nowhere(it) ? *uid : 0;
}

static fake_descriptor *tensor_at(const fake_descriptor *it, int name)
{
	return part(it, name, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
}

static bool convolution_of(const fake_descriptor *it, meaning *out)
{
	names name;
	cudnnDataType_t tx, tw, ty;
	int64_t x[4], w[4], y[4];

	if (!it->final || !names_of(it->type, &name))
		return false;

	auto how = part(it, name.how, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
	auto alpha = get<float>(it, name.alpha, CUDNN_TYPE_FLOAT, 1);
	auto beta = get<float>(it, name.beta, CUDNN_TYPE_FLOAT, 1);

	if (!how || !alpha || !beta || *alpha != 1 ||
	    !tensor_of(tensor_at(it, name.x), 0, &tx, x) ||
	    !tensor_of(tensor_at(it, name.w), 0, &tw, w) ||
	    !tensor_of(tensor_at(it, name.y), 0, &ty, y) || !window_of(how, &out->pass.how))
		return false;
	/* Intermediate tensors have a type of their own. */
	if (nowhere(tensor_at(it, name.x)) && name.out == 'x')
		tx = tx == CUDNN_DATA_FLOAT ? tw : CUDNN_DATA_DOUBLE;
	out->pass.x = {fake_number(tx), (int)x[0], (int)x[1], (int)x[2], (int)x[3]};
	out->pass.w = {fake_number(tw), (int)w[0], (int)w[1], (int)w[2], (int)w[3]};
	out->pass.y = {fake_number(ty), (int)y[0], (int)y[1], (int)y[2], (int)y[3]};
	out->out = name.out;
	out->beta = *beta;
	out->uids[X] = uid_of(tensor_at(it, name.x));
	out->uids[W] = uid_of(tensor_at(it, name.w));
	out->uids[Y] = uid_of(tensor_at(it, name.y));
	return out->uids[W] && out->uids[Y] && fake_fits(out->pass);
}

/* A row in memory with one number per channel, as float or in the type. */
static bool row_of(const fake_descriptor *it, int64_t c, cudnnDataType_t wanted, int64_t *uid)
{
	cudnnDataType_t type;
	int64_t sizes[4];

	*uid = uid_of(it);
	return *uid && tensor_of(it, 0, &type, sizes) && type == wanted && sizes[0] == 1 &&
	       sizes[1] == c && sizes[2] == 1 && sizes[3] == 1;
}

static bool sums_of(const fake_descriptor *it, const fake_descriptor *conv, meaning *of)
{
	auto mode = get<cudnnGenStatsMode_t>(it, CUDNN_ATTR_OPERATION_GENSTATS_MODE,
					     CUDNN_TYPE_GENSTATS_MODE, 1);
	auto type = get<cudnnDataType_t>(it, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC,
					 CUDNN_TYPE_DATA_TYPE, 1);

	of->sums = true;
	return it->final && it->type == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR && mode &&
	       type && *mode == CUDNN_GENSTATS_SUM_SQSUM && *type == CUDNN_DATA_FLOAT &&
	       of->out == 'y' &&
	       tensor_at(it, CUDNN_ATTR_OPERATION_GENSTATS_XDESC) ==
		       tensor_at(conv, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y) &&
	       row_of(tensor_at(it, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC), of->pass.y.c,
		      CUDNN_DATA_FLOAT, &of->uids[SUM]) &&
	       row_of(tensor_at(it, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC), of->pass.y.c,
		      CUDNN_DATA_FLOAT, &of->uids[SQUARE]) &&
	       of->pass.y.number != NUMBER_F32;
}

/* y = mode(x, b); b is NULL if mode takes one tensor. false: it is another operation. */
static bool pointwise_of(const fake_descriptor *it, cudnnPointwiseMode_t wanted,
			 fake_descriptor **x, fake_descriptor **b, fake_descriptor **y)
{
	bool back = wanted == CUDNN_POINTWISE_RELU_BWD,
	     relu = back || wanted == CUDNN_POINTWISE_RELU_FWD;
	auto how = part(it, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
			CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	auto mode = how ? get<cudnnPointwiseMode_t>(how, CUDNN_ATTR_POINTWISE_MODE,
						    CUDNN_TYPE_POINTWISE_MODE, 1)
			: nullptr;
	auto type = how ? get<cudnnDataType_t>(how, CUDNN_ATTR_POINTWISE_MATH_PREC,
					       CUDNN_TYPE_DATA_TYPE, 1)
			: nullptr;
	auto low =
		how ? get<double>(how, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_TYPE_DOUBLE, 1)
		    : nullptr;
	auto one = get<float>(it, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1);

	if (!it->final || it->type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR || !mode ||
	    !type || *mode != wanted || *type != CUDNN_DATA_FLOAT || !one || *one != 1 ||
	    (relu && (!low || *low != 0)))
		return false;
	*x = tensor_at(it, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
	*b = tensor_at(it, back ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC
				: CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
	*y = tensor_at(it, back ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC
				: CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
	return *x && *y && (*b || wanted == CUDNN_POINTWISE_RELU_FWD);
}

/* relu(scale x + shift) before a convolution that reads it. */
static bool through_of(fake_descriptor *const *operations, int64_t count, meaning *out)
{
	fake_descriptor *x, *scale, *scaled, *a, *shift, *shifted, *c, *none, *result;
	const fake_descriptor *conv = operations[3];
	cudnnDataType_t type, between;
	int64_t sizes[4], like[4];
	names name;

	if (count < 4 || !pointwise_of(operations[0], CUDNN_POINTWISE_MUL, &x, &scale, &scaled) ||
	    !pointwise_of(operations[1], CUDNN_POINTWISE_ADD, &a, &shift, &shifted) ||
	    !pointwise_of(operations[2], CUDNN_POINTWISE_RELU_FWD, &c, &none, &result) ||
	    a != scaled || c != shifted || !nowhere(scaled) || !nowhere(shifted) ||
	    !nowhere(result) || !convolution_of(conv, out) || !names_of(conv->type, &name) ||
	    out->out == 'x' || tensor_at(conv, name.x) != result ||
	    !tensor_of(x, 0, &type, sizes) || !tensor_of(result, 0, &between, like) ||
	    memcmp(sizes, like, sizeof sizes) || between != type ||
	    !row_of(scale, sizes[1], type, &out->uids[SCALE]) ||
	    !row_of(shift, sizes[1], type, &out->uids[SHIFT]) || out->beta != 0)
		return false;
	out->kind = THROUGH;
	out->uids[X] = uid_of(x);
	return out->uids[X] && (count == 5) == (out->out == 'y') &&
	       (count == 4 || sums_of(operations[4], conv, out));
}

/* The gradient of a convolution's input, masked where a batch norm of another tensor is at most 0,
 * and its sums. */
static bool back_of(fake_descriptor *const *operations, meaning *out)
{
	static const cudnnPointwiseMode_t modes[] = {CUDNN_POINTWISE_SUB, CUDNN_POINTWISE_MUL,
						     CUDNN_POINTWISE_MUL, CUDNN_POINTWISE_ADD};
	static const int names[] = {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
				    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
				    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
				    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
				    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS};
	static const int roles[] = {SUM, SQUARE, REST, REST + 1, REST + 2};
	const fake_descriptor *sums = operations[6];
	fake_descriptor *x, *b, *y = nullptr, *first = nullptr, *rows[4], *raw;
	cudnnDataType_t type;
	int64_t sizes[4], c;

	if (!convolution_of(operations[0], out) || out->out != 'x' || out->uids[X] ||
	    out->beta != 0)
		return false;
	raw = tensor_at(operations[0], CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
	c = out->pass.x.c;
	for (int i = 0; i < 4; i++) {
		fake_descriptor *before = y;

		if (!pointwise_of(operations[1 + i], modes[i], &x, &rows[i], &y) || !nowhere(y) ||
		    (i && x != before) ||
		    !row_of(rows[i], c, CUDNN_DATA_FLOAT, &out->uids[MEAN + i]))
			return false;
		first = i ? first : x;
	}
	fake_descriptor *value = y;

	if (!pointwise_of(operations[5], CUDNN_POINTWISE_RELU_BWD, &x, &b, &y) || x != value ||
	    b != raw || !tensor_of(first, 0, &type, sizes) ||
	    fake_number(type) != out->pass.w.number || !(out->uids[NORM_X] = uid_of(first)) ||
	    !(out->uids[X] = uid_of(y)) ||
	    sums->type != CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR || !sums->final ||
	    tensor_at(sums, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC) != first ||
	    tensor_at(sums, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC) != y ||
	    tensor_at(sums, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC) != rows[0] ||
	    tensor_at(sums, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC) != rows[1] ||
	    tensor_at(sums, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC) != rows[2])
		return false;
	for (int i = 0; i < 5; i++)
		if (!row_of(tensor_at(sums, names[i]), c, CUDNN_DATA_FLOAT, &out->uids[roles[i]]))
			return false;
	out->kind = BACK;
	out->sums = true;
	return true;
}

static bool meaning_of(const fake_descriptor *graph, meaning *out)
{
	auto found = graph->values.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);

	if (!get<cudnnHandle_t>(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1) ||
	    found == graph->values.end())
		return false;

	auto operations = (fake_descriptor *const *)found->second.bytes.data();
	int64_t count = found->second.count;

	*out = {};
	if (count == 7)
		return back_of(operations, out);
	if (count > 2)
		return count < 6 && through_of(operations, count, out);
	return convolution_of(operations[0], out) && out->uids[X] &&
	       (count == 1 || sums_of(operations[1], operations[0], out));
}

/* Is there a kernel for it? */
static bool had(const meaning &what)
{
	return what.kind == PLAIN || what.pass.w.number == NUMBER_F16;
}

/* ---- engines ---- */

static std::string wish(void)
{
	const char *said = getenv("FAKE_CUDNN_ENGINES");

	return said ? said : "fast";
}

static void misbehave(void)
{
	const char *said = getenv("FAKE_CUDNN_BEST");
	std::string how = said ? said : "";

	if (how == "kill")
		raise(SIGKILL);
	if (how == "fault")
		fake_fault();
	while (how == "hang")
		pause();
}

static size_t engine_workspace(void)
{
	const char *said = getenv("FAKE_CUDNN_MIB");

	return (said ? strtoull(said, nullptr, 10) << 20 : 0) + 2 * FAKE_WORKSPACE;
}

static double engine_ms(const meaning &what, int engine)
{
	double ms = engine == ENGINE_GOOD ? 0.7 : engine == ENGINE_BEST ? 0.5 : 0.2;

	if (what.kind != PLAIN)
		ms -= 0.1;

	return wish() == "slow" ? ms + FAKE_LEGACY_MS : ms;
}

/* [2][c]: sums of the rounded y. */
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

/* relu(scale x + shift), rounded to the type. */
static std::vector<char> normed(const meaning &what, void *const *at)
{
	enum number number = what.pass.x.number;
	size_t count = fake_count(what.pass, 'x'), c = what.pass.x.c;
	std::vector<char> out(fake_bytes(what.pass.x));

	for (size_t i = 0; i < count; i++) {
		float value = fake_read(at[X], i, number) * fake_read(at[SCALE], i % c, number) +
			      fake_read(at[SHIFT], i % c, number);

		fake_write(out.data(), i, number, value > 0 ? value : 0);
	}
	return out;
}

static std::vector<float> as_floats(const void *from, size_t count, enum number number)
{
	std::vector<float> out(count);

	for (size_t i = 0; i < count; i++)
		out[i] = fake_read(from, i, number);
	return out;
}

static void run_back(const meaning &what, void *const *at)
{
	enum number number = what.pass.w.number;
	fake_pass pass = what.pass;
	size_t count = fake_count(pass, 'x'), c = pass.x.c;
	std::vector<float> w = as_floats(at[W], fake_count(pass, 'w'), number);
	std::vector<float> y = as_floats(at[Y], fake_count(pass, 'y'), number), raw(count);
	std::vector<double> sums(c), products(c);

	pass.x.number = pass.w.number = pass.y.number = NUMBER_F32;
	fake_convolve(pass, 'x', nullptr, w.data(), y.data(), raw.data(), 0);
	for (size_t i = 0; i < count; i++) {
		float xhat = (fake_read(at[NORM_X], i, number) - ((float *)at[MEAN])[i % c]) *
			     ((float *)at[INVSTD])[i % c];
		float value = xhat * ((float *)at[NORM_W])[i % c] + ((float *)at[NORM_B])[i % c];
		float g = value > 0 ? raw[i] : 0;

		fake_write(at[X], i, number, g);
		sums[i % c] += (double)g;
		products[i % c] += (double)g * (double)xhat;
	}
	for (size_t i = 0; i < c; i++) {
		((float *)at[SUM])[i] = (float)sums[i];
		((float *)at[SQUARE])[i] = (float)products[i];
	}
	for (int i = 0; i < 3; i++)
		memset(at[REST + i], 0xff, c * sizeof(float));
}

static void run_engine(const meaning &what, int engine, void *const *at)
{
	const void *x = at[X], *w = at[W], *y = at[Y];
	void *to = what.out == 'x' ? at[X] : what.out == 'w' ? at[W] : at[Y];
	std::vector<char> between;
	fake_pass pass = what.pass;

	if (engine == ENGINE_LOSSY)
		pass.how.math = CUDNN_DEFAULT_MATH; /* in float32: TF32's */
	fake_cost(engine_ms(what, engine));
	if (what.kind == THROUGH) {
		between = normed(what, at);
		x = between.data();
	}
	if (what.kind == BACK)
		run_back(what, at);
	else
		fake_convolve(pass, what.out, what.out == 'x' ? nullptr : x,
			      what.out == 'w' ? nullptr : w, what.out == 'y' ? nullptr : y, to,
			      what.beta);
	if (what.sums && what.kind != BACK)
		sum_up(what.pass, to, (float *)at[SUM], (float *)at[SQUARE]);
	if (engine != ENGINE_WRONG)
		return;
	/* The error is where it is easily missed: in the sums, or in the last number. */
	if (what.sums)
		*(float *)at[SQUARE] *= 2;
	else
		fake_write(to, fake_count(what.pass, what.out) - 1, what.pass.x.number, 1000);
}

/* Does this engine compute in float32? */
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

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t it,
				       cudnnBackendAttributeName_t name,
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
		if (!it->graph || wish() == "none" || !meaning_of(it->graph, &what) || !had(what))
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
		*(int64_t *)values = it->engine == ENGINE_GREEDY ? (int64_t)8 << 30
								 : (int64_t)engine_workspace();
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

	size_t sizes[ROLES], given = 0;
	std::vector<void *> places(ROLES);
	auto found = of(pack)->values.find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
	int64_t count = found == of(pack)->values.end() ? 0 : found->second.count;
	auto uids =
		get<int64_t>(of(pack), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count);
	auto at = get<void *>(of(pack), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
			      count);
	auto work =
		get<void *>(of(pack), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1);

	if (!uids || !at || !work)
		return CUDNN_STATUS_BAD_PARAM;
	for (int role = 0; role < ROLES; role++) {
		bool forward = what.out == 'y', narrow = role == SCALE || role == SHIFT;
		size_t c =
			forward && (role == SUM || role == SQUARE) ? what.pass.y.c : what.pass.x.c;

		sizes[role] = role == X || role == NORM_X ? fake_bytes(what.pass.x)
			      : role == W		  ? fake_bytes(what.pass.w)
			      : role == Y		  ? fake_bytes(what.pass.y)
							  : c * (narrow ? 2 : sizeof(float));
		for (int64_t i = 0; what.uids[role] && i < count; i++)
			if (uids[i] == what.uids[role]) {
				places[role] = at[i];
				given++;
			}
		if (!what.uids[role])
			continue;
		if (!places[role] || (uintptr_t)places[role] % 16)
			return CUDNN_STATUS_BAD_PARAM;
		fake_expect(places[role], sizes[role], "a tensor of an engine");
	}
	if (given != (size_t)count)
		return CUDNN_STATUS_BAD_PARAM;
	fake_expect(*work, engine_workspace(), "workspace of an engine");

	void *workspace = *work;
	int engine = it->engine;

	fake_trace("engine %d, %c of x %d x %d x %d x %d and w %d x %d x %d", engine, what.out,
		   what.pass.x.n, what.pass.x.h, what.pass.x.w, what.pass.x.c, what.pass.w.k,
		   what.pass.w.h, what.pass.w.w);
	fake_put(fake_stream(handle), [=] {
		if (engine == ENGINE_BEST)
			misbehave();
		memset(workspace, 0xff, 2 * FAKE_WORKSPACE);
		run_engine(what, engine, places.data());
	});
	return CUDNN_STATUS_SUCCESS;
}

} // extern "C"
