/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "train/run/heartbeat.h"
#include "train/run/loop_internal.h"

/* On a GPU: votes are asked for now and then, and the answer is read when the GPU, two steps behind
 * at the most, has long given it. */
#define VOTE_STEPS 8
#define VOTE_LAG 5
#define SAVE_BYTES_S 50e6 /* before the first checkpoint is timed */

void train_result_free(struct train_result *result)
{
	free(result->checkpoint);
	free(result->metrics);
	result->checkpoint = result->metrics = NULL;
}

/* ---- words ---- */

void train_note(const struct train *train, const char *format, ...)
{
	char text[1200];
	va_list ap;

	if (train->comm && train->comm->rank)
		return;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	train->sink->note(train->sink->context, text);
}

/* ---- one step, and what follows on it ---- */

/* What has to be done after the update that ends here, before steps go on: an evaluation. Before
 * the first one is timed, as long as training on its samples. */
static double seconds_of_eval_after(const struct train *train, int64_t position)
{
	double rate = train->busy_s > 0 ? (double)train->busy_samples / train->busy_s : 0;

	if (!train->val || position < train->sampler.total)
		return 0;
	if (train->stop.eval_s > 0)
		return 1.2 * train->stop.eval_s;
	return rate > 0 ? (double)train->val->count / rate : 0;
}

static bool device_is_async(const struct train *train)
{
	return train->device->ops->queue_native(train->queue);
}

/* How long a vote may wait until all know of it. */
static double seconds_until_votes(const struct train *train)
{
	double rate = train->busy_s > 0 ? (double)train->busy_samples / train->busy_s : 0;

	return device_is_async(train) && rate > 0
		       ? (VOTE_STEPS + VOTE_LAG) * (double)train->update / rate
		       : 0;
}

/* One batch of this rank, of an update that has update samples, done of them before it. *count: how
 * many samples all ranks took. */
static int run_micro_batch(struct train *train, int64_t update, int64_t done, int64_t *count,
			   struct error *err)
{
	struct batch *batch;
	double steps = (double)(train->state.step - train->first_step);

	train_heartbeat_write(steps + 0.5 * (double)done / (double)update, train->state.step + 1,
			      "waits for its batch");
	double begin = clock_now_s();
	int rc = feed_next(train->feed, train->state.position + done, &batch, count, err);

	train->wait_s += clock_now_s() - begin;
	if (!rc && !*count)
		rc = error_set(err, ERR_INTERNAL, "the epoch has no batch at %" PRId64,
			       train->state.position + done);
	if (!rc)
		rc = train_sample_log_write(train, train->state.position + done, *count, err);
	if (rc)
		return rc;
	struct executor_input input = {
		.x = batch->x,
		.raw = batch->raw,
		.augments = batch->augments,
		.resident = train->resident,
		.indices = batch->indices,
		.target = batch->target,
		.count = batch->count,
		.global_count = update,
		.step = train->state.step + 1,
		.lr = (float)train_lr(train, train->state.step),
		.first = !done,
		.last = done + *count >= update,
	};

	train_heartbeat_write(steps + 0.5 * (double)(done + *count) / (double)update,
			      train->state.step + 1, "computes");
	if (input.last)
		input.vote = stop_wanted(
			&train->stop, seconds_of_eval_after(train, train->state.position + update) +
					      seconds_until_votes(train));

	return device_executor_run(train->executor, &input, err);
}

/* Has any rank voted to stop after the update that is done? The same on all ranks. */
static int count_votes(struct train *train, struct error *err)
{
	int64_t step = train->state.step, asked = step - (device_is_async(train) ? VOTE_LAG : 0);
	float votes;
	int rc = 0;

	/* Once it wants to stop a rank goes on voting. */
	if (!device_is_async(train) || step % VOTE_STEPS == 0)
		rc = device_executor_start_votes(train->executor, err);
	if (rc || asked <= train->first_step || (device_is_async(train) && asked % VOTE_STEPS))
		return rc;
	rc = device_executor_finish_votes(train->executor, &votes, err);
	train->stopped = !rc && votes > 0;
	return rc;
}

/* One update: the next batches of each rank; fewer at an epoch's end. */
static int run_update(struct train *train, struct error *err)
{
	int64_t left = train->sampler.total - train->state.position;
	int64_t update = left < train->update ? left : train->update, count;
	double begin = clock_now_s();
	int rc = 0;

	for (int64_t done = 0; !rc && done < update; done += count) {
		rc = run_micro_batch(train, update, done, &count, err);
		train->state.batches++;
	}
	if (rc)
		return rc;
	train->state.step++;
	train_heartbeat_write((double)(train->state.step - train->first_step), train->state.step,
			      "done");
	train->state.position += update;
	train->interval_samples += update;
	train->interval_steps++;
	rc = count_votes(train, err);
	stop_record_step(&train->stop, clock_now_s() - begin);
	return rc;
}

/* Collective: what has diverged is not saved. The writing goes on beside the training. */
static int save_checkpoint(struct train *train, struct error *err)
{
	int rc = train->interval_steps ? train_report(train, err) : 0;

	train_heartbeat_activity(0, "saves");
	if (!rc)
		rc = train_save(train,
				train->state.step >= train->last_step ||
					train->state.epoch >= train->last_epoch,
				err);
	train->saved_step = train->state.step;
	train->saved_at_s = clock_now_s();
	train->save_is_due = false;
	train_interval_begin(train);
	return rc;
}

static bool is_save_due(const struct train *train, bool epoch_ends)
{
	const struct train_options *options = train->options;

	if (!options->ckpt)
		return false;
	if (options->save_unit == SAVE_STEPS)
		return train->state.step % options->save_every == 0;
	if (options->save_unit == SAVE_TIME)
		return train->save_is_due;
	return options->save_unit == SAVE_EPOCHS && epoch_ends &&
	       (train->state.epoch + 1) % options->save_every == 0;
}

/* ---- epochs ---- */

static int begin_epoch(struct train *train, struct error *err)
{
	int world = train->state.position ? train->state.world : train->comm->size;
	int rc = sampler_begin(&train->sampler, train->state.epoch, world, err);

	train->state.world = world;
	return rc;
}

static int run_epoch(struct train *train, struct error *err)
{
	const struct train_options *options = train->options;
	int rc = begin_epoch(train, err);

	while (!rc && !train->stopped && train->state.step < train->last_step &&
	       train->state.position < train->sampler.total) {
		rc = run_update(train, err);
		if (rc)
			break;
		bool epoch_ends = train->state.position >= train->sampler.total;

		if (train->state.step % options->log_every == 0)
			rc = train_report(train, err);
		if (epoch_ends || train->stopped)
			break; /* saved, if at all, as the beginning of the next */
		if (!rc && is_save_due(train, false))
			rc = save_checkpoint(train, err);
	}
	return rc;
}

static int end_epoch(struct train *train, struct error *err)
{
	int rc = train->interval_steps ? train_report(train, err) : 0;
	bool due = is_save_due(train, true);

	if (!rc && train->val)
		rc = train_evaluate(train, err);
	if (rc || train->stopped)
		return rc;
	train->result.epochs++;
	train->state.epoch++;
	train->state.position = 0;
	due = due || train_is_best(train);
	train->saved_step =
		-1; /* a run that stopped before its evaluation was saved as it was then */
	return due ? save_checkpoint(train, err) : 0;
}

/* What the fault notes of all ranks come to. Collective. */
static int sum_faults(struct train *train, struct error *err)
{
	double faults[1] = {(double)feed_faults(train->feed)};
	int rc = comm_reduce_on_host(train->comm, train->queue, faults, 1, COMM_SUM, err);

	if (!rc && faults[0] > 0)
		train_note(
			train,
			"%.0f time%s a training sample could not be decoded and the next one took "
			"its place",
			faults[0], faults[0] > 1 ? "s" : "");
	return rc;
}

/* Is there anything left to train, or an epoch that was trained and not evaluated? */
static bool is_unfinished(const struct train *train)
{
	int64_t world = train->state.world;
	int64_t total = (train->data->count + world - 1) / world * world;

	return train->state.epoch < train->last_epoch &&
	       (train->state.step < train->last_step ||
		(train->state.position && train->state.position >= total));
}

static const char *agree_on_stop_cause(struct train *train, struct error *err)
{
	double cause[1] = {train->stop.cause};
	struct train_result *result = &train->result;

	if (comm_reduce_on_host(train->comm, train->queue, cause, 1, COMM_MAX, err))
		return NULL;
	stop_text(&train->stop, (enum stop_cause)cause[0], result->stop_why,
		  sizeof result->stop_why);
	return result->stop_why;
}

/* All ranks stop here: with a checkpoint, unless this is where the last one was saved. */
static int stop_run(struct train *train, struct error *err)
{
	const char *why = agree_on_stop_cause(train, err);
	int rc = why ? 0 : -err->code;

	if (!rc)
		train_note(train, "stopping after step %" PRId64 ": %s", train->state.step, why);
	if (!rc && train->saved_step != train->state.step)
		rc = save_checkpoint(train, err);
	if (!rc)
		rc = train_wait_for_saves(train, err);
	train->result.stopped = !rc;
	return rc;
}

static int run_epochs(struct train *train, struct error *err)
{
	int rc = 0;

	train->first_step = train->state.step;
	train_interval_begin(train);
	while (!rc && !train->stopped && is_unfinished(train)) {
		rc = run_epoch(train, err);
		/* An evaluation may take longer than there is time. Without one the end is near. */
		if (!rc && train->state.position >= train->sampler.total &&
		    !(train->stopped && train->val))
			rc = end_epoch(train, err);
	}
	if (!rc && train->stopped && (is_unfinished(train) || train->val))
		return stop_run(train, err);
	/* Stopped within an epoch by --steps. */
	if (!rc && train->interval_steps)
		rc = train_report(train, err);
	if (!rc && train->val && (train->state.position || !train->result.evaluated))
		rc = train_evaluate(train, err);
	if (!rc && train->stopped && train->val)
		return stop_run(train, err);
	if (!rc && train->options->ckpt && train->saved_step != train->state.step)
		rc = save_checkpoint(train, err);
	if (!rc && train->options->ckpt)
		rc = train_wait_for_saves(train, err);
	if (!rc && train->data->format->files)
		rc = sum_faults(train, err);
	return rc;
}

static void fill_result(struct train *train, struct train_result *out)
{
	struct train_result *result = &train->result;

	result->steps = train->state.step;
	result->samples = train->busy_samples;
	result->images_per_s = train->busy_s > 0 ? (double)train->busy_samples / train->busy_s : 0;
	if (!result->evaluated)
		result->loss = train->loss;
	if (train->metrics)
		result->metrics = strdup(metrics_path(train->metrics));
	*out = *result;
	train->result = (struct train_result){0};
}

/* The job's end is rank 0's matter: clocks differ. */
static void init_stop(struct train *train)
{
	const struct train_options *options = train->options;
	double bytes = 4.0 * (2.0 * (double)train->buckets.total + train->graph->buffer_total);

	stop_init(&train->stop, options->stop_file, !train->place->local_rank,
		  train->comm->rank ? 0 : options->end_time);
	stop_record_save(&train->stop, bytes / SAVE_BYTES_S);
	train->stop.enabled = options->ckpt != NULL;
}

int train_run(const struct train_options *options, const struct ranks_place *place,
	      const struct train_sink *sink, struct train_result *out, struct error *err)
{
	struct train train = {.options = options,
			      .place = place,
			      .sink = sink,
			      .first_nonfinite_step = -1,
			      .saved_step = -1,
			      .best_acc1 = -1,
			      .best_saved = -1,
			      .evaluated_step = -1,
			      .sample_log_fd = -1,
			      .saved_at_s = clock_now_s(),
			      .loss = NAN};
	int rc = train_open(&train, err);

	if (!rc)
		rc = train_begin(&train, err);
	if (!rc)
		init_stop(&train);
	if (!rc)
		rc = run_epochs(&train, err);
	if (!rc)
		fill_result(&train, out);
	else if (train.comm)
		train.comm->ops->abort(train.comm, err->text);
	train_result_free(&train.result);
	train_close(&train);
	return rc;
}
