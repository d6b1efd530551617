/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/loader.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

#define MAX_THREADS 256
#define CHEAP_CHUNK 16	  /* samples that a thread takes at once if each is cheap */
#define MAX_IN_A_ROW 1000 /* consecutive faulty samples: the cause must be something else */

struct slot {
	struct batch batch;
	uint32_t *indices;
	bool *left_out;
	int requested;
	int64_t epoch;
	/* guarded by the loader's lock */
	int next, done;
	int failed_position; /* position of err, if err.code is set */
	struct error err;
	struct batch_fault *faults;
	int fault_count;
};

struct loader {
	struct loader_request request;
	size_t elements, raw_size;
	struct slot slots[LOADER_SLOTS]; /* a ring of slot_count */
	int slot_count;
	int oldest, queued, in_use; /* in_use: 0 or 1, the slot before oldest */

	pthread_mutex_t lock;
	pthread_cond_t work, done;
	pthread_t threads[MAX_THREADS];
	int thread_count;
	bool stop, hung;
	struct dataset_scratch scratch; /* of the thread that calls loader_next */
};

int loader_threads(int limit)
{
	cpu_set_t set;
	int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);

	if (limit > 0 && count > limit)
		count = limit;
	return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

/* ---- one sample ---- */

static int keep_fault(struct loader *loader, struct slot *slot, int position, uint32_t index,
		      const struct error *why, struct error *err)
{
	char *text = strdup(why->text);
	struct batch_fault *grown;

	pthread_mutex_lock(&loader->lock);
	grown = realloc(slot->faults, ((size_t)slot->fault_count + 1) * sizeof *grown);
	if (grown)
		slot->faults = grown;
	if (grown && text)
		grown[slot->fault_count++] = (struct batch_fault){position, index, text};
	pthread_mutex_unlock(&loader->lock);
	if (grown && text)
		return 0;
	free(text);
	return error_memory(err, "the name of a faulty sample");
}

static int load_sample(const struct loader *loader, struct slot *slot, int position, uint32_t index,
		       struct dataset_scratch *scratch, struct error *err)
{
	const struct dataset *dataset = loader->request.dataset;
	struct batch *batch = &slot->batch;
	void *target = (int32_t *)batch->target + position;

	if (loader->request.raw)
		return dataset_raw(dataset, index, slot->epoch, scratch,
				   batch->raw ? (char *)batch->raw +
							(size_t)position * loader->raw_size
					      : NULL,
				   &batch->augments[position], target, err);
	return dataset_sample(dataset, index, slot->epoch, scratch,
			      batch->x + (size_t)position * loader->elements, target, err);
}

static int load_or_replace(struct loader *loader, struct slot *slot, int position,
			   struct dataset_scratch *scratch, struct error *err)
{
	const struct dataset *dataset = loader->request.dataset;
	uint32_t index = slot->indices[position];

	for (int64_t row = 0;; row++) {
		struct error why = {0};
		int rc = load_sample(loader, slot, position, index, scratch, &why);

		if (rc != -ERR_DATA || !dataset->format->files || dataset->strict) {
			if (rc && err)
				*err = why;
			return rc;
		}
		rc = keep_fault(loader, slot, position, index, &why, err);
		if (rc)
			return rc;
		if (dataset->split != SPLIT_TRAIN) {
			slot->left_out[position] = true;
			return 0;
		}
		if (row + 1 >= MAX_IN_A_ROW || row + 1 >= dataset->count)
			return error_set(err, ERR_DATA,
					 "%lld consecutive samples cannot be decoded; the last: %s",
					 (long long)row + 1, why.text);
		index = (uint32_t)((index + (uint64_t)1) % (uint64_t)dataset->count);
	}
}

/* ---- a batch ---- */

static void load_samples(struct loader *loader, struct slot *slot, int begin, int end,
			 struct dataset_scratch *scratch)
{
	for (int position = begin; position < end; position++) {
		struct error why = {0};

		if (!load_or_replace(loader, slot, position, scratch, &why))
			continue;
		pthread_mutex_lock(&loader->lock);
		if (!slot->err.code || position < slot->failed_position) {
			slot->err = why;
			slot->failed_position = position;
		}
		pthread_mutex_unlock(&loader->lock);
	}
}

/* The oldest batch that still has samples to make. The caller holds the lock. */
static struct slot *find_work(struct loader *loader)
{
	for (int i = 0; i < loader->queued; i++) {
		struct slot *slot = &loader->slots[(loader->oldest + i) % loader->slot_count];

		if (slot->next < slot->requested)
			return slot;
	}
	return NULL;
}

static void *work(void *argument)
{
	struct loader *loader = argument;
	struct dataset_scratch scratch = {0};
	int chunk = loader->request.dataset->format->files ? 1 : CHEAP_CHUNK;

	pthread_mutex_lock(&loader->lock);
	while (!loader->stop) {
		struct slot *slot = find_work(loader);

		if (!slot) {
			pthread_cond_wait(&loader->work, &loader->lock);
			continue;
		}
		int begin = slot->next;
		int end = slot->requested - begin < chunk ? slot->requested : begin + chunk;

		slot->next = end;
		pthread_mutex_unlock(&loader->lock);
		load_samples(loader, slot, begin, end, &scratch);
		pthread_mutex_lock(&loader->lock);
		slot->done += end - begin;
		if (slot->done == slot->requested)
			pthread_cond_broadcast(&loader->done);
	}
	pthread_mutex_unlock(&loader->lock);
	dataset_scratch_free(&scratch);
	return NULL;
}

/* The caller holds the lock, which is released while waiting. */
static int wait_ready(struct loader *loader, const struct slot *slot, struct error *err)
{
	int timeout_ms = loader->request.timeout_ms;
	struct timespec until = clock_after_ms(timeout_ms);

	while (slot->done < slot->requested)
		if (pthread_cond_timedwait(&loader->done, &loader->lock, &until) == ETIMEDOUT &&
		    slot->done < slot->requested) {
			loader->hung = true;
			return error_set(err, ERR_IO,
					 "reading a batch: only %d of %d samples arrived within %d "
					 "s. Check whether the file system responds",
					 slot->done, slot->requested, timeout_ms / 1000);
		}
	return 0;
}

static void clear(struct slot *slot)
{
	for (int i = 0; i < slot->fault_count; i++)
		free(slot->faults[i].text);
	slot->fault_count = 0;
	slot->err = (struct error){0};
}

static int by_position(const void *a, const void *b)
{
	const struct batch_fault *one = a, *two = b;

	return (one->position > two->position) - (one->position < two->position);
}

/* Close the gaps that omitted samples left. */
static void close_gaps(const struct loader *loader, struct slot *slot)
{
	struct batch *batch = &slot->batch;
	size_t x_size = loader->elements * sizeof(float), raw_size = loader->raw_size;
	int to = 0;

	for (int from = 0; from < slot->requested; from++) {
		if (slot->left_out[from])
			continue;
		if (to < from) {
			((int32_t *)batch->target)[to] = ((int32_t *)batch->target)[from];
			if (batch->x)
				memcpy(batch->x + (size_t)to * loader->elements,
				       batch->x + (size_t)from * loader->elements, x_size);
			if (batch->raw) {
				memcpy((char *)batch->raw + (size_t)to * raw_size,
				       (char *)batch->raw + (size_t)from * raw_size, raw_size);
				batch->augments[to] = batch->augments[from];
			}
		}
		to++;
	}
	batch->count = to;
}

/* ---- loader.h ---- */

bool loader_full(const struct loader *loader)
{
	return loader->hung || loader->queued + loader->in_use >= loader->slot_count;
}

void loader_submit(struct loader *loader, const uint32_t *indices, int count, int64_t epoch,
		   int64_t tag)
{
	pthread_mutex_lock(&loader->lock);
	struct slot *slot = &loader->slots[(loader->oldest + loader->queued) % loader->slot_count];

	clear(slot);
	memcpy(slot->indices, indices, (size_t)count * sizeof *indices);
	memset(slot->left_out, 0, (size_t)count * sizeof *slot->left_out);
	slot->requested = count;
	slot->epoch = epoch;
	slot->batch.tag = tag;
	slot->next = slot->done = 0;
	loader->queued++;
	pthread_cond_broadcast(&loader->work);
	pthread_mutex_unlock(&loader->lock);
}

int loader_next(struct loader *loader, struct batch **out, struct error *err)
{
	struct slot *slot = &loader->slots[loader->oldest];
	int rc = 0;

	if (!loader->queued || loader->in_use)
		return error_set(
			err, ERR_INTERNAL, "%s",
			loader->in_use
				? "a batch was requested before the previous one was released"
				: "a batch was requested that was never submitted");
	if (loader->thread_count) {
		pthread_mutex_lock(&loader->lock);
		rc = wait_ready(loader, slot, err);
		pthread_mutex_unlock(&loader->lock);
	} else {
		load_samples(loader, slot, 0, slot->requested, &loader->scratch);
	}
	if (rc)
		return rc;
	pthread_mutex_lock(&loader->lock);
	loader->oldest = (loader->oldest + 1) % loader->slot_count;
	loader->queued--;
	loader->in_use = 1;
	pthread_mutex_unlock(&loader->lock);
	if (slot->err.code) {
		if (err)
			*err = slot->err;
		return -slot->err.code;
	}
	slot->batch.count = slot->requested;
	if (slot->fault_count) {
		qsort(slot->faults, (size_t)slot->fault_count, sizeof *slot->faults, by_position);
		close_gaps(loader, slot);
	}
	slot->batch.faults = slot->faults;
	slot->batch.fault_count = slot->fault_count;
	*out = &slot->batch;
	return 0;
}

void loader_release(struct loader *loader)
{
	loader->in_use = 0;
}

void loader_discard(struct loader *loader)
{
	pthread_mutex_lock(&loader->lock);
	for (int i = 0; i < loader->queued; i++) {
		struct slot *slot = &loader->slots[(loader->oldest + i) % loader->slot_count];

		/* Samples that no thread has begun are not begun any more. */
		slot->done += slot->requested - slot->next;
		slot->next = slot->requested;
		if (loader->thread_count && !loader->hung)
			wait_ready(loader, slot, NULL);
	}
	loader->queued = loader->in_use = 0;
	pthread_mutex_unlock(&loader->lock);
}

static int reserve(struct loader *loader, struct error *err)
{
	const struct loader_request *request = &loader->request;
	size_t batch = (size_t)request->batch;

	for (int i = 0; i < loader->slot_count; i++) {
		struct slot *slot = &loader->slots[i];

		slot->indices = calloc(batch, sizeof *slot->indices);
		slot->batch.indices = slot->indices;
		slot->left_out = calloc(batch, sizeof *slot->left_out);
		slot->batch.target = calloc(batch, sizeof(int32_t));
		if (request->raw) {
			slot->batch.raw = request->bare ? NULL : calloc(batch, loader->raw_size);
			slot->batch.augments = calloc(batch, sizeof *slot->batch.augments);
		} else {
			slot->batch.x = calloc(batch, loader->elements * sizeof(float));
		}
		if (!slot->indices || !slot->left_out || !slot->batch.target ||
		    (request->raw ? (!slot->batch.raw && !request->bare) || !slot->batch.augments
				  : !slot->batch.x))
			return error_set(err, ERR_UNAVAILABLE,
					 "out of memory for batches: %d x %zu samples of %zu KiB; "
					 "use a smaller --batch%s",
					 loader->slot_count, batch, loader->elements * 4 >> 10,
					 request->threads ? ", or --workers 0" : "");
	}
	return 0;
}

static int start_threads(struct loader *loader, struct error *err)
{
	int rc = 0;

	for (int i = 0; !rc && i < loader->request.threads && i < MAX_THREADS; i++) {
		rc = thread_start(&loader->threads[i], work, loader);
		loader->thread_count += !rc;
	}
	/* Fewer threads do the same, more slowly. */
	if (rc && !loader->thread_count)
		return error_set(err, ERR_UNAVAILABLE, "cannot start a thread to read data: %s",
				 strerror(rc));
	return 0;
}

int loader_new(const struct loader_request *request, struct loader **out, struct error *err)
{
	struct loader *loader = calloc(1, sizeof *loader);
	int rc;

	if (!loader)
		return error_memory(err, "the batches");
	loader->request = *request;
	loader->slot_count = request->threads ? LOADER_SLOTS : 1;
	loader->elements = (size_t)shape_count(&request->dataset->shape);
	loader->raw_size = dataset_raw_size(request->dataset);
	pthread_mutex_init(&loader->lock, NULL);
	pthread_cond_init(&loader->work, NULL);
	clock_cond_init(&loader->done);
	rc = reserve(loader, err);
	if (!rc && request->threads)
		rc = start_threads(loader, err);
	if (rc) {
		loader_free(loader);
		return rc;
	}
	*out = loader;
	return 0;
}

bool loader_free(struct loader *loader)
{
	if (!loader)
		return true;
	pthread_mutex_lock(&loader->lock);
	loader->stop = true;
	pthread_cond_broadcast(&loader->work);
	pthread_mutex_unlock(&loader->lock);
	for (int i = 0; loader->hung && i < loader->thread_count; i++)
		pthread_detach(loader->threads[i]);
	if (loader->hung)
		return false;
	for (int i = 0; i < loader->thread_count; i++)
		pthread_join(loader->threads[i], NULL);
	for (int i = 0; i < LOADER_SLOTS; i++) {
		struct slot *slot = &loader->slots[i];

		clear(slot);
		free(slot->faults);
		free(slot->indices);
		free(slot->left_out);
		free(slot->batch.target);
		free(slot->batch.x);
		free(slot->batch.raw);
		free(slot->batch.augments);
	}
	dataset_scratch_free(&loader->scratch);
	pthread_cond_destroy(&loader->work);
	pthread_cond_destroy(&loader->done);
	pthread_mutex_destroy(&loader->lock);
	free(loader);
	return true;
}
