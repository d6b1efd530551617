/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames between the agent and its PMIx server's process: one machine, one build, a socket pair.
 * Inside the stage. */
#ifndef BERTH_PMIX_CHANNEL_H
#define BERTH_PMIX_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

enum frame_kind {
	/* agent to server */
	FRAME_START = 1,   /* JSON: the job */
	FRAME_ENVIRONMENT, /* number: local rank */
	FRAME_GATHER_DONE, /* token, number: status, data */
	FRAME_FETCH_DONE,  /* token, number: status, data */
	FRAME_SERVE,	   /* token: ours, number: rank */
	FRAME_PREPARE,	   /* number: node, data: folder, NUL, node's name, NUL; no answer */
	FRAME_RANK_ENDED,  /* number: local rank */
	FRAME_MISSING,
	FRAME_STOP,
	/* server to agent */
	FRAME_REPLY,  /* number: 0 or -code; to START, ENVIRONMENT, MISSING, STOP: text or JSON */
	FRAME_GATHER, /* token, sequence, data */
	FRAME_FETCH,  /* token, number: rank */
	FRAME_ABORT,  /* number: local rank, sequence: status, data: text */
	FRAME_SERVED, /* token, number: status, data */
};

struct frame {
	uint32_t kind;
	int32_t number;
	uint64_t token, sequence;
	uint64_t size; /* bytes of data that follow */
};

#define FRAME_MAX (UINT64_C(1) << 30) /* more is a defect: PMIx's own messages are far below */

struct channel {
	int fd; /* non-blocking; owned */
	struct bytes in, out;
	size_t taken; /* bytes of in that channel_next has returned; dropped by the next fill */
};

void channel_close(struct channel *channel);

/* Put a frame into the queue and write what the socket takes. data may be NULL when size is 0.
 * 0, or -1: the other side is gone, or memory out. */
int channel_send(struct channel *channel, const struct frame *header, const void *data);
/* Write what waits until all is gone or timeout_ms are over (0: what goes at once).
 * 0: all gone; 1: something waits; -1: gone. */
int channel_flush(struct channel *channel, int timeout_ms);
/* Read what the socket has. 0, or -1: gone. */
int channel_fill(struct channel *channel);
/* The next whole frame of what was read: 1 with *data borrowed until the next fill; 0 none;
 * -1 nonsense. */
int channel_next(struct channel *channel, struct frame *header, const void **data);
/* Wait for something to read. 1, 0: time over; -1 gone. */
int channel_wait(const struct channel *channel, int timeout_ms);

#endif
