/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/executor_common.h"

#include <math.h>
#include <stdlib.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/model/graph.h"

/* Neighbours that decay alike are one stretch. */
static void plan_stretches(struct step_parts *parts)
{
	const struct step_request *request = parts->request;
	const struct buckets *buckets = request->buckets;

	for (int i = 0; i < request->graph->param_count; i++) {
		const struct graph_param *param = &request->graph->params[buckets->ready[i]];
		bool decay = request->decay_vectors || param->rank > 1;
		struct stretch *last = &parts->stretches[parts->stretch_count];

		if (i && last[-1].decay == decay) {
			last[-1].count += (size_t)param->count;
			continue;
		}
		*last = (struct stretch){buckets->offsets[buckets->ready[i]], (size_t)param->count,
					 decay};
		parts->stretch_count++;
	}
}

int step_parts_new(const struct step_request *request, struct step_parts *out, struct error *err)
{
	struct step_parts parts = {
		.request = request,
		.stretches =
			calloc((size_t)request->graph->param_count + 1, sizeof *parts.stretches),
		.pending = calloc(request->buckets->bucket_count + 1, sizeof *parts.pending),
		.totals = {.first_bad = -1},
	};

	if (!parts.stretches || !parts.pending) {
		step_parts_free(&parts);
		return error_memory(err, "a training step");
	}
	plan_stretches(&parts);
	*out = parts;
	return 0;
}

void step_parts_free(struct step_parts *parts)
{
	free(parts->stretches);
	free(parts->pending);
	*parts = (struct step_parts){0};
}

int step_parts_check(const struct step_parts *parts, const struct step_input *input,
		     struct error *err)
{
	if (input->count < 0 || input->count > parts->request->batch || input->global_count < 1)
		return error_set(err, ERR_INTERNAL, "a batch of %d samples for a step of %d",
				 input->count, parts->request->batch);
	return 0;
}

void step_parts_count(struct step_parts *parts, const struct step_input *input, const float *losses,
		      const int32_t *places)
{
	struct step_totals *totals = &parts->totals;
	double sum = 0;

	if (input->first || !parts->request->train)
		parts->update_loss = 0, parts->update_samples = 0;
	for (int i = 0; i < input->count; i++) {
		sum += (double)losses[i];
		if (places) {
			totals->top1 += places[i] < 1;
			totals->top5 += places[i] < 5;
		}
	}
	if (!isfinite(sum) && totals->first_bad < 0)
		totals->first_bad = input->step;
	parts->update_loss += sum;
	parts->update_samples += input->count;
	totals->loss_sum += sum;
	totals->samples += input->count;
	totals->last_loss_sum = parts->update_loss;
	totals->last_samples = parts->update_samples;
}

void step_parts_read(struct step_parts *parts, struct step_totals *out)
{
	*out = parts->totals;
	parts->totals = (struct step_totals){.first_bad = -1};
}

void step_parts_begin(struct step_parts *parts)
{
	const struct buckets *buckets = parts->request->buckets;

	for (size_t i = 0; i < buckets->bucket_count; i++)
		parts->pending[i] = buckets->list[i].params;
	parts->next_bucket = 0;
}

int step_parts_ready(struct step_parts *parts, int param, struct device_queue *queue,
		     struct error *err)
{
	const struct step_request *request = parts->request;
	const struct buckets *buckets = request->buckets;
	int rc = 0;

	if (param < 0)
		return 0;
	parts->pending[buckets->bucket_of[param]]--;
	while (!rc && parts->next_bucket < buckets->bucket_count &&
	       !parts->pending[parts->next_bucket]) {
		const struct bucket *bucket = &buckets->list[parts->next_bucket++];
		bool last = parts->next_bucket == buckets->bucket_count;

		rc = request->comm->ops->all_reduce(request->comm, queue,
						    request->gradients + bucket->offset,
						    bucket->count + (last && request->vote),
						    ELEMENT_F32, COMM_SUM, err);
	}
	return rc;
}
