/* SPDX-License-Identifier: BSD-3-Clause */
/* A host-memory comm for a device with its own memory. Inputs are copied out of the device; results
 * are copied in at the next finish. */
#include <stdlib.h>

#include "base/bytes.h"
#include "train/comm/comm.h"

/* A collective in progress. to: device memory; size_bytes were or will be copied from it. */
struct stage {
	char *host;
	size_t capacity, size_bytes;
	void *to;
};

struct staged {
	struct comm comm;
	struct comm *inner;
	struct device *device; /* the device whose host memory the stages use */
	struct stage *stages;  /* their host memory is kept for reuse */
	size_t count, capacity;
};

static const struct comm_ops comm_staged;

struct comm *comm_stage(struct comm *inner)
{
	struct staged *staged = calloc(1, sizeof *staged);

	if (!staged)
		return NULL;
	staged->comm = (struct comm){.ops = &comm_staged, .rank = inner->rank, .size = inner->size};
	staged->inner = inner;
	return &staged->comm;
}

/* The next stage, with size_bytes of host memory. */
static struct stage *stage_next(struct staged *staged, size_t size_bytes, struct error *err)
{
	size_t before = staged->capacity;
	struct stage *stage;
	void *host;

	if (!array_reserve(&staged->stages, staged->count, &staged->capacity, sizeof *stage)) {
		error_memory(err, "communication buffers");
		return NULL;
	}
	for (size_t i = before; i < staged->capacity; i++)
		staged->stages[i] = (struct stage){0};
	stage = &staged->stages[staged->count];
	if (stage->capacity < size_bytes) {
		device_host_memory_free(staged->device, stage->host);
		*stage = (struct stage){0};
		if (device_host_memory_new(staged->device, size_bytes, "communication buffers",
					   &host, err))
			return NULL;
		*stage = (struct stage){.host = host, .capacity = size_bytes};
	}
	stage->size_bytes = size_bytes;
	staged->count++;
	return stage;
}

/* from: device memory, copied out now; NULL: no copy. */
static struct stage *stage_out(struct staged *staged, struct device_queue *queue, const void *from,
			       void *to, size_t size_bytes, struct error *err)
{
	struct stage *stage;

	staged->device = queue->device;
	stage = stage_next(staged, size_bytes, err);
	if (!stage)
		return NULL;
	stage->to = to;
	if (from && queue->device->ops->copy_out(queue, stage->host, from, size_bytes, err)) {
		staged->count--;
		return NULL;
	}
	return stage;
}

static int staged_all_reduce(struct comm *comm, struct device_queue *queue, void *data,
			     size_t count, enum element_type type, enum comm_reduce reduce,
			     struct error *err)
{
	struct staged *staged = (struct staged *)comm;
	struct stage *stage = stage_out(staged, queue, data, data, count * element_size(type), err);

	return stage ? staged->inner->ops->all_reduce(staged->inner, queue, stage->host, count,
						      type, reduce, err)
		     : -ERR_UNAVAILABLE;
}

static int staged_broadcast(struct comm *comm, struct device_queue *queue, void *data,
			    size_t size_bytes, int root, struct error *err)
{
	struct staged *staged = (struct staged *)comm;
	struct stage *stage = stage_out(staged, queue, data, data, size_bytes, err);

	return stage ? staged->inner->ops->broadcast(staged->inner, queue, stage->host, size_bytes,
						     root, err)
		     : -ERR_UNAVAILABLE;
}

static int staged_all_gather(struct comm *comm, struct device_queue *queue, const void *from,
			     void *to, size_t size_bytes, struct error *err)
{
	struct staged *staged = (struct staged *)comm;
	size_t all = size_bytes * (size_t)comm->size;
	/* The input is also kept until the collective completes, and then copied back unchanged. */
	struct stage *own = stage_out(staged, queue, from, NULL, size_bytes, err);
	size_t own_index = staged->count - 1;
	struct stage *stage = own ? stage_out(staged, queue, NULL, to, all, err) : NULL;

	return stage ? staged->inner->ops->all_gather(staged->inner, queue,
						      staged->stages[own_index].host, stage->host,
						      size_bytes, err)
		     : -ERR_UNAVAILABLE;
}

static int staged_finish(struct comm *comm, struct device_queue *queue, struct error *err)
{
	struct staged *staged = (struct staged *)comm;
	int rc = staged->inner->ops->finish(staged->inner, queue, err);

	for (size_t i = 0; !rc && i < staged->count; i++) {
		const struct stage *stage = &staged->stages[i];

		if (stage->to)
			rc = queue->device->ops->copy_in(queue, stage->to, stage->host,
							 stage->size_bytes, err);
	}
	staged->count = 0;
	return rc;
}

static int staged_barrier(struct comm *comm, struct device_queue *queue, struct error *err)
{
	struct staged *staged = (struct staged *)comm;
	int rc = staged_finish(comm, queue, err);

	return rc ? rc : staged->inner->ops->barrier(staged->inner, queue, err);
}

static int staged_progress(struct comm *comm, struct error *err)
{
	struct staged *staged = (struct staged *)comm;

	return staged->inner->ops->progress(staged->inner, err);
}

static void staged_abort(struct comm *comm, const char *why)
{
	struct staged *staged = (struct staged *)comm;

	staged->inner->ops->abort(staged->inner, why);
}

static bool staged_close(struct comm *comm)
{
	struct staged *staged = (struct staged *)comm;

	if (!staged)
		return true;

	bool free_of_it = staged->inner->ops->close(staged->inner);

	for (size_t i = 0; i < staged->capacity; i++)
		device_host_memory_free(staged->device, staged->stages[i].host);
	free(staged->stages);
	free(staged);
	return free_of_it;
}

static const struct comm_ops comm_staged = {
	.name = "staged",
	.all_reduce = staged_all_reduce,
	.broadcast = staged_broadcast,
	.all_gather = staged_all_gather,
	.barrier = staged_barrier,
	.progress = staged_progress,
	.finish = staged_finish,
	.abort = staged_abort,
	.close = staged_close,
};
