/* SPDX-License-Identifier: BSD-3-Clause */
/* Unauthenticated peers stand in an array in the order in which they connected, so one timer, for
 * the oldest, serves all of them. */
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
#include "base/log.h"
#include "overlay/socket.h"

/* How many peers are accepted in a row: a flood must not keep the loop from other events. */
#define ACCEPT_ROUND 64
#define AGAIN_MS 1000

struct listener {
	struct loop_source source;
	struct loop *loop;
	struct secret secret;
	char *job;
	size_t limit;
	struct listener_events events;
	struct connection_owner owner;
	int port;
	struct connection **unauthenticated; /* oldest first */
	size_t count;
	int64_t reported_ms;
	size_t unreported;
	struct loop_timer late;	 /* the oldest unauthenticated peer is */
	struct loop_timer again; /* to accept: no descriptors were left */
};

/* Expect the oldest peer to authenticate in time. */
static void await_oldest(struct listener *listener)
{
	if (listener->count)
		loop_timer_set(listener->loop, &listener->late,
			       listener->unauthenticated[0]->opened_ms + CONNECTION_HANDSHAKE_MS);
	else
		loop_timer_stop(&listener->late);
}

static void remove_unauthenticated(struct listener *listener, struct connection *connection)
{
	for (size_t i = 0; i < listener->count; i++) {
		if (listener->unauthenticated[i] != connection)
			continue;
		listener->count--;
		memmove(listener->unauthenticated + i, listener->unauthenticated + i + 1,
			(listener->count - i) * sizeof *listener->unauthenticated);
		await_oldest(listener);
		return;
	}
}

static void report_rejection(struct listener *listener, const char *text)
{
	int64_t now = clock_now_ms();
	char more[1200];

	if (!listener->events.rejected)
		return;
	if (listener->reported_ms && now - listener->reported_ms < 1000) {
		listener->unreported++;
		return;
	}
	listener->reported_ms = now;
	if (listener->unreported)
		snprintf(more, sizeof more, "%s (and %zu more rejected before)", text,
			 listener->unreported);
	else
		snprintf(more, sizeof more, "%s", text);
	listener->unreported = 0;
	log_info(LOG_OVERLAY, "rejected a peer: %s", more);
	listener->events.rejected(listener->events.context, more);
}

static void peer_authenticated(void *context, struct connection *connection)
{
	struct listener *listener = context;

	remove_unauthenticated(listener, connection);
	listener->events.authenticated(listener->events.context, connection);
}

static void unauthenticated_message(void *context, struct connection *connection,
				    const struct wire_message *message)
{
	/* authenticated has changed the owner before any message is delivered. */
	(void)context;
	(void)connection;
	(void)message;
}

static void unauthenticated_ended(void *context, struct connection *connection,
				  const struct error *why)
{
	struct listener *listener = context;

	remove_unauthenticated(listener, connection);
	/* A connection that broke has shown nothing wrong: an agent that did not wait tries again.
	 */
	if (why && why->code == ERR_DATA)
		report_rejection(listener, why->text);
	connection_close(connection);
}

static void accept_peers(struct loop_source *source, uint32_t events)
{
	struct listener *listener = (struct listener *)source;

	(void)events;
	for (int i = 0; i < ACCEPT_ROUND; i++) {
		struct connection *connection;
		int on = 1;
		int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			    errno == ENOMEM) {
				/* The peers stay in the kernel's queue, so the socket stays
				 * readable: without a pause the loop would spin. */
				loop_modify(listener->loop, source, 0);
				loop_timer_after(listener->loop, &listener->again, AGAIN_MS);
				report_rejection(listener,
						 "no file descriptors left for new connections");
			}
			return;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		while (listener->count >= listener->limit) {
			struct connection *oldest = listener->unauthenticated[0];

			remove_unauthenticated(listener, oldest);
			report_rejection(
				listener,
				"too many unauthenticated connections at once; dropped the oldest");
			connection_close(oldest);
		}
		if (connection_open(listener->loop, fd, false, WIRE_ACCEPTS, &listener->secret,
				    listener->job, &listener->owner, &connection, NULL))
			return;
		listener->unauthenticated[listener->count++] = connection;
		await_oldest(listener);
	}
}

static void accept_again(struct loop_timer *timer)
{
	struct listener *listener = LOOP_OWNER(timer, struct listener, again);

	loop_modify(listener->loop, &listener->source, EPOLLIN);
}

static void drop_oldest(struct loop_timer *timer)
{
	struct listener *listener = LOOP_OWNER(timer, struct listener, late);
	struct connection *connection = listener->unauthenticated[0];
	char text[160];

	remove_unauthenticated(listener, connection);
	snprintf(text, sizeof text, "%s connected but sent no handshake within %d s",
		 connection->peer, CONNECTION_HANDSHAKE_MS / 1000);
	report_rejection(listener, text);
	connection_close(connection);
}

size_t listener_probe_limit(size_t nodes)
{
	return 16 * (nodes < 256 ? nodes : 256);
}

int listener_open(struct loop *loop, int port, const struct secret *secret, const char *job,
		  size_t limit, const struct listener_events *events, struct listener **out,
		  struct error *err)
{
	struct listener *listener = calloc(1, sizeof *listener);
	int fd, rc;

	if (!listener)
		return error_memory(err, "a listening socket");
	*listener = (struct listener){
		.source = {accept_peers, -1, 0},
		.late.due = drop_oldest,
		.again.due = accept_again,
		.loop = loop,
		.secret = *secret,
		.job = strdup(job),
		.limit = limit,
		.events = *events,
		.owner = {listener, peer_authenticated, unauthenticated_message,
			  unauthenticated_ended},
		.unauthenticated = calloc(limit, sizeof *listener->unauthenticated),
	};
	rc = listener->job && listener->unauthenticated
		     ? socket_listen(port, &fd, &listener->port, err)
		     : error_memory(err, "a listening socket");
	if (!rc && (rc = loop_add(loop, &listener->source, fd, EPOLLIN, err)))
		close(fd);
	if (rc)
		listener_close(listener);
	else
		*out = listener;
	return rc;
}

int listener_port(const struct listener *listener)
{
	return listener->port;
}

void listener_close(struct listener *listener)
{
	if (!listener)
		return;
	loop_timer_stop(&listener->late);
	loop_timer_stop(&listener->again);
	while (listener->count)
		connection_close(listener->unauthenticated[--listener->count]);
	loop_close(listener->loop, &listener->source);
	secret_wipe(&listener->secret);
	free(listener->unauthenticated);
	free(listener->job);
	free(listener);
}
