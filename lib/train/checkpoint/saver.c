/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/saver.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "train/checkpoint/directory.h"

#define OPEN_POLL_MS 2
#define CLOSE_MS 60000 /* for a write that is under way where the run ends otherwise */

void saver_init(struct saver *saver, const struct saver_request *request)
{
	*saver = (struct saver){.request = *request, .best_acc1 = -1, .best_saved = -1};
}

/* ---- open ---- */

/* Acquiring a directory may take longer than ranks wait for each other: a thread does it while all
 * ranks keep meeting in reductions. */
struct opening {
	struct saver *saver;
	atomic_bool cancel, done;
	int rc;
	struct error err;
};

static int acquire_directory(struct opening *opening, struct error *err)
{
	struct saver *saver = opening->saver;
	struct rank_group *group = saver->request.group;
	const struct checkpoint_options *options = saver->request.options;
	static const struct owner_identity no_identity = {
		.scheduler = "", .job = "", .predecessors = ""};
	const struct owner_request request = {
		.directory = options->directory,
		.self = options->self ? options->self : &no_identity,
		.take_over = options->take_over,
		.cancel = &opening->cancel,
		.notify = rank_group_note_from_rank,
		.context = group,
	};
	int rc = file_make_dirs(options->directory, err), left;

	if (!rc && access(options->directory, W_OK | X_OK))
		rc = error_set(err, ERR_OUTPUT, "cannot write to --ckpt %s: %m",
			       options->directory);
	if (!rc)
		rc = owner_acquire(&request, &saver->owner, err);
	if (rc)
		return rc;
	left = checkpoint_dir_remove_stale(options->directory);
	if (left)
		rank_group_note(group, "removed from %s: %d unfinished file%s of a killed run",
				options->directory, left, left == 1 ? "" : "s");
	return 0;
}

static int start_writer(struct saver *saver, struct error *err)
{
	const struct saver_request *own = &saver->request;
	const struct writer_request request = {
		.directory = own->options->directory,
		.graph = own->graph,
		.buckets = own->buckets,
		.device = own->device,
		.keep = own->options->keep,
		.owner = saver->owner,
	};
	struct error space = {0};
	int rc = writer_new(&request, &saver->writer, err);

	if (!rc && checkpoint_dir_has_space(request.directory,
					    checkpoint_size(own->graph, own->buckets), &space)) {
		checkpoint_dir_explain_full(request.directory, request.keep, &space);
		saver->reported = space;
		error_prefix(&space, "warning");
		rank_group_note_from_rank(own->group, space.text);
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

/* Until the directory is acquired everywhere, or a rank no longer answers. Collective. */
static int poll_until_open(struct opening *opening, struct error *err)
{
	const struct saver_request *request = &opening->saver->request;
	double pending[1], last = clock_now_s();
	double poll_s = fmin(1, request->timeout_ms * 0.25e-3);

	do {
		while (!opening->done && clock_now_s() - last < poll_s)
			nanosleep(&(struct timespec){.tv_nsec = OPEN_POLL_MS * 1000000L}, NULL);
		last = clock_now_s();
		pending[0] = !opening->done;
		int rc = rank_group_reduce(request->group, pending, 1, COMM_MAX, err);

		if (rc)
			return rc;
	} while (pending[0] > 0);
	return 0;
}

static int open_directory(struct saver *saver, struct error *err)
{
	bool writes = saver->writing.own;
	struct opening opening = {.saver = saver, .done = !writes};
	pthread_t thread;
	bool started = writes && !pthread_create(&thread, NULL, open_thread, &opening);
	int rc;

	if (!started && writes)
		open_thread(&opening);
	rc = poll_until_open(&opening, err);
	opening.cancel = true;
	if (started)
		pthread_join(thread, NULL);
	if (opening.rc)
		*err = opening.err;
	if (rc || opening.rc || !writes)
		return opening.rc ? opening.rc : rc;
	return start_writer(saver, err);
}

int saver_open(struct saver *saver, struct error *err)
{
	const struct saver_request *request = &saver->request;
	int rc = writing_ranks_find(request->group, request->options->directory,
				    request->local_rank, &saver->writing, err);

	return rc ? rc : rank_group_ready(request->group, open_directory(saver, err), err);
}

/* ---- the best checkpoint ---- */

int saver_load_best(struct saver *saver, bool resumed, struct error *err)
{
	const struct saver_request *request = &saver->request;

	if (resumed && !rank_group_rank(request->group) && saver->writing.own &&
	    checkpoint_dir_best(request->options->directory, &saver->best_acc1) < 0)
		saver->best_acc1 = -1;
	saver->best_saved = saver->best_acc1;
	return saver_share_best(saver, err);
}

int saver_share_best(struct saver *saver, struct error *err)
{
	return rank_group_broadcast(saver->request.group, &saver->best_acc1,
				    sizeof saver->best_acc1, 0, err);
}

bool saver_wants_best(const struct saver *saver, double acc1)
{
	const struct checkpoint_options *options = saver->request.options;

	return options->directory && options->keep > 0 && acc1 > saver->best_acc1;
}

/* ---- what became of a write ---- */

static void note_lines(struct rank_group *group, char *notes)
{
	for (char *next = notes, *line; next && (line = strsep(&next, "\n")) && *line;)
		rank_group_note_from_rank(group, line);
}

static int report_result(struct saver *saver, struct writer_result *result, struct error *err)
{
	const struct saver_request *request = &saver->request;
	char text[1200];

	note_lines(request->group, result->notes);
	if (result->best >= 0)
		saver->best_saved = result->best;
	saver->save_error = result->rc ? result->err : (struct error){0};
	if (!result->rc)
		return request->saved(request->context, result, saver->stall_s, err);
	saver->best_acc1 = saver->best_saved;
	snprintf(text, sizeof text,
		 "warning: cannot save the checkpoint of step %" PRId64
		 ": %.800s; earlier checkpoints are unchanged",
		 result->step,
		 strcmp(result->err.text, saver->reported.text) ? result->err.text
								: "same reason as above");
	/* At the end it is the error that the run ends with. */
	if (!saver->at_end)
		rank_group_note_from_rank(request->group, text);
	saver->reported = result->err;
	return 0;
}

int saver_report_finished(struct saver *saver, struct error *err)
{
	struct writer_result result;
	int rc = 0;

	if (!saver->writer)
		return 0;
	if (writer_take_result(saver->writer, &result)) {
		rc = report_result(saver, &result, err);
		writer_result_free(&result);
	}
	return rc ? rc : writer_lost(saver->writer, err);
}

/* ---- the snapshot ---- */

static bool wait_for_last(struct saver *saver, int64_t step)
{
	const struct saver_request *request = &saver->request;
	struct error err;
	char text[1200];
	double begin = clock_now_s();

	if (!writer_wait(saver->writer, 0, NULL))
		return true;
	/* Half of what the others wait for this rank. */
	if (writer_wait(saver->writer, request->timeout_ms / 2, &err)) {
		saver->skip_error = err;
		snprintf(text, sizeof text, "warning: step %" PRId64 " is not saved: %.1000s", step,
			 err.text);
		rank_group_note_from_rank(request->group, text);
		return false;
	}
	snprintf(
		text, sizeof text,
		"warning: the save of step %" PRId64
		" waited %.2f s for the previous one: the file system is too slow for --save-every",
		step, clock_now_s() - begin);
	if (!saver->wait_reported)
		rank_group_note_from_rank(request->group, text);
	saver->wait_reported = true;
	return true;
}

int saver_prepare(struct saver *saver, int64_t step, double acc1, struct variables **snapshot,
		  struct error *err)
{
	int rc;

	/* Decided before the last write's result is known: a failed write lowers best_acc1 on its
	 * own rank alone, and the copies of all ranks must agree. */
	saver->next_best = acc1 > saver->best_acc1 ? acc1 : -1;
	*snapshot = NULL;
	if (!saver->writer || !wait_for_last(saver, step))
		return 0;
	rc = saver_report_finished(saver, err);
	if (!rc)
		*snapshot = writer_snapshot(saver->writer);
	return rc;
}

void saver_start(struct saver *saver, const struct train_state *state, bool last, double begin_s)
{
	struct writer_job job = {.state = *state, .model = last, .best = saver->next_best};

	if (saver->next_best >= 0)
		saver->best_acc1 = saver->next_best;
	writer_start(saver->writer, &job);
	saver->skip_error = (struct error){0};
	saver->stall_s = clock_now_s() - begin_s;
}

/* ---- the end ---- */

/* This rank's part of it. */
static int wait_for_writer(struct saver *saver, struct error *err)
{
	int rc;

	if (!saver->writer)
		return 0;
	if (saver->skip_error.code) {
		/* It was never begun; the write before it may still succeed. */
		*err = saver->skip_error;
		return -err->code;
	}
	/* Less than the others wait for this rank. */
	rc = writer_wait(saver->writer, (int)(saver->request.timeout_ms * 0.9), err);
	if (!rc)
		rc = saver_report_finished(saver, err);
	if (!rc && saver->save_error.code) {
		*err = saver->save_error;
		rc = -err->code;
	}
	return rc;
}

int saver_wait(struct saver *saver, struct error *err)
{
	struct rank_group *group = saver->request.group;
	double failed[1] = {0};
	/* The last save may have waited, so all ranks start a new wait here. */
	int rc = rank_group_reduce(group, failed, 1, COMM_MAX, err), agreed;

	if (rc)
		return rc;
	saver->at_end = true;
	rc = wait_for_writer(saver, err);
	/* A missing copy is no loss while rank 0 has its own. */
	if (rc && rank_group_rank(group)) {
		error_prefix(err, "warning");
		rank_group_note_from_rank(group, err->text);
		rc = 0;
	}
	failed[0] = -(double)rc;
	agreed = rank_group_reduce(group, failed, 1, COMM_MAX, rc ? NULL : err);
	if (rc || agreed)
		return rc ? rc : agreed;
	if (failed[0] <= 0)
		return 0;
	rank_group_let_failed_rank_end_first();
	return error_set(err, (int)failed[0], "rank 0 could not save its checkpoint");
}

bool saver_close(struct saver *saver)
{
	struct error err = {0};
	bool ended;

	if (saver->writer && !writer_wait(saver->writer, CLOSE_MS, &err))
		saver_report_finished(saver, &err);
	ended = writer_free(saver->writer, err.code == ERR_IO ? 0 : CLOSE_MS);
	if (ended)
		owner_release(saver->owner);
	return ended;
}
