/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/executor_memory.h"

#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/kernels/element.h"

/* Events for which the host waits: asleep, not in a loop that takes a core. */
#define WAITED_FOR (cudaEventDisableTiming | cudaEventBlockingSync)

/* ---- out of memory ---- */

/* Is there room for all of it? Asked before anything is taken, so that what is said is true. */
static int check_room(const struct cuda *cuda, const struct step_request *request,
		      const struct plan *plan, const struct step_parts *parts, struct error *err)
{
	struct step_request least = *request;
	size_t available, total, wanted, stretches = request->train ? parts->stretch_count : 0;
	char what[64], hint[64] = "not even a batch of 1 would fit";
	int rc, fits;

	if (cudaMemGetInfo(&available, &total))
		return 0;
	least.deterministic = false;
	rc = step_bytes_all(&least, stretches, plan->number, cuda->multiprocessors, &wanted, err);
	if (rc || wanted <= available)
		return rc;
	fits = step_largest_batch(request, stretches, plan->number, cuda->multiprocessors,
				  available - (available < total / KEPT_PART ? available : total / KEPT_PART));
	if (fits > 0)
		snprintf(hint, sizeof hint, "a batch of %d would fit", fits);
	else if (request->deterministic)
		/* The room for its algorithms is the most that they may want. */
		snprintf(hint, sizeof hint, "try a smaller --batch");
	snprintf(what, sizeof what, "%s with a batch of %d",
		 request->train ? "training" : "evaluating", request->batch);
	return cuda_memory_short(wanted, what, hint, err);
}

/* ---- lists and small things ---- */

/* Of pageable memory cudaMemcpy returns before all has arrived, and our streams do not wait for the
 * default one, on which it goes: step_memory_new waits for it. */
static int to_device(const void *from, void *to, size_t bytes, struct error *err)
{
	return cuda_check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying to the GPU",
			  err);
}

static int make_weights(const struct step_request *request, const struct plan *plan,
			struct step_memory *memory, struct error *err)
{
	struct kernel_weight *list = calloc((size_t)plan->node_count + 1, sizeof *list);
	int count = 0, rc;

	if (!list)
		return error_memory(err, "a training step");
	for (int i = 0; i < plan->node_count; i++) {
		const struct plan_weight *weight = &plan->nodes[i].weight;

		if (weight->param < 0 || weight->in_place)
			continue;
		list[count++] = (struct kernel_weight){
			request->weights + request->buckets->offsets[weight->param],
			memory->program.copies + weight->copy,
			weight->outputs,
			weight->channels,
			weight->inner,
			weight->padded,
		};
	}
	rc = cuda_memory(memory->sizes.weights, "the list of weights",
			 (void **)&memory->weights, err);
	if (!rc && count)
		rc = to_device(list, memory->weights, (size_t)count * sizeof *list, err);
	memory->weight_count = count;
	free(list);
	return rc;
}

static int make_stretches(const struct step_request *request, const struct step_parts *parts,
			  struct step_memory *memory, struct error *err)
{
	struct kernel_stretch *list = calloc(parts->stretch_count + 1, sizeof *list);
	size_t bytes = memory->sizes.stretches;
	int rc;

	if (!list)
		return error_memory(err, "a training step");
	for (size_t i = 0; i < parts->stretch_count; i++)
		list[i] = (struct kernel_stretch){
			(int64_t)parts->stretches[i].offset, (int64_t)parts->stretches[i].count,
			parts->stretches[i].decay ? request->sgd.weight_decay : 0};
	memory->stretch_count = (int)parts->stretch_count;
	rc = cuda_memory(bytes, "the list of parameters", (void **)&memory->stretches, err);
	if (!rc && bytes)
		rc = to_device(list, memory->stretches, bytes, err);
	free(list);
	return rc;
}

/* Totals, scale, and the table of bytes. */
static int make_state(const struct step_request *request, struct step_memory *memory,
		      struct error *err)
{
	const struct kernel_scaler scaler = {.scale = LOSS_SCALE_BEGIN};
	const struct kernel_totals none = {.first_bad = -1};
	size_t table = memory->sizes.table;
	int rc = cuda_check(cudaMallocHost((void **)&memory->mail, sizeof *memory->mail),
			    "pinned memory", err);

	if (rc)
		return rc;
	memory->mail->none = none;
	rc = cuda_check(cudaEventCreateWithFlags(&memory->answered, WAITED_FOR),
			"an event of the GPU", err);
	if (!rc)
		rc = cuda_memory(sizeof none, "the totals", (void **)&memory->totals, err);
	if (!rc)
		rc = to_device(&none, memory->totals, sizeof none, err);
	if (!rc)
		rc = cuda_memory(sizeof scaler, "the scale", (void **)&memory->scaler, err);
	if (!rc)
		rc = to_device(&scaler, memory->scaler, sizeof scaler, err);
	if (rc || !request->table)
		return rc;
	rc = cuda_memory(table, "the table of bytes", (void **)&memory->table, err);
	return rc ? rc : to_device(request->table, memory->table, table, err);
}

static int make_ways(struct step_memory *memory, struct error *err)
{
	const struct step_sizes *sizes = &memory->sizes;
	int rc = 0;

	rc = cuda_memory(sizes->front, "the targets of a batch", (void **)&memory->front,
			 err);
	if (!rc)
		rc = cuda_check(cudaStreamCreateWithFlags(&memory->side, cudaStreamNonBlocking),
				"a stream of the GPU", err);
	for (int i = 0; !rc && i < 2; i++) {
		struct step_way *way = &memory->ways[i];

		rc = cuda_memory(sizes->way, "the samples of two batches",
				 (void **)&way->device, err);
		if (!rc)
			rc = cuda_check(cudaMallocHost((void **)&way->host, sizes->way),
					"pinned memory for the samples", err);
		if (!rc)
			rc = cuda_check(cudaEventCreateWithFlags(&way->copied, WAITED_FOR),
					"an event of the GPU", err);
		if (!rc)
			rc = cuda_check(
				cudaEventCreateWithFlags(&way->taken, cudaEventDisableTiming),
				"an event of the GPU", err);
	}
	return rc;
}

int step_memory_new(struct cuda *cuda, const struct step_request *request, const struct plan *plan,
		    const struct step_parts *parts, struct step_memory *out, struct error *err)
{
	const struct step_sizes *sizes = &out->sizes;
	char what[64];
	int rc = check_room(cuda, request, plan, parts, err);

	step_sizes(request, plan, request->train ? parts->stretch_count : 0, &out->sizes);
	snprintf(what, sizeof what, "the activations of a batch of %d", request->batch);
	if (!rc)
		rc = cuda_memory(sizes->arena, what, (void **)&out->program.arena, err);
	if (!rc)
		rc = cuda_memory(sizes->copies, "copies of the weights",
				 (void **)&out->program.copies, err);
	if (!rc)
		rc = cuda_memory(sizes->saved, "the statistics", (void **)&out->program.saved, err);
	if (!rc)
		rc = cuda_memory(sizes->losses, "the losses", (void **)&out->losses, err);
	if (!rc)
		rc = cuda_memory(sizes->places, "the losses", (void **)&out->places, err);
	if (!rc)
		rc = make_weights(request, plan, out, err);
	if (!rc && request->train)
		rc = make_stretches(request, parts, out, err);
	if (!rc)
		rc = make_state(request, out, err);
	if (!rc)
		rc = make_ways(out, err);
	return rc ? rc : cuda_check(cudaDeviceSynchronize(), "copying to the GPU", err);
}

void step_memory_free(struct step_memory *memory)
{
	for (int i = 0; i < 2; i++) {
		struct step_way *way = &memory->ways[i];

		cudaFree(way->device);
		cudaFreeHost(way->host);
		if (way->copied)
			cudaEventDestroy(way->copied);
		if (way->taken)
			cudaEventDestroy(way->taken);
	}
	if (memory->side)
		cudaStreamDestroy(memory->side);
	cudaFree(memory->front);
	cudaFree(memory->program.arena);
	cudaFree(memory->program.copies);
	cudaFree(memory->program.saved);
	cudaFree(memory->program.workspace);
	cudaFree(memory->weights);
	cudaFree(memory->stretches);
	cudaFree(memory->table);
	cudaFree(memory->losses);
	cudaFree(memory->places);
	cudaFree(memory->totals);
	cudaFree(memory->scaler);
	cudaFreeHost(memory->mail);
	if (memory->answered)
		cudaEventDestroy(memory->answered);
	*memory = (struct step_memory){0};
}

int step_memory_workspace(struct step_memory *memory, size_t bytes, cudaStream_t stream,
			  bool *moved, struct error *err)
{
	int rc;

	*moved = false;
	if (memory->program.workspace && bytes <= memory->workspace_bytes)
		return 0;
	rc = cuda_wait(stream, CUDA_WAIT_MS, err);
	if (rc)
		return rc;
	*moved = true;
	cudaFree(memory->program.workspace);
	memory->program.workspace = NULL;
	memory->workspace_bytes = bytes;
	return cuda_memory(bytes, "cuDNN's workspace", &memory->program.workspace, err);
}

/* ---- batches ---- */

static void fill(const struct step_memory *memory, const struct step_request *request,
		 const struct step_input *input, char *to)
{
	struct kernel_run run = {
		.lr = input->lr,
		.share = (float)(1.0 / (double)input->global_count),
		.count = input->count,
		.first = input->first || !request->train,
		.step = input->step,
		.vote = input->vote,
	};
	size_t count = (size_t)input->count;
	size_t targets = request->loss == LOSS_MSE ? count * (size_t)request->graph->classes : count;
	int32_t *choices = (int32_t *)(void *)(to + memory->sizes.choices_at);

	memcpy(to, &run, sizeof run);
	if (!count)
		return;
	memcpy(to + memory->sizes.targets_at, input->target, targets * 4);
	for (size_t i = 0; input->choices && i < count; i++) {
		choices[3 * i] = input->choices[i].top;
		choices[3 * i + 1] = input->choices[i].left;
		choices[3 * i + 2] = input->choices[i].flip;
	}
	if (input->resident)
		memcpy(to + memory->sizes.indices_at, input->indices, count * sizeof(uint32_t));
	else
		memcpy(to + memory->sizes.samples_at, input->raw ? input->raw : (const void *)input->x,
	       count * memory->sizes.sample);
}

static int send(struct step_memory *memory, struct step_way *way, const struct step_input *input,
		struct error *err)
{
	size_t samples = input->resident ? 0 : (size_t)input->count * memory->sizes.sample;
	size_t bytes = input->count ? memory->sizes.samples_at + samples : memory->sizes.front;
	cudaError_t code = way->used ? cudaStreamWaitEvent(memory->side, way->taken, 0) : 0;

	if (!code)
		code = cudaMemcpyAsync(way->device, way->host, bytes, cudaMemcpyHostToDevice,
				       memory->side);
	if (!code)
		code = cudaEventRecord(way->copied, memory->side);
	return cuda_check(code, "copying a batch to the GPU", err);
}

static int receive(struct step_memory *memory, struct step_way *way, const struct kernel_on *on,
		   const struct step_request *request, const struct plan *plan,
		   const struct step_input *input, struct error *err)
{
	const struct shape *shape = &request->graph->values[0];
	bool raw = input->raw || input->resident;
	const struct kernel_input call = {
		.raw = input->resident ? input->resident : way->device + memory->sizes.samples_at,
		.index = input->resident
				 ? (const uint32_t *)(void *)(way->device + memory->sizes.indices_at)
				 : NULL,
		.places = raw && input->choices
				  ? (const int32_t *)(void *)(way->device + memory->sizes.choices_at)
				  : NULL,
		.table = memory->table,
		.out = memory->program.arena + plan->slots[plan->input].offset,
		.n = input->count,
		.c = shape->channels,
		.h = shape->height,
		.w = shape->width,
		.padded = plan->input_channels,
		.pad = raw && input->choices ? request->crop_pad : 0,
	};
	cudaError_t code = cudaStreamWaitEvent(on->stream, way->copied, 0);

	if (!code)
		code = cudaMemcpyAsync(memory->front, way->device, memory->sizes.front,
				       cudaMemcpyDeviceToDevice, on->stream);
	if (!code && input->count)
		kernel_input(on, &call);
	if (!code)
		code = cudaEventRecord(way->taken, on->stream);
	if (!code)
		code = cudaGetLastError();
	way->used = true;
	return cuda_check(code, "taking a batch", err);
}

int step_memory_bring(struct step_memory *memory, const struct kernel_on *on,
		      const struct step_request *request, const struct plan *plan,
		      const struct step_input *input, struct error *err)
{
	struct step_way *way = &memory->ways[memory->next_way];
	int rc = 0;

	if (request->table && input->count && !input->raw && !input->resident)
		return error_set(err, ERR_INTERNAL, "a step of raw samples was given others");
	memory->next_way = !memory->next_way;
	/* Its last batch has left; so the host is two batches ahead at the most. */
	if (way->used)
		rc = cuda_check(cudaEventSynchronize(way->copied), "copying a batch to the GPU",
				err);
	if (rc)
		return rc;
	fill(memory, request, input, way->host);
	rc = send(memory, way, input, err);
	return rc ? rc : receive(memory, way, on, request, plan, input, err);
}
