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

static void *buffer_extend(struct buffer *buffer, size_t size)
{
	if (buffer->from == buffer->size)
		buffer->from = buffer->size = 0;
	if (buffer->from > buffer->room / 2) {
		memmove(buffer->data, buffer->data + buffer->from, buffer->size - buffer->from);
		buffer->size -= buffer->from;
		buffer->from = 0;
	}
	if (size > buffer->room - buffer->size) {
		size_t room = buffer->room ? buffer->room : READ_BYTES;

		while (room - buffer->size < size)
			room *= 2;
		unsigned char *data = realloc(buffer->data, room);

		if (!data)
			return NULL;
		buffer->data = data;
		buffer->room = room;
	}
	return buffer->data + buffer->size;
}

void channel_close(struct channel *channel)
{
	if (channel->fd >= 0)
		close(channel->fd);
	free(channel->in.data);
	free(channel->out.data);
	*channel = (struct channel){.fd = -1};
}

/* What the socket takes. 0, or -1: gone. */
static int write_some(struct channel *channel)
{
	struct buffer *out = &channel->out;

	while (out->from < out->size) {
		ssize_t n = send(channel->fd, out->data + out->from, out->size - out->from,
				 MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
		out->from += (size_t)n;
	}
	return 0;
}

int channel_send(struct channel *channel, const struct frame *head, const void *data)
{
	unsigned char *at = head->size > FRAME_MAX
				    ? NULL
				    : buffer_extend(&channel->out, sizeof *head + head->size);

	if (!at)
		return -1;
	memcpy(at, head, sizeof *head);
	if (head->size)
		memcpy(at + sizeof *head, data, head->size);
	channel->out.size += sizeof *head + head->size;
	return write_some(channel);
}

int channel_flush(struct channel *channel, int timeout_ms)
{
	int64_t until = clock_now_ms() + timeout_ms;

	for (;;) {
		if (write_some(channel))
			return -1;
		if (channel->out.from == channel->out.size)
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
	for (;;) {
		void *at = buffer_extend(&channel->in, READ_BYTES);

		if (!at)
			return -1;
		ssize_t n = read(channel->fd, at, READ_BYTES);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
		if (n == 0)
			return -1;
		channel->in.size += (size_t)n;
	}
}

int channel_next(struct channel *channel, struct frame *head, const void **data)
{
	struct buffer *in = &channel->in;
	size_t waiting = in->size - in->from;

	if (waiting < sizeof *head)
		return 0;
	memcpy(head, in->data + in->from, sizeof *head);
	if (head->size > FRAME_MAX)
		return -1;
	if (waiting - sizeof *head < head->size)
		return 0;
	*data = in->data + in->from + sizeof *head;
	in->from += sizeof *head + head->size;
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
