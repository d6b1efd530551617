/* SPDX-License-Identifier: BSD-3-Clause */
/* What the watchdog of a GPU's collectives decides, from what it sees. Pure: no clock, no CUDA, no
 * NCCL; the thread that looks is in watchdog.c.
 *
 * Two tracks. Buckets: the gradient reductions of a step, which may be nodes of a CUDA graph that
 * is launched again and again; after each, the GPU copies the step's number into the bucket's slot
 * of host memory. Calls: all other collectives, counted. */
#ifndef BERTH_TRAIN_COMM_NCCL_WATCH_H
#define BERTH_TRAIN_COMM_NCCL_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct watch_position {
	int64_t step; /* 0: no step was begun */
	int bucket;   /* of that step, from 0: how many of its buckets are done */
	uint64_t calls;
};

/* What is there to see at one time. */
struct watch_sample {
	int64_t now_ms;
	struct watch_position begun; /* handed to the GPU; bucket: how many of begun.step's are */
	struct watch_position done;  /* what the marks say */
	int buckets;		     /* of a whole step, 0 as long as none was whole */
	bool broken;		     /* the library reports an error of its own */
	bool capturing; /* a graph is being made: nothing may be asked, nothing is late */
};

enum watch_verdict {
	WATCH_FINE,
	WATCH_IDLE,    /* nothing under way for as long as the deadline: do the others wait? */
	WATCH_STALLED, /* something is under way and has not moved for as long as the deadline */
	WATCH_BROKEN,
};

/* Between two looks; zeros to begin with. */
struct watch_state {
	bool begun;
	struct watch_position last_begun, last_done;
	int64_t since_ms; /* when one of the two was last seen to move */
};

/* slots[count]: the newest step whose bucket i is done. Buckets are done in order: fills step and
 * bucket of *out. */
void watch_done(const volatile int64_t *slots, int count, struct watch_position *out);
/* Is something under way? */
bool watch_under_way(const struct watch_sample *sample);
/* Where what comes next is: a bucket of a step (*call false), or a call. */
struct watch_position watch_next(const struct watch_sample *sample, bool *call);
enum watch_verdict watch_check(struct watch_state *state, const struct watch_sample *sample,
			       int timeout_ms);

/* What a rank says of itself when it is late or long idle; travels between ranks of one build. */
struct watch_report {
	struct watch_position next;
	int32_t call; /* next is a call, not a bucket */
	int32_t idle;
};

/* One line: this rank waited; who stands where, who said nothing. reports[size]: NULL where that
 * rank said nothing; hosts[size]. Ranks that stand where this one does are left out. */
void watch_text(int rank, int size, const char (*hosts)[64], const struct watch_report *own,
		const struct watch_report *const *reports, int timeout_ms, char *text,
		size_t text_size);

#endif
