/* SPDX-License-Identifier: BSD-3-Clause */
/* What is told and logged of the steps that were done, and of evaluations. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "train/run/loop_internal.h"

double train_lr(const struct train *train, int64_t steps)
{
	return schedule_lr(&train->schedule, train->state.epoch, steps);
}

/* A NaN has a sign, and printf shows it. */
static double unsigned_nan(double loss)
{
	return isnan(loss) ? NAN : loss;
}

static void report_progress(const struct train *train, const struct metrics_row *row)
{
	double left = (double)(train->last_step - row->step) * (double)train->update;
	int64_t eta = row->images_per_s > 0 ? (int64_t)(left / row->images_per_s + 0.5) : 0;
	char text[256];

	if (train->comm->rank)
		return;
	/* The first of it is what a narrow terminal shows. */
	snprintf(text, sizeof text,
		 "epoch %" PRId64 "/%" PRId64 "  step %" PRId64 "/%" PRId64 "  loss %.4f  %" PRId64
		 ":%02" PRId64 " left  %.0f images/s  lr %g  data wait %.2f ms",
		 row->epoch, train->last_epoch, row->step, train->last_step, row->loss, eta / 60,
		 eta % 60, row->images_per_s, row->lr, row->data_wait_ms);
	train->sink->progress(train->sink->context, text);
}

/* ---- steps ---- */

static bool save_interval_has_passed(const struct train *train)
{
	const struct train_options *options = train->options;

	return options->save_unit == SAVE_TIME &&
	       clock_now_s() - train->saved_at_s >= (double)options->save_every * 1e-3;
}

/* All ranks agree on the loss of the last step, on the first bad one and on whether to save. */
static int reduce_interval(struct train *train, struct metrics_row *row, struct gpu_reading *gpu,
			   struct error *err)
{
	struct executor_totals totals;
	/* Before the GPU is waited for. */
	double steps = (double)(train->interval_steps ? train->interval_steps : 1);
	double host_ms = (train_cpu_s() - train->interval_begin_cpu_s) * 1e3 / steps;
	int rc = device_executor_read(train->executor, &totals, err);

	if (rc)
		return rc;
	double sums[2] = {totals.last_loss_sum, (double)totals.last_samples};
	/* The largest of -step is the first bad one. Rank 0's clock rides along. */
	double max[4 + GPU_READING_VALUES] = {
		totals.first_nonfinite_step < 0 ? -INFINITY : -(double)totals.first_nonfinite_step,
		train->interval_steps ? train->wait_s * 1e3 / (double)train->interval_steps : 0,
		!train->comm->rank && save_interval_has_passed(train), host_ms};

	gpu_meter_read(train->meter, gpu);
	gpu_reading_pack(gpu, max + 4);
	rc = comm_reduce_on_host(train->comm, train->queue, sums, 2, COMM_SUM, err);
	if (!rc)
		rc = comm_reduce_on_host(train->comm, train->queue, max, 4 + GPU_READING_VALUES,
					 COMM_MAX, err);
	if (rc)
		return error_prefix(err, "agreeing on the loss of step %" PRId64,
				    train->state.step);
	gpu_reading_unpack(max + 4, gpu);
	row->loss = unsigned_nan(sums[0] / sums[1]);
	row->data_wait_ms = max[1];
	train->save_is_due = max[2] > 0;
	row->host_ms = max[3];
	train->first_nonfinite_step = max[0] == -INFINITY ? -1 : (int64_t)-max[0];
	return 0;
}

/* "step 5": whose loss is not finite. */
static int diverged(struct train *train, const char *whose, double lr, struct error *err)
{
	if (!train->options->nan_continues)
		return error_set(err, ERR_DATA,
				 "the loss of %s is not finite: the training has diverged; "
				 "nothing of it was saved. Try a smaller --lr (it was %g), or go "
				 "on with --on-nan continue",
				 whose, lr);
	if (!train->nonfinite_reported)
		train_note(train,
			   "the loss of %s is not finite; going on, as --on-nan continue says",
			   whose);
	train->nonfinite_reported = true;
	return 0;
}

static int step_diverged(struct train *train, double lr, struct error *err)
{
	char whose[64];

	snprintf(whose, sizeof whose, "step %" PRId64, train->first_nonfinite_step);
	return diverged(train, whose, lr, err);
}

/* The last update may leave weights that no step was done with. */
static int evaluation_diverged(struct train *train, double lr, struct error *err)
{
	char whose[64];

	snprintf(whose, sizeof whose, "the evaluation after step %" PRId64, train->state.step);
	return diverged(train, whose, lr, err);
}

int train_report(struct train *train, struct error *err)
{
	struct metrics_row row = {
		.split = SPLIT_TRAIN,
		.step = train->state.step,
		.epoch = train->state.epoch + 1,
		.lr = train_lr(train, train->state.step - 1),
	};
	struct gpu_reading gpu;
	const struct comm_ops *comm = train->comm->ops;
	int rc = reduce_interval(train, &row, &gpu, err);
	/* Now all ranks and devices have done these steps. */
	double seconds = clock_now_s() - train->interval_begin_s;

	if (rc)
		return rc;
	row.images_per_s = seconds > 0 ? (double)train->interval_samples / seconds : 0;
	if (train->device->ops->uuid)
		row.gpu = &gpu;
	row.overlap = comm->overlap &&
		      comm->overlap(train->comm, &row.comm_busy_ms, &row.comm_exposed_ms);
	train->loss = row.loss;
	train->busy_s += seconds;
	train->busy_samples += train->interval_samples;
	rc = metrics_write(train->metrics, &row, err);
	report_progress(train, &row);
	if (!rc)
		rc = train_report_finished_save(train, err);
	if (!rc && train->first_nonfinite_step >= 0)
		rc = step_diverged(train, row.lr, err);
	train_interval_begin(train);
	return rc;
}

/* ---- evaluations ---- */

static void store_evaluation(struct train *train, const struct metrics_row *row)
{
	struct train_result *result = &train->result;

	result->evaluated = true;
	result->classified = row->acc1 >= 0;
	result->loss = row->loss;
	result->acc1 = row->acc1;
	result->acc5 = row->acc5;
	train->evaluated_step = row->step;
}

static void report_evaluation(const struct train *train, const struct metrics_row *row,
			      const struct eval_result *result)
{
	if (row->acc1 >= 0)
		train_note(train,
			   "epoch %" PRId64 "/%" PRId64 "  val loss %.4f  Acc@1 %.2f %%  Acc@5 "
			   "%.2f %%  (%" PRId64 " samples, %.0f images/s)",
			   row->epoch, train->last_epoch, row->loss, row->acc1, row->acc5,
			   result->samples, row->images_per_s);
	else
		train_note(train,
			   "epoch %" PRId64 "/%" PRId64 "  val loss %.6g  (%" PRId64 " samples)",
			   row->epoch, train->last_epoch, row->loss, result->samples);
	if (result->left_out)
		train_note(train, "%" PRId64 " samples of val cannot be decoded and were left out",
			   result->left_out);
}

int train_evaluate(struct train *train, struct error *err)
{
	struct eval_result result;
	int rc = optim_broadcast_buffers(&train->optim, train->comm, err);

	if (!rc)
		rc = eval_run(train->val_feed, train->val_resident, train->val_executor,
			      train->comm, train->queue, &train->stop, &result, err);

	train->stopped |= !rc && result.stopped;
	if (rc || result.stopped)
		return rc;
	stop_record_eval(&train->stop, result.seconds);
	bool classified = train->loss_kind == LOSS_CROSS_ENTROPY;
	struct metrics_row row = {
		.split = SPLIT_VAL,
		.step = train->state.step,
		.epoch = train->state.epoch + (train->state.position > 0),
		.loss = unsigned_nan(result.loss),
		.images_per_s = result.seconds > 0 ? (double)result.samples / result.seconds : 0,
		.data_wait_ms = result.data_wait_ms,
		.acc1 = classified ? 100.0 * (double)result.top1 / (double)result.samples : -1,
		.acc5 = classified ? 100.0 * (double)result.top5 / (double)result.samples : -1,
	};

	/* A finished run that is repeated stands at the next epoch's beginning. */
	row.lr = schedule_lr(&train->schedule, row.epoch > 0 ? row.epoch - 1 : 0,
			     train->state.step - 1);
	store_evaluation(train, &row);
	report_evaluation(train, &row, &result);
	rc = metrics_write(train->metrics, &row, err);
	if (!rc && !isfinite(row.loss))
		rc = evaluation_diverged(train, row.lr, err);
	train_interval_begin(train);
	/* Rank 0 may have learnt that the best one before was not saved. */
	return rc ? rc
		  : comm_broadcast_on_host(train->comm, train->queue, &train->best_acc1,
					   sizeof train->best_acc1, 0, err);
}
