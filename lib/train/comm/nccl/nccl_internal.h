/* SPDX-License-Identifier: BSD-3-Clause */
/* One communicator; shared by nccl.c (collectives), marks.c (what the GPU tells of its progress),
 * open.c (beginning and end) and watchdog.c (the thread that watches). */
#ifndef BERTH_TRAIN_COMM_NCCL_INTERNAL_H
#define BERTH_TRAIN_COMM_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "train/comm/comm.h"
#include "train/comm/nccl/library.h"
#include "train/comm/nccl/rendezvous.h"
#include "train/comm/nccl/watch.h"

#define BUCKETS_MAX 1023 /* later ones share the last slot */
#define SPANS_MAX 32	 /* buckets whose time is measured */
#define RING 256	 /* numbers on their way to the GPU, of a track */

/* Numbers that change from step to step, on their way to one word of the GPU's memory: host memory
 * that a copy under way reads must stay as it is, so each number has its own place, used again when
 * the event of its half has come. */
struct ring {
	int64_t *values; /* pinned, [RING] */
	int64_t *word;	 /* the GPU's */
	cudaEvent_t halves[2];
	unsigned next;
};

struct nccl {
	struct comm comm;
	const struct nccl_library *library;
	struct ranks *ranks;
	struct nccl_rendezvous rendezvous;
	int timeout_ms, cuda_device;
	cudaStream_t stream; /* of the collectives, before all others */
	cudaEvent_t before, after;
	void *barrier_word;

	/* What the GPU tells: slots[bucket], and slots[BUCKETS_MAX] for calls. Host memory that it
	 * writes. */
	volatile int64_t *slots;
	int64_t *slots_device;
	struct ring steps, calls;

	/* The trainer's thread alone. */
	bool pending; /* collectives since the last finish */
	int bucket;   /* the next all-reduce's number in its step */
	/* Of the newest step: events around each reduction, and where the queue began to wait. */
	cudaEvent_t spans[SPANS_MAX][2], waiting;
	int span_count; /* how many are recorded; a replayed graph records them anew */

	/* The trainer's thread and the watchdog: everything below is under lock, and so is each
	 * call of NCCL. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	bool thread_runs, stop;
	ncclComm_t handle;
	struct watch_position begun;
	int buckets;	/* of the newest whole step */
	bool in_step;	/* all-reduces are buckets: between begin_step and finish */
	bool capturing; /* the last collective went into a graph */
	int captured;	/* buckets in it */
	bool abort_wanted, failed, failure_noticed;
	pthread_t ending; /* ends the communicator, and has not finished; 0: there is none */
	struct error why;

	void (*lost)(void *context, const char *why);
	void *context;
};

/* open.c */
int nccl_open(const struct comm_request *request, struct comm **out, struct error *err);
void nccl_close(struct comm *comm);

/* nccl.c */
/* result is what a call of NCCL returned: wait for it while it is in progress. Under lock, which
 * is given up meanwhile. */
int nccl_wait_result(struct nccl *nccl, ncclResult_t result, const char *what, int timeout_ms,
		     struct error *err);
/* -ERR_NETWORK with why after a failure. Under lock; the trainer's thread then has noticed. */
int nccl_failure(struct nccl *nccl, struct error *err);

/* marks.c */
int marks_new(struct nccl *nccl, struct error *err);
void marks_free(struct nccl *nccl);
/* Put value into the ring's word, in stream's order. */
int ring_put(struct ring *ring, cudaStream_t stream, int64_t value, struct error *err);
/* After what is on the comm's stream now: slots[slot] = *word. Can be captured. */
int mark_put(struct nccl *nccl, const int64_t *word, int slot, struct error *err);

/* The comm's stream, events around the newest step's reductions. */
int streams_new(struct nccl *nccl, struct error *err);
void streams_free(struct nccl *nccl);

/* watchdog.c */
/* End what NCCL has under way, in a thread of its own: it may take long. What runs on the GPU ends
 * at once, but the call returns only when no CUDA graph has a collective of this communicator in it
 * any more. Waits 1 s at most. Under lock. */
void nccl_abort_bounded(struct nccl *nccl);
/* The trainer has freed its graphs: the end of that thread, 5 s at most. */
void nccl_abort_wait(struct nccl *nccl);
int watchdog_start(struct nccl *nccl, struct error *err);
void watchdog_stop(struct nccl *nccl); /* joins it */

#endif
