/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/writer.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "train/checkpoint/directory.h"
#include "train/checkpoint/lease.h"

#define NOTES_MAX 4096

enum writer_state { WRITER_IDLE, WRITER_BUSY, WRITER_DONE };

struct writer {
	struct writer_request request;
	struct variables snapshot;
	void *memory; /* the block that holds snapshot */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;

	/* guarded by the lock */
	enum writer_state state;
	bool ends; /* the thread must end */
	struct writer_job job;
	struct writer_result result;
};

void writer_result_free(struct writer_result *result)
{
	free(result->path);
	free(result->notes);
	*result = (struct writer_result){0};
}

/* ---- the thread ---- */

static void __attribute__((format(printf, 2, 3)))
append_note(struct writer_result *result, const char *format, ...)
{
	size_t used = result->notes ? strlen(result->notes) : 0;
	va_list ap;

	if (!result->notes)
		result->notes = calloc(1, NOTES_MAX);
	if (!result->notes || used + 2 >= NOTES_MAX)
		return;
	va_start(ap, format);
	vsnprintf(result->notes + used, NOTES_MAX - used - 1, format, ap);
	va_end(ap);
	for (char *at = result->notes + used; *at; at++)
		if (*at == '\n')
			*at = ' ';
	strcat(result->notes, "\n");
}

static void note_skipped(void *context, const char *text)
{
	append_note(context, "%s", text);
}

static int write_files(struct writer *writer, const struct writer_job *job,
		       struct writer_result *result, struct error *err)
{
	const struct writer_request *request = &writer->request;
	const struct train_state *state = &job->state;
	char *kept = NULL, *model = NULL;
	struct stat info;
	int rc = checkpoint_keep_foreign(request->directory, request->graph, state->step,
					 request->lease, &kept, err);

	if (kept)
		append_note(result,
			    "note: a checkpoint that does not belong to this run is kept as %s",
			    kept);
	free(kept);
	if (!rc)
		rc = checkpoint_save(request->directory, state, &writer->snapshot, request->lease,
				     &result->path, err);
	if (rc)
		return rc;
	if (!stat(result->path, &info))
		result->size_bytes = (uint64_t)info.st_size;
	if (job->best >= 0)
		rc = checkpoint_dir_set_best(request->directory, state->step, job->best,
					     request->lease, err);
	if (!rc)
		result->best = job->best;
	if (!rc && job->model)
		rc = checkpoint_save_model(request->directory, state, &writer->snapshot,
					   request->lease, &model, err);
	free(model);
	return rc;
}

static void run_job(struct writer *writer, const struct writer_job *job,
		    struct writer_result *result)
{
	const struct writer_request *request = &writer->request;
	const struct checkpoint_sink sink = {result, note_skipped};
	double begin_s = clock_now_s();

	log_info(LOG_CHECKPOINT, "writing step %lld to %s", (long long)job->state.step,
		 request->directory);
	*result = (struct writer_result){
		.step = job->state.step, .epoch = job->state.epoch, .best = -1};
	/* A write that cannot be completed need not begin. */
	result->rc = lease_check(request->lease, &result->err);
	if (!result->rc)
		result->rc = write_files(writer, job, result, &result->err);
	if (result->rc)
		checkpoint_dir_explain_full(request->directory, request->keep, &result->err);
	result->seconds = clock_now_s() - begin_s;
	log_info(LOG_CHECKPOINT, "step %lld, %llu bytes, %.3f s: %s %s", (long long)result->step,
		 (unsigned long long)result->size_bytes, result->seconds,
		 result->rc ? "failed:" : "fsynced and renamed to",
		 result->rc ? result->err.text : result->path);
	if (!result->rc)
		checkpoint_dir_prune(request->directory, request->graph, job->state.step,
				     request->keep, request->lease, &sink);
}

static void *work(void *argument)
{
	struct writer *writer = argument;

	pthread_mutex_lock(&writer->lock);
	while (!writer->ends || writer->state == WRITER_BUSY) {
		if (writer->state == WRITER_BUSY) {
			struct writer_result result;
			struct writer_job job = writer->job;

			pthread_mutex_unlock(&writer->lock);
			run_job(writer, &job, &result);
			pthread_mutex_lock(&writer->lock);
			writer->result = result;
			writer->state = WRITER_DONE;
			pthread_cond_broadcast(&writer->changed);
		} else {
			pthread_cond_wait(&writer->changed, &writer->lock);
		}
	}
	pthread_mutex_unlock(&writer->lock);
	return NULL;
}

/* ---- the training thread's side ---- */

/* Allocate one block and touch each page before the first snapshot. */
static int allocate_snapshot(struct writer *writer, struct error *err)
{
	const struct writer_request *request = &writer->request;
	size_t size_bytes = variables_size(request->graph, request->buckets);

	if (device_host_memory_new(request->device, size_bytes, "a snapshot", &writer->memory, err))
		return error_prefix(err, "for background checkpoints");
	memset(writer->memory, 1, size_bytes); /* zeros could come without pages */
	writer->snapshot = variables_in(writer->memory, request->graph, request->buckets);
	return 0;
}

static int start_thread(struct writer *writer, struct error *err)
{
	int rc;

	pthread_mutex_init(&writer->lock, NULL);
	clock_cond_init(&writer->changed);
	rc = thread_start(&writer->thread, work, writer);
	if (!rc)
		return 0;
	pthread_cond_destroy(&writer->changed);
	pthread_mutex_destroy(&writer->lock);
	return error_set(err, ERR_UNAVAILABLE, "cannot start a thread to write checkpoints: %s",
			 strerror(rc));
}

int writer_new(const struct writer_request *request, struct writer **out, struct error *err)
{
	struct writer *writer = calloc(1, sizeof *writer);
	int rc;

	if (!writer)
		return error_memory(err, "the checkpoint writer");
	writer->request = *request;
	rc = allocate_snapshot(writer, err);
	if (!rc)
		rc = start_thread(writer, err);
	if (rc) {
		device_host_memory_free(writer->request.device, writer->memory);
		free(writer);
		return rc;
	}
	*out = writer;
	return 0;
}

bool writer_free(struct writer *writer, int timeout_ms)
{
	if (!writer)
		return true;
	pthread_mutex_lock(&writer->lock);
	writer->ends = true;
	pthread_cond_broadcast(&writer->changed);
	pthread_mutex_unlock(&writer->lock);
	if (!clock_join(writer->thread, timeout_ms)) {
		pthread_detach(writer->thread);
		return false;
	}
	pthread_cond_destroy(&writer->changed);
	pthread_mutex_destroy(&writer->lock);
	writer_result_free(&writer->result);
	device_host_memory_free(writer->request.device, writer->memory);
	free(writer);
	return true;
}

int writer_wait(struct writer *writer, int timeout_ms, struct error *err)
{
	const struct timespec deadline = clock_after_ms(timeout_ms);
	int rc = 0;
	bool busy;

	pthread_mutex_lock(&writer->lock);
	while (!rc && writer->state == WRITER_BUSY)
		rc = pthread_cond_timedwait(&writer->changed, &writer->lock, &deadline);
	busy = writer->state == WRITER_BUSY;
	pthread_mutex_unlock(&writer->lock);
	return busy ? error_set(err, ERR_IO,
				"the checkpoint of step %lld is still being written to %s after %g "
				"s. Check whether the file system hangs",
				(long long)writer->job.state.step, writer->request.directory,
				timeout_ms * 1e-3)
		    : 0;
}

struct variables *writer_snapshot(struct writer *writer)
{
	return &writer->snapshot;
}

void writer_start(struct writer *writer, const struct writer_job *job)
{
	pthread_mutex_lock(&writer->lock);
	writer->job = *job;
	writer->state = WRITER_BUSY;
	pthread_cond_broadcast(&writer->changed);
	pthread_mutex_unlock(&writer->lock);
}

bool writer_take_result(struct writer *writer, struct writer_result *out)
{
	bool done;

	pthread_mutex_lock(&writer->lock);
	done = writer->state == WRITER_DONE;
	if (done) {
		*out = writer->result;
		writer->result = (struct writer_result){0};
		writer->state = WRITER_IDLE;
	}
	pthread_mutex_unlock(&writer->lock);
	return done;
}
