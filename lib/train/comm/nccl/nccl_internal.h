/* SPDX-License-Identifier: BSD-3-Clause */
/* One communicator. Shared by nccl.c (collectives), marks.c (progress marks that the GPU writes),
 * open.c (open and close) and watchdog.c (the thread that watches). */
#ifndef BERTH_TRAIN_COMM_NCCL_INTERNAL_H
#define BERTH_TRAIN_COMM_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/exchange.h"
#include "train/comm/comm.h"
#include "train/comm/meeting.h"
#include "train/comm/nccl/library.h"
#include "train/comm/nccl/watch.h"

#define BUCKETS_MAX 1023 /* later ones share the last slot */
#define SPANS_MAX 32	 /* buckets that are timed */
#define RING 256	 /* numbers on their way to the GPU, per track */

/* Numbers that change every step, on their way to one word of the GPU's memory. A copy in progress
 * reads host memory, which must not change meanwhile. So each number has its own place, reused once
 * the event of its half has occurred. */
struct ring {
	int64_t *values; /* pinned, [RING] */
	int64_t *word;	 /* in the GPU's memory */
	cudaEvent_t halves[2];
	unsigned next;
};

struct nccl {
	struct comm comm;
	const struct nccl_library *library;
	struct ranks *ranks; /* borrowed, as meeting */
	const struct meeting *meeting;
	int timeout_ms, cuda_device;
	cudaStream_t stream; /* for the collectives, before all other work */
	cudaEvent_t before, after;
	void *barrier_word;

	/* Progress marks: slots[bucket], and slots[BUCKETS_MAX] for calls. Host memory that the GPU
	 * writes. */
	volatile int64_t *slots;
	int64_t *slots_device;
	struct ring steps, calls;

	/* Only the training thread uses these. */
	bool pending; /* collectives since the last finish */
	int bucket;   /* number of the next all-reduce in its step */
	/* For the newest step: events around each reduction, and where the queue began to wait. */
	cudaEvent_t spans[SPANS_MAX][2], waiting;
	int span_count; /* how many are recorded; replaying a graph records them again */

	/* Shared by the training thread and the watchdog. The lock guards everything below and
	 * every NCCL call. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	bool thread_runs, stop;
	ncclComm_t handle;
	struct watch_position begun;
	int buckets;	/* in the newest complete step */
	bool in_step;	/* between begin_step and finish, where all-reduces are buckets */
	bool capturing; /* the last collective was captured in a graph */
	int captured;	/* buckets in that graph */
	bool abort_wanted, failed, failure_noticed;
	/* The thread that ends the communicator and has not finished; 0: none. */
	pthread_t ending;
	struct error why;

	void (*lost)(void *context, const char *why);
	void *context;
};

/* open.c */
int nccl_prepare(const struct comm_request *request, char common[48], struct error *err);
int nccl_open(const struct comm_request *request, struct comm **out, struct error *err);
bool nccl_close(struct comm *comm);

/* nccl.c */
/* Wait for an NCCL call that returned result, while it is in progress. The caller holds the lock,
 * which is released meanwhile. */
int nccl_wait_result(struct nccl *nccl, ncclResult_t result, const char *what, int timeout_ms,
		     struct error *err);
/* Return -ERR_NETWORK with why after a failure. Records that the training thread has noticed. The
 * caller holds the lock. */
int nccl_failure(struct nccl *nccl, struct error *err);

/* marks.c */
int marks_new(struct nccl *nccl, struct error *err);
void marks_free(struct nccl *nccl);
/* Put value into the ring's word, in stream order. */
int ring_put(struct ring *ring, cudaStream_t stream, int64_t value, struct error *err);
/* After the work now on the comm's stream: slots[slot] = *word. Can be captured. */
int mark_put(struct nccl *nccl, const int64_t *word, int slot, struct error *err);

/* The comm's stream, and the events around the newest step's reductions. */
int streams_new(struct nccl *nccl, struct error *err);
void streams_free(struct nccl *nccl);

/* watchdog.c */
/* Abort what NCCL has in progress, in a thread of its own because it can take long. What runs on
 * the GPU ends at once, but the call returns only when no CUDA graph contains a collective of this
 * communicator. Waits at most 1 s. The caller holds the lock. */
void nccl_abort_bounded(struct nccl *nccl);
/* The trainer has freed its graphs: wait at most 5 s for that thread to end. */
void nccl_abort_wait(struct nccl *nccl);
int watchdog_start(struct nccl *nccl, struct error *err);
void watchdog_stop(struct nccl *nccl); /* joins it */

#endif
