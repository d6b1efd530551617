/* SPDX-License-Identifier: BSD-3-Clause */
/* The CUDA executor. It copies a batch to the GPU and runs forward, backward, reduction and update.
 * If comm works on the stream, the update's last run covers everything; otherwise the reduction on
 * the host is followed by the update. The host waits only for space for the next batch.
 *
 * Full updates are replayed as CUDA graphs, all others are launched call by call. NCCL demands that
 * all ranks capture a collective or none, and that all launch the graph of that capture. So each
 * condition here is one that all ranks share: whether an update is full, whether one was run before
 * (libraries load their code then), and whether every rank could capture. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/device/cuda/executor_memory.h"
#include "train/device/cuda/kernels/element.h"

#define FREE_WAIT_MS 10000
#define COMM_REPORT_MS 60000

/* What a full update consists of: its first run, those between, its last or only one, which
 * reduces; and the update, if the host reduces before it. Each rank has the same samples in all of
 * its full updates' runs, up to their number, so a graph serves all of them. */
enum part { PART_FIRST, PART_BETWEEN, PART_LAST, PART_UPDATE, PARTS };

struct executor {
	struct cuda *cuda;
	struct device_queue *queue;
	struct kernel_config config;
	struct executor_request request;
	struct executor_common common;
	struct lowered_graph lowered;
	struct executor_memory memory;
	struct compiled_sizes sizes; /* struct compiled_graph */
	int counts[PARTS];	     /* samples in a full update's runs; -1: there is no such run */
	cudaGraphExec_t graphs[PARTS];
	bool captured; /* every rank has captured all parts */
	/* This run. */
	struct compiled_graph *current; /* NULL: it has no samples */
	int count;
	bool first, last;
};

/* ---- compiled graphs ---- */

/* Limit the workspace of the first layers to what is free, less what an evaluation's executor will
 * need. In deterministic mode the choice of an algorithm must not depend on that. Later ones, for
 * fewer samples, must do with the first ones' workspace: graphs have its address. The algorithms of
 * the first ones fit, because they need less for fewer samples. */
static void limit_workspace(struct executor *executor)
{
	size_t available, total, max = TUNING_WORKSPACE, later = 0;

	if (executor->memory.graph_memory.workspace) {
		max = executor->memory.workspace_bytes;
	} else if (!executor->request.deterministic && !cudaMemGetInfo(&available, &total)) {
		later = executor_bytes_of_eval(&executor->request, executor->cuda->multiprocessors);
		later += total / RESERVED_FRACTION;
		max = available > later + LINEAR_WORKSPACE ? available - later : LINEAR_WORKSPACE;
	}
	executor->cuda->workspace_limit = max < TUNING_WORKSPACE ? max : TUNING_WORKSPACE;
}

/* Only the full batch's algorithms are chosen by time: other sizes run once per epoch. */
static int compile(struct executor *executor, int count, struct error *err)
{
	struct compiled_graph *replaced;
	int rc;

	limit_workspace(executor);
	rc = compiled_graph_new(executor->cuda, &executor->request, &executor->lowered, count,
				count == executor->request.batch, &executor->current, err);
	if (rc)
		return rc;
	/* Never one of which a graph has the code: full updates have two sizes, and use them. */
	replaced = compiled_sizes_add(&executor->sizes, count, executor->current);
	if (replaced)
		rc = cuda_wait(executor->config.stream, CUDA_WAIT_MS, err);
	compiled_graph_free(replaced);
	return rc;
}

/* Make executor->current fit count samples. */
static int begin_run(struct executor *executor, int count, bool first, bool last, struct error *err)
{
	executor->count = count;
	executor->first = first;
	executor->last = last;
	executor->current = count ? compiled_sizes_use(&executor->sizes, count) : NULL;
	return count && !executor->current ? compile(executor, count, err) : 0;
}

static void drop_graphs(struct executor *executor)
{
	for (int part = 0; part < PARTS; part++) {
		if (executor->graphs[part])
			cudaGraphExecDestroy(executor->graphs[part]);
		executor->graphs[part] = NULL;
	}
}

static void executor_free(struct executor *executor)
{
	if (!executor)
		return;
	/* If the stream hangs, the process is about to end anyway. */
	cuda_wait(executor->config.stream, FREE_WAIT_MS, NULL);
	drop_graphs(executor);
	for (int i = 0; i < COMPILED_SIZES_MAX; i++)
		compiled_graph_free(executor->sizes.list[i].compiled);
	executor_memory_free(&executor->memory);
	executor_common_free(&executor->common);
	lowered_graph_free(&executor->lowered);
	free(executor);
}

static int executor_new(struct device_queue *queue, const struct executor_request *request,
			struct executor **out, struct error *err)
{
	struct executor *executor = calloc(1, sizeof *executor);
	int rc;

	if (!executor)
		return error_memory(err, "a training step");
	executor->cuda = (struct cuda *)queue->device;
	executor->queue = queue;
	executor->request = *request;
	for (int part = 0; part < PARTS; part++)
		executor->counts[part] = -1;
	executor->config = (struct kernel_config){
		.stream = ((struct cuda_queue *)queue)->stream,
		.multiprocessors = executor->cuda->multiprocessors,
	};
	rc = executor_common_new(&executor->request, queue, &executor->common, err);
	if (!rc)
		rc = lowered_graph_make(request, executor->config.multiprocessors,
					&executor->lowered, err);
	executor->config.number = executor->lowered.number;
	if (!rc)
		rc = executor_memory_new(executor->cuda, &executor->request, &executor->lowered,
					 &executor->common, &executor->memory, err);
	/* Do this now, so that unsupported layers are reported before training starts. */
	if (!rc)
		rc = begin_run(executor, request->batch, true, true, err);
	if (!rc)
		rc = executor_memory_reserve_workspace(
			&executor->memory, compiled_graph_workspace(executor->current), err);
	if (rc)
		executor_free(executor);
	else
		*out = executor;
	return rc;
}

/* ---- work on the stream ---- */

static bool scales(const struct executor *executor)
{
	return executor->request.train && executor->config.number == NUMBER_F16;
}

static const struct kernel_run_params *run_on_device(const struct executor *executor)
{
	return (const struct kernel_run_params *)(const void *)executor->memory.graph_inputs;
}

static void launch_loss(const struct executor *executor)
{
	const struct executor_request *request = &executor->request;
	const struct executor_memory *memory = &executor->memory;
	const struct lowered_graph *lowered = &executor->lowered;
	bool mse = request->loss == LOSS_MSE;
	const struct kernel_loss call = {
		.x = memory->graph_memory.arena + lowered->plan.slots[lowered->plan.output].offset,
		.target = memory->graph_inputs + memory->sizes.targets_at,
		.losses = memory->losses,
		.label_ranks = mse ? NULL : memory->label_ranks,
		.dx = request->train
			      ? memory->graph_memory.arena +
					lowered->plan.slots[lowered->plan.output_gradient].offset
			      : NULL,
		.share = &run_on_device(executor)->share,
		.scaler = scales(executor) ? memory->scaler : NULL,
		.n = executor->count,
		.classes = request->graph->classes,
		.mse = mse,
		.smoothing = mse ? 0 : request->smoothing,
	};

	kernel_loss(&executor->config, &call);
	kernel_count(&executor->config, memory->losses, call.label_ranks, run_on_device(executor),
		     memory->totals,
		     request->vote_nonfinite && executor->last
			     ? request->gradients + request->buckets->total
			     : NULL);
}

static int launch_update(struct executor *executor, struct error *err)
{
	const struct executor_request *request = &executor->request;
	const struct executor_memory *memory = &executor->memory;
	struct kernel_scaler *scaler = scales(executor) ? memory->scaler : NULL;
	const struct kernel_update call = {
		.weights = request->weights,
		.momentum = request->momentum,
		.gradients = request->gradients,
		.list = memory->param_ranges,
		.count = memory->param_range_count,
		.momentum_factor = request->sgd.momentum,
		.nesterov = request->sgd.nesterov,
		.lr = &run_on_device(executor)->lr,
		.scaler = scaler,
	};

	if (scaler)
		kernel_finite(&executor->config, request->gradients, request->buckets->total,
			      scaler);
	kernel_update(&executor->config, &call);
	if (scaler)
		kernel_scaler_next(&executor->config, scaler);
	return cuda_launched("updating the weights", err);
}

/* With a comm on the stream, its work is queued as soon as a bucket is full. */
static int params_ready(void *context, const struct graph_op *op, struct error *err)
{
	struct executor *executor = context;

	if (!executor->last || !executor->request.comm->ops->on_stream)
		return 0;
	return executor_common_op_ready(&executor->common, op, err);
}

static int all_params_ready(struct executor *executor, struct error *err)
{
	int rc = 0;

	for (int i = executor->request.graph->op_count - 1; !rc && i >= 0; i--)
		rc = params_ready(executor, &executor->request.graph->ops[i], err);
	return rc;
}

/* Store the vote behind the gradients, where the last bucket includes it: the host does not
 * wait. */
static int launch_vote(const struct executor *executor, struct error *err)
{
	const struct executor_request *request = &executor->request;

	if (!request->train || !executor->last)
		return 0;
	return cuda_check(cudaMemcpyAsync(request->gradients + request->buckets->total,
					  &run_on_device(executor)->vote, sizeof(float),
					  cudaMemcpyDeviceToDevice, executor->config.stream),
			  "copying the vote", err);
}

static int launch_backward(struct executor *executor, struct error *err)
{
	const struct gradient_sink sink = {executor, params_ready};
	const struct executor_request *request = &executor->request;

	if (executor->current)
		return compiled_graph_run(executor->current, &executor->memory.graph_memory,
					  executor->config.stream, !executor->first, &sink, err);
	/* No samples: zero gradients, and all buckets in the same order as on other ranks. */
	if (executor->first) {
		int rc = cuda_check(cudaMemsetAsync(request->gradients, 0,
						    request->buckets->total * sizeof(float),
						    executor->config.stream),
				    "clearing the gradients", err);

		if (rc)
			return rc;
	}
	return all_params_ready(executor, err);
}

/* Everything in a run after its batch arrived; the reduction and the update only with a comm on the
 * stream. */
static int launch_run(struct executor *executor, struct error *err)
{
	struct comm *comm = executor->request.comm;
	bool train = executor->request.train;
	int rc = 0;

	/* Refresh copies of weights once per update, since nothing else writes them. */
	if (executor->current && (!train || executor->first))
		kernel_weights(&executor->config, executor->memory.weights,
			       executor->memory.weight_count);
	if (executor->current)
		rc = compiled_graph_run(executor->current, &executor->memory.graph_memory,
					executor->config.stream, false, NULL, err);
	if (rc)
		return rc;
	rc = launch_vote(executor, err); /* the loss may change it to NaN */
	if (rc)
		return rc;
	launch_loss(executor);
	rc = cuda_launched("computing the loss", err);
	if (rc || !train)
		return rc;
	executor_common_begin_update(&executor->common);
	rc = launch_backward(executor, err);
	if (rc || !executor->last || !comm->ops->on_stream)
		return rc;
	rc = comm->ops->finish(comm, executor->queue, err);
	return rc ? rc : launch_update(executor, err);
}

/* ---- graphs ---- */

static int capture(struct executor *executor, enum part part, struct error *err)
{
	cudaStream_t stream = executor->config.stream;
	cudaGraph_t graph = NULL;
	int ended, rc = part == PART_UPDATE ? 0
					    : begin_run(executor, executor->counts[part],
							part == PART_FIRST, part == PART_LAST, err);

	executor->first |= part == PART_LAST && executor->counts[PART_FIRST] < 0;
	/* Other threads (the loader's, comm's) may call CUDA freely. */
	if (!rc)
		rc = cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
				"capturing a step", err);
	if (rc)
		return rc;
	rc = part == PART_UPDATE ? launch_update(executor, err) : launch_run(executor, err);
	ended = cuda_check(cudaStreamEndCapture(stream, &graph), "capturing a step",
			   rc ? NULL : err);
	rc = rc ? rc : ended;
	/* Otherwise everything has the launching stream's priority, and the reduction waits behind
	 * the backward pass that it should overlap. */
	if (!rc)
		rc = cuda_check(cudaGraphInstantiate(&executor->graphs[part], graph,
						     cudaGraphInstantiateFlagUseNodePriority),
				"instantiating a CUDA graph", err);
	if (graph)
		cudaGraphDestroy(graph);
	return rc;
}

/* Capture what has just run, and keep that if all ranks could. */
static int capture_update(struct executor *executor, struct error *err)
{
	const struct executor_request *request = &executor->request;
	struct comm *comm = request->comm;
	/* Counted from the last rank: the largest is that of the lowest rank which failed. */
	double own = 0, failed;
	struct error why = {0};
	char text[1200];
	int rc = 0;

	for (int part = 0; !own && part < PARTS; part++)
		if (executor->counts[part] >= 0 && capture(executor, (enum part)part, &why))
			own = request->train ? comm->size - comm->rank : 1;
	failed = own;
	cudaGetLastError(); /* otherwise the next launch would seem to have failed */
	if (request->train)
		rc = comm_reduce_on_host(comm, executor->queue, &failed, 1, COMM_MAX, err);
	executor->captured = !rc && failed == 0;
	if (executor->captured)
		return rc;
	drop_graphs(executor);
	executor->request.no_graph = true;
	if (rc || own != failed || !request->warn)
		return rc;
	snprintf(text, sizeof text,
		 "warning: every rank launches each kernel by itself, which is slower, because a "
		 "CUDA graph failed: %.900s",
		 why.text);
	request->warn(request->context, text);
	return 0;
}

static int launch_graph(struct executor *executor, enum part part, struct error *err)
{
	return cuda_check(cudaGraphLaunch(executor->graphs[part], executor->config.stream),
			  "launching a step", err);
}

/* A comm on host memory: between two graphs. */
static int reduce_on_host(struct executor *executor, struct error *err)
{
	const struct executor_request *request = &executor->request;
	struct comm *comm = request->comm;
	int rc = 0;

	for (size_t i = 0; !rc && i < request->buckets->bucket_count; i++) {
		const struct bucket *bucket = &request->buckets->list[i];

		rc = comm->ops->all_reduce(comm, executor->queue,
					   request->gradients + bucket->offset, bucket->count,
					   ELEMENT_F32, COMM_SUM, err);
	}
	return rc ? rc : comm->ops->finish(comm, executor->queue, err);
}

/* What follows on an update's last run. */
static int end_update(struct executor *executor, bool replays, struct error *err)
{
	struct comm *comm = executor->request.comm;
	int rc;

	/* A replayed graph contains the collectives and calls no function. This tells comm that all
	 * of the step's collectives are on the stream; later ones do not belong to it. */
	if (comm->ops->on_stream)
		return comm->ops->finish(comm, executor->queue, err);
	rc = reduce_on_host(executor, err);
	if (rc)
		return rc;
	executor->counts[PART_UPDATE] = 0;
	return replays ? launch_graph(executor, PART_UPDATE, err) : launch_update(executor, err);
}

static int executor_run(struct executor *executor, const struct executor_input *input,
			struct error *err)
{
	bool train = executor->request.train, last = !train || input->last;
	bool replays = input->full && executor->captured;
	enum part part = last ? PART_LAST : input->first ? PART_FIRST : PART_BETWEEN;
	int rc = executor_common_check(&executor->common, input, err);

	if (rc || (!train && !input->count))
		return rc;
	rc = begin_run(executor, input->count, input->first, input->last, err);
	if (!rc)
		rc = executor_memory_load_batch(&executor->memory, &executor->config, input, err);
	if (!rc)
		rc = replays ? launch_graph(executor, part, err) : launch_run(executor, err);
	if (!rc && train && last)
		rc = end_update(executor, replays, err);
	if (rc || !input->full || replays || executor->request.no_graph)
		return rc;
	executor->counts[part] = input->count;
	return last ? capture_update(executor, err) : 0;
}

/* ---- readback ---- */

/* What is in progress may include a collective, of which comm reports first who is missing. */
static int wait_for_ranks(const struct executor *executor, struct error *err)
{
	int ranks_ms = executor->request.timeout_ms;

	ranks_ms = ranks_ms > INT_MAX - COMM_REPORT_MS ? INT_MAX : ranks_ms + COMM_REPORT_MS;
	return cuda_wait(executor->config.stream, ranks_ms > CUDA_WAIT_MS ? ranks_ms : CUDA_WAIT_MS,
			 err);
}

static int executor_read(struct executor *executor, struct executor_totals *out, struct error *err)
{
	struct executor_readback *readback = executor->memory.readback;
	cudaStream_t stream = executor->config.stream;
	cudaError_t code = cudaMemcpyAsync(&readback->totals, executor->memory.totals,
					   sizeof readback->totals, cudaMemcpyDeviceToHost, stream);
	int rc;

	if (!code)
		code = cudaMemcpyAsync(executor->memory.totals, &readback->none,
				       sizeof readback->none, cudaMemcpyHostToDevice, stream);
	rc = cuda_check(code, "reading the losses", err);
	if (!rc)
		rc = wait_for_ranks(executor, err);
	if (rc)
		return rc;
	*out = (struct executor_totals){
		.loss_sum = readback->totals.loss_sum,
		.last_loss_sum = readback->totals.last_loss_sum,
		.samples = readback->totals.samples,
		.top1 = readback->totals.top1,
		.top5 = readback->totals.top5,
		.last_samples = readback->totals.last_samples,
		.first_nonfinite_step = readback->totals.first_nonfinite_step,
	};
	return 0;
}

static int executor_start_votes(struct executor *executor, struct error *err)
{
	const struct executor_request *request = &executor->request;
	cudaError_t code = cudaMemcpyAsync(
		&executor->memory.readback->votes, request->gradients + request->buckets->total,
		sizeof(float), cudaMemcpyDeviceToHost, executor->config.stream);

	if (!code)
		code = cudaEventRecord(executor->memory.answered, executor->config.stream);
	return cuda_check(code, "requesting the votes", err);
}

static int executor_finish_votes(struct executor *executor, float *out, struct error *err)
{
	int rc = cuda_check(cudaEventSynchronize(executor->memory.answered), "reading the votes",
			    err);

	if (!rc)
		*out = executor->memory.readback->votes;
	return rc;
}

static int executor_grad_scaler(struct executor *executor, const struct grad_scaler_state *begin,
				struct grad_scaler_state *now, struct error *err)
{
	struct kernel_scaler *readback = &executor->memory.readback->scaler;
	float unit = executor_scale_unit(&executor->request);
	cudaStream_t stream = executor->config.stream;
	int rc = cuda_check(cudaMemcpyAsync(readback, executor->memory.scaler, sizeof *readback,
					    cudaMemcpyDeviceToHost, stream),
			    "reading the loss scale", err);

	if (!rc)
		rc = wait_for_ranks(executor, err);
	if (rc)
		return rc;
	if (now) {
		*now = (struct grad_scaler_state){scales(executor) ? readback->scale / unit : 1,
						  readback->growth_tracker, readback->skipped};
		readback->skipped = 0;
	}
	if (begin) {
		readback->scale = begin->scale * unit;
		readback->growth_tracker = begin->growth_tracker;
	}
	rc = cuda_check(cudaMemcpyAsync(executor->memory.scaler, readback, sizeof *readback,
					cudaMemcpyHostToDevice, stream),
			"setting the loss scale", err);
	return rc ? rc : wait_for_ranks(executor, err);
}

const struct executor_ops cuda_executor = {
	.accepts_raw = true,
	.reduced = true,
	.open = executor_new,
	.run = executor_run,
	.read = executor_read,
	.close = executor_free,
	.start_votes = executor_start_votes,
	.finish_votes = executor_finish_votes,
	.grad_scaler = executor_grad_scaler,
};
