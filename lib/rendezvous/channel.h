/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames over a stream socket: between an agent and its PMIx server's process, and between the
 * ranks and rank 0's key-value store. It neither authenticates nor encrypts; the store does the
 * former itself.
 *
 * A frame is a header of FRAME_HEADER_BYTES bytes, little-endian, and size bytes of data:
 *   magic (4), kind (4), number (4), size (4), token (8), sequence (8) */
#ifndef BERTH_RENDEZVOUS_CHANNEL_H
#define BERTH_RENDEZVOUS_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

#define FRAME_HEADER_BYTES 32
#define FRAME_MAX (1u << 30) /* bytes of data; more is a defect */

struct frame {
	uint32_t kind; /* enum of the channel's users; so are the meanings of the others */
	int32_t number;
	uint64_t token, sequence;
	size_t size;
};

struct channel {
	int fd; /* non-blocking; owned; -1: none */
	struct bytes in, out;
	size_t taken; /* bytes of in that channel_next has returned; its next call drops them */
	size_t limit; /* bytes of data that a received frame may have; 0: FRAME_MAX */
};

void channel_close(struct channel *channel);

/* The functions below return -1 with errno if the peer has gone (ECONNRESET if it closed the
 * connection) or memory is out. */

/* Queue a frame and write what the socket accepts. data may be NULL if size is 0. */
int channel_send(struct channel *channel, const struct frame *header, const void *data);
/* Write queued data until the queue is empty or timeout_ms have passed (0: only what the socket
 * accepts at once). Return 0 if the queue is empty, 1 if data remain. */
int channel_flush(struct channel *channel, int timeout_ms);
/* Read what the socket has, but not much more than one frame. Return 0. Frames that came before an
 * error can still be taken. */
int channel_fill(struct channel *channel);
/* Get the next whole frame that was read. Return 1 with *data borrowed until the next call or fill,
 * 0 if there is none, or -1 with EPROTO if the data are invalid. */
int channel_next(struct channel *channel, struct frame *header, const void **data);
/* Wait until there is something to read, or the peer has gone. Return 1, or 0 after timeout_ms. */
int channel_wait(const struct channel *channel, int timeout_ms);

#endif
