/* SPDX-License-Identifier: BSD-3-Clause */
/* Saving: the snapshot at a step's edge, what became of writes in the background, the end. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "train/checkpoint/directory.h"
#include "train/run/loop_internal.h"

#define OPEN_POLL_MS 2
#define CLOSE_MS 60000 /* for a write that is under way where the run ends otherwise */

/* On any rank that writes. */
static void note_from_rank(void *context, const char *text)
{
	const struct train *train = context;
	char line[1200];

	snprintf(line, sizeof line, "rank %d: %s", train->comm->rank, text);
	train->sink->note(train->sink->context, train->comm->rank ? line : text);
}

/* ---- begin ---- */

/* Taking a folder may wait for longer than ranks wait for each other: it goes on in a thread,
 * beside which all ranks meet again and again. */
struct opening {
	struct train *train;
	atomic_bool cancel, done;
	int rc;
	struct error err;
};

static int acquire_directory(struct opening *opening, struct error *err)
{
	struct train *train = opening->train;
	const struct train_options *options = train->options;
	static const struct owner_identity nobody = {
		.scheduler = "", .job = "", .predecessors = ""};
	const struct owner_request request = {
		.directory = options->ckpt,
		.self = options->self ? options->self : &nobody,
		.take_over = options->take_over,
		.cancel = &opening->cancel,
		.notify = note_from_rank,
		.context = train,
	};
	int rc = file_make_dirs(options->ckpt, err), left;

	if (!rc && access(options->ckpt, W_OK | X_OK))
		rc = error_set(err, ERR_OUTPUT, "--ckpt %s cannot be written: %m", options->ckpt);
	if (!rc)
		rc = owner_acquire(&request, &train->owner, err);
	if (rc)
		return rc;
	left = checkpoint_dir_remove_stale(options->ckpt);
	if (left)
		train_note(train, "removed from %s: %d file%s that a killed run was writing",
			   options->ckpt, left, left == 1 ? "" : "s");
	return 0;
}

static int start_writer(struct train *train, struct error *err)
{
	struct writer_request request = {
		.directory = train->options->ckpt,
		.graph = train->graph,
		.buckets = &train->buckets,
		.device = train->device,
		.keep = train->options->keep,
		.owner = train->owner,
	};
	struct error space = {0};
	int rc = writer_new(&request, &train->writer, err);

	if (!rc &&
	    checkpoint_dir_has_space(request.directory,
				     checkpoint_size(train->graph, &train->buckets), &space)) {
		checkpoint_dir_explain_full(request.directory, request.keep, &space);
		note_from_rank(train, space.text);
	}
	return rc;
}

static void *open_thread(void *argument)
{
	struct opening *opening = argument;

	opening->rc = acquire_directory(opening, &opening->err);
	opening->done = true;
	return NULL;
}

/* Until the folder is taken everywhere, or a rank does not answer any more. Collective. */
static int poll_until_open(struct train *train, struct opening *opening, struct error *err)
{
	double pending[1], begin = clock_now_s(), last = begin;
	double poll_s = fmin(1, train->options->timeout_ms * 0.25e-3);

	do {
		while (!opening->done && clock_now_s() - last < poll_s)
			nanosleep(&(struct timespec){.tv_nsec = OPEN_POLL_MS * 1000000L}, NULL);
		last = clock_now_s();
		pending[0] = !opening->done;
		int rc = comm_reduce_on_host(train->comm, train->queue, pending, 1, COMM_MAX, err);

		if (rc)
			return rc;
	} while (pending[0] > 0);
	return 0;
}

int train_open_checkpoint_dir(struct train *train, struct error *err)
{
	struct opening opening = {.train = train, .done = !train->writes};
	pthread_t thread;
	bool started = train->writes && !pthread_create(&thread, NULL, open_thread, &opening);
	int rc;

	if (!started && train->writes)
		open_thread(&opening);
	rc = poll_until_open(train, &opening, err);
	opening.cancel = true;
	if (started)
		pthread_join(thread, NULL);
	if (opening.rc)
		*err = opening.err;
	if (rc || opening.rc || !train->writes)
		return opening.rc ? opening.rc : rc;
	return start_writer(train, err);
}

/* ---- what became of a write ---- */

static void note_lines(const struct train *train, char *notes)
{
	for (char *next = notes, *line; next && (line = strsep(&next, "\n")) && *line;)
		note_from_rank((void *)train, line);
}

static int report_saved(struct train *train, struct writer_result *result, struct error *err)
{
	const struct metrics_checkpoint row = {
		.step = result->step,
		.epoch = result->epoch + 1,
		.stall_ms = train->stall_s * 1e3,
		.write_ms = result->seconds * 1e3,
		.size_bytes = result->size_bytes,
	};

	train->write_s = result->seconds;
	stop_record_save(&train->stop, train->stall_s + result->seconds);
	train->save_error = (struct error){0};
	if (train->comm->rank)
		return 0;
	free(train->result.checkpoint);
	train->result.checkpoint = result->path;
	result->path = NULL;
	if (train->sink->saved)
		train->sink->saved(train->sink->context, train->result.checkpoint, result->step);
	train_note(train, "saved step %" PRId64 ": %.1f ms stall, %.2f s in the background",
		   row.step, row.stall_ms, result->seconds);
	return metrics_write_checkpoint(train->metrics, &row, err);
}

int train_report_finished_save(struct train *train, struct error *err)
{
	struct writer_result result;
	char text[1200];
	int rc = 0;

	if (!train->writer)
		return 0;
	if (writer_take_result(train->writer, &result)) {
		note_lines(train, result.notes);
		if (result.best >= 0)
			train->best_saved = result.best;
		if (result.rc)
			train->best_acc1 = train->best_saved;
		if (!result.rc) {
			rc = report_saved(train, &result, err);
		} else {
			train->save_error = result.err;
			snprintf(text, sizeof text,
				 "the checkpoint of step %" PRId64
				 " could not be saved: %.800s; those before stay",
				 result.step, result.err.text);
			/* At the end it is the error that the run ends with. */
			if (!train->save_ends)
				note_from_rank(train, text);
		}
		writer_result_free(&result);
	}
	return rc ? rc : writer_lost(train->writer, err);
}

/* ---- the snapshot ---- */

static bool wait_for_last(struct train *train)
{
	struct error err;
	char text[1200];
	double begin = clock_now_s();

	if (!writer_is_busy(train->writer))
		return true;
	/* Half of what the others wait for this rank. */
	if (writer_wait(train->writer, train->options->timeout_ms / 2, &err)) {
		train->skip_error = err;
		snprintf(text, sizeof text, "step %" PRId64 " is not saved: %.1000s",
			 train->state.step, err.text);
		note_from_rank(train, text);
		return false;
	}
	snprintf(text, sizeof text,
		 "the save of step %" PRId64 " waited %.2f s for the one before: saves are more "
		 "frequent than this file system is fast",
		 train->state.step, clock_now_s() - begin);
	if (!train->save_wait_reported)
		note_from_rank(train, text);
	train->save_wait_reported = true;
	return true;
}

static bool is_better(const struct train *train)
{
	return train->evaluated_step == train->state.step && train->result.acc1 > train->best_acc1;
}

bool train_is_best(const struct train *train)
{
	return train->options->ckpt && train->options->keep > 0 && is_better(train);
}

/* What PyTorch's GradScaler.state_dict holds. */
static int store_scale(struct train *train, struct error *err)
{
	struct grad_scaler_state now;
	int rc;

	train->state.scale = 0;
	train->state.growth_tracker = 0;
	if (train->options->precision != PRECISION_F16 || !train->device->ops->executor_grad_scaler)
		return 0;
	rc = device_executor_grad_scaler(train->executor, NULL, &now, err);
	if (!rc) {
		train->state.scale = (double)now.scale;
		train->state.growth_tracker = now.growth_tracker;
	}
	return rc;
}

int train_save(struct train *train, bool last, struct error *err)
{
	struct writer_job job = {.model = last, .best = -1};
	double begin = clock_now_s(), waited;
	bool best = is_better(train);
	int rc = 0;

	train->state.batch = train->options->batch * train->options->accumulate;
	train->state.update = train->update;
	/* At an epoch's edge the next one begins with today's ranks. */
	if (!train->state.position)
		train->state.world = train->comm->size;
	/* All copies are of rank 0's statistics. */
	if (train->writers > 1)
		rc = optim_broadcast_buffers(&train->optim, train->comm, err);
	if (rc || !train->writer || !wait_for_last(train))
		return rc;
	waited = clock_now_s();
	rc = train_report_finished_save(train, err);
	if (!rc)
		rc = optim_store(&train->optim, writer_snapshot(train->writer), err);
	if (!rc)
		rc = store_scale(train, err);
	if (rc)
		return rc;
	job.state = train->state;
	if (best)
		job.best = train->best_acc1 = train->result.acc1;
	writer_start(train->writer, &job);
	train->skip_error = (struct error){0};
	train->stall_s = clock_now_s() - begin;
	train->snapshot_s = clock_now_s() - waited;
	return 0;
}

/* ---- the end ---- */

int train_wait_for_saves(struct train *train, struct error *err)
{
	double failed[1] = {0};
	/* The last save may have waited: from here all wait anew. */
	int rc = comm_reduce_on_host(train->comm, train->queue, failed, 1, COMM_MAX, err), agreed;

	if (rc)
		return rc;
	train->save_ends = true;
	if (train->writer && train->skip_error.code) {
		/* What was never begun; the one before may still come through. */
		*err = train->skip_error;
		rc = -err->code;
	} else if (train->writer) {
		/* Less than the others wait for this rank. */
		rc = writer_wait(train->writer, (int)(train->options->timeout_ms * 0.9), err);
		if (!rc)
			rc = train_report_finished_save(train, err);
		if (!rc && train->save_error.code) {
			*err = train->save_error;
			rc = -err->code;
		}
	}
	/* A copy less is no loss while rank 0 has its own. */
	if (rc && train->comm->rank) {
		note_from_rank(train, err->text);
		rc = 0;
	}
	failed[0] = -(double)rc;
	agreed = comm_reduce_on_host(train->comm, train->queue, failed, 1, COMM_MAX,
				     rc ? NULL : err);
	if (rc || agreed)
		return rc ? rc : agreed;
	if (failed[0] <= 0)
		return 0;
	train_let_failed_rank_end_first();
	return error_set(err, (int)failed[0], "rank 0 could not save its checkpoint");
}

bool train_close_checkpoint_dir(struct train *train)
{
	struct error err = {0};
	bool ended;

	if (train->writer && !writer_wait(train->writer, CLOSE_MS, &err))
		train_report_finished_save(train, &err);
	ended = writer_free(train->writer, err.code == ERR_IO ? 0 : CLOSE_MS);
	if (ended)
		owner_release(train->owner);
	free(train->resumed_from);
	return ended;
}
