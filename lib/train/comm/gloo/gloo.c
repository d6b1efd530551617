/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives over gloo on host memory: module comm-gloo.so. gloo's calls block, so a thread makes
 * them in order while the training thread computes. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "train/comm/gloo/gloo_internal.h"

#define KEY_WAITING "berth.gloo.waiting"
#define MISSING_MS 2000 /* to find out which ranks are missing */
#define CLOSE_MS 5000	/* for the last barrier */
/* gloo's thread reports what waited too long; this is only for a call that does not return. */
#define LATE_MS 5000

extern __attribute__((visibility("default"))) const struct comm_ops comm_gloo;

/* ---- the thread ---- */

/* The connections have failed because of *why, or a collective waited too long: reset them, and add
 * the ranks that are missing. A rank that waits in a collective publishes that; the others hang, or
 * have ended. The caller does not hold the lock. */
static void fail(struct gloo *gloo, bool waited, struct error *why)
{
	struct ranks_list missing = {0};
	int rank = gloo->comm.rank;

	ranks_put(gloo->ranks, KEY_WAITING, "", 0, NULL);
	gloo_mesh_reset(gloo->mesh);
	ranks_find_missing(gloo->ranks, KEY_WAITING, gloo->meeting->hosts, MISSING_MS, &missing);
	if (waited)
		error_set(why, ERR_NETWORK, "rank %d on %s waited %d s in a collective", rank,
			  gloo->meeting->hosts[rank], gloo->timeout_ms / 1000);
	else
		error_prefix(why, "rank %d on %s lost a connection", rank,
			     gloo->meeting->hosts[rank]);

	struct error head = *why;

	error_set(why, ERR_NETWORK, "%s; missing ranks: %s%s", head.text,
		  missing.count ? missing.text : "none (all ranks are waiting)",
		  missing.count ? ". Look for earlier errors in their output, or raise "
				  "--comm-timeout"
				: ". Test the network with berth check");
}

void *gloo_thread(void *context)
{
	struct gloo *gloo = context;

	pthread_mutex_lock(&gloo->lock);
	while (!gloo->stop) {
		if (gloo->done == gloo->count) {
			pthread_cond_wait(&gloo->changed, &gloo->lock);
			continue;
		}
		struct mesh_job job = gloo->jobs[gloo->done];
		struct error why = {0};
		bool closing = gloo->closing;
		int timeout_ms =
			closing && CLOSE_MS < gloo->timeout_ms ? CLOSE_MS : gloo->timeout_ms;
		int64_t until = clock_now_ms() + timeout_ms;

		pthread_mutex_unlock(&gloo->lock);
		int rc = gloo_mesh_run(gloo->mesh, &job, timeout_ms, &why);

		if (rc && !closing)
			fail(gloo, clock_now_ms() >= until, &why);
		pthread_mutex_lock(&gloo->lock);
		if (rc && !gloo->failed) {
			gloo->failed = true;
			gloo->why = why;
		}
		if (gloo->failed)
			break;
		gloo->done++;
		pthread_cond_broadcast(&gloo->changed);
	}
	pthread_cond_broadcast(&gloo->changed);
	pthread_mutex_unlock(&gloo->lock);
	return NULL;
}

/* ---- collectives ---- */

/* The caller holds the lock. */
static int check_gloo(const struct gloo *gloo, struct error *err)
{
	return gloo->failed ? error_set(err, ERR_NETWORK, "%s", gloo->why.text) : 0;
}

static int begin(struct comm *comm, struct mesh_job job, struct error *err)
{
	struct gloo *gloo = (struct gloo *)comm;

	pthread_mutex_lock(&gloo->lock);
	int rc = check_gloo(gloo, err);

	if (!rc && !array_reserve(&gloo->jobs, gloo->count, &gloo->capacity, sizeof job))
		rc = error_memory(err, "collectives");
	if (!rc) {
		gloo->jobs[gloo->count++] = job;
		pthread_cond_broadcast(&gloo->changed);
	}
	pthread_mutex_unlock(&gloo->lock);
	return rc;
}

static int gloo_all_reduce(struct comm *comm, struct device_queue *queue, void *data, size_t count,
			   enum element_type type, enum comm_reduce reduce, struct error *err)
{
	struct gloo *gloo = (struct gloo *)comm;

	if (gloo->shm && type == ELEMENT_F32 && reduce == COMM_SUM &&
	    shm_allreduce_contains(gloo->shm, data, count))
		return shm_allreduce_start(gloo->shm, data, count, err);
	return begin(comm,
		     (struct mesh_job){.kind = MESH_ALL_REDUCE,
				       .data = data,
				       .count = count,
				       .type = type,
				       .reduce = reduce},
		     err);
}

static int gloo_broadcast(struct comm *comm, struct device_queue *queue, void *data,
			  size_t size_bytes, int root, struct error *err)
{
	return begin(
		comm,
		(struct mesh_job){
			.kind = MESH_BROADCAST, .data = data, .count = size_bytes, .root = root},
		err);
}

static int gloo_all_gather(struct comm *comm, struct device_queue *queue, const void *from,
			   void *to, size_t size_bytes, struct error *err)
{
	return begin(
		comm,
		(struct mesh_job){
			.kind = MESH_ALL_GATHER, .from = from, .data = to, .count = size_bytes},
		err);
}

static int gloo_progress(struct comm *comm, struct error *err)
{
	struct gloo *gloo = (struct gloo *)comm;

	pthread_mutex_lock(&gloo->lock);
	int rc = check_gloo(gloo, err);

	pthread_mutex_unlock(&gloo->lock);
	return rc;
}

/* Sums in shared memory, which every waiting rank helps with. */
static int finish_shm(struct gloo *gloo, struct error *err)
{
	int64_t until = clock_now_ms() + gloo->timeout_ms;
	struct error why = {0};

	while (gloo->shm && !shm_allreduce_done(gloo->shm)) {
		if (shm_allreduce_progress(gloo->shm))
			continue;
		int rc = gloo_progress(&gloo->comm, err);

		if (rc)
			return rc;
		if (clock_now_ms() > until) {
			fail(gloo, true, &why);
			pthread_mutex_lock(&gloo->lock);
			gloo->failed = true;
			gloo->why = why;
			pthread_mutex_unlock(&gloo->lock);
		}
		/* The rank that this one waits for may need this core. */
		sched_yield();
	}
	return 0;
}

static int gloo_finish(struct comm *comm, struct device_queue *queue, struct error *err)
{
	struct gloo *gloo = (struct gloo *)comm;
	struct timespec until;
	size_t done = SIZE_MAX;
	int rc = finish_shm(gloo, err), late = 0;

	if (rc)
		return rc;
	pthread_mutex_lock(&gloo->lock);
	while (!gloo->failed && gloo->done < gloo->count && !late) {
		if (done != gloo->done)
			until = clock_after_ms(gloo->timeout_ms + LATE_MS);
		done = gloo->done;
		late = pthread_cond_timedwait(&gloo->changed, &gloo->lock, &until);
	}
	if (!gloo->failed && gloo->done < gloo->count) {
		gloo->failed = true;
		error_set(&gloo->why, ERR_NETWORK, "rank %d on %s: gloo did not return within %d s",
			  comm->rank, gloo->meeting->hosts[comm->rank], gloo->timeout_ms / 1000);
	}
	rc = check_gloo(gloo, err);
	if (!rc)
		gloo->done = gloo->count = 0;
	pthread_mutex_unlock(&gloo->lock);
	return rc;
}

static int gloo_barrier(struct comm *comm, struct device_queue *queue, struct error *err)
{
	int rc = begin(comm, (struct mesh_job){.kind = MESH_BARRIER}, err);

	return rc ? rc : gloo_finish(comm, queue, err);
}

static int gloo_memory(struct comm *comm, struct device_queue *queue, size_t size_bytes, void **out,
		       struct error *err)
{
	struct gloo *gloo = (struct gloo *)comm;

	*out = NULL;
	return gloo->meeting->one_node && !gloo->shm
		       ? shm_allreduce_open(comm, queue, size_bytes, &gloo->shm, out, err)
		       : 0;
}

static void gloo_abort(struct comm *comm, const char *why)
{
	struct gloo *gloo = (struct gloo *)comm;

	pthread_mutex_lock(&gloo->lock);
	if (!gloo->failed)
		error_set(&gloo->why, ERR_NETWORK, "communication between ranks was aborted: %s",
			  why);
	gloo->failed = true;
	pthread_cond_broadcast(&gloo->changed);
	pthread_mutex_unlock(&gloo->lock);
}

static bool gloo_close(struct comm *comm)
{
	struct gloo *gloo = (struct gloo *)comm;

	if (!gloo)
		return true;
	pthread_mutex_lock(&gloo->lock);
	gloo->closing = !gloo->failed;
	pthread_mutex_unlock(&gloo->lock);
	/* The others may have ended already without notice: that is not an error at this point. */
	if (gloo->closing)
		gloo_barrier(comm, NULL, NULL);
	pthread_mutex_lock(&gloo->lock);
	gloo->stop = true;
	pthread_cond_broadcast(&gloo->changed);
	pthread_mutex_unlock(&gloo->lock);
	/* After an abort it may wait in gloo, which cannot be interrupted and uses all below. */
	if (gloo->thread_runs && !clock_join(gloo->thread, CLOSE_MS))
		return false;
	gloo_mesh_free(gloo->mesh);
	shm_allreduce_free(gloo->shm);
	pthread_cond_destroy(&gloo->changed);
	pthread_mutex_destroy(&gloo->lock);
	free(gloo->jobs);
	free(gloo);
	return true;
}

const struct comm_ops comm_gloo = {
	.name = "gloo",
	.prepare = gloo_prepare,
	.open = gloo_open,
	.all_reduce = gloo_all_reduce,
	.broadcast = gloo_broadcast,
	.all_gather = gloo_all_gather,
	.barrier = gloo_barrier,
	.memory = gloo_memory,
	.progress = gloo_progress,
	.finish = gloo_finish,
	.abort = gloo_abort,
	.close = gloo_close,
};
