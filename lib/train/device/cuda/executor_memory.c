/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/executor_memory.h"

#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/device/cuda/kernels/element.h"

/* Events on which the host waits: sleep instead of spinning on a core. */
#define WAITED_FOR (cudaEventDisableTiming | cudaEventBlockingSync)

/* ---- out of memory ---- */

/* Does everything fit? Check before allocating, so that the message shows the free memory as it was
 * at the start. */
static int check_room(const struct cuda *cuda, const struct executor_request *request,
		      const struct executor_common *common, struct error *err)
{
	struct executor_request min = *request;
	size_t available, total, wanted,
		param_ranges = request->train ? common->param_range_count : 0;
	char what[64], hint[64] = "not even a batch of 1 would fit";
	int rc, fits;

	if (cudaMemGetInfo(&available, &total))
		return 0;
	min.deterministic = false;
	rc = executor_bytes_with_eval(&min, param_ranges, cuda->multiprocessors, &wanted, err);
	if (rc || wanted <= available)
		return rc;
	fits = executor_largest_batch(request, param_ranges, cuda->multiprocessors,
				      available - (available < total / RESERVED_FRACTION
							   ? available
							   : total / RESERVED_FRACTION));
	if (fits > 0)
		snprintf(hint, sizeof hint, "a batch of %d would fit", fits);
	else if (request->deterministic)
		/* The estimate includes the largest workspace that algorithms may use, so a smaller
		 * batch may fit after all. */
		snprintf(hint, sizeof hint, "use a smaller --batch");
	snprintf(what, sizeof what, "%s with a batch of %d",
		 request->train ? "training" : "evaluating", request->batch);
	return cuda_memory_short(wanted, what, hint, err);
}

/* ---- device memory ---- */

static int reserve_all(struct executor_memory *memory, struct error *err)
{
	const struct executor_sizes *sizes = &memory->sizes;
	char activations[64];
	const struct {
		size_t bytes;
		const char *what;
		void *out; /* the address of the pointer */
	} parts[] = {
		{sizes->arena, activations, &memory->graph_memory.arena},
		{sizes->copies, "copies of the weights", &memory->graph_memory.copies},
		{sizes->saved, "the batch norm statistics", &memory->graph_memory.saved},
		{sizes->losses, "the losses", &memory->losses},
		{sizes->label_ranks, "the losses", &memory->label_ranks},
		{sizes->weights, "the weight list", &memory->weights},
		{sizes->param_ranges, "the parameter list", &memory->param_ranges},
		{sizeof *memory->totals, "the totals", &memory->totals},
		{sizeof *memory->scaler, "the loss scale", &memory->scaler},
		{sizes->table, "the normalization table", &memory->table},
		{sizes->graph_inputs, "a batch's targets", &memory->graph_inputs},
		{sizes->staging, "the samples of two batches", &memory->staging[0].device},
		{sizes->staging, "the samples of two batches", &memory->staging[1].device},
	};
	int rc = 0;

	snprintf(activations, sizeof activations, "with a batch of %d, activations",
		 memory->request->batch);
	/* Parts without bytes stay NULL: with a table, the kernels would take samples for bytes. */
	for (size_t i = 0; !rc && i < sizeof parts / sizeof *parts; i++)
		if (parts[i].bytes)
			rc = cuda_memory(parts[i].bytes, parts[i].what, parts[i].out, err);
	return rc;
}

/* With pageable memory cudaMemcpy returns before all data have arrived. It uses the default stream,
 * for which our streams do not wait; executor_memory_new waits for it. */
static int to_device(const void *from, void *to, size_t bytes, struct error *err)
{
	if (!bytes)
		return 0;
	return cuda_check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying to the GPU",
			  err);
}

static int fill_weights(struct executor_memory *memory, struct error *err)
{
	const struct executor_request *request = memory->request;
	const struct lowered_graph *lowered = memory->lowered;
	struct kernel_weight *list = calloc((size_t)lowered->plan.node_count + 1, sizeof *list);
	int rc;

	if (!list)
		return error_memory(err, "a training step");
	for (int i = 0; i < lowered->plan.node_count; i++) {
		const struct lowered_weight *weight = &lowered->nodes[i].weight;

		if (weight->param < 0 || weight->in_place)
			continue;
		list[memory->weight_count++] = (struct kernel_weight){
			request->weights + request->buckets->offsets[weight->param],
			memory->graph_memory.copies + weight->copy,
			weight->outputs,
			weight->channels,
			weight->inner,
			weight->padded,
		};
	}
	rc = to_device(list, memory->weights, memory->sizes.weights, err);
	free(list);
	return rc;
}

static int fill_param_ranges(const struct executor_common *common, struct executor_memory *memory,
			     struct error *err)
{
	struct kernel_param_range *list = calloc(common->param_range_count + 1, sizeof *list);
	int rc;

	if (!list)
		return error_memory(err, "a training step");
	for (size_t i = 0; i < common->param_range_count; i++)
		list[i] = (struct kernel_param_range){
			(int64_t)common->param_ranges[i].offset,
			(int64_t)common->param_ranges[i].count,
			common->param_ranges[i].decay ? memory->request->sgd.weight_decay : 0};
	memory->param_range_count = (int)common->param_range_count;
	rc = to_device(list, memory->param_ranges, memory->sizes.param_ranges, err);
	free(list);
	return rc;
}

/* A run's gradients are shares of the mean over all ranks, where DDP's are of a rank's own mean. */
float executor_scale_unit(const struct executor_request *request)
{
	return request->comm ? (float)request->comm->size : 1;
}

/* Totals, loss scale and normalization table. */
static int fill_state(struct executor_memory *memory, struct error *err)
{
	const struct kernel_scaler scaler = {.scale = LOSS_SCALE_BEGIN *
						      executor_scale_unit(memory->request)};
	const struct kernel_totals none = {.first_nonfinite_step = -1};
	int rc = to_device(&none, memory->totals, sizeof none, err);

	if (!rc)
		rc = to_device(&scaler, memory->scaler, sizeof scaler, err);
	return rc ? rc : to_device(memory->request->table, memory->table, memory->sizes.table, err);
}

/* ---- host memory, events, streams ---- */

static int new_event(cudaEvent_t *out, unsigned flags, struct error *err)
{
	return cuda_check(cudaEventCreateWithFlags(out, flags), "creating a CUDA event", err);
}

static int make_host_side(struct executor_memory *memory, struct error *err)
{
	int rc = cuda_check(cudaMallocHost((void **)&memory->readback, sizeof *memory->readback),
			    "allocating pinned memory", err);

	if (rc)
		return rc;
	memory->readback->none = (struct kernel_totals){.first_nonfinite_step = -1};
	rc = new_event(&memory->answered, WAITED_FOR, err);
	if (!rc)
		rc = cuda_check(cudaStreamCreateWithFlags(&memory->side, cudaStreamNonBlocking),
				"creating a CUDA stream", err);
	for (int i = 0; !rc && i < 2; i++) {
		struct executor_staging *staging = &memory->staging[i];

		rc = cuda_check(cudaMallocHost((void **)&staging->host, memory->sizes.staging),
				"allocating pinned memory for samples", err);
		if (!rc)
			rc = new_event(&staging->copied, WAITED_FOR, err);
		if (!rc)
			rc = new_event(&staging->consumed, cudaEventDisableTiming, err);
	}
	return rc;
}

int executor_memory_new(struct cuda *cuda, const struct executor_request *request,
			const struct lowered_graph *lowered, const struct executor_common *common,
			struct executor_memory *out, struct error *err)
{
	int rc = check_room(cuda, request, common, err);

	out->request = request;
	out->lowered = lowered;
	executor_sizes_compute(request, lowered, request->train ? common->param_range_count : 0,
			       &out->sizes);
	if (!rc)
		rc = reserve_all(out, err);
	if (!rc)
		rc = fill_weights(out, err);
	if (!rc && request->train)
		rc = fill_param_ranges(common, out, err);
	if (!rc)
		rc = fill_state(out, err);
	if (!rc)
		rc = make_host_side(out, err);
	return rc ? rc : cuda_check(cudaDeviceSynchronize(), "copying to the GPU", err);
}

void executor_memory_free(struct executor_memory *memory)
{
	const struct compiled_graph_memory *graph = &memory->graph_memory;
	void *const parts[] = {graph->arena,	 graph->copies,	       graph->saved,
			       graph->workspace, memory->losses,       memory->label_ranks,
			       memory->weights,	 memory->param_ranges, memory->totals,
			       memory->scaler,	 memory->table,	       memory->graph_inputs};

	for (int i = 0; i < 2; i++) {
		struct executor_staging *staging = &memory->staging[i];

		cudaFree(staging->device);
		cudaFreeHost(staging->host);
		if (staging->copied)
			cudaEventDestroy(staging->copied);
		if (staging->consumed)
			cudaEventDestroy(staging->consumed);
	}
	if (memory->side)
		cudaStreamDestroy(memory->side);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		cudaFree(parts[i]);
	cudaFreeHost(memory->readback);
	if (memory->answered)
		cudaEventDestroy(memory->answered);
	*memory = (struct executor_memory){0};
}

int executor_memory_reserve_workspace(struct executor_memory *memory, size_t bytes,
				      struct error *err)
{
	memory->workspace_bytes = bytes < LINEAR_WORKSPACE ? LINEAR_WORKSPACE : bytes;
	return cuda_memory(memory->workspace_bytes, "cuDNN's workspace",
			   &memory->graph_memory.workspace, err);
}

/* ---- batches ---- */

static void fill_staging(const struct executor_memory *memory, const struct executor_input *input,
			 char *to)
{
	const struct executor_request *request = memory->request;
	struct kernel_run_params run = {
		.lr = input->lr,
		.share = (float)(1.0 / (double)input->global_count),
		.count = input->count,
		.first = input->first || !request->train,
		.step = input->step,
		.vote = input->vote,
	};
	size_t count = (size_t)input->count;
	size_t targets =
		request->loss == LOSS_MSE ? count * (size_t)request->graph->classes : count;
	int32_t *augments = (int32_t *)(void *)(to + memory->sizes.augments_at);

	memcpy(to, &run, sizeof run);
	if (!count)
		return;
	memcpy(to + memory->sizes.targets_at, input->target, targets * 4);
	for (size_t i = 0; input->augments && i < count; i++) {
		augments[3 * i] = input->augments[i].top;
		augments[3 * i + 1] = input->augments[i].left;
		augments[3 * i + 2] = input->augments[i].flip;
	}
	if (input->resident)
		memcpy(to + memory->sizes.indices_at, input->indices, count * sizeof(uint32_t));
	else
		memcpy(to + memory->sizes.samples_at,
		       input->raw ? input->raw : (const void *)input->x,
		       count * memory->sizes.sample);
}

static int copy_to_staging(struct executor_memory *memory, struct executor_staging *staging,
			   const struct executor_input *input, struct error *err)
{
	size_t samples = input->resident ? 0 : (size_t)input->count * memory->sizes.sample;
	size_t bytes =
		input->count ? memory->sizes.samples_at + samples : memory->sizes.graph_inputs;
	cudaError_t code =
		staging->used ? cudaStreamWaitEvent(memory->side, staging->consumed, 0) : 0;

	if (!code)
		code = cudaMemcpyAsync(staging->device, staging->host, bytes,
				       cudaMemcpyHostToDevice, memory->side);
	if (!code)
		code = cudaEventRecord(staging->copied, memory->side);
	return cuda_check(code, "copying a batch to the GPU", err);
}

static int unpack_batch(struct executor_memory *memory, struct executor_staging *staging,
			const struct kernel_config *config, const struct executor_input *input,
			struct error *err)
{
	const struct executor_request *request = memory->request;
	const struct lowered_graph *lowered = memory->lowered;
	const struct shape *shape = &request->graph->values[0];
	bool raw = input->raw || input->resident;
	const struct kernel_input call = {
		.raw = input->resident ? input->resident
				       : staging->device + memory->sizes.samples_at,
		.index = input->resident ? (const uint32_t *)(void *)(staging->device +
								      memory->sizes.indices_at)
					 : NULL,
		.crops = raw && input->augments
				 ? (const int32_t *)(void *)(staging->device +
							     memory->sizes.augments_at)
				 : NULL,
		.table = memory->table,
		.out = memory->graph_memory.arena + lowered->plan.slots[lowered->plan.input].offset,
		.n = input->count,
		.c = shape->channels,
		.h = shape->height,
		.w = shape->width,
		.padded = lowered->input_channels,
		.pad = raw && input->augments ? request->crop_pad : 0,
	};
	cudaError_t code = cudaStreamWaitEvent(config->stream, staging->copied, 0);

	if (!code)
		code = cudaMemcpyAsync(memory->graph_inputs, staging->device,
				       memory->sizes.graph_inputs, cudaMemcpyDeviceToDevice,
				       config->stream);
	if (!code && input->count)
		kernel_input(config, &call);
	if (!code)
		code = cudaEventRecord(staging->consumed, config->stream);
	if (!code)
		code = cudaGetLastError();
	staging->used = true;
	return cuda_check(code, "unpacking a batch on the GPU", err);
}

int executor_memory_load_batch(struct executor_memory *memory, const struct kernel_config *config,
			       const struct executor_input *input, struct error *err)
{
	struct executor_staging *staging = &memory->staging[memory->next_staging];
	int rc = 0;

	if (memory->request->table && input->count && !input->raw && !input->resident)
		return error_set(err, ERR_INTERNAL,
				 "the executor expects raw samples, but the batch has none");
	memory->next_staging = !memory->next_staging;
	/* Its previous batch has left, so the host is at most two batches ahead. */
	if (staging->used)
		rc = cuda_check(cudaEventSynchronize(staging->copied), "copying a batch to the GPU",
				err);
	if (rc)
		return rc;
	fill_staging(memory, input, staging->host);
	rc = copy_to_staging(memory, staging, input, err);
	return rc ? rc : unpack_batch(memory, staging, config, input, err);
}
