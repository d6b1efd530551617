/* SPDX-License-Identifier: BSD-3-Clause */
/* A step: programs for the numbers of samples that come up, one arena for all of them. */
#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/device/cpu-reference/reference.h"
#include "train/device/cpu/cpu.h"
#include "train/executor/executor_common.h"

#define PROGRAMS 4 /* the batch, an epoch's last one, and those after a change of ranks */

struct step {
	struct cpu *cpu;
	struct device_queue *queue;
	struct step_request request;
	struct step_parts parts;
	struct program *programs[PROGRAMS]; /* the last used first */
	char *arena;
	size_t arena_bytes;
	float *losses;
	int32_t *places;
	bool last; /* of this update's runs */
};

int cpu_step_new(struct device_queue *queue, const struct step_request *request, struct step **out,
		 struct error *err)
{
	struct step *step = calloc(1, sizeof *step);
	size_t batch = (size_t)request->batch;
	int rc;

	if (!step)
		return error_memory(err, "a training step");
	step->cpu = (struct cpu *)queue->device;
	step->queue = queue;
	step->request = *request;
	step->losses = calloc(batch + 1, sizeof *step->losses);
	step->places = calloc(batch + 1, sizeof *step->places);
	rc = step->losses && step->places ? 0 : error_memory(err, "a training step");
	if (!rc)
		rc = step_parts_new(&step->request, &step->parts, err);
	/* Now, so that what does not fit is said before anything is trained. */
	if (!rc)
		rc = program_new(step->cpu, &step->request, request->batch, &step->programs[0],
				 err);
	if (rc)
		cpu_step_free(step);
	else
		*out = step;
	return rc;
}

void cpu_step_free(struct step *step)
{
	if (!step)
		return;
	for (int i = 0; i < PROGRAMS; i++)
		program_free(step->programs[i]);
	step->cpu->device.ops->memory_free(&step->cpu->device, step->arena);
	step_parts_free(&step->parts);
	free(step->losses);
	free(step->places);
	free(step);
}

/* The program for count samples becomes programs[0], and the arena is large enough for it. */
static int find_program(struct step *step, int count, struct error *err)
{
	struct device *device = &step->cpu->device;
	struct program *found = NULL;
	int place = 0, rc = 0;

	while (place < PROGRAMS && step->programs[place] && step->programs[place]->count != count)
		place++;
	if (place < PROGRAMS && step->programs[place])
		found = step->programs[place];
	else
		rc = program_new(step->cpu, &step->request, count, &found, err);
	if (rc)
		return rc;
	if (place == PROGRAMS)
		program_free(step->programs[--place]);
	memmove(step->programs + 1, step->programs, (size_t)place * sizeof *step->programs);
	step->programs[0] = found;
	if (step->arena && found->arena_bytes <= step->arena_bytes)
		return 0;
	device->ops->memory_free(device, step->arena);
	step->arena = NULL;
	step->arena_bytes = found->arena_bytes;
	return device->ops->memory_new(device, found->arena_bytes, (void **)&step->arena, err);
}

static struct op_call loss_call(const struct step *step, const struct step_input *input)
{
	bool mse = step->request.loss == LOSS_MSE;
	int64_t sizes[2] = {input->count, step->request.graph->classes};

	return (struct op_call){
		.kind = mse ? OP_MSE : OP_CROSS_ENTROPY,
		.smoothing = mse ? 0 : step->request.smoothing,
		.scale = (float)(1.0 / (double)input->global_count),
		/* Read alone; op_call has one kind of tensor. */
		.x = tensor_make((void *)program_output(step->programs[0], step->arena),
				 ELEMENT_F32, 2, sizes),
		.target = tensor_make((void *)input->target, mse ? ELEMENT_F32 : ELEMENT_I32,
				      mse ? 2 : 1, sizes),
		.y = tensor_make(step->losses, ELEMENT_F32, 1, sizes),
	};
}

static int run_loss(const struct op_call *call, struct error *err)
{
	if (call->kind == OP_MSE) {
		reference_mse(call);
		return 0;
	}
	return reference_cross_entropy(call, err);
}

static int forward(struct step *step, const struct step_input *input, struct error *err)
{
	int rc = find_program(step, input->count, err);
	struct op_call call;

	if (!rc)
		rc = program_forward(step->programs[0], step->arena, input->x, err);
	if (rc)
		return rc;
	call = loss_call(step, input);
	rc = run_loss(&call, err);
	if (rc || call.kind == OP_MSE)
		return rc;
	call.y = tensor_make(step->places, ELEMENT_I32, 1, call.x.shape);
	return reference_label_rank(&call, err);
}

static int params_ready(void *context, const struct graph_op *op, struct error *err)
{
	struct step *step = context;
	struct comm *comm = step->request.comm;
	int rc;

	if (!step->last)
		return 0;
	rc = step_parts_ready(&step->parts, op->bias, step->queue, err);
	if (!rc)
		rc = step_parts_ready(&step->parts, op->weight, step->queue, err);
	return rc ? rc : comm->ops->progress(comm, err);
}

/* No samples: gradients of zero, and all buckets as the other ranks hand them out. */
static int backward_nothing(struct step *step, const struct step_input *input, struct error *err)
{
	const struct step_request *request = &step->request;
	int rc = 0;

	if (input->first)
		memset(request->gradients, 0, request->buckets->total * sizeof(float));
	for (int i = request->graph->op_count - 1; !rc && i >= 0; i--)
		rc = params_ready(step, &request->graph->ops[i], err);
	return rc;
}

static int backward(struct step *step, const struct step_input *input, struct error *err)
{
	const struct program_sink sink = {step, params_ready};
	struct comm *comm = step->request.comm;
	int rc;

	step->last = input->last;
	step_parts_begin(&step->parts);
	if (!input->count) {
		rc = backward_nothing(step, input, err);
	} else {
		struct program *program = step->programs[0];
		struct op_call call = loss_call(step, input);

		call.pass = OP_BACKWARD;
		call.dx = tensor_make(program_output_gradient(program, step->arena), ELEMENT_F32, 2,
				      call.x.shape);
		rc = run_loss(&call, err);
		if (!rc)
			rc = program_backward(program, step->arena, input->x, !input->first, &sink,
					      err);
	}
	if (rc || !input->last)
		return rc;
	return comm->ops->finish(comm, step->queue, err);
}

static void update(struct step *step, float lr)
{
	const struct step_request *request = &step->request;
	struct op_sgd sgd = request->sgd;

	sgd.lr = lr;
	for (size_t i = 0; i < step->parts.stretch_count; i++) {
		const struct stretch *part = &step->parts.stretches[i];

		sgd.weight_decay = part->decay ? request->sgd.weight_decay : 0;
		step->cpu->kernels->sgd(&sgd, request->weights + part->offset,
					request->gradients + part->offset,
					request->momentum + part->offset, part->count);
	}
}

int cpu_step_run(struct step *step, const struct step_input *input, struct error *err)
{
	bool mse = step->request.loss == LOSS_MSE;
	int rc = step_parts_check(&step->parts, input, err);

	if (!rc && input->count)
		rc = forward(step, input, err);
	if (rc)
		return rc;
	step_parts_count(&step->parts, input, step->losses, mse ? NULL : step->places);
	if (!step->request.train)
		return 0;
	rc = backward(step, input, err);
	if (!rc && input->last)
		update(step, input->lr);
	return rc;
}

int cpu_step_read(struct step *step, struct step_totals *out, struct error *err)
{
	step_parts_read(&step->parts, out);
	return 0;
}
