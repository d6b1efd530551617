/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread that watches a GPU's collectives: looks at what the GPU has written and at NCCL's own
 * word, and ends what stands still. What it decides is watch.c's; it calls nothing of CUDA while
 * the GPU works, which a graph in the making would not survive. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/comm/nccl/nccl_internal.h"

#define LOOK_MS 200   /* between two looks, at most */
#define HEAR_MS 2000  /* for the others to say where they stand */
#define ABORT_MS 5000 /* for NCCL to end what it has under way */
#define LOST_MS 10000 /* for the trainer's thread to notice */

static struct timespec after_ms(int64_t ms)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += ms / 1000;
	at.tv_nsec += ms % 1000 * 1000000;
	if (at.tv_nsec >= 1000000000) {
		at.tv_sec++;
		at.tv_nsec -= 1000000000;
	}
	return at;
}

/* ---- ending ---- */

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
	struct timespec until;
	pthread_t thread;

	if (!ending)
		return;
	*ending = (struct ending){nccl->library, nccl->handle};
	nccl->handle = NULL;
	if (pthread_create(&thread, NULL, end_thread, ending)) {
		free(ending);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ABORT_MS / 1000;
	if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until))
		pthread_detach(thread);
}

/* Under lock. */
static void fail(struct nccl *nccl, const struct error *why)
{
	if (why)
		nccl->why = *why;
	nccl_abort_bounded(nccl);
	nccl->failed = true;
	pthread_cond_broadcast(&nccl->changed);
}

/* Does the trainer's thread come back to hear it? Under lock. */
static void wait_noticed(struct nccl *nccl)
{
	struct timespec until = after_ms(LOST_MS);

	while (!nccl->stop && !nccl->noticed &&
	       !pthread_cond_timedwait(&nccl->changed, &nccl->lock, &until))
		;
	if (nccl->stop || nccl->noticed || !nccl->lost)
		return;
	pthread_mutex_unlock(&nccl->lock);
	nccl->lost(nccl->context, nccl->why.text);
	pthread_mutex_lock(&nccl->lock);
}

/* ---- looking ---- */

static void see(struct nccl *nccl, struct watch_seen *seen, struct error *broken)
{
	ncclResult_t result = ncclSuccess;

	*seen = (struct watch_seen){
		.now_ms = nccl_now_ms(),
		.begun = nccl->begun,
		.buckets = nccl->buckets,
		.capturing = nccl->capturing,
	};
	watch_done(nccl->slots,
		   nccl->buckets > nccl->begun.bucket ? nccl->buckets : nccl->begun.bucket,
		   &seen->done);
	seen->done.calls = (uint64_t)nccl->slots[BUCKETS_MAX];
	if (nccl->capturing)
		return;
	ncclResult_t asked = nccl->library->async_error(nccl->handle, &result);

	if (asked != ncclSuccess)
		result = asked;
	seen->broken = result != ncclSuccess && result != ncclInProgress;
	if (seen->broken)
		nccl_error(nccl->library, nccl->handle, result, "a collective failed", broken);
}

static struct watch_word own_word(const struct watch_seen *seen, bool idle)
{
	struct watch_word word = {.idle = idle};
	bool call;

	word.next = watch_next(seen, &call);
	word.call = call;
	return word;
}

/* Past the deadline: say where this rank stands, hear the others, end it. Under lock, which is
 * given up meanwhile. */
static void late(struct nccl *nccl, const struct watch_seen *seen)
{
	struct meet *meet = &nccl->meet;
	struct watch_word own = own_word(seen, false);
	struct watch_word *words = calloc((size_t)meet->size, sizeof *words);
	const struct watch_word **told = calloc((size_t)meet->size, sizeof *told);
	bool *heard = calloc((size_t)meet->size, sizeof *heard);
	struct error why = {.code = ERR_NETWORK};

	pthread_mutex_unlock(&nccl->lock);
	if (words && told && heard) {
		meet_tell(meet, &own, NULL);
		meet_hear(meet, HEAR_MS, words, heard);
		for (int rank = 0; rank < meet->size; rank++)
			told[rank] = heard[rank] ? &words[rank] : NULL;
		watch_text(meet->rank, meet->size, (const char(*)[64])meet->hosts, &own, told,
			   nccl->timeout_ms, why.text, sizeof why.text);
	} else {
		error_set(&why, ERR_NETWORK, "rank %d waited %d s in a collective", meet->rank,
			  nccl->timeout_ms / 1000);
	}
	free(words);
	free(told);
	free(heard);
	pthread_mutex_lock(&nccl->lock);
	fail(nccl, &why);
}

static void broken(struct nccl *nccl, const struct watch_seen *seen, struct error *why)
{
	struct watch_word own = own_word(seen, false);

	error_prefix(why, "rank %d on %s, at step %" PRId64 ", bucket %d", nccl->meet.rank,
		     nccl->meet.hosts[nccl->meet.rank], own.next.step, own.next.bucket);
	fail(nccl, why);
}

static void *watch(void *context)
{
	struct nccl *nccl = context;
	struct watch_state state = {0};
	bool told = false;
	int look_ms = nccl->timeout_ms / 10 < LOOK_MS ? nccl->timeout_ms / 10 : LOOK_MS;

	cudaSetDevice(nccl->cuda_device);
	pthread_mutex_lock(&nccl->lock);
	while (!nccl->stop && !nccl->failed) {
		struct timespec next = after_ms(look_ms);
		struct watch_seen seen;
		struct error why = {0};

		pthread_cond_timedwait(&nccl->changed, &nccl->lock, &next);
		if (nccl->stop)
			break;
		if (nccl->abort_wanted) {
			fail(nccl, NULL);
			break;
		}
		see(nccl, &seen, &why);
		switch (watch_look(&state, &seen, nccl->timeout_ms)) {
		case WATCH_LATE:
			late(nccl, &seen);
			break;
		case WATCH_BROKEN:
			broken(nccl, &seen, &why);
			break;
		case WATCH_IDLE:
			/* The others may wait for this rank by now: they will ask where it is. */
			if (!told) {
				struct watch_word own = own_word(&seen, true);

				pthread_mutex_unlock(&nccl->lock);
				meet_tell(&nccl->meet, &own, NULL);
				pthread_mutex_lock(&nccl->lock);
			}
			told = true;
			break;
		case WATCH_FINE:
			told = false;
			break;
		}
	}
	if (nccl->failed)
		wait_noticed(nccl);
	nccl->thread_runs = false;
	pthread_cond_broadcast(&nccl->changed);
	pthread_mutex_unlock(&nccl->lock);
	return NULL;
}

int watchdog_start(struct nccl *nccl, struct error *err)
{
	nccl->thread_runs = true;
	if (!pthread_create(&nccl->thread, NULL, watch, nccl))
		return 0;
	nccl->thread_runs = false;
	return error_memory(err, "a thread that watches NCCL");
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
