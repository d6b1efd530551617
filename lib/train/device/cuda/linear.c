/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear layers with cuBLASLt, which treats our rows as its columns: a row-major [r][c] is its c by
 * r matrix. */
#include <stdio.h>
#include <stdlib.h>

#include "train/device/cuda/cuda.h"

/* d (m by n) = a b, with a (m by k) transposed or not, b (k by n) transposed or not. */
struct matmul {
	cublasLtMatmulDesc_t descriptor;
	cublasLtMatrixLayout_t a, b, d;
	cublasLtMatmulAlgo_t algorithm;
};

struct cuda_linear {
	struct cuda *cuda;
	char name[64];
	struct matmul forward, input, weights;
};

struct matmul_shape {
	int m, n, k;
	bool a_transposed, b_transposed;
	cudaDataType_t type, d_type;
	uint32_t d_alignment;
};

static cudaDataType_t data_type(enum number number)
{
	return number == NUMBER_F16 ? CUDA_R_16F : number == NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A dense rows by columns matrix. */
static cublasStatus_t layout(cublasLtMatrixLayout_t *out, cudaDataType_t type, int rows,
			     int columns)
{
	return cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, rows);
}

static cublasStatus_t layouts(struct matmul *matmul, const struct matmul_shape *s,
			      const struct layer_rules *rules)
{
	cublasOperation_t a = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t b = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
	bool tf32 = rules->number == NUMBER_F32 && rules->tf32;
	cublasStatus_t rc = cublasLtMatmulDescCreate(
		&matmul->descriptor, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
		CUDA_R_32F);

	if (!rc)
		rc = cublasLtMatmulDescSetAttribute(matmul->descriptor, CUBLASLT_MATMUL_DESC_TRANSA,
						    &a, sizeof a);
	if (!rc)
		rc = cublasLtMatmulDescSetAttribute(matmul->descriptor, CUBLASLT_MATMUL_DESC_TRANSB,
						    &b, sizeof b);
	if (!rc)
		rc = s->a_transposed ? layout(&matmul->a, s->type, s->k, s->m)
				     : layout(&matmul->a, s->type, s->m, s->k);
	if (!rc)
		rc = s->b_transposed ? layout(&matmul->b, s->type, s->n, s->k)
				     : layout(&matmul->b, s->type, s->k, s->n);
	return rc ? rc : layout(&matmul->d, s->d_type, s->m, s->n);
}

static cublasStatus_t find_algorithm(struct cuda *cuda, struct matmul *matmul,
				     const struct matmul_shape *s)
{
	const size_t workspace = LINEAR_WORKSPACE;
	/* Add parts of a sum in float32: cuBLASLt may otherwise round each to bf16 or fp16. */
	const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const uint32_t sixteen = 16;
	/* cuBLASLt otherwise assumes 256 bytes, which nothing guarantees here. */
	const struct {
		cublasLtMatmulPreferenceAttributes_t attribute;
		const uint32_t *bytes;
	} alignments[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &sixteen},
			  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &sixteen},
			  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &s->d_alignment},
			  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &s->d_alignment}};
	cublasLtMatmulPreference_t preference;
	cublasLtMatmulHeuristicResult_t found;
	int count = 0;
	cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&preference);

	if (rc)
		return rc;
	rc = cublasLtMatmulPreferenceSetAttribute(
		preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
	if (!rc)
		rc = cublasLtMatmulPreferenceSetAttribute(
			preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
			sizeof reduction);
	for (int i = 0; !rc && i < 4; i++)
		rc = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i].attribute,
							  alignments[i].bytes, sizeof(uint32_t));
	if (!rc)
		rc = cublasLtMatmulAlgoGetHeuristic(cuda->blas, matmul->descriptor, matmul->a,
						    matmul->b, matmul->d, matmul->d, preference, 1,
						    &found, &count);
	if (!rc && !count)
		rc = CUBLAS_STATUS_NOT_SUPPORTED;
	if (!rc)
		matmul->algorithm = found.algo;
	cublasLtMatmulPreferenceDestroy(preference);
	return rc;
}

static int matmul_new(struct cuda_linear *linear, struct matmul *matmul,
		      const struct matmul_shape *shape, const struct layer_rules *rules,
		      struct error *err)
{
	cublasStatus_t rc = layouts(matmul, shape, rules);

	if (!rc)
		rc = find_algorithm(linear->cuda, matmul, shape);
	return blas_check(rc, linear->name, err);
}

static void matmul_free(struct matmul *matmul)
{
	if (matmul->a)
		cublasLtMatrixLayoutDestroy(matmul->a);
	if (matmul->b)
		cublasLtMatrixLayoutDestroy(matmul->b);
	if (matmul->d)
		cublasLtMatrixLayoutDestroy(matmul->d);
	if (matmul->descriptor)
		cublasLtMatmulDescDestroy(matmul->descriptor);
}

static int matmul_run(const struct cuda_linear *linear, const struct matmul *matmul,
		      cudaStream_t stream, const void *a, const void *b, void *d, bool add,
		      void *workspace, struct error *err)
{
	float one = 1, beta = add ? 1 : 0;

	return blas_check(cublasLtMatmul(linear->cuda->blas, matmul->descriptor, &one, a, matmul->a,
					 b, matmul->b, &beta, d, matmul->d, d, matmul->d,
					 &matmul->algorithm, workspace, LINEAR_WORKSPACE, stream),
			  linear->name, err);
}

int cuda_linear_new(struct cuda *cuda, const char *name, const struct cuda_linear_shape *shape,
		    const struct layer_rules *rules, struct cuda_linear **out, struct error *err)
{
	cudaDataType_t type = data_type(rules->number);
	int n = shape->n, in = shape->inputs, outs = shape->outputs;
	/* y' = w' x, dx' = w dy' and dw' = x dy, where ' is the matrix as cuBLASLt sees it. */
	const struct matmul_shape forward = {outs, n, in, true, false, type, type, 16};
	const struct matmul_shape input = {in, n, outs, false, false, type, type, 16};
	cudaDataType_t dw_type = shape->dw_f32 ? CUDA_R_32F : type;
	uint32_t dw_alignment = shape->dw_alignment < 16 ? (uint32_t)shape->dw_alignment : 16;
	const struct matmul_shape weights = {in, outs, n, false, true, type, dw_type, dw_alignment};
	struct cuda_linear *linear = calloc(1, sizeof *linear);
	int rc;

	if (!linear)
		return error_memory(err, "a layer");
	linear->cuda = cuda;
	snprintf(linear->name, sizeof linear->name, "%s", name);
	rc = matmul_new(linear, &linear->forward, &forward, rules, err);
	if (!rc && rules->dx)
		rc = matmul_new(linear, &linear->input, &input, rules, err);
	if (!rc && rules->train)
		rc = matmul_new(linear, &linear->weights, &weights, rules, err);
	if (rc)
		cuda_linear_free(linear);
	else
		*out = linear;
	return rc;
}

void cuda_linear_free(struct cuda_linear *linear)
{
	if (!linear)
		return;
	matmul_free(&linear->forward);
	matmul_free(&linear->input);
	matmul_free(&linear->weights);
	free(linear);
}

int cuda_linear_forward(const struct cuda_linear *linear, cudaStream_t stream, const void *x,
			const void *w, void *y, void *workspace, struct error *err)
{
	return matmul_run(linear, &linear->forward, stream, w, x, y, false, workspace, err);
}

int cuda_linear_back_input(const struct cuda_linear *linear, cudaStream_t stream, const void *w,
			   const void *dy, void *dx, bool add, void *workspace, struct error *err)
{
	return matmul_run(linear, &linear->input, stream, w, dy, dx, add, workspace, err);
}

int cuda_linear_back_weights(const struct cuda_linear *linear, cudaStream_t stream, const void *x,
			     const void *dy, void *dw, bool add, void *workspace, struct error *err)
{
	return matmul_run(linear, &linear->weights, stream, x, dy, dw, add, workspace, err);
}
