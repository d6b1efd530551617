/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives over NCCL on GPU memory: module comm-nccl.so. They run on a stream of their own,
 * ordered against the queue's by events. The host waits for one only in a barrier. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "train/comm/nccl/nccl_internal.h"

#define POLL_NS 200000

extern __attribute__((visibility("default"))) const struct comm_ops comm_nccl;

int nccl_failure(struct nccl *nccl, struct error *err)
{
	if (!nccl->failed)
		return 0;
	nccl->failure_noticed = true;
	pthread_cond_broadcast(&nccl->changed);
	return error_set(err, nccl->why.code, "%s", nccl->why.text);
}

static int check_failure(struct nccl *nccl, struct error *err)
{
	pthread_mutex_lock(&nccl->lock);
	int rc = nccl_failure(nccl, err);

	pthread_mutex_unlock(&nccl->lock);
	return rc;
}

int nccl_wait_result(struct nccl *nccl, ncclResult_t result, const char *what, int timeout_ms,
		     struct error *err)
{
	int64_t until = clock_now_ms() + timeout_ms;

	while (result == ncclInProgress) {
		int rc = nccl_failure(nccl, err);

		if (rc)
			return rc;
		if (clock_now_ms() > until)
			return error_set(err, ERR_NETWORK, "%s did not complete within %d s", what,
					 timeout_ms / 1000);
		pthread_mutex_unlock(&nccl->lock);
		nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
		pthread_mutex_lock(&nccl->lock);
		if (nccl->failed)
			continue;
		ncclResult_t asked = nccl->library->async_error(nccl->handle, &result);

		if (asked != ncclSuccess)
			result = asked;
	}
	return result == ncclSuccess ? 0
				     : nccl_error(nccl->library, nccl->handle, result, what, err);
}

/* ---- one collective ---- */

static cudaStream_t native(struct device_queue *queue)
{
	return queue->device->ops->queue_native(queue);
}

static int record(struct nccl *nccl, cudaEvent_t event, cudaStream_t stream)
{
	/* In a graph: a node that records again each time the graph is replayed. */
	return nccl->capturing ? cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal)
			       : cudaEventRecord(event, stream);
}

/* Make the comm's stream wait for what is on queue now. Call no CUDA function under the lock: it
 * may wait for a GPU that only the watchdog can free. */
static int order_streams(struct nccl *nccl, struct device_queue *queue, struct error *err)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
	cudaStream_t stream = native(queue);
	cudaError_t result = cudaStreamIsCapturing(stream, &status);

	if (result == cudaSuccess)
		result = cudaEventRecord(nccl->before, stream);
	if (result == cudaSuccess)
		result = cudaStreamWaitEvent(nccl->stream, nccl->before, 0);
	if (result != cudaSuccess)
		return cuda_error(result, "making a collective wait for the computation", err);
	pthread_mutex_lock(&nccl->lock);
	nccl->capturing = status == cudaStreamCaptureStatusActive;
	pthread_mutex_unlock(&nccl->lock);
	nccl->pending = true;
	return 0;
}

/* The collective is on its stream: count it and mark its end. */
static int mark_enqueued(struct nccl *nccl, bool bucket, struct error *err)
{
	int slot = nccl->bucket < BUCKETS_MAX ? nccl->bucket : BUCKETS_MAX - 1;
	uint64_t calls = 0;

	pthread_mutex_lock(&nccl->lock);
	if (!bucket) {
		calls = ++nccl->begun.calls;
	} else {
		nccl->bucket = slot + 1;
		if (!nccl->capturing && nccl->bucket > nccl->begun.bucket)
			nccl->begun.bucket = nccl->bucket;
	}
	pthread_mutex_unlock(&nccl->lock);
	if (bucket)
		return mark_put(nccl, nccl->steps.word, slot, err);
	int rc = ring_put(&nccl->calls, nccl->stream, (int64_t)calls, err);

	return rc ? rc : mark_put(nccl, nccl->calls.word, BUCKETS_MAX, err);
}

struct collective {
	enum { ALL_REDUCE, BROADCAST, ALL_GATHER } kind;
	const void *from;
	void *to;
	size_t count;
	ncclDataType_t type;
	ncclRedOp_t reduce;
	int root;
};

static ncclResult_t enqueue(struct nccl *nccl, const struct collective *what)
{
	const struct nccl_library *library = nccl->library;

	switch (what->kind) {
	case ALL_REDUCE:
		return library->all_reduce(what->from, what->to, what->count, what->type,
					   what->reduce, nccl->handle, nccl->stream);
	case BROADCAST:
		return library->broadcast(what->from, what->to, what->count, what->type, what->root,
					  nccl->handle, nccl->stream);
	default:
		return library->all_gather(what->from, what->to, what->count, what->type,
					   nccl->handle, nccl->stream);
	}
}

static void prefix_position(const struct nccl *nccl, bool bucket, struct error *err)
{
	char at[32] = "";

	if (bucket)
		snprintf(at, sizeof at, ", bucket %d", nccl->bucket);
	error_prefix(err, "rank %d on %s, at step %" PRId64 "%s", nccl->comm.rank,
		     nccl->meeting->hosts[nccl->comm.rank], nccl->begun.step, at);
}

static int collective(struct nccl *nccl, struct device_queue *queue, const char *name,
		      const struct collective *what, struct error *err)
{
	int rc = check_failure(nccl, err);

	if (!rc)
		rc = order_streams(nccl, queue, err);
	if (rc)
		return rc;
	bool bucket = what->kind == ALL_REDUCE && (nccl->in_step || nccl->capturing);
	int span = bucket && nccl->bucket < SPANS_MAX ? nccl->bucket : -1;

	if (span >= 0)
		record(nccl, nccl->spans[span][0], nccl->stream);
	pthread_mutex_lock(&nccl->lock);
	rc = nccl_failure(nccl, err);
	if (!rc) {
		rc = nccl_wait_result(nccl, enqueue(nccl, what), name, nccl->timeout_ms, err);
		/* The error of an earlier collective may appear here before the watchdog sees it.
		 */
		if (rc && !nccl->failed)
			prefix_position(nccl, bucket, err);
	}
	pthread_mutex_unlock(&nccl->lock);
	if (rc)
		return rc;
	if (span >= 0) {
		record(nccl, nccl->spans[span][1], nccl->stream);
		nccl->span_count = span + 1;
	}
	return mark_enqueued(nccl, bucket, err);
}

/* ---- comm.h ---- */

static int nccl_all_reduce(struct comm *comm, struct device_queue *queue, void *data, size_t count,
			   enum element_type type, enum comm_reduce reduce, struct error *err)
{
	static const ncclRedOp_t reductions[] = {
		[COMM_SUM] = ncclSum, [COMM_MIN] = ncclMin, [COMM_MAX] = ncclMax};
	static const ncclDataType_t types[] = {[ELEMENT_F32] = ncclFloat32,
					       [ELEMENT_I32] = ncclInt32,
					       [ELEMENT_I64] = ncclInt64,
					       [ELEMENT_F64] = ncclFloat64};

	if ((size_t)type >= sizeof types / sizeof *types)
		return error_set(err, ERR_INTERNAL,
				 "NCCL all-reduce does not support element type %d", type);

	const struct collective what = {.kind = ALL_REDUCE,
					.from = data,
					.to = data,
					.count = count,
					.type = types[type],
					.reduce = reductions[reduce]};

	return collective((struct nccl *)comm, queue, "all-reduce", &what, err);
}

static int nccl_broadcast(struct comm *comm, struct device_queue *queue, void *data,
			  size_t size_bytes, int root, struct error *err)
{
	const struct collective what = {.kind = BROADCAST,
					.from = data,
					.to = data,
					.count = size_bytes,
					.type = ncclUint8,
					.root = root};

	return collective((struct nccl *)comm, queue, "broadcast", &what, err);
}

static int nccl_all_gather(struct comm *comm, struct device_queue *queue, const void *from,
			   void *to, size_t size_bytes, struct error *err)
{
	const struct collective what = {
		.kind = ALL_GATHER, .from = from, .to = to, .count = size_bytes, .type = ncclUint8};

	return collective((struct nccl *)comm, queue, "all-gather", &what, err);
}

static int nccl_progress(struct comm *comm, struct error *err)
{
	/* The GPU makes progress by itself. */
	return check_failure((struct nccl *)comm, err);
}

static int wait_for_collectives(struct nccl *nccl, cudaStream_t stream, struct error *err)
{
	cudaError_t result = cudaSuccess;

	/* A replayed graph has already recorded this. */
	if ((nccl->in_step || nccl->capturing) && nccl->bucket)
		record(nccl, nccl->waiting, stream);
	if (nccl->pending)
		result = cudaEventRecord(nccl->after, nccl->stream);
	if (nccl->pending && result == cudaSuccess)
		result = cudaStreamWaitEvent(stream, nccl->after, 0);
	return result == cudaSuccess
		       ? 0
		       : cuda_error(result, "making the computation wait for a collective", err);
}

static int nccl_finish(struct comm *comm, struct device_queue *queue, struct error *err)
{
	struct nccl *nccl = (struct nccl *)comm;
	int rc = check_failure(nccl, err);

	if (!rc)
		rc = wait_for_collectives(nccl, native(queue), err);
	pthread_mutex_lock(&nccl->lock);
	if (nccl->bucket > nccl->buckets)
		nccl->buckets = nccl->bucket;
	if (nccl->capturing)
		nccl->captured = nccl->bucket;
	nccl->bucket = 0;
	nccl->in_step = nccl->pending = nccl->capturing = false;
	pthread_mutex_unlock(&nccl->lock);
	return rc;
}

static int nccl_barrier(struct comm *comm, struct device_queue *queue, struct error *err)
{
	struct nccl *nccl = (struct nccl *)comm;
	const struct collective what = {.kind = ALL_REDUCE,
					.from = nccl->barrier_word,
					.to = nccl->barrier_word,
					.count = 1,
					.type = ncclInt32,
					.reduce = ncclSum};
	int rc = collective(nccl, queue, "barrier", &what, err);

	if (!rc)
		rc = nccl_finish(comm, queue, err);
	/* The watchdog ends what never completes. */
	cudaError_t result = rc ? cudaSuccess : cudaStreamSynchronize(nccl->stream);

	if (!rc)
		rc = nccl_progress(comm, err);
	return rc || result == cudaSuccess ? rc : cuda_error(result, "barrier", err);
}

static int nccl_begin_step(struct comm *comm, struct device_queue *queue, int64_t step,
			   struct error *err)
{
	struct nccl *nccl = (struct nccl *)comm;

	int rc = check_failure(nccl, err);

	if (!rc)
		rc = ring_put(&nccl->steps, native(queue), step, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&nccl->lock);
	nccl->begun.step = step;
	nccl->begun.bucket = nccl->captured;
	nccl->bucket = 0;
	nccl->in_step = true;
	pthread_mutex_unlock(&nccl->lock);
	return 0;
}

static bool nccl_overlap(struct comm *comm, double *busy_ms, double *exposed_ms)
{
	struct nccl *nccl = (struct nccl *)comm;
	cudaError_t result = nccl->span_count ? cudaSuccess : cudaErrorNotReady;
	double busy = 0;
	float ms = 0;

	for (int i = 0; result == cudaSuccess && i < nccl->span_count; i++) {
		result = cudaEventElapsedTime(&ms, nccl->spans[i][0], nccl->spans[i][1]);
		busy += ms;
	}
	if (result == cudaSuccess)
		result = cudaEventElapsedTime(&ms, nccl->waiting,
					      nccl->spans[nccl->span_count - 1][1]);
	if (result != cudaSuccess) {
		cudaGetLastError(); /* clear the error: otherwise the next launch would seem to have
				       failed */
		return false;
	}
	*busy_ms = busy;
	*exposed_ms = ms < 0 ? 0 : ms < busy ? ms : busy;
	return true;
}

static void nccl_abort(struct comm *comm, const char *why)
{
	struct nccl *nccl = (struct nccl *)comm;
	struct timespec until = clock_after_ms(10000);

	pthread_mutex_lock(&nccl->lock);
	if (!nccl->failed && !nccl->abort_wanted) {
		nccl->abort_wanted = true;
		error_set(&nccl->why, ERR_NETWORK, "communication between ranks was aborted: %s",
			  why);
		pthread_cond_broadcast(&nccl->changed);
	}
	/* Freeing GPU memory waits for what is in progress there. */
	while (nccl->thread_runs && !nccl->failed &&
	       !pthread_cond_timedwait(&nccl->changed, &nccl->lock, &until))
		;
	pthread_mutex_unlock(&nccl->lock);
}

const struct comm_ops comm_nccl = {
	.name = "nccl",
	.on_stream = true,
	.prepare = nccl_prepare,
	.open = nccl_open,
	.all_reduce = nccl_all_reduce,
	.broadcast = nccl_broadcast,
	.all_gather = nccl_all_gather,
	.barrier = nccl_barrier,
	.progress = nccl_progress,
	.finish = nccl_finish,
	.begin_step = nccl_begin_step,
	.overlap = nccl_overlap,
	.abort = nccl_abort,
	.close = nccl_close,
};
