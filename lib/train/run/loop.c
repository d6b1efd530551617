/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "train/checkpoint/saver.h"
#include "train/data/sample_log.h"
#include "train/run/begin.h"
#include "train/run/eval.h"
#include "train/run/heartbeat.h"
#include "train/run/report.h"
#include "train/run/setup.h"
#include "train/run/stop.h"

/* On a GPU a vote is started every VOTE_STEPS steps. Its result is read VOTE_LAG steps later: the
 * GPU is at most two steps behind, so reading the result never waits. */
#define VOTE_STEPS 8
#define VOTE_LAG 5
#define SAVE_BYTES_S 50e6 /* bytes per second, an estimate until the first checkpoint is timed */

/* A run: its modules, and the state of the loop. */
struct run {
	struct train_setup setup;
	struct train_progress progress;
	struct train_report report;
	struct saver saver;
	struct sample_log *sample_log;
	struct stop stop;
	struct train_result result;

	bool stopped;		/* all ranks have agreed to stop here */
	bool diverged;		/* a rank's loss is not finite; known to all ranks */
	double saved_at_s;	/* rank 0: when the last checkpoint was started, or else the run */
	bool save_is_due;	/* by rank 0's clock; the same on all ranks */
	int64_t evaluated_step; /* the step of result.acc1; -1: none */
};

void train_result_free(struct train_result *result)
{
	free(result->checkpoint);
	free(result->metrics);
	result->checkpoint = result->metrics = NULL;
}

/* ---- one step, and what follows on it ---- */

/* The time of the evaluation that follows the update ending at position, or 0. Until the first
 * evaluation is timed, assume that it takes as long as training on its samples. */
static double seconds_of_eval_after(const struct run *run, int64_t position)
{
	const struct train_setup *setup = &run->setup;
	double rate = train_report_rate(&run->report);

	if (!setup->val || position < setup->sampler.total)
		return 0;
	if (run->stop.eval_s > 0)
		return 1.2 * run->stop.eval_s;
	return rate > 0 ? (double)setup->val->count / rate : 0;
}

static bool device_is_async(const struct run *run)
{
	return run->setup.device->ops->queue_native(run->setup.queue);
}

/* How long a vote may take until all ranks know its result. */
static double seconds_until_votes(const struct run *run)
{
	double rate = train_report_rate(&run->report);

	return device_is_async(run) && rate > 0
		       ? (VOTE_STEPS + VOTE_LAG) * (double)run->progress.update / rate
		       : 0;
}

/* Run one batch of this rank, after the first done of the update's samples. *count: number of
 * samples that all ranks took. */
static int run_micro_batch(struct run *run, int64_t update, int64_t done, int64_t *count,
			   struct error *err)
{
	struct train_setup *setup = &run->setup;
	const struct train_progress *progress = &run->progress;
	const struct train_state *state = &progress->state;
	int64_t position = state->position + done, step = state->step + 1;
	double steps = (double)(state->step - progress->first_step);
	struct batch *batch;

	train_heartbeat_write(steps + 0.5 * (double)done / (double)update, step,
			      "waits for its batch");
	train_report_status(&run->report, "reading a batch");
	int rc = feed_next(setup->feed, position, &batch, count, &run->report.wait_s, err);

	if (!rc && !*count)
		rc = error_set(err, ERR_INTERNAL, "the epoch has no batch at position %" PRId64,
			       position);
	if (!rc)
		rc = sample_log_write(run->sample_log, state->epoch, step, position, batch->indices,
				      batch->count, err);
	if (rc)
		return rc;
	struct executor_input input = {
		.x = batch->x,
		.raw = batch->raw,
		.augments = batch->augments,
		.resident = setup->resident,
		.indices = batch->indices,
		.target = batch->target,
		.count = batch->count,
		.global_count = update,
		.step = step,
		.lr = (float)schedule_lr(&progress->schedule, state->epoch, state->step),
		.first = !done,
		.last = done + *count >= update,
		.full = update == progress->update,
	};

	train_heartbeat_write(steps + 0.5 * (double)(done + *count) / (double)update, step,
			      "computes");
	train_report_status(&run->report, "computing");
	if (input.last)
		input.vote = stop_wanted(&run->stop,
					 seconds_of_eval_after(run, state->position + update) +
						 seconds_until_votes(run));

	return device_executor_run(setup->executor, &input, err);
}

/* Has any rank voted to stop after the update that is done? Sets run->stopped and run->diverged,
 * the same on all ranks. */
static int count_votes(struct run *run, struct error *err)
{
	int64_t step = run->progress.state.step,
		asked = step - (device_is_async(run) ? VOTE_LAG : 0);
	float votes;
	int rc = 0;

	/* A rank that wants to stop repeats its vote at every step, so no vote is lost between two
	 * counts. */
	if (!device_is_async(run) || step % VOTE_STEPS == 0)
		rc = device_executor_start_votes(run->setup.executor, err);
	if (rc || asked <= run->progress.first_step || (device_is_async(run) && asked % VOTE_STEPS))
		return rc;
	rc = device_executor_finish_votes(run->setup.executor, &votes, err);
	run->stopped = !rc && votes > 0;
	run->diverged = !rc && isnan(votes);
	return rc;
}

/* Run one update: the next batches of each rank; fewer at the end of an epoch. */
static int run_update(struct run *run, struct error *err)
{
	struct train_state *state = &run->progress.state;
	int64_t left = run->setup.sampler.total - state->position;
	int64_t update = left < run->progress.update ? left : run->progress.update, count;
	double begin = clock_now_s();
	int rc = 0;

	for (int64_t done = 0; !rc && done < update; done += count) {
		rc = run_micro_batch(run, update, done, &count, err);
		state->batches++;
	}
	if (rc)
		return rc;
	state->step++;
	train_heartbeat_write((double)(state->step - run->progress.first_step), state->step,
			      "done");
	state->position += update;
	run->report.samples += update;
	run->report.steps++;
	rc = count_votes(run, err);
	stop_record(&run->stop.step_s, clock_now_s() - begin);
	return rc;
}

/* ---- reports ---- */

/* Report the steps since the last report, and the result of a finished write. Collective. */
static int report(struct run *run, struct error *err)
{
	const struct train_options *options = run->setup.options;
	double save_at_s = options->save_unit == SAVE_TIME
				   ? run->saved_at_s + (double)options->save_every * 1e-3
				   : INFINITY;
	int rc = train_report_interval(&run->report, save_at_s, &run->save_is_due, err);

	if (!rc)
		rc = saver_report_finished(&run->saver, err);
	if (!rc)
		rc = train_report_check_loss(&run->report, err);
	train_report_begin_interval(&run->report);
	return rc;
}

static int report_pending(struct run *run, struct error *err)
{
	return run->report.steps ? report(run, err) : 0;
}

/* Evaluate and report the result. Sets run->stopped if the evaluation was stopped early.
 * Collective. */
static int evaluate(struct run *run, struct error *err)
{
	struct train_setup *setup = &run->setup;
	struct eval_result result;
	int rc;

	train_report_status(&run->report, "evaluating");
	rc = optim_broadcast_buffers(&setup->optim, setup->comm, err);
	if (!rc)
		rc = eval_run(setup, &run->stop, &result, err);
	run->stopped |= !rc && result.stopped;
	if (rc || result.stopped)
		return rc;
	stop_record(&run->stop.eval_s, result.seconds);
	run->evaluated_step = run->progress.state.step;
	rc = train_report_evaluation(&run->report, &result, &run->result, err);
	train_report_begin_interval(&run->report);
	return rc ? rc : saver_share_best(&run->saver, err);
}

/* ---- checkpoints ---- */

/* Called by the saver on ranks that write. */
static int on_saved(void *context, struct writer_result *saved, double stall_s, struct error *err)
{
	struct run *run = context;
	const struct train_sink *sink = run->setup.sink;
	const struct metrics_checkpoint row = {
		.step = saved->step,
		.epoch = saved->epoch + 1,
		.stall_ms = stall_s * 1e3,
		.write_ms = saved->seconds * 1e3,
		.size_bytes = saved->size_bytes,
	};

	stop_record(&run->stop.save_s, stall_s + saved->seconds);
	if (run->setup.comm->rank)
		return 0;
	free(run->result.checkpoint);
	run->result.checkpoint = saved->path;
	saved->path = NULL;
	if (sink->saved)
		sink->saved(sink->context, run->result.checkpoint, saved->step);
	return train_report_checkpoint(&run->report, &row, err);
}

static void init_saver(struct run *run)
{
	struct train_setup *setup = &run->setup;

	saver_init(&run->saver, &(const struct saver_request){
					.options = &setup->options->checkpoint,
					.group = &setup->group,
					.graph = setup->graph,
					.buckets = &setup->buckets,
					.device = setup->device,
					.local_rank = setup->place->local_rank,
					.timeout_ms = setup->options->timeout_ms,
					.saved = on_saved,
					.interrupted = stop_signal,
					.context = run,
				});
}

/* Acc@1 of the present weights; negative: unknown. */
static double current_acc1(const struct run *run)
{
	return run->evaluated_step == run->progress.state.step ? run->result.acc1 : -1;
}

/* Store what PyTorch's GradScaler.state_dict holds: scale and growth tracker. */
static int store_scale(struct run *run, struct error *err)
{
	const struct train_setup *setup = &run->setup;
	struct train_state *state = &run->progress.state;
	struct grad_scaler_state now;
	int rc;

	state->scale = 0;
	state->growth_tracker = 0;
	if (setup->options->precision != PRECISION_F16)
		return 0;
	rc = device_executor_grad_scaler(setup->executor, NULL, &now, err);
	if (!rc) {
		state->scale = (double)now.scale;
		state->growth_tracker = now.growth_tracker;
	}
	return rc;
}

/* Take the snapshot for a checkpoint of this step and start writing it in the background. due: by
 * --save-every. Collective. */
static int save_snapshot(struct run *run, bool due, struct error *err)
{
	struct train_setup *setup = &run->setup;
	const struct train_progress *progress = &run->progress;
	struct train_state *state = &run->progress.state;
	bool last = state->step >= progress->last_step || state->epoch >= progress->last_epoch;
	double begin_s = clock_now_s();
	struct variables *snapshot;
	int rc = 0;

	state->batch = setup->options->batch * setup->options->accumulate;
	state->update = progress->update;
	state->epochs = progress->last_epoch;
	state->lr = setup->options->lr;
	/* At an epoch's boundary the next epoch starts with the present number of ranks. */
	if (!state->position)
		state->world = setup->comm->size;
	/* Every copy must hold rank 0's running statistics. */
	if (run->saver.copies > 1)
		rc = optim_broadcast_buffers(&setup->optim, setup->comm, err);
	if (!rc)
		rc = saver_prepare(&run->saver, state->step, current_acc1(run), due, &snapshot,
				   err);
	if (rc || !snapshot)
		return rc;
	rc = optim_store(&setup->optim, snapshot, err);
	if (!rc)
		rc = store_scale(run, err);
	if (!rc)
		saver_start(&run->saver, state, last, begin_s);
	return rc;
}

/* Report first, because that fails if the run has diverged: diverged weights must not be saved.
 * Collective. */
static int save_checkpoint(struct run *run, bool due, struct error *err)
{
	int rc = report_pending(run, err);

	train_heartbeat_activity("saves");
	train_report_status(&run->report, "saving");
	if (!rc)
		rc = save_snapshot(run, due, err);
	run->progress.saved_step = run->progress.state.step;
	run->saved_at_s = clock_now_s();
	run->save_is_due = false;
	train_report_begin_interval(&run->report);
	return rc;
}

static bool is_save_due(const struct run *run, bool epoch_ends)
{
	const struct train_options *options = run->setup.options;
	const struct train_state *state = &run->progress.state;

	if (!options->checkpoint.directory)
		return false;
	if (options->save_unit == SAVE_STEPS)
		return state->step % options->save_every == 0;
	if (options->save_unit == SAVE_TIME)
		return run->save_is_due;
	return options->save_unit == SAVE_EPOCHS && epoch_ends &&
	       (state->epoch + 1) % options->save_every == 0;
}

/* ---- epochs ---- */

static int begin_epoch(struct run *run, struct error *err)
{
	struct train_state *state = &run->progress.state;
	int world = state->position ? state->world : run->setup.comm->size;
	int rc = sampler_begin(&run->setup.sampler, state->epoch, world, err);

	state->world = world;
	return rc;
}

static int run_epoch(struct run *run, struct error *err)
{
	const struct sampler *sampler = &run->setup.sampler;
	const struct train_state *state = &run->progress.state;
	int rc = begin_epoch(run, err);

	while (!rc && !run->stopped && state->step < run->progress.last_step &&
	       state->position < sampler->total) {
		rc = run_update(run, err);
		if (rc)
			break;
		bool epoch_ends = state->position >= sampler->total;

		if (run->diverged || state->step % run->setup.options->log_every == 0)
			rc = report(run, err);
		if (epoch_ends || run->stopped)
			break; /* if saved at all, then as the start of the next epoch */
		if (!rc && is_save_due(run, false))
			rc = save_checkpoint(run, true, err);
	}
	return rc;
}

static int end_epoch(struct run *run, struct error *err)
{
	struct train_progress *progress = &run->progress;
	int rc = report_pending(run, err);
	bool due = is_save_due(run, true);

	if (!rc && run->setup.val)
		rc = evaluate(run, err);
	if (rc || run->stopped)
		return rc;
	run->result.epochs++;
	progress->state.epoch++;
	progress->state.position = 0;
	/* A run that stopped before its evaluation saved a checkpoint without it: save again. */
	progress->saved_step = -1;
	if (!due && !saver_wants_best(&run->saver, current_acc1(run)))
		return 0;
	return save_checkpoint(run, due, err);
}

/* Report the number of faulty samples of all ranks. Collective. */
static int sum_faults(struct run *run, struct error *err)
{
	double faults[1] = {(double)feed_faults(run->setup.feed)};
	int rc = rank_group_reduce(&run->setup.group, faults, 1, COMM_SUM, err);

	if (!rc && faults[0] > 0)
		rank_group_note(
			&run->setup.group,
			"warning: replaced %.0f undecodable training sample%s with the next one",
			faults[0], faults[0] > 1 ? "s" : "");
	return rc;
}

/* Is there anything left to train, or an epoch that was trained but not evaluated? */
static bool is_unfinished(const struct run *run)
{
	const struct train_progress *progress = &run->progress;
	const struct train_state *state = &progress->state;
	int64_t total = sampler_total_of(run->setup.data->count, state->world);

	return state->epoch < progress->last_epoch &&
	       (state->step < progress->last_step || (state->position && state->position >= total));
}

static const char *agree_on_stop_cause(struct run *run, struct error *err)
{
	double cause[1] = {run->stop.cause};
	struct train_result *result = &run->result;

	if (rank_group_reduce(&run->setup.group, cause, 1, COMM_MAX, err))
		return NULL;
	stop_text(&run->stop, (enum stop_cause)cause[0], result->stop_why, sizeof result->stop_why);
	return result->stop_why;
}

/* Stop all ranks here. Save a checkpoint unless the last one is of this step. */
static int stop_run(struct run *run, struct error *err)
{
	const char *why = agree_on_stop_cause(run, err);
	int rc = why ? 0 : -err->code;

	if (!rc)
		rank_group_note(&run->setup.group, "note: stopping after step %" PRId64 ": %s",
				run->progress.state.step, why);
	if (!rc && run->progress.saved_step != run->progress.state.step)
		rc = save_checkpoint(run, false, err);
	if (!rc)
		rc = saver_wait(&run->saver, err);
	run->result.stopped = !rc;
	return rc;
}

static int run_epochs(struct run *run, struct error *err)
{
	const struct train_setup *setup = &run->setup;
	const struct train_state *state = &run->progress.state;
	bool saves = setup->options->checkpoint.directory;
	int rc = 0;

	train_report_begin_interval(&run->report);
	while (!rc && !run->stopped && is_unfinished(run)) {
		rc = run_epoch(run, err);
		/* If the run must stop, skip the evaluation, which may take longer than the time
		 * left. Without evaluation the epoch ends quickly. */
		if (!rc && state->position >= setup->sampler.total && !(run->stopped && setup->val))
			rc = end_epoch(run, err);
	}
	if (!rc && run->stopped && (is_unfinished(run) || setup->val))
		return stop_run(run, err);
	/* --steps may have ended the run within an epoch. */
	if (!rc)
		rc = report_pending(run, err);
	if (!rc && setup->val && (state->position || !run->result.evaluated))
		rc = evaluate(run, err);
	if (!rc && run->stopped && setup->val)
		return stop_run(run, err);
	if (!rc && saves && run->progress.saved_step != state->step)
		rc = save_checkpoint(run, false, err);
	if (!rc && saves)
		rc = saver_wait(&run->saver, err);
	if (!rc && setup->data->format->files)
		rc = sum_faults(run, err);
	return rc;
}

/* ---- the run ---- */

static void take_result(struct run *run, struct train_result *out)
{
	run->result.steps = run->progress.state.step;
	train_report_result(&run->report, &run->result);
	*out = run->result;
	run->result = (struct train_result){0};
}

/* Only rank 0 watches the job's end time, because clocks differ. */
static void init_stop(struct run *run)
{
	const struct train_setup *setup = &run->setup;
	const struct train_options *options = setup->options;
	double bytes = 4.0 * (2.0 * (double)setup->buckets.total + setup->graph->buffer_total);

	stop_init(&run->stop, options->stop_file, !setup->place->local_rank,
		  setup->comm->rank ? 0 : options->end_time,
		  setup->comm->rank ? NULL : options->end_file);
	stop_record(&run->stop.save_s, bytes / SAVE_BYTES_S);
	run->stop.enabled = options->checkpoint.directory != NULL;
}

/* Load the weights, open the log files and find the run's end. Collective. */
static int begin(struct run *run, struct error *err)
{
	struct train_setup *setup = &run->setup;
	struct train_progress *progress = &run->progress;
	const char *order = setup->options->log_order;
	int rc;

	setup->sink->status(setup->sink->context, NULL, "loading the weights");
	rc = train_begin(setup, &run->saver, progress, &run->result, err);
	if (!rc)
		rc = train_report_open(&run->report, setup, progress, run->result.resumed, err);
	if (!rc && order)
		rc = sample_log_open(order, setup->comm->rank, setup->comm->size, &run->sample_log,
				     err);
	rc = rank_group_ready(&setup->group, rc, err);
	return rc ? rc : train_find_end(setup, &run->result, progress, err);
}

static bool close_run(struct run *run)
{
	bool written = saver_close(&run->saver);

	train_report_close(&run->report);
	sample_log_close(run->sample_log);
	train_setup_close(&run->setup, written);
	train_result_free(&run->result);
	return written;
}

static int train(struct run *run, struct train_result *out, struct error *err)
{
	int rc;

	init_saver(run);
	rc = begin(run, err);
	if (rc)
		return rc;
	init_stop(run);
	rc = run_epochs(run, err);
	if (!rc)
		take_result(run, out);
	return rc;
}

int train_run(const struct train_options *options, const struct ranks_place *place,
	      const struct train_sink *sink, struct train_result *out, struct error *err)
{
	struct run *run = calloc(1, sizeof *run);
	int rc;

	if (!run)
		return error_memory(err, "a run");
	*run = (struct run){.setup = {.options = options, .place = place, .sink = sink},
			    .evaluated_step = -1,
			    .saved_at_s = clock_now_s()};
	rc = train_setup_open(&run->setup, err);
	if (!rc)
		rc = train(run, out, err);
	if (rc && run->setup.comm)
		run->setup.comm->ops->abort(run->setup.comm, err->text);
	/* A thread that a file system blocks may still use it. */
	if (close_run(run))
		free(run);
	return rc;
}
