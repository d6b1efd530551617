/* SPDX-License-Identifier: BSD-3-Clause */
#include "pmix/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

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
	unsigned char *at = header->size > FRAME_MAX
				    ? NULL
				    : bytes_extend(&channel->out, sizeof *header + header->size);

	if (!at)
		return -1;
	memcpy(at, header, sizeof *header);
	if (header->size)
		memcpy(at + sizeof *header, data, header->size);
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

int channel_fill(struct channel *channel)
{
	struct bytes *in = &channel->in;

	if (channel->taken)
		bytes_drop(in, channel->taken);
	channel->taken = 0;
	for (;;) {
		if (bytes_reserve(in, in->size + READ_BYTES))
			return -1;
		ssize_t n = read(channel->fd, in->data + in->size, READ_BYTES);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
		if (n == 0)
			return -1;
		in->size += (size_t)n;
	}
}

int channel_next(struct channel *channel, struct frame *header, const void **data)
{
	size_t waiting = channel->in.size - channel->taken;

	if (waiting < sizeof *header)
		return 0;
	const unsigned char *at = channel->in.data + channel->taken;

	memcpy(header, at, sizeof *header);
	if (header->size > FRAME_MAX)
		return -1;
	if (waiting - sizeof *header < header->size)
		return 0;
	*data = at + sizeof *header;
	channel->taken += sizeof *header + header->size;
	return 1;
}

int channel_wait(const struct channel *channel, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};
	int64_t until = clock_now_ms() + timeout_ms;

	for (;;) {
		int64_t left = until - clock_now_ms();
		int n = poll(&poll_fd, 1, left > 0 ? (int)left : 0);

		if (n > 0)
			return poll_fd.revents & POLLIN ? 1 : -1;
		if (n == 0)
			return 0;
		if (errno != EINTR)
			return -1;
	}
}
