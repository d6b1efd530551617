/* SPDX-License-Identifier: BSD-3-Clause */
/* cuDNN's convolutions and cuBLASLt's products by their definition, with checks of their
 * requirements. */
#include "libraries.h"

#include <cublasLt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "train/device/cuda/kernels/element.h"

struct cudnnContext {
	cudaStream_t stream;
};

enum number fake_number(cudnnDataType_t type)
{
	if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_HALF && type != CUDNN_DATA_BFLOAT16)
		abort();
	return type == CUDNN_DATA_HALF	     ? NUMBER_F16
	       : type == CUDNN_DATA_BFLOAT16 ? NUMBER_BF16
					     : NUMBER_F32;
}

float fake_read(const void *at, size_t index, enum number number)
{
	if (number == NUMBER_F32)
		return ((const float *)at)[index];
	if (number == NUMBER_F16)
		return f32_of_f16(((const struct f16 *)at)[index]);
	return f32_of_bf16(((const struct bf16 *)at)[index]);
}

void fake_write(void *at, size_t index, enum number number, float value)
{
	if (number == NUMBER_F32)
		((float *)at)[index] = value;
	else if (number == NUMBER_F16)
		((struct f16 *)at)[index] = f16_of_f32(value);
	else
		((struct bf16 *)at)[index] = bf16_of_f32(value);
}

static size_t size_of(enum number number)
{
	return number == NUMBER_F32 ? 4 : 2;
}

size_t fake_bytes(const cudnnTensorStruct &t)
{
	return (size_t)t.n * t.c * t.h * t.w * size_of(t.number);
}
size_t fake_bytes(const cudnnFilterStruct &t)
{
	return (size_t)t.k * t.c * t.h * t.w * size_of(t.number);
}
size_t fake_count(const fake_pass &p, char which)
{
	return (which == 'x'   ? fake_bytes(p.x)
		: which == 'y' ? fake_bytes(p.y)
			       : fake_bytes(p.w)) /
	       size_of(p.x.number);
}

cudaStream_t fake_stream(cudnnHandle_t handle)
{
	return handle->stream;
}

bool fake_fits(const fake_pass &p)
{
	return p.x.number == p.y.number && p.x.number == p.w.number && p.x.c == p.w.c &&
	       p.y.c == p.w.k && p.x.n == p.y.n && p.w.h == p.w.w &&
	       p.y.h == (p.x.h + 2 * p.how.pad - p.w.h) / p.how.stride + 1 &&
	       p.y.w == (p.x.w + 2 * p.how.pad - p.w.w) / p.how.stride + 1 &&
	       (p.x.number == NUMBER_F32 || p.how.math == CUDNN_TENSOR_OP_MATH);
}

/* Call f(index in x, in w, in y) for each product of a convolution. */
template <typename F> static void each(const fake_pass &p, F f)
{
	for (int n = 0; n < p.y.n; n++)
		for (int oy = 0; oy < p.y.h; oy++)
			for (int ox = 0; ox < p.y.w; ox++)
				for (int ky = 0; ky < p.w.h; ky++)
					for (int kx = 0; kx < p.w.w; kx++) {
						int iy = oy * p.how.stride + ky - p.how.pad;
						int ix = ox * p.how.stride + kx - p.how.pad;

						if (iy < 0 || iy >= p.x.h || ix < 0 || ix >= p.x.w)
							continue;
						f(((size_t)(n * p.x.h + iy) * p.x.w + ix) * p.x.c,
						  (size_t)(ky * p.w.w + kx) * p.w.c,
						  ((size_t)(n * p.y.h + oy) * p.y.w + ox) * p.y.c);
					}
}

/* Rounded as tensor cores read it. */
static float tf32(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof bits);
	bits = (bits + 0x1000) & ~0x1fffu;
	memcpy(&value, &bits, sizeof bits);
	return value;
}

static float *widen(const void *from, size_t count, enum number number, bool rounds)
{
	float *out = (float *)malloc(count * sizeof(float) + 1);

	for (size_t i = 0; i < count; i++) {
		out[i] = fake_read(from, i, number);
		if (rounds)
			out[i] = tf32(out[i]);
	}
	return out;
}

static void narrow(float *from, void *to, size_t count, enum number number, float beta)
{
	for (size_t i = 0; i < count; i++)
		fake_write(to, i, number,
			   beta != 0 ? from[i] + beta * fake_read(to, i, number) : from[i]);
	free(from);
}

/* Compute one of 'y', 'x', 'w' from the two others. */
void fake_convolve(const fake_pass &p, char out, const void *x, const void *w, const void *y,
		   void *to, float beta)
{
	enum number number = p.x.number;
	size_t xs = fake_bytes(p.x) / size_of(number), ws = fake_bytes(p.w) / size_of(number),
	       ys = fake_bytes(p.y) / size_of(number), tap = (size_t)p.w.h * p.w.w * p.w.c;
	/* The default math type of float32 uses tensor cores. */
	bool rounds = number == NUMBER_F32 && p.how.math == CUDNN_DEFAULT_MATH;
	float *fx = out == 'x' ? (float *)calloc(xs, 4) : widen(x, xs, number, rounds);
	float *fw = out == 'w' ? (float *)calloc(ws, 4) : widen(w, ws, number, rounds);
	float *fy = out == 'y' ? (float *)calloc(ys, 4) : widen(y, ys, number, rounds);
	int c = p.w.c, k = p.w.k;

	each(p, [&](size_t ax, size_t aw, size_t ay) {
		for (int o = 0; o < k; o++) {
			float *vw = fw + o * tap + aw, *vx = fx + ax, *vy = fy + ay + o;

			if (out == 'y')
				for (int i = 0; i < c; i++)
					*vy += vx[i] * vw[i];
			else if (out == 'x')
				for (int i = 0; i < c; i++)
					vx[i] += *vy * vw[i];
			else
				for (int i = 0; i < c; i++)
					vw[i] += *vy * vx[i];
		}
	});
	if (out == 'x')
		narrow(fx, to, xs, number, beta);
	else
		free(fx);
	if (out == 'w')
		narrow(fw, to, ws, number, beta);
	else
		free(fw);
	if (out == 'y')
		narrow(fy, to, ys, number, beta);
	else
		free(fy);
}

static size_t workspace_of(int algorithm)
{
	const char *mib = getenv("FAKE_CUDNN_FAST_MIB");

	return algorithm == 1 ? FAKE_WORKSPACE : (mib ? strtoull(mib, nullptr, 10) : 8192) << 20;
}

static cudnnStatus_t run(cudnnHandle_t handle, const fake_pass &p, char out, const void *x,
			 const void *w, const void *y, void *to, int algorithm, void *workspace,
			 size_t workspace_bytes, const void *alpha, const void *beta)
{
	const void *all[] = {x, w, y, to, workspace};
	float factor = *(const float *)beta;

	if (!fake_fits(p) || algorithm > 1 || *(const float *)alpha != 1 ||
	    workspace_bytes < workspace_of(algorithm))
		return CUDNN_STATUS_BAD_PARAM;
	for (const void *at : all)
		if (at && (uintptr_t)at % 16)
			return CUDNN_STATUS_BAD_PARAM;
	fake_expect(x, out == 'x' ? 0 : fake_bytes(p.x), "x of a convolution");
	fake_expect(w, out == 'w' ? 0 : fake_bytes(p.w), "w of a convolution");
	fake_expect(y, out == 'y' ? 0 : fake_bytes(p.y), "y of a convolution");
	fake_expect(to,
		    out == 'x'	 ? fake_bytes(p.x)
		    : out == 'w' ? fake_bytes(p.w)
				 : fake_bytes(p.y),
		    "the result of a convolution");
	fake_expect(workspace, FAKE_WORKSPACE, "workspace of a convolution");
	fake_trace("convolution, %c of x %d x %d x %d x %d and w %d x %d x %d, beta %g", out, p.x.n,
		   p.x.h, p.x.w, p.x.c, p.w.k, p.w.h, p.w.w, (double)factor);
	fake_put(handle->stream, [=] {
		memset(workspace, 0xff, FAKE_WORKSPACE);
		fake_cost(FAKE_LEGACY_MS);
		fake_convolve(p, out, x, w, y, to, factor);
	});
	return CUDNN_STATUS_SUCCESS;
}

extern "C" {

void cudnnGetLastErrorString(char *message, size_t size)
{
	if (size)
		*message = 0;
}

size_t cudnnGetVersion(void)
{
	const char *version = getenv("FAKE_CUDNN_VERSION");

	return version ? strtoul(version, nullptr, 10) : CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
	return status == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "an error";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
	*out = new cudnnContext();
	return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
	delete handle;
	return CUDNN_STATUS_SUCCESS;
}
/* The previous stream must still exist: cuDNN may access it. */
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
	if (!fake_lives(handle->stream) || !fake_lives(stream))
		return CUDNN_STATUS_BAD_PARAM;
	handle->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *out)
{
	*out = handle->stream;
	return CUDNN_STATUS_SUCCESS;
}

#define MAKE(create, destroy, type, of)                                                            \
	cudnnStatus_t create(type *out)                                                            \
	{                                                                                          \
		*out = new of();                                                                   \
		return CUDNN_STATUS_SUCCESS;                                                       \
	}                                                                                          \
	cudnnStatus_t destroy(type it)                                                             \
	{                                                                                          \
		delete it;                                                                         \
		return CUDNN_STATUS_SUCCESS;                                                       \
	}
MAKE(cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor, cudnnTensorDescriptor_t,
     cudnnTensorStruct)
MAKE(cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor, cudnnFilterDescriptor_t,
     cudnnFilterStruct)
MAKE(cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor,
     cudnnConvolutionDescriptor_t, cudnnConvolutionStruct)

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t it, cudnnTensorFormat_t format,
					 cudnnDataType_t type, int n, int c, int h, int w)
{
	if (format != CUDNN_TENSOR_NHWC || n < 1 || c < 1 || h < 1 || w < 1)
		return CUDNN_STATUS_BAD_PARAM;
	*it = {fake_number(type), n, c, h, w};
	return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t it, cudnnDataType_t type,
					 cudnnTensorFormat_t format, int k, int c, int h, int w)
{
	if (format != CUDNN_TENSOR_NHWC || k < 1 || c < 1 || h < 1 || w < 1)
		return CUDNN_STATUS_BAD_PARAM;
	*it = {fake_number(type), k, c, h, w};
	return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t it, int pad_h, int pad_w,
					      int stride_h, int stride_w, int dilation_h,
					      int dilation_w, cudnnConvolutionMode_t mode,
					      cudnnDataType_t compute)
{
	if (pad_h != pad_w || stride_h != stride_w || dilation_h != 1 || dilation_w != 1 ||
	    mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT)
		return CUDNN_STATUS_BAD_PARAM;
	*it = {pad_h, stride_h, CUDNN_DEFAULT_MATH};
	return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t it, cudnnMathType_t math)
{
	it->math = math;
	return CUDNN_STATUS_SUCCESS;
}

/* A search takes FAKE_CUDNN_SEARCH_MS. */
static void search(void)
{
	const char *ms = getenv("FAKE_CUDNN_SEARCH_MS");

	fake_trace("search");
	usleep(ms ? (useconds_t)atoi(ms) * 1000 : 0);
}

/* Three algorithms: the fastest is not deterministic and needs too much memory, the second one
 * fails. With FAKE_CUDNN_FAST_MIB, the first one needs that much, but a search finds it slow. */
#define PERFS(perf_type, algo_type, searched)                                                      \
	do {                                                                                       \
		if (searched)                                                                      \
			search();                                                                  \
		perf_type all[3] = {};                                                             \
		all[0].algo = (algo_type)0;                                                        \
		all[0].status = searched && getenv("FAKE_CUDNN_FAST_MIB")                          \
					? CUDNN_STATUS_NOT_SUPPORTED                               \
					: CUDNN_STATUS_SUCCESS;                                    \
		all[0].memory = workspace_of(0);                                                   \
		all[1].algo = (algo_type)2;                                                        \
		all[1].status = CUDNN_STATUS_NOT_SUPPORTED;                                        \
		all[2].algo = (algo_type)1;                                                        \
		all[2].status = CUDNN_STATUS_SUCCESS;                                              \
		all[2].memory = FAKE_WORKSPACE;                                                    \
		all[2].determinism = CUDNN_DETERMINISTIC;                                          \
		for (*returned = 0; *returned < 3 && *returned < wanted; ++*returned) {            \
			all[*returned].mathType = how->math;                                       \
			perfs[*returned] = all[*returned];                                         \
		}                                                                                  \
		return CUDNN_STATUS_SUCCESS;                                                       \
	} while (0)
#define SIZE                                                                                       \
	do {                                                                                       \
		*size = workspace_of((int)algo);                                                   \
		return (int)algo > 1 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;          \
	} while (0)

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
	cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *at_x,
	const cudnnFilterDescriptor_t w, const void *at_w, const cudnnConvolutionDescriptor_t how,
	const cudnnTensorDescriptor_t y, void *at_y, const int wanted, int *returned,
	cudnnConvolutionFwdAlgoPerf_t *perfs, void *workspace, size_t workspace_bytes)
{
	fake_expect(at_x, fake_bytes(*x), "x of a search");
	fake_expect(at_w, fake_bytes(*w), "w of a search");
	fake_expect(at_y, fake_bytes(*y), "y of a search");
	fake_expect(workspace, workspace_bytes, "workspace of a search");
	memset(at_y, 0xff, fake_bytes(*y));
	PERFS(cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t, true);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
	cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const void *at_w,
	const cudnnTensorDescriptor_t y, const void *at_y, const cudnnConvolutionDescriptor_t how,
	const cudnnTensorDescriptor_t x, void *at_x, const int wanted, int *returned,
	cudnnConvolutionBwdDataAlgoPerf_t *perfs, void *workspace, size_t workspace_bytes)
{
	fake_expect(at_x, fake_bytes(*x), "x of a search");
	memset(at_x, 0xff, fake_bytes(*x));
	PERFS(cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t, true);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
	cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *at_x,
	const cudnnTensorDescriptor_t y, const void *at_y, const cudnnConvolutionDescriptor_t how,
	const cudnnFilterDescriptor_t w, void *at_w, const int wanted, int *returned,
	cudnnConvolutionBwdFilterAlgoPerf_t *perfs, void *workspace, size_t workspace_bytes)
{
	fake_expect(at_w, fake_bytes(*w), "w of a search");
	memset(at_w, 0xff, fake_bytes(*w));
	PERFS(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t, true);
}
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
	cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
	const cudnnConvolutionDescriptor_t how, const cudnnTensorDescriptor_t y, const int wanted,
	int *returned, cudnnConvolutionFwdAlgoPerf_t *perfs)
{
	PERFS(cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t, false);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
	cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
	const cudnnConvolutionDescriptor_t how, const cudnnTensorDescriptor_t x, const int wanted,
	int *returned, cudnnConvolutionBwdDataAlgoPerf_t *perfs)
{
	PERFS(cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t, false);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
	cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
	const cudnnConvolutionDescriptor_t how, const cudnnFilterDescriptor_t w, const int wanted,
	int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *perfs)
{
	PERFS(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t, false);
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle,
						      const cudnnTensorDescriptor_t x,
						      const cudnnFilterDescriptor_t w,
						      const cudnnConvolutionDescriptor_t how,
						      const cudnnTensorDescriptor_t y,
						      cudnnConvolutionFwdAlgo_t algo, size_t *size)
{
	SIZE;
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
	cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
	const cudnnConvolutionDescriptor_t how, const cudnnTensorDescriptor_t x,
	cudnnConvolutionBwdDataAlgo_t algo, size_t *size)
{
	SIZE;
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
	cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
	const cudnnConvolutionDescriptor_t how, const cudnnFilterDescriptor_t w,
	cudnnConvolutionBwdFilterAlgo_t algo, size_t *size)
{
	SIZE;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
				      const cudnnTensorDescriptor_t x, const void *at_x,
				      const cudnnFilterDescriptor_t w, const void *at_w,
				      const cudnnConvolutionDescriptor_t how,
				      cudnnConvolutionFwdAlgo_t algo, void *workspace,
				      size_t workspace_bytes, const void *beta,
				      const cudnnTensorDescriptor_t y, void *at_y)
{
	return run(handle, {*x, *y, *w, *how}, 'y', at_x, at_w, nullptr, at_y, algo, workspace,
		   workspace_bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
					   const cudnnFilterDescriptor_t w, const void *at_w,
					   const cudnnTensorDescriptor_t y, const void *at_y,
					   const cudnnConvolutionDescriptor_t how,
					   cudnnConvolutionBwdDataAlgo_t algo, void *workspace,
					   size_t workspace_bytes, const void *beta,
					   const cudnnTensorDescriptor_t x, void *at_x)
{
	return run(handle, {*x, *y, *w, *how}, 'x', nullptr, at_w, at_y, at_x, algo, workspace,
		   workspace_bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
					     const cudnnTensorDescriptor_t x, const void *at_x,
					     const cudnnTensorDescriptor_t y, const void *at_y,
					     const cudnnConvolutionDescriptor_t how,
					     cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
					     size_t workspace_bytes, const void *beta,
					     const cudnnFilterDescriptor_t w, void *at_w)
{
	return run(handle, {*x, *y, *w, *how}, 'w', at_x, nullptr, at_y, at_w, algo, workspace,
		   workspace_bytes, alpha, beta);
}

} // extern "C"

/* ---- cuBLASLt: opaque structs of a fixed size, with ours in them ---- */

struct layout {
	cudaDataType_t type;
	int64_t rows, columns, ld;
};
struct matmul {
	cublasOperation_t a, b;
	bool rounds;
};
struct preference {
	uint32_t alignment, reductions;
};

static enum number number_of(cudaDataType_t type)
{
	if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF)
		abort();
	return type == CUDA_R_16F ? NUMBER_F16 : type == CUDA_R_16BF ? NUMBER_BF16 : NUMBER_F32;
}

static float rounded(float value, enum number number)
{
	uint32_t bits;

	fake_write(&bits, 0, number, value);
	return fake_read(&bits, 0, number);
}

static bool fits(const matmul &how, const layout &a, const layout &b, const layout &d)
{
	int64_t m = how.a == CUBLAS_OP_T ? a.columns : a.rows;
	int64_t k = how.a == CUBLAS_OP_T ? a.rows : a.columns;
	int64_t n = how.b == CUBLAS_OP_T ? b.rows : b.columns;
	int64_t k2 = how.b == CUBLAS_OP_T ? b.columns : b.rows;

	return m == d.rows && n == d.columns && k == k2 && a.type == b.type &&
	       (d.type == a.type || d.type == CUDA_R_32F) && a.ld >= a.rows && b.ld >= b.rows &&
	       d.ld >= d.rows;
}

extern "C" {

size_t cublasLtGetVersion(void)
{
	return CUBLAS_VERSION;
}
const char *cublasLtGetStatusString(cublasStatus_t status)
{
	return "an error of the fake GPU";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
	*out = (cublasLtHandle_t)malloc(1);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	free(handle);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
					cudaDataType_t scale)
{
	if (scale != CUDA_R_32F)
		return CUBLAS_STATUS_INVALID_VALUE;
	*out = (cublasLtMatmulDesc_t)calloc(1, sizeof(matmul));
	((matmul *)*out)->rounds = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t it)
{
	free(it);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t it,
					      cublasLtMatmulDescAttributes_t attribute,
					      const void *value, size_t size)
{
	matmul *how = (matmul *)it;

	if (size != sizeof(cublasOperation_t))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (attribute == CUBLASLT_MATMUL_DESC_TRANSA)
		memcpy(&how->a, value, size);
	else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB)
		memcpy(&how->b, value, size);
	else
		return CUBLAS_STATUS_INVALID_VALUE;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
					  uint64_t rows, uint64_t columns, int64_t ld)
{
	layout *it = (layout *)malloc(sizeof *it);

	*it = {type, (int64_t)rows, (int64_t)columns, ld};
	*out = (cublasLtMatrixLayout_t)it;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t it)
{
	free(it);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
	preference *it = (preference *)calloc(1, sizeof *it);

	it->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
	*out = (cublasLtMatmulPreference_t)it;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t it)
{
	free(it);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t it,
						    cublasLtMatmulPreferenceAttributes_t attribute,
						    const void *value, size_t size)
{
	preference *wish = (preference *)it;

	if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
		memcpy(&wish->alignment, value, sizeof wish->alignment);
	if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
		memcpy(&wish->reductions, value, sizeof wish->reductions);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t how,
					      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
					      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
					      cublasLtMatmulPreference_t wish, int wanted,
					      cublasLtMatmulHeuristicResult_t results[],
					      int *returned)
{
	const preference *it = (const preference *)wish;

	*returned = 0;
	if (!fits(*(matmul *)how, *(layout *)a, *(layout *)b, *(layout *)d))
		return CUBLAS_STATUS_INVALID_VALUE;
	memset(results, 0, sizeof *results);
	results->algo.data[0] = it->alignment; /* of the result */
	/* An H200 adds the parts of a short sum in the result's type, unless that is excluded. */
	results->algo.data[1] = it->reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
	*returned = 1;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
			      const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
			      cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
			      cublasLtMatrixLayout_t c_layout, void *d,
			      cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
			      void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
	layout la = *(layout *)a_layout, lb = *(layout *)b_layout, ld = *(layout *)d_layout;
	matmul how = *(matmul *)desc;
	float factor = *(const float *)beta;
	bool rough = algo->data[1];

	if (!fits(how, la, lb, ld) || (uintptr_t)a % 16 || (uintptr_t)b % 16 ||
	    (uintptr_t)d % algo->data[0] || c != d || *(const float *)alpha != 1)
		return CUBLAS_STATUS_INVALID_VALUE;
	for (const auto &part :
	     {std::make_pair(a, la), std::make_pair(b, lb), std::make_pair((const void *)d, ld)})
		fake_expect(part.first,
			    (size_t)(part.second.ld * part.second.columns) *
				    size_of(number_of(part.second.type)),
			    "a factor or the result of a product");
	fake_expect(workspace, workspace_bytes, "workspace of a product");
	fake_trace("product, %d x %d of %d, beta %g", (int)ld.rows, (int)ld.columns,
		   (int)(how.a == CUBLAS_OP_T ? la.rows : la.columns), (double)factor);
	fake_put(stream, [=] {
		enum number in = number_of(la.type), out = number_of(ld.type);
		int64_t depth = how.a == CUBLAS_OP_T ? la.rows : la.columns;

		memset(workspace, 0xff, 256);
		for (int64_t j = 0; j < ld.columns; j++)
			for (int64_t i = 0; i < ld.rows; i++) {
				float sum = 0;

				for (int64_t k = 0; k < depth; k++) {
					float one = fake_read(a,
							      how.a == CUBLAS_OP_T ? k + i * la.ld
										   : i + k * la.ld,
							      in);
					float two = fake_read(b,
							      how.b == CUBLAS_OP_T ? j + k * lb.ld
										   : k + j * lb.ld,
							      in);

					sum += how.rounds ? tf32(one) * tf32(two) : one * two;
					if (rough)
						sum = rounded(sum, out);
				}
				size_t at = i + j * ld.ld;

				fake_write(d, at, out,
					   factor != 0 ? sum + factor * fake_read(d, at, out)
						       : sum);
			}
	});
	return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
