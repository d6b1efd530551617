/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/executor_common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"

/* Adjacent parameters with the same decay form one range. */
static void find_param_ranges(struct executor_common *common)
{
	const struct executor_request *request = common->request;
	const struct buckets *buckets = request->buckets;

	for (int i = 0; i < request->graph->param_count; i++) {
		const struct graph_param *param = &request->graph->params[buckets->ready[i]];
		bool decay = request->decay_vectors || param->rank > 1;
		struct param_range *last = &common->param_ranges[common->param_range_count];

		if (i && last[-1].decay == decay) {
			last[-1].count += (size_t)param->count;
			continue;
		}
		*last = (struct param_range){buckets->offsets[buckets->ready[i]],
					     (size_t)param->count, decay};
		common->param_range_count++;
	}
}

/* One value has no variance: PyTorch refuses it, too. */
static int check_norms(const struct executor_request *request, int count, struct error *err)
{
	const struct graph *graph = request->graph;

	if (!request->train || count != 1)
		return 0;
	for (int i = 0; i < graph->op_count; i++) {
		const struct shape *x = &graph->values[graph->ops[i].input];

		if (graph->ops[i].kind == OP_BATCHNORM && x->height * x->width == 1)
			return error_set(err, ERR_DATA,
					 "in training, batch norm needs at least two values per "
					 "channel, but a batch of one 1x1 image has only one. Use "
					 "larger images or another --batch (an epoch's last batch "
					 "may hold a single sample)");
	}
	return 0;
}

int executor_common_new(const struct executor_request *request, struct device_queue *queue,
			struct executor_common *out, struct error *err)
{
	struct executor_common common = {
		.request = request,
		.queue = queue,
		.param_ranges = calloc((size_t)request->graph->param_count + 1,
				       sizeof *common.param_ranges),
		.pending = calloc(request->buckets->bucket_count + 1, sizeof *common.pending),
		.totals = {.first_nonfinite_step = -1},
	};
	int rc = common.param_ranges && common.pending ? check_norms(request, request->batch, err)
						       : error_memory(err, "a training step");

	if (rc) {
		executor_common_free(&common);
		return rc;
	}
	find_param_ranges(&common);
	*out = common;
	return 0;
}

void executor_common_free(struct executor_common *common)
{
	free(common->param_ranges);
	free(common->pending);
	*common = (struct executor_common){0};
}

int executor_common_check(const struct executor_common *common, const struct executor_input *input,
			  struct error *err)
{
	if (input->count < 0 || input->count > common->request->batch || input->global_count < 1)
		return error_set(err, ERR_INTERNAL,
				 "a batch has %d samples, but the executor was made for at most %d",
				 input->count, common->request->batch);
	return check_norms(common->request, input->count, err);
}

struct op_call executor_common_loss(const struct executor_common *common,
				    const struct executor_input *input, const void *x,
				    const void *target, float *losses)
{
	const struct executor_request *request = common->request;
	bool mse = request->loss == LOSS_MSE;
	int64_t sizes[2] = {input->count, request->graph->classes};

	return (struct op_call){
		.kind = mse ? OP_MSE : OP_CROSS_ENTROPY,
		.smoothing = mse ? 0 : request->smoothing,
		.scale = (float)(1.0 / (double)input->global_count),
		/* Only read; op_call has one kind of tensor. */
		.x = tensor_make((void *)x, ELEMENT_F32, 2, sizes),
		.target = tensor_make((void *)target, mse ? ELEMENT_F32 : ELEMENT_I32, mse ? 2 : 1,
				      sizes),
		.y = tensor_make(losses, ELEMENT_F32, 1, sizes),
	};
}

void executor_common_add_losses(struct executor_common *common, const struct executor_input *input,
				const float *losses, const int32_t *label_ranks)
{
	struct executor_totals *totals = &common->totals;
	double sum = 0;

	if (input->first || !common->request->train)
		common->update_loss = 0, common->update_samples = 0;
	for (int i = 0; i < input->count; i++) {
		sum += (double)losses[i];
		if (common->request->loss == LOSS_CROSS_ENTROPY) {
			totals->top1 += label_ranks[i] < 1;
			totals->top5 += label_ranks[i] < 5;
		}
	}
	if (!isfinite(sum) && totals->first_nonfinite_step < 0)
		totals->first_nonfinite_step = input->step;
	common->update_loss += sum;
	common->update_samples += input->count;
	totals->loss_sum += sum;
	totals->samples += input->count;
	totals->last_loss_sum = common->update_loss;
	totals->last_samples = common->update_samples;
}

int executor_common_vote(struct executor_common *common, const struct executor_input *input,
			 struct error *err)
{
	const struct executor_request *request = common->request;
	bool diverged = request->vote_nonfinite && common->totals.first_nonfinite_step >= 0;
	float vote = diverged ? NAN : input->vote;

	/* Write a vote of 0, too: otherwise the last update's sum would remain there. */
	if (!input->last)
		return 0;
	return common->queue->device->ops->copy_in(common->queue,
						   request->gradients + request->buckets->total,
						   &vote, sizeof vote, err);
}

void executor_common_take_totals(struct executor_common *common, struct executor_totals *out)
{
	*out = common->totals;
	common->totals = (struct executor_totals){.first_nonfinite_step = -1};
}

void executor_common_begin_update(struct executor_common *common)
{
	const struct buckets *buckets = common->request->buckets;

	for (size_t i = 0; i < buckets->bucket_count; i++)
		common->pending[i] = buckets->list[i].params;
	common->next_bucket = 0;
}

static int gradient_ready(struct executor_common *common, int param, struct error *err)
{
	const struct executor_request *request = common->request;
	const struct buckets *buckets = request->buckets;
	int rc = 0;

	if (param < 0)
		return 0;
	common->pending[buckets->bucket_of[param]]--;
	while (!rc && common->next_bucket < buckets->bucket_count &&
	       !common->pending[common->next_bucket]) {
		const struct bucket *bucket = &buckets->list[common->next_bucket++];

		rc = request->comm->ops->all_reduce(request->comm, common->queue,
						    request->gradients + bucket->offset,
						    bucket->count, ELEMENT_F32, COMM_SUM, err);
	}
	return rc;
}

int executor_common_op_ready(struct executor_common *common, const struct graph_op *op,
			     struct error *err)
{
	struct comm *comm = common->request->comm;
	int rc = gradient_ready(common, op->bias, err);

	if (!rc)
		rc = gradient_ready(common, op->weight, err);
	return rc ? rc : comm->ops->progress(comm, err);
}

void *compiled_sizes_add(struct compiled_sizes *sizes, int count, void *compiled)
{
	void *replaced = sizes->list[COMPILED_SIZES_MAX - 1].compiled;

	memmove(sizes->list + 1, sizes->list, sizeof sizes->list - sizeof *sizes->list);
	sizes->list[0].count = count;
	sizes->list[0].compiled = compiled;
	return replaced;
}

void *compiled_sizes_use(struct compiled_sizes *sizes, int count)
{
	int i = 0;

	while (i < COMPILED_SIZES_MAX && sizes->list[i].compiled && sizes->list[i].count != count)
		i++;
	if (i == COMPILED_SIZES_MAX || !sizes->list[i].compiled)
		return NULL;

	void *found = sizes->list[i].compiled;

	memmove(sizes->list + 1, sizes->list, (size_t)i * sizeof *sizes->list);
	sizes->list[0].count = count;
	sizes->list[0].compiled = found;
	return found;
}
