/* SPDX-License-Identifier: BSD-3-Clause */
/* One connection between head and agents: a socket, its wire, and who is at the other end. */
#ifndef BERTH_OVERLAY_CONNECTION_H
#define BERTH_OVERLAY_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/loop.h"
#include "overlay/wire.h"

#define CONNECTION_HANDSHAKE_MS 5000 /* a peer that has not proved itself by then is dropped */

struct connection;

/* What the owner of links is told. A callback may call connection_close on the link it is given. */
struct connection_owner {
	void *context;
	/* The other side has proved itself. */
	void (*opened)(void *context, struct connection *connection);
	void (*message)(void *context, struct connection *connection,
			const struct wire_message *message);
	/* The connection is over; why is NULL when the other side said goodbye. The link is closed
	 * and freed afterwards by the callback or its owner. */
	void (*ended)(void *context, struct connection *connection, const struct error *why);
};

struct connection {
	struct loop_source source;
	struct loop *loop;
	int fd;
	struct wire *wire;
	const struct connection_owner *owner;
	int64_t opened_ms;   /* when the socket was opened */
	int64_t received_ms; /* when bytes last came */
	long node_index;     /* whose agent it is, once it has said so; -1 */
	bool open;	     /* opened was called */
	bool connecting;     /* connect is under way */
	bool over;	     /* ended was called */
	bool busy, dead;     /* in its callbacks; closed by one of them */
	bool paused;	     /* see connection_pause */
	char peer[64];	     /* "10.0.0.1:4711" or "socket pair", for messages */
};

/* Take over fd (made non-blocking and close-on-exec; closed also on failure). connecting: a
 * connect on it is under way. */
int connection_open(struct loop *loop, int fd, bool connecting, enum wire_role role,
		    const struct secret *secret, const char *job,
		    const struct connection_owner *owner, struct connection **out,
		    struct error *err);
/* Close the socket and free; also from within its own callbacks. NULL is fine. */
void connection_close(struct connection *connection);

/* Stop or go on reading: the other side is held back by its own queue. A paused link is not
 * silent: received_ms begins anew when it goes on. */
void connection_pause(struct connection *connection, bool on);

/* Queue and try to write at once. An error that is the connection's is told by ended, later. */
int connection_send(struct connection *connection, const struct wire_message *message,
		    struct error *err);
/* Write what is queued, then the goodbye, blocking up to timeout_ms. Then connection_close it. */
void connection_finish(struct connection *connection, int timeout_ms);
/* Bytes waiting to be written. */
size_t connection_queued_bytes(const struct connection *connection);
/* Has the greeting taken too long? */
bool connection_handshake_overdue(const struct connection *connection, int64_t now_ms);

#endif
