/* SPDX-License-Identifier: BSD-3-Clause */
/* steps DEVICE IN OUT: load a network's state from IN, apply the given updates, and write the
 * result to OUT. For comparisons with PyTorch; both files are safetensors (lib.py).
 *
 * IN   metadata: model, classes, stem (default, cifar), loss (ce, mse), momentum, weight_decay,
 *        decay_vectors (1: also of biases and batch norm), nesterov, smoothing, seed
 *      x F32 [runs][N][C][H][W]; target I64 [runs][N], with mse F32 [runs][N][classes]
 *      lr F64 [updates]: runs / updates runs form one update (gradient accumulation)
 *      weights, buffers, momentum: as in a checkpoint; ignored if metadata has a seed, from which
 *        the initial ones are made; without updates, momentum is not needed
 *      metadata eval 1: only forward passes, with the running statistics; lr is ignored
 * OUT  loss F64 [updates]; the state as in a checkpoint; grad.NAME, the gradients of the last
 *      update. Without updates, and with eval, momentum and gradients are omitted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/number.h"
#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/executor/executor.h"
#include "train/model/graph.h"
#include "train/run/optim.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/variables.h"

struct job {
	struct env *env;
	struct safetensors in;
	const struct safetensor *x, *target, *lr;
	int64_t updates, runs; /* runs: of an update */
	bool train;
	int batch;

	struct graph *graph;
	struct buckets buckets;
	struct device *device;
	struct device_queue *queue;
	struct comm *comm;
	struct optim optim;
	struct variables variables;
	int64_t batches;
	struct device_executor *executor;
	int32_t *labels; /* of one run */
	double *losses;
};

/* ---- reading IN ---- */

static const char *said(const struct job *job, const char *key, const char *otherwise)
{
	const char *text = json_string_value(json_object_get(job->in.metadata, key));

	return text ? text : otherwise;
}

static int number(const struct job *job, const char *key, double *out, struct error *err)
{
	return number_double(key, said(job, key, "0"), 0, 1e18, out, err);
}

static int wanted(const struct job *job, const char *name, const char *type, int rank,
		  const struct safetensor **out, struct error *err)
{
	*out = safetensors_find(&job->in, name);
	if (!*out || strcmp((*out)->type, type) || (*out)->rank != rank)
		return error_set(err, ERR_DATA, "'%s' must be there, %s of %d dimensions", name,
				 type, rank);
	return 0;
}

static int read_input(struct job *job, const char *path, struct error *err)
{
	int rc = safetensors_read(path, &job->in, err);
	bool mse = !rc && !strcmp(said(job, "loss", "ce"), "mse");

	if (!rc)
		rc = wanted(job, "x", "F32", 5, &job->x, err);
	if (!rc)
		rc = wanted(job, "target", mse ? "F32" : "I64", mse ? 3 : 2, &job->target, err);
	if (!rc)
		rc = wanted(job, "lr", "F64", 1, &job->lr, err);
	if (rc)
		return rc;
	job->updates = job->lr->shape[0];
	job->train = job->updates && strcmp(said(job, "eval", "0"), "1");
	job->batch = (int)job->x->shape[1];
	job->runs = job->updates ? job->x->shape[0] / job->updates : 0;
	if (job->runs * job->updates != job->x->shape[0] || job->batch < 1 ||
	    job->target->shape[0] != job->x->shape[0] || job->target->shape[1] != job->batch)
		return error_set(err, ERR_DATA, "x, target and lr do not fit together");
	return 0;
}

/* ---- the network and its state ---- */

static int load_state(struct job *job, const char *path, struct error *err)
{
	struct variables_filter want = {.momentum = job->train};
	int rc = variables_new(job->graph, &job->buckets, &job->variables, err);
	double seed;

	if (!rc && json_object_get(job->in.metadata, "seed")) {
		rc = number(job, "seed", &seed, err);
		if (!rc)
			rc = graph_initialise(job->graph, (uint64_t)seed, job->buckets.offsets,
					      job->variables.weights, err);
		if (!rc)
			graph_initialise_buffers(job->graph, job->variables.buffers);
	} else if (!rc) {
		rc = variables_read(path, &job->in, &want, &job->variables, &job->batches, err);
	}
	return rc ? rc : optim_load(&job->optim, &job->variables, err);
}

static int build(struct job *job, const char *device, const char *path, struct error *err)
{
	const struct comm_request alone = {.size = 1, .timeout_ms = 60000};
	const struct shape shape = {(int)job->x->shape[2], (int)job->x->shape[3],
				    (int)job->x->shape[4]};
	enum model_stem stem =
		strcmp(said(job, "stem", "default"), "cifar") ? STEM_DEFAULT : STEM_CIFAR;
	double classes;
	int rc = number(job, "classes", &classes, err);

	if (!rc)
		rc = model_build(said(job, "model", ""), &shape, (int)classes, stem, &job->graph,
				 err);
	if (!rc)
		rc = buckets_make(job->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &job->buckets, err);
	if (!rc)
		rc = device_find(device, 0, env_get(job->env, "BERTH_MODULE_PATH"), &job->device,
				 NULL, err);
	if (!rc)
		rc = job->device->ops->queue_new(job->device, &job->queue, err);
	if (!rc)
		rc = comm_self.open(&alone, &job->comm, err);
	if (!rc)
		rc = optim_new(job->queue, job->graph, &job->buckets, job->comm, &job->optim, err);
	return rc ? rc : load_state(job, path, err);
}

static int prepare(struct job *job, struct error *err)
{
	bool mse = !strcmp(said(job, "loss", "ce"), "mse");
	double momentum, weight_decay, smoothing;
	int rc = number(job, "momentum", &momentum, err);

	if (!rc)
		rc = number(job, "weight_decay", &weight_decay, err);
	if (!rc)
		rc = number(job, "smoothing", &smoothing, err);
	if (rc)
		return rc;
	struct executor_request request = {
		.graph = job->graph,
		.batch = job->batch,
		.loss = mse ? LOSS_MSE : LOSS_CROSS_ENTROPY,
		.train = job->train,
		.buckets = &job->buckets,
		.comm = job->comm,
		.weights = job->optim.weights,
		.gradients = job->optim.gradients,
		.momentum = job->optim.momentum,
		.buffers = job->optim.buffers,
		.sgd = {.momentum = (float)momentum,
			.weight_decay = (float)weight_decay,
			.nesterov = !strcmp(said(job, "nesterov", "0"), "1")},
		.decay_vectors = !strcmp(said(job, "decay_vectors", "1"), "1"),
		.smoothing = (float)smoothing,
		.direct = true,
	};

	job->labels = calloc((size_t)job->batch, sizeof *job->labels);
	job->losses = calloc((size_t)job->updates + 1, sizeof *job->losses);
	if (!job->labels || !job->losses)
		return error_memory(err, "a batch");
	return device_executor_new(job->queue, &request, &job->executor, err);
}

/* ---- the updates ---- */

/* Run r of an update: the next batch of IN. */
static int run(struct job *job, int64_t update, int64_t r, struct error *err)
{
	size_t at = (size_t)(update * job->runs + r), batch = (size_t)job->batch;
	size_t count = batch * (size_t)shape_count(&job->graph->values[0]);
	bool mse = !strcmp(job->target->type, "F32");
	struct executor_input input = {
		.x = (const float *)job->x->data + at * count,
		.target = job->labels,
		.count = job->batch,
		.global_count = job->batch * job->runs,
		.step = update,
		.lr = (float)((const double *)job->lr->data)[update],
		.first = r == 0,
		.last = r == job->runs - 1,
		.full = true,
	};

	if (mse)
		input.target =
			(const float *)job->target->data + at * batch * (size_t)job->graph->classes;
	else
		for (size_t i = 0; i < batch; i++)
			job->labels[i] =
				(int32_t)((const int64_t *)job->target->data)[at * batch + i];
	return device_executor_run(job->executor, &input, err);
}

static int all_updates(struct job *job, struct error *err)
{
	int rc = 0;

	for (int64_t update = 0; !rc && update < job->updates; update++) {
		struct executor_totals totals;

		for (int64_t r = 0; !rc && r < job->runs; r++)
			rc = run(job, update, r, err);
		if (!rc)
			rc = device_executor_read(job->executor, &totals, err);
		if (!rc)
			job->losses[update] = totals.loss_sum / (double)totals.samples;
	}
	return rc;
}

/* ---- OUT ---- */

/* A tensor of the gradients: copied from the weight's, with other data. */
static struct safetensor gradient_of(const struct safetensor *weight, const char *name,
				     const float *data)
{
	struct safetensor tensor = *weight;

	tensor.name = name;
	tensor.data = data;
	return tensor;
}

static const struct safetensor *named(const struct variables_list *list, const char *name)
{
	const struct safetensor *tensor = list->tensors;

	while (strcmp(tensor->name, name))
		tensor++;
	return tensor;
}

static int write_tensors(const struct job *job, const char *path, const struct variables_list *list,
			 const float *gradients, struct error *err)
{
	size_t params = (size_t)job->graph->param_count, count = list->count;
	struct safetensor *all = calloc(count + params + 1, sizeof *all);
	char(*names)[128] = calloc(params + 1, sizeof *names);
	int rc = all && names ? 0 : error_memory(err, "the results");

	if (!rc) {
		memcpy(all, list->tensors, count * sizeof *all);
		for (size_t i = 0; job->train && i < params; i++) {
			const char *name = job->graph->params[i].name;

			snprintf(names[i], sizeof *names, "grad.%s", name);
			all[count++] = gradient_of(named(list, name), names[i],
						   gradients + job->buckets.offsets[i]);
		}
		all[count++] =
			(struct safetensor){.name = "loss",
					    .type = "F64",
					    .rank = 1,
					    .shape = {job->updates},
					    .data = job->losses,
					    .size_bytes = (size_t)job->updates * sizeof(double)};
		rc = safetensors_write(path, all, count, NULL, NULL, err);
	}
	free(all);
	free(names);
	return rc;
}

static int write_output(struct job *job, const char *path, struct error *err)
{
	size_t bytes = job->buckets.total * sizeof(float);
	float *gradients = malloc(bytes + 1);
	struct variables_list list = {0};
	int rc = gradients ? optim_store(&job->optim, &job->variables, err)
			   : error_memory(err, "the gradients");

	if (!rc)
		rc = job->device->ops->copy_out(job->queue, gradients, job->optim.gradients, bytes,
						err);
	if (!rc)
		rc = variables_list(&job->variables,
				    job->batches + (job->train ? job->updates * job->runs : 0),
				    job->train, &list, err);
	if (!rc)
		rc = write_tensors(job, path, &list, gradients, err);
	variables_list_free(&list);
	free(gradients);
	return rc;
}

static void job_free(struct job *job)
{
	device_executor_free(job->executor);
	optim_free(&job->optim);
	if (job->comm)
		job->comm->ops->close(job->comm);
	if (job->queue)
		job->device->ops->queue_free(job->queue);
	if (job->device)
		job->device->ops->close(job->device);
	buckets_free(&job->buckets);
	graph_free(job->graph);
	variables_free(&job->variables);
	safetensors_free(&job->in);
	env_free(job->env);
	free(job->labels);
	free(job->losses);
}

int main(int argc, char **argv)
{
	struct job job = {0};
	struct error err = {0};
	int rc;

	if (argc != 4) {
		fprintf(stderr, "usage: %s DEVICE IN.safetensors OUT.safetensors\n", argv[0]);
		return ERR_USAGE;
	}
	job.env = env_capture();
	rc = job.env ? read_input(&job, argv[2], &err) : error_memory(&err, "the environment");
	if (!rc)
		rc = build(&job, argv[1], argv[2], &err);
	if (!rc)
		rc = prepare(&job, &err);
	if (!rc)
		rc = all_updates(&job, &err);
	if (!rc)
		rc = write_output(&job, argv[3], &err);
	if (rc)
		fprintf(stderr, "%s: %s\n", argv[0], err.text);
	else
		printf("%s\n", job.device->ops->name);
	job_free(&job);
	return rc ? -rc : 0;
}
