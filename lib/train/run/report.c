/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

int train_report_open(struct train_report *report, const struct train_setup *setup,
		      const struct train_progress *progress, bool resumed, struct error *err)
{
	const struct train_options *options = setup->options;

	*report = (struct train_report){
		.setup = setup, .progress = progress, .loss = NAN, .first_nonfinite_step = -1};
	if (!options->metrics || setup->comm->rank)
		return 0;
	return metrics_open(options->metrics, resumed ? progress->state.step : -1,
			    options->evaluate, &report->metrics, err);
}

void train_report_close(struct train_report *report)
{
	metrics_close(report->metrics);
}

/* ---- the interval ---- */

/* CPU time of the calling thread. */
static double cpu_s(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void train_report_begin_interval(struct train_report *report)
{
	report->begin_s = clock_now_s();
	report->begin_cpu_s = cpu_s();
	report->wait_s = 0;
	report->samples = report->steps = 0;
}

double train_report_rate(const struct train_report *report)
{
	return report->busy_s > 0 ? (double)report->busy_samples / report->busy_s : 0;
}

/* ---- steps ---- */

/* Drop the sign of a NaN, which printf would print. */
static double unsigned_nan(double loss)
{
	return isnan(loss) ? NAN : loss;
}

/* Where the run is: of row its epoch, step, loss and images_per_s, the last two only if they are
 * known (steps have been reported; the rate is not 0). */
static void progress_text(const struct train_report *report, const struct metrics_row *row,
			  char *out, size_t size)
{
	const struct train_progress *progress = report->progress;
	double left = (double)(progress->last_step - row->step) * (double)progress->update;
	int64_t eta = row->images_per_s > 0 ? (int64_t)(left / row->images_per_s + 0.5) : 0;
	char loss[40] = "", rate[64] = "";

	if (report->busy_samples)
		snprintf(loss, sizeof loss, "  loss %.4f", row->loss);
	if (row->images_per_s > 0)
		snprintf(rate, sizeof rate, "  %" PRId64 ":%02" PRId64 " left  %.*f images/s",
			 eta / 60, eta % 60, row->images_per_s < 10 ? 1 : 0, row->images_per_s);
	/* A narrow terminal cuts the line off, so the most important values come first. */
	snprintf(out, size, "epoch %" PRId64 "/%" PRId64 "  step %" PRId64 "/%" PRId64 "%s%s",
		 row->epoch, progress->last_epoch, row->step, progress->last_step, loss, rate);
}

static void report_progress(const struct train_report *report, const struct metrics_row *row)
{
	const struct train_sink *sink = report->setup->sink;
	char where[200], text[300];

	if (report->setup->comm->rank)
		return;
	progress_text(report, row, where, sizeof where);
	snprintf(text, sizeof text, "%s  lr %g  data wait %.2f ms", where, row->lr,
		 row->data_wait_ms);
	sink->progress(sink->context, text);
}

void train_report_status(const struct train_report *report, const char *activity)
{
	const struct train_sink *sink = report->setup->sink;
	const struct train_progress *progress = report->progress;
	double seconds = report->busy_s + clock_now_s() - report->begin_s;
	const struct metrics_row row = {
		.step = progress->state.step,
		.epoch = progress->state.epoch + 1,
		.loss = report->loss,
		.images_per_s = (double)(report->busy_samples + report->samples) / seconds,
	};
	char text[200];

	if (report->setup->comm->rank)
		return;
	progress_text(report, &row, text, sizeof text);
	sink->status(sink->context, text, activity);
}

/* All ranks agree on the loss of the last step, on the first bad one and on whether to save. */
static int reduce_interval(struct train_report *report, struct metrics_row *row,
			   struct gpu_reading *gpu, double save_at_s, bool *save_is_due,
			   struct error *err)
{
	const struct train_setup *setup = report->setup;
	struct executor_totals totals;
	/* Measured before the wait for the GPU. */
	double steps = (double)(report->steps ? report->steps : 1);
	double host_ms = (cpu_s() - report->begin_cpu_s) * 1e3 / steps;
	int rc = device_executor_read(setup->executor, &totals, err);

	if (rc)
		return rc;
	double sums[2] = {totals.last_loss_sum, (double)totals.last_samples};
	/* The maximum of -step is the first step whose loss is not finite. The same reduction also
	 * shares what rank 0's clock says. */
	double max[4 + GPU_READING_VALUES] = {
		totals.first_nonfinite_step < 0 ? -INFINITY : -(double)totals.first_nonfinite_step,
		report->wait_s * 1e3 / steps, !setup->comm->rank && clock_now_s() >= save_at_s,
		host_ms};

	gpu_meter_read(setup->meter, gpu);
	gpu_reading_pack(gpu, max + 4);
	rc = rank_group_reduce(&setup->group, sums, 2, COMM_SUM, err);
	if (!rc)
		rc = rank_group_reduce(&setup->group, max, 4 + GPU_READING_VALUES, COMM_MAX, err);
	if (rc)
		return error_prefix(err, "reducing the loss of step %" PRId64, row->step);
	gpu_reading_unpack(max + 4, gpu);
	row->loss = unsigned_nan(sums[0] / sums[1]);
	row->data_wait_ms = max[1];
	*save_is_due = max[2] > 0;
	row->host_ms = max[3];
	report->first_nonfinite_step = max[0] == -INFINITY ? -1 : (int64_t)-max[0];
	return 0;
}

int train_report_interval(struct train_report *report, double save_at_s, bool *save_is_due,
			  struct error *err)
{
	const struct train_setup *setup = report->setup;
	const struct train_progress *progress = report->progress;
	const struct comm_ops *comm = setup->comm->ops;
	struct metrics_row row = {
		.split = SPLIT_TRAIN,
		.step = progress->state.step,
		.epoch = progress->state.epoch + 1,
		.lr = schedule_lr(&progress->schedule, progress->state.epoch,
				  progress->state.step - 1),
	};
	struct gpu_reading gpu;
	int rc = reduce_interval(report, &row, &gpu, save_at_s, save_is_due, err);
	/* By now all ranks and devices have done these steps. */
	double seconds = clock_now_s() - report->begin_s;

	if (rc)
		return rc;
	row.images_per_s = seconds > 0 ? (double)report->samples / seconds : 0;
	if (setup->device->ops->uuid)
		row.gpu = &gpu;
	row.overlap = comm->overlap &&
		      comm->overlap(setup->comm, &row.comm_busy_ms, &row.comm_exposed_ms);
	report->loss = row.loss;
	report->busy_s += seconds;
	report->busy_samples += report->samples;
	rc = metrics_write(report->metrics, &row, err);
	report_progress(report, &row);
	return rc;
}

/* Handle a loss that is not finite. whose: what it is the loss of ("step 5"); lr: its learning
 * rate. */
static int diverged(struct train_report *report, const char *whose, double lr, struct error *err)
{
	if (!report->setup->options->nan_continues)
		return error_set(
			err, ERR_DATA,
			"the loss of %s is not finite: training has diverged. No diverged "
			"weights were saved. Use a smaller --lr (it was %g), or --on-nan continue",
			whose, lr);
	if (!report->nonfinite_reported)
		rank_group_note(&report->setup->group,
				"warning: the loss of %s is not finite; continuing because of "
				"--on-nan continue",
				whose);
	report->nonfinite_reported = true;
	return 0;
}

int train_report_check_loss(struct train_report *report, struct error *err)
{
	const struct train_progress *progress = report->progress;
	char whose[64];

	if (report->first_nonfinite_step < 0)
		return 0;
	snprintf(whose, sizeof whose, "step %" PRId64, report->first_nonfinite_step);
	return diverged(
		report, whose,
		schedule_lr(&progress->schedule, progress->state.epoch, progress->state.step - 1),
		err);
}

int train_report_checkpoint(struct train_report *report, const struct metrics_checkpoint *row,
			    struct error *err)
{
	rank_group_note(&report->setup->group,
			"saved step %" PRId64 ": %.1f ms stall, %.2f s in the background",
			row->step, row->stall_ms, row->write_ms * 1e-3);
	return metrics_write_checkpoint(report->metrics, row, err);
}

/* ---- evaluations ---- */

static void note_evaluation(const struct train_report *report, const struct metrics_row *row,
			    const struct eval_result *result)
{
	const struct rank_group *group = &report->setup->group;
	int64_t last_epoch = report->progress->last_epoch;

	if (row->acc1 >= 0)
		rank_group_note(group,
				"epoch %" PRId64 "/%" PRId64
				"  val loss %.4f  Acc@1 %.2f %%  Acc@5 %.2f %%  (%" PRId64
				" sample%s, %.0f images/s)",
				row->epoch, last_epoch, row->loss, row->acc1, row->acc5,
				result->samples, result->samples == 1 ? "" : "s",
				row->images_per_s);
	else
		rank_group_note(group,
				"epoch %" PRId64 "/%" PRId64 "  val loss %.6g  (%" PRId64
				" sample%s)",
				row->epoch, last_epoch, row->loss, result->samples,
				result->samples == 1 ? "" : "s");
	if (result->left_out)
		rank_group_note(group,
				"warning: validation samples left out: %" PRId64
				" (cannot be decoded)",
				result->left_out);
}

int train_report_evaluation(struct train_report *report, const struct eval_result *result,
			    struct train_result *out, struct error *err)
{
	const struct train_progress *progress = report->progress;
	const struct train_state *state = &progress->state;
	bool classified = report->setup->loss_kind == LOSS_CROSS_ENTROPY;
	struct metrics_row row = {
		.split = SPLIT_VAL,
		.step = state->step,
		.epoch = state->epoch + (state->position > 0),
		.loss = unsigned_nan(result->loss),
		.images_per_s = result->seconds > 0 ? (double)result->samples / result->seconds : 0,
		.data_wait_ms = result->data_wait_ms,
		.acc1 = classified ? 100.0 * (double)result->top1 / (double)result->samples : -1,
		.acc5 = classified ? 100.0 * (double)result->top5 / (double)result->samples : -1,
	};
	char whose[64];
	int rc;

	/* If a finished run is repeated, its state is at the start of the next epoch. */
	row.lr = schedule_lr(&progress->schedule, row.epoch > 0 ? row.epoch - 1 : 0,
			     state->step - 1);
	out->evaluated = true;
	out->classified = classified;
	out->loss = row.loss;
	out->acc1 = row.acc1;
	out->acc5 = row.acc5;
	note_evaluation(report, &row, result);
	rc = metrics_write(report->metrics, &row, err);
	if (rc || isfinite(row.loss))
		return rc;
	/* The last update's weights were not used by any step, so only the evaluation shows that
	 * they are bad. */
	snprintf(whose, sizeof whose, "the evaluation after step %" PRId64, state->step);
	return diverged(report, whose, row.lr, err);
}

/* ---- the end ---- */

void train_report_result(const struct train_report *report, struct train_result *out)
{
	out->samples = report->busy_samples;
	out->images_per_s = train_report_rate(report);
	if (!out->evaluated)
		out->loss = report->loss;
	if (report->metrics)
		out->metrics = strdup(metrics_path(report->metrics));
}
