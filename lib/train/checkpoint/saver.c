/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/saver.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "train/checkpoint/directory.h"

#define OPEN_POLL_MS 2
#define CANCEL_MS 1000
#define CLOSE_MS 60000 /* for a write that is under way where the run ends otherwise */

void saver_init(struct saver *saver, const struct saver_request *request)
{
	*saver = (struct saver){.request = *request, .best_acc1 = -1, .best_saved = -1};
}

/* ---- open ---- */

/* A call that may take longer than ranks wait for each other, or that a file system may block
 * forever. The thread keeps it if it outlives saver_io. */
struct io {
	int (*step)(void *argument, struct error *err);
	void *argument;
	pthread_t thread;
	atomic_bool done;
	struct timespec used; /* the thread's CPU time when it was last seen to advance */
	double used_s;	      /* when that was */
	int rc;
	struct error err;
};

static void *io_thread(void *argument)
{
	struct io *io = argument;

	io->rc = io->step(io->argument, &io->err);
	io->done = true;
	return NULL;
}

/* A thread that reads, writes or polls uses CPU time; one that a file system blocks does not. */
static bool has_stalled(struct io *io)
{
	struct timespec used = {0};
	clockid_t clock;
	double now = clock_now_s();

	if (!pthread_getcpuclockid(io->thread, &clock) && !clock_gettime(clock, &used) &&
	    used.tv_sec == io->used.tv_sec && used.tv_nsec == io->used.tv_nsec)
		return now - io->used_s > SAVER_STALL_MS * 1e-3;
	io->used = used;
	io->used_s = now;
	return false;
}

/* This rank's part of the wait: until its step is done, or poll_s. */
static int wait_for_io(const struct saver *saver, struct io *io, double poll_s, struct error *err)
{
	const char *why, *directory = saver->request.options->directory;
	double end = clock_now_s() + poll_s;

	while (!io->done && clock_now_s() < end)
		nanosleep(&(struct timespec){.tv_nsec = OPEN_POLL_MS * 1000000L}, NULL);
	if (io->done)
		return 0;
	why = saver->request.interrupted ? saver->request.interrupted() : NULL;
	if (why)
		return error_set(err, ERR_STOPPED, "%s before the training began", why);
	if (has_stalled(io))
		return error_set(err, ERR_IO,
				 "%s: the file system has not responded for %d s. Check whether it "
				 "hangs, or choose another directory with --ckpt",
				 directory ? directory : saver->request.options->resume,
				 SAVER_STALL_MS / 1000);
	return 0;
}

int saver_io(struct saver *saver, int (*step)(void *argument, struct error *err), void *argument,
	     struct error *err)
{
	struct rank_group *group = saver->request.group;
	double poll_s = fmin(1, saver->request.timeout_ms * 0.25e-3), state[2];
	struct io *io = calloc(1, sizeof *io);
	bool started;
	int rc;

	if (!io)
		return rank_group_ready(group, error_memory(err, "a thread"), err);
	*io = (struct io){
		.step = step, .argument = argument, .done = !step, .used_s = clock_now_s()};
	started = step && !thread_start(&io->thread, io_thread, io);
	if (step && !started)
		io_thread(io);
	do {
		int own = wait_for_io(saver, io, poll_s, err);

		state[0] = !io->done;
		state[1] = own != 0;
		rc = rank_group_reduce(group, state, 2, COMM_MAX, own ? NULL : err);
		rc = own ? own : rc;
	} while (!rc && state[0] > 0 && state[1] <= 0);
	bool gives_up = rc || state[1] > 0;

	saver->cancelled = gives_up;
	if (started && !clock_join(io->thread, gives_up ? CANCEL_MS : INT_MAX)) {
		pthread_detach(io->thread);
		saver->stalled = true;
		return rank_group_ready(group, rc, err);
	}
	if (!gives_up && io->rc) {
		*err = io->err;
		rc = io->rc;
	}
	free(io);
	return rank_group_ready(group, rc, err);
}

static int acquire_directory(void *argument, struct error *err)
{
	struct saver *saver = argument;
	const struct saver_request *own = &saver->request;
	const struct checkpoint_options *options = own->options;
	static const struct lease_identity no_identity = {
		.scheduler = "", .job = "", .predecessors = ""};
	const struct lease_request request = {
		.directory = options->directory,
		.self = options->self ? options->self : &no_identity,
		.run = saver->run,
		.rank = rank_group_rank(own->group),
		.take_over = options->take_over,
		.cancel = &saver->cancelled,
		.notify = rank_group_note_from_rank,
		.context = own->group,
	};
	struct error space = {0};
	double best;
	int rc = lease_acquire(&request, &saver->lease, err), left;

	if (rc && request.rank) {
		/* This is no loss while rank 0 has its own copy. */
		rank_group_note_here(
			own->group,
			"warning: rank %d: this node keeps no copy of the checkpoints: %s",
			request.rank, err->text);
		return 0;
	}
	if (rc || !saver->lease)
		return rc;
	left = checkpoint_dir_remove_stale(options->directory, saver->lease);
	if (left)
		rank_group_note(own->group, "removed from %s: %d unfinished file%s of a killed run",
				options->directory, left, left == 1 ? "" : "s");
	if (!request.rank && checkpoint_dir_best(options->directory, &best) >= 0)
		saver->best_saved = best;
	if (checkpoint_dir_has_space(options->directory, checkpoint_size(own->graph, own->buckets),
				     &space)) {
		checkpoint_dir_explain_full(options->directory, options->keep, &space);
		saver->reported = space;
		error_prefix(&space, "warning");
		rank_group_note_from_rank(own->group, space.text);
	}
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
		.lease = saver->lease,
	};

	return saver->lease ? writer_new(&request, &saver->writer, err) : 0;
}

int saver_open(struct saver *saver, struct error *err)
{
	const struct saver_request *request = &saver->request;
	int rank = rank_group_rank(request->group), rc;
	/* A launcher that numbers ranks without regard to nodes still has a rank 0. */
	double nodes[1] = {!rank || !request->local_rank}, copies[1];

	lease_new_run(saver->run);
	rc = rank_group_broadcast(request->group, saver->run, sizeof saver->run, 0, err);
	if (!rc)
		rc = saver_io(saver, rank ? NULL : acquire_directory, saver, err);
	/* Nodes that share rank 0's directory see its lease there. */
	bool looks = rank && nodes[0] > 0;

	if (!rc)
		rc = rank_group_reduce(request->group, nodes, 1, COMM_SUM, err);
	if (!rc && nodes[0] > 1)
		rc = saver_io(saver, looks ? acquire_directory : NULL, saver, err);
	copies[0] = saver->lease != NULL;
	if (!rc)
		rc = rank_group_reduce(request->group, copies, 1, COMM_SUM, err);
	if (rc)
		return rc;
	saver->copies = (int)copies[0];
	if (saver->copies > 1)
		rank_group_note(
			request->group,
			"note: --ckpt %s is not a directory that all nodes share: %d copies of "
			"each checkpoint are kept",
			request->options->directory, saver->copies);
	return rank_group_ready(request->group, start_writer(saver, err), err);
}

/* ---- the best checkpoint ---- */

int saver_load_best(struct saver *saver, bool resumed, struct error *err)
{
	if (!resumed)
		saver->best_saved = -1;
	saver->best_acc1 = saver->best_saved;
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
		saver->reported = (struct error){0};
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
	return rc ? rc : lease_lost(saver->lease, err);
}

/* ---- the snapshot ---- */

static bool wait_for_last(struct saver *saver, int64_t step, bool due)
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
	if (due && !saver->wait_reported)
		rank_group_note_from_rank(request->group, text);
	saver->wait_reported |= due;
	return true;
}

int saver_prepare(struct saver *saver, int64_t step, double acc1, bool due,
		  struct variables **snapshot, struct error *err)
{
	int rc;

	/* Decided before the last write's result is known: a failed write lowers best_acc1 on its
	 * own rank alone, and the copies of all ranks must agree. */
	saver->next_best = acc1 > saver->best_acc1 ? acc1 : -1;
	*snapshot = NULL;
	if (!saver->writer || !wait_for_last(saver, step, due))
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
	return ended && lease_release(saver->lease, CLOSE_MS) && !saver->stalled;
}
