/* SPDX-License-Identifier: BSD-3-Clause */
/* A step on the GPU: brings a batch in, runs forward, backward, reduction and update, launch by
 * launch the first time, then as a CUDA graph: one of all of it where comm works on the stream, else
 * one on either side of the reduction. The host waits for nothing but room for the next batch. */
#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/device/cuda/executor_memory.h"
#include "train/device/cuda/kernels/element.h"

#define PROGRAMS 4 /* the batch, an epoch's last one, and those after a change of ranks */
#define FREE_WAIT_MS 10000

/* A sequence of launches: run once as it is, then captured. */
struct track {
	bool warm;
	cudaGraphExec_t graph;
};

/* A program, and its tracks by [first][last] of an update's runs. */
struct ready_program {
	struct program *program;
	int count;
	struct track tracks[2][2];
};

struct step {
	struct cuda *cuda;
	struct device_queue *queue;
	struct kernel_on on;
	struct step_request request;
	struct step_parts parts;
	struct plan plan;
	struct step_memory memory;
	struct ready_program programs[PROGRAMS]; /* the last used first */
	struct track update;
	const struct ready_program *now; /* of this run; NULL: it has no samples */
	bool first, last;
};

static enum number number_of(enum precision precision)
{
	return precision == PRECISION_F16    ? NUMBER_F16
	       : precision == PRECISION_BF16 ? NUMBER_BF16
					     : NUMBER_F32;
}

/* ---- programs ---- */

static void track_drop(struct track *track)
{
	if (track->graph)
		cudaGraphExecDestroy(track->graph);
	track->graph = NULL;
}

static void ready_drop_graphs(struct ready_program *ready)
{
	for (int i = 0; i < 4; i++)
		track_drop(&ready->tracks[i / 2][i % 2]);
}

static void ready_free(struct ready_program *ready)
{
	ready_drop_graphs(ready);
	program_free(ready->program);
	*ready = (struct ready_program){0};
}

/* What layers may work in: what is there and what is free, less what an evaluation's step will take.
 * Where the same bits are wanted the choice of an algorithm knows nothing of that. */
static void bound_workspace(struct step *step)
{
	size_t available, total, most = TUNING_WORKSPACE, later = 0;

	if (!step->request.deterministic && !cudaMemGetInfo(&available, &total)) {
		if (!step->programs[0].program)
			later = step_bytes_beside(&step->request, step->on.number,
						  step->cuda->multiprocessors);
		later += total / KEPT_PART;
		available += step->memory.workspace_bytes;
		most = available > later + LINEAR_WORKSPACE ? available - later
							    : LINEAR_WORKSPACE;
	}
	step->cuda->workspace_most = most < TUNING_WORKSPACE ? most : TUNING_WORKSPACE;
}

/* The program for count samples becomes programs[0]. Only the whole batch's algorithms are chosen
 * by time: others run once an epoch. */
static int find_program(struct step *step, int count, struct error *err)
{
	struct ready_program found = {.count = count};
	int place = 0, rc = 0;
	bool moved;

	while (place < PROGRAMS && step->programs[place].program &&
	       step->programs[place].count != count)
		place++;
	if (place < PROGRAMS && step->programs[place].program)
		found = step->programs[place];
	else {
		bound_workspace(step);
		rc = program_new(step->cuda, &step->request, &step->plan, count,
				 count == step->request.batch, &found.program, err);
	}
	if (rc)
		return rc;
	if (place == PROGRAMS) {
		rc = cuda_wait(step->on.stream, CUDA_WAIT_MS, err);
		ready_free(&step->programs[--place]);
	}
	memmove(step->programs + 1, step->programs, (size_t)place * sizeof *step->programs);
	step->programs[0] = found;
	if (!rc)
		rc = step_memory_workspace(&step->memory, program_workspace(found.program),
					   step->on.stream, &moved, err);
	for (int i = 0; !rc && moved && i < PROGRAMS; i++)
		ready_drop_graphs(&step->programs[i]);
	return rc;
}

int cuda_step_new(struct device_queue *queue, const struct step_request *request, struct step **out,
		  struct error *err)
{
	struct step *step = calloc(1, sizeof *step);
	int rc;

	if (!step)
		return error_memory(err, "a training step");
	step->cuda = (struct cuda *)queue->device;
	step->queue = queue;
	step->request = *request;
	step->on = (struct kernel_on){((struct cuda_queue *)queue)->stream,
				      number_of(request->precision), step->cuda->multiprocessors};
	rc = step_parts_new(&step->request, &step->parts, err);
	if (!rc)
		rc = plan_make(request->graph, request->buckets, request->batch, step->on.number,
			       request->train, step->cuda->multiprocessors, &step->plan, err);
	if (!rc)
		rc = step_memory_new(step->cuda, &step->request, &step->plan, &step->parts,
				     &step->memory, err);
	/* Now, so that what cannot be computed is said before anything is trained. */
	if (!rc)
		rc = find_program(step, request->batch, err);
	if (rc)
		cuda_step_free(step);
	else
		*out = step;
	return rc;
}

void cuda_step_free(struct step *step)
{
	if (!step)
		return;
	/* Where it hangs the process is about to end anyway. */
	cuda_wait(step->on.stream, FREE_WAIT_MS, NULL);
	for (int i = 0; i < PROGRAMS; i++)
		if (step->programs[i].program)
			ready_free(&step->programs[i]);
	track_drop(&step->update);
	step_memory_free(&step->memory);
	step_parts_free(&step->parts);
	plan_free(&step->plan);
	free(step);
}

/* ---- what is put on the stream ---- */

static bool scales(const struct step *step)
{
	return step->request.train && step->on.number == NUMBER_F16;
}

static const struct kernel_run *run_on_device(const struct step *step)
{
	return (const struct kernel_run *)(const void *)step->memory.front;
}

static void put_loss(const struct step *step)
{
	const struct step_request *request = &step->request;
	const struct step_memory *memory = &step->memory;
	const struct plan *plan = &step->plan;
	bool mse = request->loss == LOSS_MSE;
	int count = step->now ? step->now->count : 0;
	const struct kernel_loss call = {
		.x = memory->program.arena + plan->slots[plan->output].offset,
		.target = memory->front + memory->sizes.targets_at,
		.losses = memory->losses,
		.places = mse ? NULL : memory->places,
		.dx = request->train
			      ? memory->program.arena + plan->slots[plan->output_gradient].offset
			      : NULL,
		.share = &run_on_device(step)->share,
		.scaler = scales(step) ? memory->scaler : NULL,
		.n = count,
		.classes = request->graph->classes,
		.mse = mse,
		.smoothing = mse ? 0 : request->smoothing,
	};

	kernel_loss(&step->on, &call);
	kernel_count(&step->on, memory->losses, call.places, run_on_device(step), memory->totals);
}

static int put_update(struct step *step, struct error *err)
{
	const struct step_request *request = &step->request;
	const struct step_memory *memory = &step->memory;
	struct kernel_scaler *scaler = scales(step) ? memory->scaler : NULL;
	const struct kernel_update call = {
		.weights = request->weights,
		.momentum = request->momentum,
		.gradients = request->gradients,
		.list = memory->stretches,
		.count = memory->stretch_count,
		.momentum_factor = request->sgd.momentum,
		.nesterov = request->sgd.nesterov,
		.lr = &run_on_device(step)->lr,
		.scaler = scaler,
	};

	if (scaler)
		kernel_finite(&step->on, request->gradients, request->buckets->total, scaler);
	kernel_update(&step->on, &call);
	if (scaler)
		kernel_scaler_next(&step->on, scaler);
	return cuda_launched("the update", err);
}

/* With a comm on the stream its work is put there as soon as a bucket is full. */
static int params_ready(void *context, const struct graph_op *op, struct error *err)
{
	struct step *step = context;
	struct comm *comm = step->request.comm;
	int rc;

	if (!step->last || !comm->ops->on_stream)
		return 0;
	rc = step_parts_ready(&step->parts, op->bias, step->queue, err);
	if (!rc)
		rc = step_parts_ready(&step->parts, op->weight, step->queue, err);
	return rc ? rc : comm->ops->progress(comm, err);
}

static int all_ready(struct step *step, struct error *err)
{
	int rc = 0;

	for (int i = step->request.graph->op_count - 1; !rc && i >= 0; i--)
		rc = params_ready(step, &step->request.graph->ops[i], err);
	return rc;
}

/* Behind the gradients, where it goes with the last bucket: the host waits for nothing. */
static int put_vote(const struct step *step, struct error *err)
{
	const struct step_request *request = &step->request;

	if (!request->vote || !step->last)
		return 0;
	return cuda_check(cudaMemcpyAsync(request->gradients + request->buckets->total,
					  &run_on_device(step)->vote, sizeof(float),
					  cudaMemcpyDeviceToDevice, step->on.stream),
			  "bringing the vote", err);
}

static int put_backward(struct step *step, struct error *err)
{
	const struct program_sink sink = {step, params_ready};
	const struct step_request *request = &step->request;

	if (step->now)
		return program_backward(step->now->program, &step->memory.program, step->on.stream,
					!step->first, &sink, err);
	/* No samples: gradients of zero, and all buckets as the other ranks hand them out. */
	if (step->first) {
		int rc = cuda_check(cudaMemsetAsync(request->gradients, 0,
						    request->buckets->total * sizeof(float),
						    step->on.stream),
				    "clearing the gradients", err);

		if (rc)
			return rc;
	}
	return all_ready(step, err);
}

/* All of a run but the batch's way in; the reduction and the update only with a comm on the
 * stream. */
static int put_run(struct step *step, struct error *err)
{
	struct comm *comm = step->request.comm;
	bool train = step->request.train;
	int rc = 0;

	/* Copies of weights that nobody else writes: never older than an update. */
	if (step->now && (!train || step->first))
		kernel_weights(&step->on, step->memory.weights, step->memory.weight_count);
	if (step->now)
		rc = program_forward(step->now->program, &step->memory.program, step->on.stream,
				     err);
	if (rc)
		return rc;
	put_loss(step);
	rc = cuda_launched("the loss", err);
	if (rc || !train)
		return rc;
	step_parts_begin(&step->parts);
	rc = put_vote(step, err);
	if (!rc)
		rc = put_backward(step, err);
	if (rc || !step->last || !comm->ops->on_stream)
		return rc;
	rc = comm->ops->finish(comm, step->queue, err);
	return rc ? rc : put_update(step, err);
}

/* ---- graphs ---- */

static int capture(struct step *step, struct track *track,
		   int (*put)(struct step *step, struct error *err), struct error *err)
{
	cudaStream_t stream = step->on.stream;
	cudaGraph_t graph = NULL;
	/* Other threads (a loader's, comm's) may call CUDA as they like. */
	int rc = cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
			    "capturing a step", err);
	int ended;

	if (rc)
		return rc;
	rc = put(step, err);
	ended = cuda_check(cudaStreamEndCapture(stream, &graph),
			   "capturing a step (--no-graph does without)", rc ? NULL : err);
	rc = rc ? rc : ended;
	/* Else all of it has the launching stream's priority, and the reduction waits behind the backward
	 * pass that it is to run beside. */
	if (!rc)
		rc = cuda_check(cudaGraphInstantiate(&track->graph, graph,
						     cudaGraphInstantiateFlagUseNodePriority),
				"making a CUDA graph (--no-graph does without)", err);
	if (graph)
		cudaGraphDestroy(graph);
	return rc;
}

/* Launch by launch the first time (libraries load their code then), later as a graph. */
static int run_track(struct step *step, struct track *track,
		     int (*put)(struct step *step, struct error *err), struct error *err)
{
	int rc = 0;

	if (step->request.no_graph || !track->warm) {
		track->warm = true;
		return put(step, err);
	}
	if (!track->graph)
		rc = capture(step, track, put, err);
	if (rc)
		return rc;
	return cuda_check(cudaGraphLaunch(track->graph, step->on.stream), "launching a step", err);
}

/* A comm of the host: between two graphs. */
static int reduce_on_host(struct step *step, struct error *err)
{
	const struct step_request *request = &step->request;
	struct comm *comm = request->comm;
	int rc = 0;

	for (size_t i = 0; !rc && i < request->buckets->bucket_count; i++) {
		const struct bucket *bucket = &request->buckets->list[i];

		bool last = i + 1 == request->buckets->bucket_count;

		rc = comm->ops->all_reduce(comm, step->queue, request->gradients + bucket->offset,
					   bucket->count + (last && request->vote), ELEMENT_F32,
					   COMM_SUM, err);
	}
	return rc ? rc : comm->ops->finish(comm, step->queue, err);
}

int cuda_step_run(struct step *step, const struct step_input *input, struct error *err)
{
	bool train = step->request.train;
	int rc = step_parts_check(&step->parts, input, err);

	if (rc || (!train && !input->count))
		return rc;
	if (input->count)
		rc = find_program(step, input->count, err);
	if (!rc)
		rc = step_memory_bring(&step->memory, &step->on, &step->request, &step->plan, input,
				       err);
	if (rc)
		return rc;
	step->now = input->count ? &step->programs[0] : NULL;
	step->first = input->first;
	step->last = input->last;
	if (step->now)
		rc = run_track(step, &step->programs[0].tracks[input->first][input->last], put_run,
			       err);
	else
		rc = put_run(step, err);
	if (rc || !train || !input->last)
		return rc;
	/* A replayed graph has the collectives in it and calls nobody: comm hears here that the step's
	 * are all on the stream, and what is begun from now on is none of them. */
	if (step->request.comm->ops->on_stream)
		return step->request.comm->ops->finish(step->request.comm, step->queue, err);
	rc = reduce_on_host(step, err);
	return rc ? rc : run_track(step, &step->update, put_update, err);
}

/* ---- what is read back ---- */

int cuda_step_read(struct step *step, struct step_totals *out, struct error *err)
{
	struct step_mail *mail = step->memory.mail;
	cudaStream_t stream = step->on.stream;
	cudaError_t code = cudaMemcpyAsync(&mail->totals, step->memory.totals, sizeof mail->totals,
					   cudaMemcpyDeviceToHost, stream);
	int rc;

	if (!code)
		code = cudaMemcpyAsync(step->memory.totals, &mail->none, sizeof mail->none,
				       cudaMemcpyHostToDevice, stream);
	rc = cuda_check(code, "reading the losses", err);
	if (!rc)
		rc = cuda_wait(stream, CUDA_WAIT_MS, err);
	if (rc)
		return rc;
	*out = (struct step_totals){
		.loss_sum = mail->totals.loss_sum,
		.last_loss_sum = mail->totals.last_loss_sum,
		.samples = mail->totals.samples,
		.top1 = mail->totals.top1,
		.top5 = mail->totals.top5,
		.last_samples = mail->totals.last_samples,
		.first_bad = mail->totals.first_bad,
	};
	return 0;
}

int cuda_step_ask(struct step *step, struct error *err)
{
	const struct step_request *request = &step->request;
	cudaError_t code = cudaMemcpyAsync(&step->memory.mail->votes,
					   request->gradients + request->buckets->total,
					   sizeof(float), cudaMemcpyDeviceToHost, step->on.stream);

	if (!code)
		code = cudaEventRecord(step->memory.answered, step->on.stream);
	return cuda_check(code, "asking for the votes", err);
}

int cuda_step_votes(struct step *step, float *out, struct error *err)
{
	int rc = cuda_check(cudaEventSynchronize(step->memory.answered), "reading the votes", err);

	if (!rc)
		*out = step->memory.mail->votes;
	return rc;
}

int cuda_step_scale(struct step *step, const struct step_scale *begin, struct step_scale *now,
		    struct error *err)
{
	struct kernel_scaler *mail = &step->memory.mail->scaler;
	cudaStream_t stream = step->on.stream;
	int rc = cuda_check(cudaMemcpyAsync(mail, step->memory.scaler, sizeof *mail,
					    cudaMemcpyDeviceToHost, stream),
			    "reading the scale of the loss", err);

	if (!rc)
		rc = cuda_wait(stream, CUDA_WAIT_MS, err);
	if (rc)
		return rc;
	if (now)
		*now = (struct step_scale){scales(step) ? mail->scale : 1, mail->good,
					   mail->skipped};
	if (now)
		mail->skipped = 0;
	if (begin) {
		mail->scale = begin->scale;
		mail->good = begin->good;
	}
	rc = cuda_check(cudaMemcpyAsync(step->memory.scaler, mail, sizeof *mail,
					cudaMemcpyHostToDevice, stream),
			"setting the scale of the loss", err);
	return rc ? rc : cuda_wait(stream, CUDA_WAIT_MS, err);
}
