/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/executor.h"

#include <stdlib.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"

struct device_executor {
	const struct executor_ops *ops;
	struct device_queue *queue;
	struct comm *comm;    /* a comm that tracks steps, else NULL */
	float *vote;	      /* device memory; NULL: none */
	float votes;	      /* the answer, if it is known at once */
	struct executor *own; /* of ops */
};

bool device_executor_accepts_raw(const struct device *device)
{
	return device->ops->executor->accepts_raw;
}

bool device_executor_reduced(const struct device *device)
{
	return device->ops->executor->reduced;
}

int device_executor_new(struct device_queue *queue, const struct executor_request *request,
			struct device_executor **out, struct error *err)
{
	struct device_executor *executor = calloc(1, sizeof *executor);
	int rc;

	if (!executor)
		return error_memory(err, "a training step");
	if ((request->precision != PRECISION_F32 || request->tf32) &&
	    !device_executor_reduced(queue->device)) {
		free(executor);
		return error_set(err, ERR_USAGE,
				 "--%s requires a GPU, but device %s computes in float32. Remove "
				 "the option, or use --device cuda",
				 request->tf32 ? "tf32" : "amp", queue->device->ops->name);
	}
	executor->queue = queue;
	if (request->train && request->comm && request->comm->ops->begin_step)
		executor->comm = request->comm;
	if (request->train)
		executor->vote = request->gradients + request->buckets->total;
	executor->ops = queue->device->ops->executor;
	rc = executor->ops->open(queue, request, &executor->own, err);
	if (rc) {
		device_executor_free(executor);
		return rc;
	}
	*out = executor;
	return 0;
}

int device_executor_run(struct device_executor *executor, const struct executor_input *input,
			struct error *err)
{
	int rc = executor->comm && input->last
			 ? executor->comm->ops->begin_step(executor->comm, executor->queue,
							   input->step, err)
			 : 0;

	return rc ? rc : executor->ops->run(executor->own, input, err);
}

int device_executor_start_votes(struct device_executor *executor, struct error *err)
{
	if (executor->ops->start_votes)
		return executor->ops->start_votes(executor->own, err);
	return executor->queue->device->ops->copy_out(executor->queue, &executor->votes,
						      executor->vote, sizeof executor->votes, err);
}

int device_executor_finish_votes(struct device_executor *executor, float *out, struct error *err)
{
	if (executor->ops->finish_votes)
		return executor->ops->finish_votes(executor->own, out, err);
	*out = executor->votes;
	return 0;
}

int device_executor_read(struct device_executor *executor, struct executor_totals *out,
			 struct error *err)
{
	return executor->ops->read(executor->own, out, err);
}

int device_executor_grad_scaler(struct device_executor *executor,
				const struct grad_scaler_state *begin,
				struct grad_scaler_state *now, struct error *err)
{
	if (executor->ops->grad_scaler)
		return executor->ops->grad_scaler(executor->own, begin, now, err);
	if (now)
		*now = (struct grad_scaler_state){.scale = 1};
	return 0;
}

void device_executor_free(struct device_executor *executor)
{
	if (!executor)
		return;
	if (executor->own)
		executor->ops->close(executor->own);
	free(executor);
}
