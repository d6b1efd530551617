/* SPDX-License-Identifier: BSD-3-Clause */
#include "overlay/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "overlay/socket.h"

/* Before the other side is proved it may make us hold no more than this. */
#define GREETING_READ 128
#define OPEN_READ (256u << 10)
#define ROUNDS 8 /* reads in a row, so that one loud peer does not silence the others */

static void want(struct link *link)
{
	const void *bytes;
	bool out = link->connecting || wire_output(link->wire, &bytes);

	loop_want(link->loop, &link->source,
		  (link->paused ? 0u : (uint32_t)EPOLLIN) | (out ? (uint32_t)EPOLLOUT : 0u));
}

static void end(struct link *link, const struct error *why)
{
	if (link->over)
		return;
	link->over = true;
	loop_remove(link->loop, &link->source);
	link->owner->ended(link->owner->context, link, why);
}

/* 0, or -ERR_NETWORK when the socket is dead. */
static int flush(struct link *link, struct error *err)
{
	const void *bytes;
	size_t size;

	while (!link->connecting && (size = wire_output(link->wire, &bytes)) > 0) {
		ssize_t n = send(link->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n < 0)
			return error_set(err, ERR_NETWORK, "writing to %s: %s", link->peer,
					 strerror(errno));
		wire_wrote(link->wire, (size_t)n);
	}
	return 0;
}

/* Messages until there is none left. False: the link is over or gone. */
static bool deliver(struct link *link)
{
	struct wire_message message;
	struct error err = {0};
	int rc = 0;

	if (!link->open && wire_state(link->wire) == WIRE_OPEN) {
		link->open = true;
		link->owner->opened(link->owner->context, link);
	}
	while (!link->over && (rc = wire_next(link->wire, &message, &err)) > 0)
		link->owner->message(link->owner->context, link, &message);
	if (!link->over && rc < 0) {
		error_prefix(&err, "%s", link->peer);
		end(link, &err);
	}
	return !link->over;
}

/* Read what is there. False: the link is over. */
static bool drain(struct link *link)
{
	static _Thread_local unsigned char buffer[OPEN_READ];
	struct error err = {0};

	for (int round = 0; round < ROUNDS; round++) {
		size_t room = link->open ? sizeof buffer : GREETING_READ;
		ssize_t n = recv(link->fd, buffer, room, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (n < 0) {
			error_set(&err, ERR_NETWORK, "reading from %s: %s", link->peer,
				  strerror(errno));
			end(link, &err);
			return false;
		}
		if (n == 0) {
			int rc = wire_feed_end(link->wire, &err);

			if (rc)
				error_prefix(&err, "%s", link->peer);
			end(link, rc ? &err : NULL);
			return false;
		}
		link->heard_ms = clock_now_ms();
		if (wire_feed(link->wire, buffer, (size_t)n, &err)) {
			flush(link, NULL); /* a refusal, if there is one */
			error_prefix(&err, "%s", link->peer);
			end(link, &err);
			return false;
		}
		if (!deliver(link))
			return false;
		if (link->paused)
			return true;
	}
	return true;
}

static bool connected(struct link *link)
{
	int error = 0;
	socklen_t size = sizeof error;
	struct error err = {0};

	getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	link->connecting = false;
	if (!error)
		return true;
	error_set(&err, ERR_NETWORK, "connecting to %s: %s", link->peer, strerror(error));
	end(link, &err);
	return false;
}

static void destroy(struct link *link)
{
	wire_free(link->wire);
	free(link);
}

static void handle(struct link *link, uint32_t events)
{
	struct error err = {0};

	if (link->connecting && !connected(link))
		return;
	if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !drain(link))
		return;
	if (link->paused && (events & (EPOLLHUP | EPOLLERR))) {
		/* Nobody is left to be held back; what it sent is still there to be read. */
		link->paused = false;
	}
	if (flush(link, &err)) {
		end(link, &err);
		return;
	}
	const void *bytes;

	if (wire_state(link->wire) == WIRE_CLOSING && !wire_output(link->wire, &bytes)) {
		end(link, NULL);
		return;
	}
	want(link);
}

static void ready(struct loop_source *source, uint32_t events)
{
	struct link *link = (struct link *)source;

	link->busy = true;
	handle(link, events);
	link->busy = false;
	if (link->dead)
		destroy(link);
}

int link_open(struct loop *loop, int fd, bool connecting, enum wire_role role,
	      const struct wire_secret *secret, const char *job, const struct link_owner *owner,
	      struct link **out, struct error *err)
{
	struct link *link = calloc(1, sizeof *link);
	int rc = 0;

	if (link)
		link->wire = wire_new(role, secret, job);
	if (!link || !link->wire) {
		rc = error_memory(err, "a connection");
		goto fail;
	}
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	link->source.ready = ready;
	link->source.fd = -1;
	link->fd = fd;
	link->loop = loop;
	link->owner = owner;
	link->connecting = connecting;
	link->node_index = -1;
	link->opened_ms = link->heard_ms = clock_now_ms();
	socket_peer_text(fd, link->peer, sizeof link->peer);
	rc = loop_add(loop, &link->source, fd, EPOLLIN | EPOLLOUT, err);
	if (rc)
		goto fail;
	*out = link;
	return 0;
fail:
	close(fd);
	if (link)
		wire_free(link->wire);
	free(link);
	return rc;
}

void link_close(struct link *link)
{
	if (!link)
		return;
	link->over = true;
	loop_remove(link->loop, &link->source);
	close(link->fd);
	if (link->busy)
		link->dead = true;
	else
		destroy(link);
}

void link_pause(struct link *link, bool on)
{
	if (link->paused == on || link->over)
		return;
	link->paused = on;
	link->heard_ms = clock_now_ms();
	want(link);
}

int link_send(struct link *link, const struct wire_message *message, struct error *err)
{
	if (link->over)
		return error_set(err, ERR_NETWORK, "the connection to %s is over", link->peer);
	int rc = wire_send(link->wire, message, err);

	if (rc)
		return rc;
	/* A dead socket is noticed by the next read; its owner is told from the loop alone. */
	flush(link, NULL);
	want(link);
	return 0;
}

void link_finish(struct link *link, int timeout_ms)
{
	int64_t until = clock_now_ms() + timeout_ms;
	const void *bytes;

	if (link->over || link->connecting || wire_finish(link->wire, NULL))
		return;
	while (!flush(link, NULL) && wire_output(link->wire, &bytes)) {
		struct pollfd poll_fd = {.fd = link->fd, .events = POLLOUT};
		int64_t left = until - clock_now_ms();

		if (left <= 0 || poll(&poll_fd, 1, (int)left) == 0)
			return;
	}
}

size_t link_queued(const struct link *link)
{
	const void *bytes;

	return wire_output(link->wire, &bytes);
}

bool link_is_late(const struct link *link, int64_t now_ms)
{
	return !link->open && now_ms - link->opened_ms > LINK_GREETING_MS;
}
