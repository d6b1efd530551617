/* SPDX-License-Identifier: BSD-3-Clause */
/* One connection between the controller and an agent, or between agents: a socket, its wire, and
 * the peer's identity. This directory, from bottom to top:
 *
 *   secret         where the key comes from
 *   socket         TCP
 *   wire           authentication and frames, without I/O; handshake is its beginning
 *   connection     a wire on a socket, in the event loop
 *   listener       accepts sockets, and limits unauthenticated peers
 *   address_probe  asks a listener who it is
 *   messages       what controller and agents send each other
 *   tree           who is to be connected to whom
 *   children       the agents that are connected to this process */
#ifndef BERTH_OVERLAY_CONNECTION_H
#define BERTH_OVERLAY_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/loop.h"
#include "overlay/wire.h"

#define CONNECTION_HEARTBEAT_MS 1000 /* how often each side sends something */
#define CONNECTION_HANDSHAKE_MS 5000 /* a peer that has not authenticated by then is dropped */

struct connection;

/* Callbacks of a connection's owner. Each may call connection_close on the connection it is
 * given. */
struct connection_owner {
	void *context;
	/* The peer has authenticated. May be NULL. */
	void (*opened)(void *context, struct connection *connection);
	void (*message)(void *context, struct connection *connection,
			const struct wire_message *message);
	/* The connection has ended; why is NULL if the peer ended it properly (wire_finish). The
	 * callback or the owner then calls connection_close. */
	void (*ended)(void *context, struct connection *connection, const struct error *why);
};

struct connection {
	struct loop_source source; /* first: the loop's callback casts it back */
	struct loop *loop;
	int fd;
	struct wire *wire;
	const struct connection_owner *owner;
	int64_t opened_ms;   /* when the socket was opened, by loop_now_ms */
	int64_t received_ms; /* when bytes last arrived */
	long node_index;     /* the node of the agent at the other end; -1 until it has sent it */
	bool open;	     /* opened was called */
	bool connecting;     /* connect() is in progress */
	bool over;	     /* ended was called */
	bool busy, dead;     /* busy: inside a callback; dead: a callback closed it */
	bool paused;	     /* see connection_pause */
	char peer[64];	     /* "10.0.0.1:4711" or "socket pair", for messages */
};

/* Take over fd, which becomes non-blocking and close-on-exec; it is closed even on failure.
 * connecting: a connect() on it is in progress. owner is borrowed until connection_close. */
int connection_open(struct loop *loop, int fd, bool connecting, enum wire_role role,
		    const struct secret *secret, const char *job,
		    const struct connection_owner *owner, struct connection **out,
		    struct error *err);
/* Close the socket and free the connection. Callbacks may call it on their own connection. NULL is
 * allowed. */
void connection_close(struct connection *connection);

/* Stop reading (on true) or resume. TCP then stops the peer's
 * writes; its queue grows, and at WIRE_HIGH_WATER it stops reading its ranks' output. A paused
 * connection does not count as silent: received_ms restarts when reading resumes. */
void connection_pause(struct connection *connection, bool on);

/* Queue a message and try to write it at once. If the connection itself fails, ended is called
 * later. */
int connection_send(struct connection *connection, const struct wire_message *message,
		    struct error *err);
/* Write what is queued and the final frame, blocking for at most timeout_ms. The caller then calls
 * connection_close. */
void connection_finish(struct connection *connection, int timeout_ms);
/* Does the peer's kernel still acknowledge what is sent, as it does for a process that is stopped?
 * Send something once a second; within_ms is how old the last acknowledgement may be. A socket pair
 * always answers: it ends with its process. */
bool connection_answers(const struct connection *connection, int within_ms);
/* The number of bytes waiting to be written. */
size_t connection_queued_bytes(const struct connection *connection);

#endif
