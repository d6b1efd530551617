/* SPDX-License-Identifier: BSD-3-Clause */
/* Moves bytes between a wire and its socket. While an event is handled, busy is set: a callback may
 * then close the connection, and ready frees it afterwards. */
#include "overlay/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "overlay/messages.h"
#include "overlay/socket.h"

/* The most that an unauthenticated peer can make us hold. */
#define GREETING_READ 128
#define OPEN_READ (256u << 10)
#define ROUNDS 8 /* reads in a row, so that one busy peer does not starve the others */

static void update_events(struct connection *connection)
{
	const void *bytes;
	bool out = connection->connecting || wire_output(connection->wire, &bytes);

	loop_modify(connection->loop, &connection->source,
		    (connection->paused ? 0u : (uint32_t)EPOLLIN) |
			    (out ? (uint32_t)EPOLLOUT : 0u));
}

static void end(struct connection *connection, const struct error *why)
{
	if (connection->over)
		return;
	connection->over = true;
	log_info(LOG_OVERLAY, "connection to %s ended: %s", connection->peer,
		 why ? why->text : "closed by the peer");
	loop_remove(connection->loop, &connection->source);
	connection->owner->ended(connection->owner->context, connection, why);
}

/* Heartbeats are left out: there is one per second and connection. */
static void log_message(const char *what, const struct connection *connection,
			const struct wire_message *message)
{
	if (message->type != MESSAGE_HEARTBEAT)
		log_debug(LOG_OVERLAY, "%s %s, node %d, %zu bytes, peer %s", what,
			  message_name(message->type), (int)message->node, wire_plain_size(message),
			  connection->peer);
}

/* Write the output. Return 0, or -ERR_NETWORK if the socket is dead. */
static int flush(struct connection *connection, struct error *err)
{
	const void *bytes;
	size_t size;

	while (!connection->connecting && (size = wire_output(connection->wire, &bytes)) > 0) {
		ssize_t n = send(connection->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n < 0)
			return error_set(err, ERR_NETWORK, "writing to %s: %s", connection->peer,
					 strerror(errno));
		wire_consume_output(connection->wire, (size_t)n);
	}
	return 0;
}

/* Deliver messages until there are none left. False: the connection has ended or was closed. */
static bool deliver(struct connection *connection)
{
	struct wire_message message;
	struct error err = {0};
	int rc = 0;

	if (!connection->open && wire_state(connection->wire) == WIRE_OPEN) {
		connection->open = true;
		log_info(LOG_OVERLAY, "peer %s is authenticated", connection->peer);
		if (connection->owner->opened)
			connection->owner->opened(connection->owner->context, connection);
	}
	while (!connection->over && (rc = wire_next(connection->wire, &message, &err)) > 0) {
		log_message("received", connection, &message);
		connection->owner->message(connection->owner->context, connection, &message);
	}
	if (!connection->over && rc < 0) {
		error_prefix(&err, "%s", connection->peer);
		end(connection, &err);
	}
	return !connection->over;
}

/* Read what has arrived. False: the connection has ended. */
static bool drain(struct connection *connection)
{
	static _Thread_local unsigned char buffer[OPEN_READ];
	struct error err = {0};

	for (int round = 0; round < ROUNDS; round++) {
		bool probed = wire_state(connection->wire) == WIRE_PROBED;
		size_t room = connection->open || probed ? sizeof buffer : GREETING_READ;
		ssize_t n = recv(connection->fd, buffer, room, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (n < 0) {
			error_set(&err, ERR_NETWORK, "reading from %s: %s", connection->peer,
				  strerror(errno));
			end(connection, &err);
			return false;
		}
		if (n == 0) {
			int rc = wire_feed_eof(connection->wire, &err);

			if (rc)
				error_prefix(&err, "%s", connection->peer);
			end(connection, rc ? &err : NULL);
			return false;
		}
		connection->received_ms = loop_now_ms(connection->loop);
		if (wire_feed(connection->wire, buffer, (size_t)n, &err)) {
			flush(connection, NULL); /* a refusal, if there is one */
			error_prefix(&err, "%s", connection->peer);
			end(connection, &err);
			return false;
		}
		if (!deliver(connection))
			return false;
		if (connection->paused)
			return true;
	}
	return true;
}

static bool connected(struct connection *connection)
{
	int error = 0;
	socklen_t size = sizeof error;
	struct error err = {0};

	getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	connection->connecting = false;
	if (!error)
		return true;
	error_set(&err, ERR_NETWORK, "connecting to %s: %s", connection->peer, strerror(error));
	end(connection, &err);
	return false;
}

static void destroy(struct connection *connection)
{
	wire_free(connection->wire);
	free(connection);
}

static void handle(struct connection *connection, uint32_t events)
{
	struct error err = {0};

	if (connection->connecting && !connected(connection))
		return;
	/* Read before writing: to a peer that has closed, writing fails, but what it sent before
	 * that still counts, such as its final frame. */
	if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !drain(connection))
		return;
	if (connection->paused && (events & (EPOLLHUP | EPOLLERR))) {
		/* There is no one left to hold back, but what the peer sent can still be read. */
		connection->paused = false;
	}
	if (flush(connection, &err)) {
		end(connection, &err);
		return;
	}
	const void *bytes;

	if (wire_state(connection->wire) == WIRE_CLOSING &&
	    !wire_output(connection->wire, &bytes)) {
		end(connection, NULL);
		return;
	}
	update_events(connection);
}

static void ready(struct loop_source *source, uint32_t events)
{
	struct connection *connection = (struct connection *)source;

	connection->busy = true;
	handle(connection, events);
	connection->busy = false;
	if (connection->dead)
		destroy(connection);
}

int connection_open(struct loop *loop, int fd, bool connecting, enum wire_role role,
		    const struct secret *secret, const char *job,
		    const struct connection_owner *owner, struct connection **out,
		    struct error *err)
{
	struct connection *connection = calloc(1, sizeof *connection);
	int rc = 0;

	if (connection)
		connection->wire = wire_new(role, secret, job);
	if (!connection || !connection->wire) {
		rc = error_memory(err, "a connection");
		goto fail;
	}
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	connection->source.ready = ready;
	connection->source.fd = -1;
	connection->fd = fd;
	connection->loop = loop;
	connection->owner = owner;
	connection->connecting = connecting;
	connection->node_index = -1;
	connection->opened_ms = connection->received_ms = loop_now_ms(connection->loop);
	socket_peer_text(fd, connection->peer, sizeof connection->peer);
	/* EPOLLOUT, because the connecting side already has its HELLO to write. */
	rc = loop_add(loop, &connection->source, fd, EPOLLIN | EPOLLOUT, err);
	if (rc)
		goto fail;
	*out = connection;
	return 0;
fail:
	close(fd);
	if (connection)
		wire_free(connection->wire);
	free(connection);
	return rc;
}

void connection_close(struct connection *connection)
{
	if (!connection)
		return;
	connection->over = true;
	loop_remove(connection->loop, &connection->source);
	close(connection->fd);
	/* The caller up the stack still uses the connection. */
	if (connection->busy)
		connection->dead = true;
	else
		destroy(connection);
}

void connection_pause(struct connection *connection, bool on)
{
	if (connection->paused == on || connection->over)
		return;
	connection->paused = on;
	connection->received_ms = loop_now_ms(connection->loop);
	update_events(connection);
}

int connection_send(struct connection *connection, const struct wire_message *message,
		    struct error *err)
{
	if (connection->over)
		return error_set(err, ERR_NETWORK, "the connection to %s is closed",
				 connection->peer);
	int rc = wire_send(connection->wire, message, err);

	if (rc)
		return rc;
	log_message("sent", connection, message);
	/* Ignore a write error: the next read fails, too; ended must not be called from here. */
	flush(connection, NULL);
	update_events(connection);
	return 0;
}

void connection_finish(struct connection *connection, int timeout_ms)
{
	int64_t until = clock_now_ms() + timeout_ms;
	const void *bytes;

	if (connection->over || connection->connecting || wire_finish(connection->wire, NULL))
		return;
	while (!flush(connection, NULL) && wire_output(connection->wire, &bytes)) {
		struct pollfd poll_fd = {.fd = connection->fd, .events = POLLOUT};
		int64_t left = until - clock_now_ms();

		if (left <= 0 || poll(&poll_fd, 1, (int)left) == 0)
			return;
	}
}

bool connection_answers(const struct connection *connection, int within_ms)
{
	struct tcp_info info = {0};
	socklen_t size = sizeof info;

	if (getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &size))
		return true;
	/* A peer that does not read closes its window. Then nothing is in flight, and the pause
	 * between the kernel's probes may exceed within_ms, but each of them is answered. */
	return (int64_t)info.tcpi_last_ack_recv <= within_ms ||
	       (!info.tcpi_unacked && info.tcpi_probes < 2);
}

size_t connection_queued_bytes(const struct connection *connection)
{
	const void *bytes;

	return wire_output(connection->wire, &bytes);
}
