/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/eval.h"

#include "base/clock.h"
#include "train/run/heartbeat.h"

/* Evaluate this rank's samples. *stopped: the evaluation was stopped early. */
static int run_own(const struct train_setup *setup, struct stop *stop, double *wait_ms,
		   bool *stopped, struct error *err)
{
	struct feed *feed = setup->val_feed;
	int64_t position = 0, global_count, batches = 0;
	double wait_s = 0;
	struct batch *batch;
	int rc = feed_next(feed, position, &batch, &global_count, &wait_s, err);

	for (; !rc && global_count && !(*stopped = stop_wanted(stop, 0)); batches++) {
		struct executor_input input = {
			.x = batch->x,
			.raw = batch->raw,
			.augments = batch->augments,
			.resident = setup->val_resident,
			.indices = batch->indices,
			.target = batch->target,
			.count = batch->count,
			.global_count = batch->count,
			.full = batch->count == setup->options->batch,
		};

		if (batch->count)
			rc = device_executor_run(setup->val_executor, &input, err);
		position += global_count;
		train_heartbeat_activity("evaluates");
		if (!rc)
			rc = feed_next(feed, position, &batch, &global_count, &wait_s, err);
	}
	*wait_ms = batches ? wait_s * 1e3 / (double)batches : 0;
	return rc;
}

int eval_run(const struct train_setup *setup, struct stop *stop, struct eval_result *out,
	     struct error *err)
{
	const struct rank_group *group = &setup->group;
	struct executor_totals totals = {0};
	int64_t faults = feed_faults(setup->val_feed);
	double begin = clock_now_s(), wait_ms = 0;
	bool stopped = false;
	int rc = run_own(setup, stop, &wait_ms, &stopped, err);

	if (!rc)
		rc = device_executor_read(setup->val_executor, &totals, err);
	if (rc)
		return rc;
	double sums[6] = {totals.loss_sum,
			  (double)totals.samples,
			  (double)totals.top1,
			  (double)totals.top5,
			  (double)(feed_faults(setup->val_feed) - faults),
			  stopped};

	rc = rank_group_reduce(group, sums, 6, COMM_SUM, err);
	if (!rc)
		rc = rank_group_reduce(group, &wait_ms, 1, COMM_MAX, err);
	if (rc)
		return error_prefix(err, "summing the evaluation results");
	if (sums[5] > 0) {
		*out = (struct eval_result){.stopped = true};
		return 0;
	}
	if (sums[1] < 1)
		return error_set(err, ERR_DATA, "no validation sample can be decoded");
	*out = (struct eval_result){
		.loss = sums[0] / sums[1],
		.samples = (int64_t)sums[1],
		.top1 = (int64_t)sums[2],
		.top5 = (int64_t)sums[3],
		.left_out = (int64_t)sums[4],
		.seconds = clock_now_s() - begin,
		.data_wait_ms = wait_ms,
	};
	return 0;
}
