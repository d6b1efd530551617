/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/eval.h"

#include <stdlib.h>
#include <time.h>

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run_own(struct dataset *dataset, struct device_step *step, int batch, int rank,
		   int world, uint32_t *indices, float *x, void *target, struct error *err)
{
	int rc = 0;

	for (int64_t next = rank; !rc && next < dataset->count;) {
		int count = 0;

		for (; count < batch && next < dataset->count; next += world)
			indices[count++] = (uint32_t)next;
		struct step_input input = {
			.x = x, .target = target, .count = count, .global_count = count};

		rc = dataset_read(dataset, indices, count, 0, x, target, err);
		if (!rc)
			rc = device_step_run(step, &input, err);
	}
	return rc;
}

int eval_run(struct dataset *dataset, struct device_step *step, int batch, struct comm *comm,
	     struct device_queue *queue, struct eval_result *out, struct error *err)
{
	size_t room = (size_t)batch;
	uint32_t *indices = calloc(room, sizeof *indices);
	float *x = calloc(room * (size_t)shape_count(&dataset->shape), sizeof *x);
	void *target = calloc(room, sizeof(int32_t));
	struct step_totals totals = {0};
	double begin = now_s();
	int rc = indices && x && target ? 0 : error_memory(err, "the evaluation");

	if (!rc)
		rc = run_own(dataset, step, batch, comm->rank, comm->size, indices, x, target, err);
	if (!rc)
		rc = device_step_read(step, &totals, err);
	free(indices);
	free(x);
	free(target);
	if (rc)
		return rc;
	double sums[4] = {totals.loss_sum, (double)totals.samples, (double)totals.top1,
			  (double)totals.top5};

	rc = comm_agree(comm, queue, sums, 4, COMM_SUM, err);
	if (rc)
		return error_prefix(err, "adding up the evaluation");
	*out = (struct eval_result){
		.loss = sums[0] / sums[1],
		.samples = (int64_t)sums[1],
		.top1 = (int64_t)sums[2],
		.top5 = (int64_t)sums[3],
		.seconds = now_s() - begin,
	};
	return 0;
}
