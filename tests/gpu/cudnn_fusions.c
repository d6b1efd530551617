/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of cuDNN's fused batch norms (legacy API, NHWC, SPATIAL_PERSISTENT) run on this GPU for
 * each shape of ResNet-50 at batch 256, and their time beside that of the bytes they must move
 * at 4.3 TB/s. Prints one JSON object per line. Exits with code 77 without a GPU. */
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdio.h>
#include <string.h>

#define BATCH 256
#define RUNS 20
#define BYTES_PER_MS 4.3e9

static const struct {
	int channels, side;
} shapes[] = {{64, 112}, {64, 56},  {256, 56},	{128, 56}, {128, 28}, {512, 28},
	      {256, 28}, {256, 14}, {1024, 14}, {512, 14}, {512, 7},  {2048, 7}};

static const struct {
	const char *name;
	cudnnBatchNormOps_t ops;
	double forward,
		backward; /* tensors read and written, by the apply pass and by the statistics */
} fusions[] = {{"bn", CUDNN_BATCHNORM_OPS_BN, 3, 5},
	       {"bn+relu", CUDNN_BATCHNORM_OPS_BN_ACTIVATION, 3, 5},
	       {"bn+add+relu", CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION, 4, 6}};

static const struct {
	const char *name;
	cudnnDataType_t type;
} types[] = {{"fp16", CUDNN_DATA_HALF}, {"bf16", CUDNN_DATA_BFLOAT16}};

/* All buffers have the size that the largest shape needs. */
struct memory {
	void *x, *z, *y, *dy, *dx, *dz, *work, *reserve;
	float *numbers; /* 10 rows of 2048 */
	size_t work_size, reserve_size;
};

struct descriptors {
	cudnnTensorDescriptor_t tensor, scale;
	cudnnActivationDescriptor_t relu;
};

static float *row(const struct memory *memory, int at)
{
	return memory->numbers + at * 2048;
}

static cudnnStatus_t forward(cudnnHandle_t cudnn, cudnnBatchNormOps_t ops,
			     const struct descriptors *d, const struct memory *m)
{
	const float one = 1, zero = 0;

	return cudnnBatchNormalizationForwardTrainingEx(
		cudnn, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, ops, &one, &zero, d->tensor, m->x,
		d->tensor, m->z, d->tensor, m->y, d->scale, row(m, 0), row(m, 1), 0.1, row(m, 2),
		row(m, 3), 1e-5, row(m, 4), row(m, 5), d->relu, m->work, m->work_size, m->reserve,
		m->reserve_size);
}

static cudnnStatus_t backward(cudnnHandle_t cudnn, cudnnBatchNormOps_t ops,
			      const struct descriptors *d, const struct memory *m)
{
	const float one = 1, zero = 0;

	return cudnnBatchNormalizationBackwardEx(
		cudnn, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, ops, &one, &zero, &one, &zero, d->tensor,
		m->x, d->tensor, m->y, d->tensor, m->dy, d->tensor, m->dz, d->tensor, m->dx,
		d->scale, row(m, 0), row(m, 1), row(m, 6), row(m, 7), 1e-5, row(m, 4), row(m, 5),
		d->relu, m->work, m->work_size, m->reserve, m->reserve_size);
}

typedef cudnnStatus_t (*pass)(cudnnHandle_t, cudnnBatchNormOps_t, const struct descriptors *,
			      const struct memory *);

/* Milliseconds; negative on failure, with the reason in *status. */
static float time_of(pass run, cudnnHandle_t cudnn, cudnnBatchNormOps_t ops,
		     const struct descriptors *d, const struct memory *m, cudnnStatus_t *status)
{
	cudaEvent_t begin, end;
	float ms = -1;

	for (int i = 0; i < 3; i++) {
		*status = run(cudnn, ops, d, m);
		if (*status != CUDNN_STATUS_SUCCESS)
			return -1;
	}
	cudaEventCreate(&begin);
	cudaEventCreate(&end);
	cudaEventRecord(begin, 0);
	for (int i = 0; i < RUNS; i++)
		run(cudnn, ops, d, m);
	cudaEventRecord(end, 0);
	if (cudaEventSynchronize(end) == cudaSuccess)
		cudaEventElapsedTime(&ms, begin, end);
	cudaEventDestroy(begin);
	cudaEventDestroy(end);
	return ms < 0 ? ms : ms / RUNS;
}

static void probe(cudnnHandle_t cudnn, int shape, int type, int fusion, struct memory *m)
{
	const int channels = shapes[shape].channels, side = shapes[shape].side;
	const cudnnBatchNormOps_t ops = fusions[fusion].ops;
	const double bytes = 2.0 * BATCH * channels * side * side;
	struct descriptors d;
	size_t work = 0, work_back = 0, reserve = 0;
	cudnnStatus_t status, back = CUDNN_STATUS_NOT_SUPPORTED;
	float forward_ms = -1, backward_ms = -1;

	cudnnCreateTensorDescriptor(&d.tensor);
	cudnnCreateTensorDescriptor(&d.scale);
	cudnnCreateActivationDescriptor(&d.relu);
	cudnnSetActivationDescriptor(d.relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0);
	cudnnSetTensor4dDescriptor(d.tensor, CUDNN_TENSOR_NHWC, types[type].type, BATCH, channels,
				   side, side);
	cudnnDeriveBNTensorDescriptor(d.scale, d.tensor, CUDNN_BATCHNORM_SPATIAL_PERSISTENT);
	status = cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
		cudnn, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, ops, d.tensor, d.tensor, d.tensor,
		d.scale, d.relu, &work);
	if (status == CUDNN_STATUS_SUCCESS)
		status = cudnnGetBatchNormalizationBackwardExWorkspaceSize(
			cudnn, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, ops, d.tensor, d.tensor,
			d.tensor, d.tensor, d.tensor, d.scale, d.relu, &work_back);
	if (status == CUDNN_STATUS_SUCCESS)
		status = cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
			cudnn, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, ops, d.relu, d.tensor, &reserve);
	if (work <= m->work_size && work_back <= m->work_size && reserve <= m->reserve_size &&
	    status == CUDNN_STATUS_SUCCESS) {
		forward_ms = time_of(forward, cudnn, ops, &d, m, &status);
		if (forward_ms >= 0)
			backward_ms = time_of(backward, cudnn, ops, &d, m, &back);
	}
	printf("{\"channels\": %d, \"side\": %d, \"type\": \"%s\", \"ops\": \"%s\", \"forward\": "
	       "\"%s\", \"backward\": \"%s\", \"forward_ms\": %.4f, \"forward_floor_ms\": %.4f, "
	       "\"backward_ms\": %.4f, \"backward_floor_ms\": %.4f}\n",
	       channels, side, types[type].name, fusions[fusion].name, cudnnGetErrorString(status),
	       cudnnGetErrorString(back), (double)forward_ms,
	       fusions[fusion].forward * bytes / BYTES_PER_MS, (double)backward_ms,
	       fusions[fusion].backward * bytes / BYTES_PER_MS);
	cudnnDestroyTensorDescriptor(d.tensor);
	cudnnDestroyTensorDescriptor(d.scale);
	cudnnDestroyActivationDescriptor(d.relu);
}

int main(void)
{
	const size_t largest = (size_t)2 * BATCH * 64 * 112 * 112;
	struct memory m = {.work_size = 256 << 20, .reserve_size = 256 << 20};
	void **all[] = {&m.x, &m.z, &m.y, &m.dy, &m.dx, &m.dz};
	cudnnHandle_t cudnn;
	int count = 0;

	if (cudaGetDeviceCount(&count) != cudaSuccess || !count ||
	    cudnnCreate(&cudnn) != CUDNN_STATUS_SUCCESS) {
		printf("skipped: no GPU that CUDA and cuDNN support\n");
		return 77;
	}
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (cudaMalloc(all[i], largest) != cudaSuccess ||
		    cudaMemset(*all[i], 0, largest) != cudaSuccess)
			goto memory;
	if (cudaMalloc(&m.work, m.work_size) != cudaSuccess ||
	    cudaMalloc(&m.reserve, m.reserve_size) != cudaSuccess ||
	    cudaMalloc((void **)&m.numbers, 10 * 2048 * sizeof *m.numbers) != cudaSuccess ||
	    cudaMemset(m.numbers, 0, 10 * 2048 * sizeof *m.numbers) != cudaSuccess)
		goto memory;
	for (int shape = 0; shape < (int)(sizeof shapes / sizeof *shapes); shape++)
		for (int type = 0; type < 2; type++)
			for (int fusion = 0; fusion < 3; fusion++)
				probe(cudnn, shape, type, fusion, &m);
	return 0;
memory:
	fprintf(stderr, "out of GPU memory\n");
	return 1;
}
