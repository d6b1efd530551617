/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames between the agent and its PMIx server's process over a socket pair. Both ends are one
 * build on one machine. Private to this stage. */
#ifndef BERTH_PMIX_CHANNEL_H
#define BERTH_PMIX_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

enum frame_kind {
	/* agent to server */
	FRAME_START = 1,   /* JSON: struct ranks_job */
	FRAME_GATHER_DONE, /* token, number: status, data */
	FRAME_FETCH_DONE,  /* token, number: status, data */
	FRAME_SERVE,	   /* token: the agent's own, number: rank */
	FRAME_PREPARE,	   /* number: node, data: directory, NUL, node's name, NUL; no answer */
	FRAME_RANK_ENDED,  /* number: local rank */
	FRAME_MISSING,
	FRAME_STOP,
	/* server to agent */
	/* number: 0 or -code, with a text as data. To START, MISSING and STOP. The data of a START
	 * that worked are JSON: for each local rank its environment as [[name, value, why]...], or
	 * {"code", "text"} if PMIx has none for it. */
	FRAME_REPLY,
	FRAME_GATHER, /* token, sequence, data */
	FRAME_FETCH,  /* token, number: rank */
	FRAME_ABORT,  /* number: local rank, sequence: status, data: text */
	FRAME_SERVED, /* token, number: status, data */
};

struct frame {
	uint32_t kind;
	int32_t number;
	uint64_t token, sequence;
	uint64_t size; /* bytes of data after the header */
};

#define FRAME_MAX (UINT64_C(1) << 30) /* more is a defect: PMIx's own messages are far smaller */

struct channel {
	int fd; /* non-blocking; owned */
	struct bytes in, out;
	size_t taken; /* bytes of in that channel_next has returned; the next fill drops them */
};

void channel_close(struct channel *channel);

/* Queue a frame and write what the socket accepts. data may be NULL if size is 0. Return 0, or -1
 * if the peer has gone or memory is out. */
int channel_send(struct channel *channel, const struct frame *header, const void *data);
/* Write queued data until the queue is empty or timeout_ms have passed (0: only what the socket
 * accepts at once). Return 0 if the queue is empty, 1 if data remain, -1 if the peer has gone. */
int channel_flush(struct channel *channel, int timeout_ms);
/* Read what the socket has. Return 0, or -1 if the peer has gone. */
int channel_fill(struct channel *channel);
/* Get the next whole frame that was read. Return 1 with *data borrowed until the next fill, 0 if
 * there is none, or -1 if the data are invalid. */
int channel_next(struct channel *channel, struct frame *header, const void **data);
/* Wait until there is something to read. Return 1, 0 after timeout_ms, or -1 if the peer has
 * gone. */
int channel_wait(const struct channel *channel, int timeout_ms);

#endif
