/* SPDX-License-Identifier: BSD-3-Clause */
/* One connection between head and agents: a socket, its wire, and who is at the other end. */
#ifndef BERTH_OVERLAY_CONNECTION_H
#define BERTH_OVERLAY_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/loop.h"
#include "overlay/wire.h"

#define LINK_GREETING_MS 5000 /* a peer that has not proved itself by then is dropped */

struct link;

/* What the owner of links is told. A callback may call link_close on the link it is given. */
struct link_owner {
	void *context;
	/* The other side has proved itself. */
	void (*opened)(void *context, struct link *link);
	void (*message)(void *context, struct link *link, const struct wire_message *message);
	/* The connection is over; why is NULL when the other side said goodbye. The link is closed
	 * and freed afterwards by the callback or its owner. */
	void (*ended)(void *context, struct link *link, const struct error *why);
};

struct link {
	struct loop_source source;
	struct loop *loop;
	int fd;
	struct wire *wire;
	const struct link_owner *owner;
	int64_t opened_ms; /* when the socket was opened */
	int64_t heard_ms;  /* when bytes last came */
	long node_index;   /* whose agent it is, once it has said so; -1 */
	bool open;	   /* opened was called */
	bool connecting;   /* connect is under way */
	bool over;	   /* ended was called */
	bool busy, dead;   /* in its callbacks; closed by one of them */
	bool paused;	   /* see link_pause */
	char peer[64];	   /* "10.0.0.1:4711" or "socket pair", for messages */
};

/* Take over fd (made non-blocking and close-on-exec; closed also on failure). connecting: a
 * connect on it is under way. */
int link_open(struct loop *loop, int fd, bool connecting, enum wire_role role,
	      const struct wire_secret *secret, const char *job, const struct link_owner *owner,
	      struct link **out, struct error *err);
/* Close the socket and free; also from within its own callbacks. NULL is fine. */
void link_close(struct link *link);

/* Stop or go on reading: the other side is held back by its own queue. A paused link is not
 * silent: heard_ms begins anew when it goes on. */
void link_pause(struct link *link, bool on);

/* Queue and try to write at once. An error that is the connection's is told by ended, later. */
int link_send(struct link *link, const struct wire_message *message, struct error *err);
/* Write what is queued, then the goodbye, blocking up to timeout_ms. Then link_close it. */
void link_finish(struct link *link, int timeout_ms);
/* Bytes waiting to be written. */
size_t link_queued(const struct link *link);
/* Has the greeting taken too long? */
bool link_is_late(const struct link *link, int64_t now_ms);

#endif
