/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread that watches a GPU's collectives: looks at what the GPU has written and at NCCL's own
 * word, and ends what stands still. What it decides is watch.c's; it calls nothing of CUDA while
 * the GPU works, which a graph in the making would not survive. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "train/comm/nccl/nccl_internal.h"

#define LOOK_MS 200   /* between two looks, at most */
#define HEAR_MS 2000  /* for the others to say where they stand */
#define ABORT_MS 1000 /* for NCCL to end what it has under way */
#define ENDED_MS 5000 /* the same, at the end of all */
#define LOST_MS 10000 /* for the trainer's thread to notice */
#define ASK_MS 1000   /* between two questions whether another rank has given up */
#define ANSWER_MS 100 /* for the answer */
#define GONE_MS 3000  /* for a collective under way, once rank 0 is known to have ended */

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

static bool joined(pthread_t thread, int64_t ms)
{
	struct timespec until = clock_after_ms(ms);

	return !pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until);
}

void nccl_abort_bounded(struct nccl *nccl)
{
	struct ending *ending = nccl->handle ? malloc(sizeof *ending) : NULL;
	pthread_t thread;

	if (!ending)
		return;
	*ending = (struct ending){nccl->library, nccl->handle};
	nccl->handle = NULL;
	if (pthread_create(&thread, NULL, end_thread, ending)) {
		free(ending);
		return;
	}
	if (!joined(thread, ABORT_MS))
		nccl->ending = thread;
}

void nccl_abort_wait(struct nccl *nccl)
{
	if (nccl->ending && !joined(nccl->ending, ENDED_MS))
		pthread_detach(nccl->ending);
	nccl->ending = 0;
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
	struct timespec until = clock_after_ms(LOST_MS);

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
		.now_ms = clock_now_ms(),
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
	meet_end(meet, why.text, NULL);
	pthread_mutex_lock(&nccl->lock);
	fail(nccl, &why);
}

/* Before the communicator is ended, which the others notice: they should hear why first. Under lock,
 * which is given up meanwhile. */
static void tell_end(struct nccl *nccl, const char *who, const char *why)
{
	char text[sizeof nccl->why.text + 96];

	snprintf(text, sizeof text, "%s%s", who, why);
	pthread_mutex_unlock(&nccl->lock);
	meet_end(&nccl->meet, text, NULL);
	pthread_mutex_lock(&nccl->lock);
}

static void broken(struct nccl *nccl, const struct watch_seen *seen, struct error *why)
{
	struct watch_word own = own_word(seen, false);

	error_prefix(why, "rank %d on %s, at step %" PRId64 ", bucket %d", nccl->meet.rank,
		     nccl->meet.hosts[nccl->meet.rank], own.next.step, own.next.bucket);
	tell_end(nccl, "", why->text);
	fail(nccl, why);
}

/* The trainer gives up: it has an error of its own, and waits for the end. */
static void aborted(struct nccl *nccl)
{
	char who[96];

	snprintf(who, sizeof who, "rank %d on %s: ", nccl->meet.rank,
		 nccl->meet.hosts[nccl->meet.rank]);
	fail(nccl, NULL);
	tell_end(nccl, who, nccl->why.text);
}

/* ---- what the others say ---- */

struct asking {
	int64_t next_ms; /* when to ask */
	bool over;	 /* there is nobody to ask any more */
	bool gone;	 /* rank 0 has ended */
};

/* Another rank that gave up has ended its communicator: what this rank waits for now, or begins
 * later, never comes. Under lock, which is given up meanwhile. */
static void ask(struct nccl *nccl, struct asking *asking)
{
	struct error why = {.code = ERR_NETWORK};
	enum meet_end end;

	if (asking->over || clock_now_ms() < asking->next_ms)
		return;
	pthread_mutex_unlock(&nccl->lock);
	end = meet_ended(&nccl->meet, ANSWER_MS, why.text, sizeof why.text);
	pthread_mutex_lock(&nccl->lock);
	asking->next_ms = clock_now_ms() + ASK_MS;
	asking->over = end != MEET_GOES_ON;
	asking->gone = end == MEET_GONE;
	if (end != MEET_ENDED || nccl->stop)
		return;
	error_prefix(&why, "another rank gave up");
	fail(nccl, &why);
}

/* Rank 0 has ended and this rank still waits in a collective. */
static void without_rank_0(struct nccl *nccl, const struct watch_seen *seen)
{
	struct watch_word own = own_word(seen, false);
	struct error why;

	error_set(&why, ERR_NETWORK,
		  "rank %d on %s waits at step %" PRId64 ", bucket %d, and rank 0 on %s has ended; "
		  "look at that rank's last lines",
		  nccl->meet.rank, nccl->meet.hosts[nccl->meet.rank], own.next.step,
		  own.next.bucket, nccl->meet.hosts[0]);
	fail(nccl, &why);
}

/* Nothing under way for long: the others may wait for this rank by now, and will ask where it is. */
static void idle(struct nccl *nccl, const struct watch_seen *seen)
{
	struct watch_word own = own_word(seen, true);

	pthread_mutex_unlock(&nccl->lock);
	meet_tell(&nccl->meet, &own, NULL);
	pthread_mutex_lock(&nccl->lock);
}

struct watching {
	struct watch_state state;
	struct asking asking;
	bool told; /* that it is idle */
};

/* Under lock. */
static void look(struct nccl *nccl, struct watching *watching)
{
	bool gone = watching->asking.gone && nccl->timeout_ms > GONE_MS;
	struct watch_seen seen;
	struct error why = {0};

	see(nccl, &seen, &why);
	switch (watch_look(&watching->state, &seen, gone ? GONE_MS : nccl->timeout_ms)) {
	case WATCH_LATE:
		if (gone)
			without_rank_0(nccl, &seen);
		else
			late(nccl, &seen);
		break;
	case WATCH_BROKEN:
		broken(nccl, &seen, &why);
		break;
	case WATCH_IDLE:
		if (!watching->told && !watching->asking.gone)
			idle(nccl, &seen);
		watching->told = true;
		break;
	case WATCH_FINE:
		watching->told = false;
		break;
	}
}

static void *watch(void *context)
{
	struct nccl *nccl = context;
	struct watching watching = {0};
	int look_ms = nccl->timeout_ms / 10 < LOOK_MS ? nccl->timeout_ms / 10 : LOOK_MS;

	cudaSetDevice(nccl->cuda_device);
	pthread_mutex_lock(&nccl->lock);
	while (!nccl->stop && !nccl->failed) {
		struct timespec next = clock_after_ms(look_ms);

		pthread_cond_timedwait(&nccl->changed, &nccl->lock, &next);
		if (nccl->stop)
			break;
		if (nccl->abort_wanted) {
			aborted(nccl);
			break;
		}
		ask(nccl, &watching.asking);
		if (!nccl->stop && !nccl->failed)
			look(nccl, &watching);
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
