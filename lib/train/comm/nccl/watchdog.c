/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread that watches a GPU's collectives. It reads what the GPU has written and NCCL's own
 * status, and ends what hangs. watch.c makes the decisions. It calls no CUDA function while the GPU
 * works, because that would break a graph capture in progress. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "train/comm/nccl/nccl_internal.h"

#define KEY_POSITION "berth.nccl.at"
#define KEY_FAILURE "berth.nccl.end"
#define POLL_MS 200	     /* at most, between two checks */
#define COLLECT_MS 2000	     /* for the others to report their positions */
#define ABORT_MS 1000	     /* for NCCL to end what it has in progress */
#define ENDED_MS 5000	     /* the same, when the communicator is closed */
#define NOTICE_MS 10000	     /* for the training thread to notice */
#define PEER_POLL_MS 1000    /* between checks whether another rank has given up */
#define ANSWER_MS 100	     /* for that rank's answer */
#define RANK_0_GRACE_MS 3000 /* for a collective in progress, once rank 0 has ended */

/* ---- aborting ---- */

struct ending {
	const struct nccl_library *library;
	ncclComm_t handle;
};

static void *end_thread(void *context)
{
	struct ending *ending = context;

	ending->library->abort(ending->handle);
	free(ending);
	return NULL;
}

void nccl_abort_bounded(struct nccl *nccl)
{
	struct ending *ending = nccl->handle ? malloc(sizeof *ending) : NULL;
	pthread_t thread;

	if (!ending)
		return;
	*ending = (struct ending){nccl->library, nccl->handle};
	nccl->handle = NULL;
	if (thread_start(&thread, end_thread, ending)) {
		free(ending);
		return;
	}
	if (!clock_join(thread, ABORT_MS))
		nccl->ending = thread;
}

void nccl_abort_wait(struct nccl *nccl)
{
	if (nccl->ending && !clock_join(nccl->ending, ENDED_MS))
		pthread_detach(nccl->ending);
	nccl->ending = 0;
}

/* The caller holds the lock. */
static void fail(struct nccl *nccl, const struct error *why)
{
	if (why)
		nccl->why = *why;
	nccl_abort_bounded(nccl);
	nccl->failed = true;
	pthread_cond_broadcast(&nccl->changed);
}

/* Wait for the training thread to notice the failure. The caller holds the lock. */
static void wait_for_trainer(struct nccl *nccl)
{
	struct timespec until = clock_after_ms(NOTICE_MS);

	while (!nccl->stop && !nccl->failure_noticed &&
	       !pthread_cond_timedwait(&nccl->changed, &nccl->lock, &until))
		;
	if (nccl->stop || nccl->failure_noticed || !nccl->lost)
		return;
	pthread_mutex_unlock(&nccl->lock);
	nccl->lost(nccl->context, nccl->why.text);
	pthread_mutex_lock(&nccl->lock);
}

/* ---- checks ---- */

static void take_sample(struct nccl *nccl, struct watch_sample *sample, struct error *broken)
{
	ncclResult_t result = ncclSuccess;

	*sample = (struct watch_sample){
		.now_ms = clock_now_ms(),
		.begun = nccl->begun,
		.buckets = nccl->buckets,
		.capturing = nccl->capturing,
	};
	watch_done(nccl->slots,
		   nccl->buckets > nccl->begun.bucket ? nccl->buckets : nccl->begun.bucket,
		   &sample->done);
	sample->done.calls = (uint64_t)watch_slot(nccl->slots, BUCKETS_MAX);
	if (nccl->capturing)
		return;
	ncclResult_t asked = nccl->library->async_error(nccl->handle, &result);

	if (asked != ncclSuccess)
		result = asked;
	sample->broken = result != ncclSuccess && result != ncclInProgress;
	if (sample->broken)
		nccl_error(nccl->library, nccl->handle, result, "a collective failed", broken);
}

static struct watch_report own_report(const struct watch_sample *sample, bool idle)
{
	struct watch_report report = {.idle = idle};
	bool call;

	report.next = watch_next(sample, &call);
	report.call = call;
	return report;
}

static void publish_position(const struct nccl *nccl, const struct watch_report *own)
{
	ranks_put(nccl->ranks, KEY_POSITION, own, sizeof *own, NULL);
}

/* Tell ranks that would wait for this one, or have not noticed, that it has given up, and why. */
static void publish_reason(const struct nccl *nccl, const char *why)
{
	ranks_put(nccl->ranks, KEY_FAILURE, why, strlen(why), NULL);
}

/* Gather the others' positions within COLLECT_MS in all. reports[size] is room for them;
 * reported[size] points to those of ranks that sent one and is NULL for the others. */
static void collect_reports(const struct nccl *nccl, struct watch_report *reports,
			    const struct watch_report **reported)
{
	int64_t until = clock_now_ms() + COLLECT_MS;

	for (int rank = 0; rank < nccl->comm.size; rank++)
		reported[rank] =
			rank == nccl->comm.rank ||
					ranks_get_exact(nccl->ranks, rank, KEY_POSITION,
							ranks_left_ms(until), &reports[rank],
							sizeof reports[rank], NULL)
				? NULL
				: &reports[rank];
}

/* After the deadline: report this rank's position, collect the others', and abort. The caller holds
 * the lock, which is released meanwhile. */
static void handle_stall(struct nccl *nccl, const struct watch_sample *sample)
{
	int rank = nccl->comm.rank, size = nccl->comm.size;
	struct watch_report own = own_report(sample, false);
	struct watch_report *reports = calloc((size_t)size, sizeof *reports);
	const struct watch_report **reported = calloc((size_t)size, sizeof *reported);
	struct error why = {.code = ERR_NETWORK};

	pthread_mutex_unlock(&nccl->lock);
	if (reports && reported) {
		publish_position(nccl, &own);
		collect_reports(nccl, reports, reported);
		watch_text(rank, size, nccl->meeting->hosts, &own, reported, nccl->timeout_ms,
			   why.text, sizeof why.text);
	} else {
		error_set(&why, ERR_NETWORK, "rank %d waited %d s in a collective", rank,
			  nccl->timeout_ms / 1000);
	}
	free(reports);
	free(reported);
	publish_reason(nccl, why.text);
	pthread_mutex_lock(&nccl->lock);
	fail(nccl, &why);
}

/* Publish the reason before the communicator is ended, so that the others learn it first. The
 * caller holds the lock, which is released meanwhile. */
static void publish_failure(struct nccl *nccl, const char *who, const char *why)
{
	char text[sizeof nccl->why.text + 96];

	snprintf(text, sizeof text, "%s%s", who, why);
	pthread_mutex_unlock(&nccl->lock);
	publish_reason(nccl, text);
	pthread_mutex_lock(&nccl->lock);
}

static void handle_broken(struct nccl *nccl, const struct watch_sample *sample, struct error *why)
{
	struct watch_report own = own_report(sample, false);

	error_prefix(why, "rank %d on %s, at step %" PRId64 ", bucket %d", nccl->comm.rank,
		     nccl->meeting->hosts[nccl->comm.rank], own.next.step, own.next.bucket);
	publish_failure(nccl, "", why->text);
	fail(nccl, why);
}

/* The training thread has an error of its own and waits until the communicator is aborted. */
static void handle_abort(struct nccl *nccl)
{
	char who[96];

	snprintf(who, sizeof who, "rank %d on %s: ", nccl->comm.rank,
		 nccl->meeting->hosts[nccl->comm.rank]);
	fail(nccl, NULL);
	publish_failure(nccl, who, nccl->why.text);
}

/* ---- failures of other ranks ---- */

struct peer_poll {
	int64_t next_ms;   /* time of the next check */
	bool asked;	   /* before */
	bool over;	   /* no rank can answer any more */
	bool rank_0_ended; /* rank 0 has ended */
};

/* A rank that failed has ended its communicator, so collectives that this rank waits for now, or
 * begins later, never complete. The caller holds the lock, which is released meanwhile. */
static void poll_peer_failure(struct nccl *nccl, struct peer_poll *peer_poll)
{
	struct error why;
	size_t size;
	char *text;
	int rc;

	if (peer_poll->over || clock_now_ms() < peer_poll->next_ms)
		return;
	pthread_mutex_unlock(&nccl->lock);
	rc = ranks_get_any(nccl->ranks, KEY_FAILURE, ANSWER_MS, (void **)&text, &size, NULL);
	pthread_mutex_lock(&nccl->lock);
	peer_poll->next_ms = clock_now_ms() + PEER_POLL_MS;
	/* The first answer shows whether the values come over PMIx, whose launcher ends the job if
	 * a rank fails. Later, rank 0, which keeps them, has ended. */
	peer_poll->over = !rc || rc == -ERR_UNAVAILABLE;
	peer_poll->rank_0_ended = rc == -ERR_UNAVAILABLE && peer_poll->asked;
	peer_poll->asked = true;
	if (rc)
		return;
	if (!nccl->stop) {
		error_set(&why, ERR_NETWORK, "another rank failed: %s", text);
		fail(nccl, &why);
	}
	free(text);
}

/* Rank 0 has ended and this rank still waits in a collective. */
static void without_rank_0(struct nccl *nccl, const struct watch_sample *sample)
{
	struct watch_report own = own_report(sample, false);
	struct error why;

	error_set(&why, ERR_NETWORK,
		  "rank %d on %s is waiting at step %" PRId64
		  ", bucket %d, but rank 0 on %s has ended. Look for earlier errors in its output",
		  nccl->comm.rank, nccl->meeting->hosts[nccl->comm.rank], own.next.step,
		  own.next.bucket, nccl->meeting->hosts[0]);
	fail(nccl, &why);
}

/* No collective has been in progress for a long time. The others may wait for this rank by now, and
 * will look for its position. */
static void report_idle(struct nccl *nccl, const struct watch_sample *sample)
{
	struct watch_report own = own_report(sample, true);

	pthread_mutex_unlock(&nccl->lock);
	publish_position(nccl, &own);
	pthread_mutex_lock(&nccl->lock);
}

struct watching {
	struct watch_state state;
	struct peer_poll peer_poll;
	bool reported; /* that it is idle */
};

/* The caller holds the lock. */
static void check_once(struct nccl *nccl, struct watching *watching)
{
	bool rank_0_ended = watching->peer_poll.rank_0_ended && nccl->timeout_ms > RANK_0_GRACE_MS;
	struct watch_sample sample;
	struct error why = {0};

	take_sample(nccl, &sample, &why);
	switch (watch_check(&watching->state, &sample,
			    rank_0_ended ? RANK_0_GRACE_MS : nccl->timeout_ms)) {
	case WATCH_STALLED:
		if (rank_0_ended)
			without_rank_0(nccl, &sample);
		else
			handle_stall(nccl, &sample);
		break;
	case WATCH_BROKEN:
		handle_broken(nccl, &sample, &why);
		break;
	case WATCH_IDLE:
		if (!watching->reported && !watching->peer_poll.rank_0_ended)
			report_idle(nccl, &sample);
		watching->reported = true;
		break;
	case WATCH_FINE:
		watching->reported = false;
		break;
	}
}

static void *watch(void *context)
{
	struct nccl *nccl = context;
	struct watching watching = {0};
	int poll_ms = nccl->timeout_ms / 10 < POLL_MS ? nccl->timeout_ms / 10 : POLL_MS;

	cudaSetDevice(nccl->cuda_device);
	pthread_mutex_lock(&nccl->lock);
	while (!nccl->stop && !nccl->failed) {
		struct timespec next = clock_after_ms(poll_ms);

		pthread_cond_timedwait(&nccl->changed, &nccl->lock, &next);
		if (nccl->stop)
			break;
		if (nccl->abort_wanted) {
			handle_abort(nccl);
			break;
		}
		poll_peer_failure(nccl, &watching.peer_poll);
		if (!nccl->stop && !nccl->failed)
			check_once(nccl, &watching);
	}
	if (nccl->failed)
		wait_for_trainer(nccl);
	nccl->thread_runs = false;
	pthread_cond_broadcast(&nccl->changed);
	pthread_mutex_unlock(&nccl->lock);
	return NULL;
}

int watchdog_start(struct nccl *nccl, struct error *err)
{
	nccl->thread_runs = true;
	if (!thread_start(&nccl->thread, watch, nccl))
		return 0;
	nccl->thread_runs = false;
	return error_memory(err, "the NCCL watchdog thread");
}

void watchdog_stop(struct nccl *nccl)
{
	if (!nccl->thread)
		return;
	pthread_mutex_lock(&nccl->lock);
	nccl->stop = true;
	pthread_cond_broadcast(&nccl->changed);
	pthread_mutex_unlock(&nccl->lock);
	pthread_join(nccl->thread, NULL);
	nccl->thread = 0;
}
