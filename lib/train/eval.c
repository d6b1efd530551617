/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/eval.h"

#include <time.h>

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run_own(struct feed *feed, struct device_step *step, struct error *err)
{
	int64_t position = 0, global_count;
	struct batch *batch;
	int rc = feed_next(feed, position, &batch, &global_count, err);

	while (!rc && global_count) {
		struct step_input input = {
			.x = batch->x,
			.target = batch->target,
			.count = batch->count,
			.global_count = batch->count,
		};

		if (batch->count)
			rc = device_step_run(step, &input, err);
		position += global_count;
		if (!rc)
			rc = feed_next(feed, position, &batch, &global_count, err);
	}
	return rc;
}

int eval_run(struct feed *feed, struct device_step *step, struct comm *comm,
	     struct device_queue *queue, struct eval_result *out, struct error *err)
{
	struct step_totals totals = {0};
	int64_t faults = feed_faults(feed);
	double begin = now_s();
	int rc = run_own(feed, step, err);

	if (!rc)
		rc = device_step_read(step, &totals, err);
	if (rc)
		return rc;
	double sums[5] = {totals.loss_sum, (double)totals.samples, (double)totals.top1,
			  (double)totals.top5, (double)(feed_faults(feed) - faults)};

	rc = comm_agree(comm, queue, sums, 5, COMM_SUM, err);
	if (rc)
		return error_prefix(err, "adding up the evaluation");
	if (sums[1] < 1)
		return error_set(err, ERR_DATA, "no sample of val can be decoded");
	*out = (struct eval_result){
		.loss = sums[0] / sums[1],
		.samples = (int64_t)sums[1],
		.top1 = (int64_t)sums[2],
		.top5 = (int64_t)sums[3],
		.left_out = (int64_t)sums[4],
		.seconds = now_s() - begin,
	};
	return 0;
}
