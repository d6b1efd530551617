/* SPDX-License-Identifier: BSD-3-Clause */
/* channel_next lends the caller the data of a frame inside the input buffer. taken is that frame's
 * size; the next call drops it. */
#include "rendezvous/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define MAGIC 0x31465242u /* "BRF1" in little-endian order */
#define READ_BYTES 65536

void channel_close(struct channel *channel)
{
	if (channel->fd >= 0)
		close(channel->fd);
	bytes_free(&channel->in);
	bytes_free(&channel->out);
	*channel = (struct channel){.fd = -1};
}

/* Write what the socket accepts. Return 0, or -1 if the peer has gone. */
static int write_some(struct channel *channel)
{
	struct bytes *out = &channel->out;

	while (out->size) {
		ssize_t n = send(channel->fd, out->data, out->size, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
		bytes_drop(out, (size_t)n);
	}
	return 0;
}

int channel_send(struct channel *channel, const struct frame *header, const void *data)
{
	unsigned char *at =
		header->size > FRAME_MAX
			? NULL
			: bytes_extend(&channel->out, FRAME_HEADER_BYTES + header->size);

	if (!at) {
		errno = ENOMEM;
		return -1;
	}
	bytes_put_u32(at, MAGIC);
	bytes_put_u32(at + 4, header->kind);
	bytes_put_u32(at + 8, (uint32_t)header->number);
	bytes_put_u32(at + 12, (uint32_t)header->size);
	bytes_put_u64(at + 16, header->token);
	bytes_put_u64(at + 24, header->sequence);
	if (header->size)
		memcpy(at + FRAME_HEADER_BYTES, data, header->size);
	return write_some(channel);
}

int channel_flush(struct channel *channel, int timeout_ms)
{
	int64_t until = clock_now_ms() + timeout_ms;

	for (;;) {
		if (write_some(channel))
			return -1;
		if (!channel->out.size)
			return 0;
		int64_t left = until - clock_now_ms();

		if (left <= 0)
			return 1;
		struct pollfd poll_fd = {.fd = channel->fd, .events = POLLOUT};

		poll(&poll_fd, 1, (int)left);
	}
}

static size_t limit_of(const struct channel *channel)
{
	return channel->limit ? channel->limit : FRAME_MAX;
}

static void drop_taken(struct channel *channel)
{
	if (channel->taken)
		bytes_drop(&channel->in, channel->taken);
	channel->taken = 0;
}

int channel_fill(struct channel *channel)
{
	struct bytes *in = &channel->in;

	drop_taken(channel);
	/* At most one frame of the largest size, so that a peer cannot fill the memory. The rest
	 * stays in the socket, which remains readable. */
	while (in->size < FRAME_HEADER_BYTES + limit_of(channel)) {
		if (bytes_reserve(in, in->size + READ_BYTES)) {
			errno = ENOMEM;
			return -1;
		}
		ssize_t n = read(channel->fd, in->data + in->size, READ_BYTES);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
		if (n == 0) {
			errno = ECONNRESET;
			return -1;
		}
		in->size += (size_t)n;
	}
	return 0;
}

int channel_next(struct channel *channel, struct frame *header, const void **data)
{
	drop_taken(channel);

	const unsigned char *at = channel->in.data;
	size_t waiting = channel->in.size;

	if (waiting >= 4 && bytes_get_u32(at) != MAGIC) {
		errno = EPROTO;
		return -1;
	}
	if (waiting < FRAME_HEADER_BYTES)
		return 0;
	*header = (struct frame){.kind = bytes_get_u32(at + 4),
				 .number = (int32_t)bytes_get_u32(at + 8),
				 .token = bytes_get_u64(at + 16),
				 .sequence = bytes_get_u64(at + 24),
				 .size = bytes_get_u32(at + 12)};
	if (header->size > limit_of(channel)) {
		errno = EPROTO;
		return -1;
	}
	if (waiting - FRAME_HEADER_BYTES < header->size)
		return 0;
	*data = at + FRAME_HEADER_BYTES;
	channel->taken = FRAME_HEADER_BYTES + header->size;
	return 1;
}

int channel_wait(const struct channel *channel, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};
	int64_t until = clock_now_ms() + timeout_ms;

	for (;;) {
		int n = poll(&poll_fd, 1, clock_left_ms(until));

		if (n > 0)
			return 1; /* the next fill reports an error */
		if (n == 0)
			return 0;
		if (errno != EINTR)
			return -1;
	}
}
