/* SPDX-License-Identifier: BSD-3-Clause */
/* The decisions of the watchdog of GPU collectives, from what it observes. Pure: no clock, no CUDA,
 * no NCCL; the observing thread is in watchdog.c.
 *
 * There are two tracks. Buckets are the gradient reductions of a step, possibly nodes of a CUDA
 * graph that is launched repeatedly. After each one, the GPU copies the step's number into the
 * bucket's slot in host memory. Calls are all other collectives, counted. */
#ifndef BERTH_TRAIN_COMM_NCCL_WATCH_H
#define BERTH_TRAIN_COMM_NCCL_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct watch_position {
	int64_t step; /* 0: no step was begun */
	int bucket;   /* in that step: how many of its buckets are done */
	uint64_t calls;
};

/* One observation. */
struct watch_sample {
	int64_t now_ms;
	struct watch_position begun; /* handed to the GPU; bucket: how many buckets of begun.step */
	struct watch_position done;  /* from the progress marks */
	int buckets;		     /* in a complete step; 0 until one was complete */
	bool broken;		     /* the library reports an error */
	/* A graph is being captured: the library must not be queried, and nothing is late. */
	bool capturing;
};

enum watch_verdict {
	WATCH_FINE,
	WATCH_IDLE,    /* nothing in progress for the whole timeout: do others wait? */
	WATCH_STALLED, /* something in progress has not moved for the whole timeout */
	WATCH_BROKEN,
};

/* State kept between observations; initialize it with zeros. */
struct watch_state {
	bool begun;
	struct watch_position last_begun, last_done;
	int64_t since_ms; /* when one of the two last moved */
};

/* slots[index], which the GPU may be writing. */
int64_t watch_slot(const volatile int64_t *slots, int index);
/* slots[count] holds the newest step whose bucket i is done. Buckets complete in order. Fills step
 * and bucket of *out. */
void watch_done(const volatile int64_t *slots, int count, struct watch_position *out);
/* The position of what comes next: a bucket of a step (*call false), or a call. */
struct watch_position watch_next(const struct watch_sample *sample, bool *call);
enum watch_verdict watch_check(struct watch_state *state, const struct watch_sample *sample,
			       int timeout_ms);

/* What a rank reports when it is late or long idle; sent between ranks of one build. */
struct watch_report {
	struct watch_position next;
	int32_t call; /* next is a call, not a bucket */
	int32_t idle;
};

/* Write one line for users: where this rank waited, where the other ranks are, and which sent no
 * report. reports[size] is NULL for ranks without one; hosts[size]. Ranks at this rank's position
 * are left out. */
void watch_text(int rank, int size, const char (*hosts)[64], const struct watch_report *own,
		const struct watch_report *const *reports, int timeout_ms, char *text,
		size_t text_size);

#endif
