/* SPDX-License-Identifier: BSD-3-Clause */
#include "overlay/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "overlay/socket.h"

#define ACCEPT_ROUND 64

struct listener {
	struct loop_source source;
	struct loop *loop;
	struct wire_secret secret;
	char *job;
	size_t limit;
	struct listener_events events;
	struct link_owner owner;
	int port;
	struct link **strangers; /* oldest first */
	size_t count;
	int64_t told_ms;
	size_t untold;
	bool paused; /* no descriptors left: try again at the next tick */
};

static void remove_stranger(struct listener *listener, struct link *link)
{
	for (size_t i = 0; i < listener->count; i++) {
		if (listener->strangers[i] != link)
			continue;
		listener->count--;
		memmove(listener->strangers + i, listener->strangers + i + 1,
			(listener->count - i) * sizeof *listener->strangers);
		return;
	}
}

static void tell(struct listener *listener, const char *text)
{
	int64_t now = clock_now_ms();
	char more[1200];

	if (!listener->events.refused)
		return;
	if (listener->told_ms && now - listener->told_ms < 1000) {
		listener->untold++;
		return;
	}
	listener->told_ms = now;
	if (listener->untold)
		snprintf(more, sizeof more, "%s (and %zu more refused before)", text,
			 listener->untold);
	else
		snprintf(more, sizeof more, "%s", text);
	listener->untold = 0;
	listener->events.refused(listener->events.context, more);
}

static void friend_opened(void *context, struct link *link)
{
	struct listener *listener = context;

	remove_stranger(listener, link);
	listener->events.friend(listener->events.context, link);
}

static void stranger_message(void *context, struct link *link, const struct wire_message *message)
{
	/* The owner was changed by friend before any message is delivered. */
	(void)context;
	(void)link;
	(void)message;
}

static void stranger_ended(void *context, struct link *link, const struct error *why)
{
	struct listener *listener = context;

	remove_stranger(listener, link);
	if (why)
		tell(listener, why->text);
	link_close(link);
}

static void door(struct loop_source *source, uint32_t events)
{
	struct listener *listener = (struct listener *)source;

	(void)events;
	for (int i = 0; i < ACCEPT_ROUND; i++) {
		struct link *link;
		int on = 1;
		int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			    errno == ENOMEM) {
				listener->paused = true;
				loop_want(listener->loop, source, 0);
				tell(listener, "no descriptors are left for new connections");
			}
			return;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		while (listener->count >= listener->limit) {
			struct link *oldest = listener->strangers[0];

			remove_stranger(listener, oldest);
			tell(listener, "too many connections at once that do not greet; the oldest "
				       "was dropped");
			link_close(oldest);
		}
		if (link_open(listener->loop, fd, false, WIRE_ACCEPTS, &listener->secret,
			      listener->job, &listener->owner, &link, NULL))
			return;
		listener->strangers[listener->count++] = link;
	}
}

size_t listener_probes(size_t nodes)
{
	return 16 * (nodes < 256 ? nodes : 256);
}

int listener_open(struct loop *loop, int port, const struct wire_secret *secret, const char *job,
		  size_t limit, const struct listener_events *events, struct listener **out,
		  struct error *err)
{
	struct listener *listener = calloc(1, sizeof *listener);
	int fd = -1, rc;

	if (!listener)
		return error_memory(err, "a listening socket");
	listener->source.fd = -1;
	listener->source.ready = door;
	listener->loop = loop;
	listener->secret = *secret;
	listener->limit = limit;
	listener->events = *events;
	listener->owner =
		(struct link_owner){listener, friend_opened, stranger_message, stranger_ended};
	listener->job = strdup(job);
	listener->strangers = calloc(limit, sizeof *listener->strangers);
	if (!listener->job || !listener->strangers) {
		rc = error_memory(err, "a listening socket");
		goto fail;
	}
	rc = socket_listen(port, &fd, &listener->port, err);
	if (!rc)
		rc = loop_add(loop, &listener->source, fd, EPOLLIN, err);
	if (rc)
		goto fail;
	*out = listener;
	return 0;
fail:
	if (fd >= 0)
		close(fd);
	listener->source.fd = -1;
	listener_close(listener);
	return rc;
}

int listener_port(const struct listener *listener)
{
	return listener->port;
}

size_t listener_strangers(const struct listener *listener)
{
	return listener->count;
}

void listener_tick(struct listener *listener, int64_t now_ms)
{
	while (listener->count && link_is_late(listener->strangers[0], now_ms)) {
		struct link *link = listener->strangers[0];
		char text[160];

		remove_stranger(listener, link);
		snprintf(text, sizeof text, "%s connected and did not greet within %d s",
			 link->peer, LINK_GREETING_MS / 1000);
		tell(listener, text);
		link_close(link);
	}
	if (listener->paused) {
		listener->paused = false;
		loop_want(listener->loop, &listener->source, EPOLLIN);
	}
}

void listener_close(struct listener *listener)
{
	if (!listener)
		return;
	while (listener->count)
		link_close(listener->strangers[--listener->count]);
	if (listener->source.fd >= 0) {
		int fd = listener->source.fd;

		loop_remove(listener->loop, &listener->source);
		close(fd);
	}
	wire_secret_forget(&listener->secret);
	free(listener->strangers);
	free(listener->job);
	free(listener);
}
