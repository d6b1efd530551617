/* SPDX-License-Identifier: BSD-3-Clause */
/* A listening socket and the strangers at its door: connections that have not proved themselves.
 * Each costs little, has CONNECTION_HANDSHAKE_MS, and there are at most `limit` of them: one more,
 * and the oldest has to go (a friend needs two round trips, so flooding the door keeps nobody out).
 */
#ifndef BERTH_OVERLAY_LISTENER_H
#define BERTH_OVERLAY_LISTENER_H

#include <stddef.h>

#include "base/error.h"
#include "base/loop.h"
#include "overlay/connection.h"

struct listener; /* opaque */

/* friend is called once for each connection that has proved itself: it takes the link over and
 * sets link->owner to its own. refused (may be NULL) hears why others were dropped; at most one in
 * a second, with how many were like it. */
struct listener_events {
	void *context;
	void (*authenticated)(void *context, struct connection *connection);
	void (*rejected)(void *context, const char *text);
};

/* port 0: any. secret and events are copied, job is too. -ERR_NETWORK: see socket_listen. */
int listener_open(struct loop *loop, int port, const struct secret *secret, const char *job,
		  size_t limit, const struct listener_events *events, struct listener **out,
		  struct error *err);
/* Room to add to limit where all nodes try the head's addresses, each a connection, at once
 * (REACH): as many as come within the time of some slow answers; what is more waits in the kernel.
 */
size_t listener_probe_limit(size_t nodes);
int listener_port(const struct listener *listener);
/* Drop those whose time is over. To be called every second or so. */
void listener_tick(struct listener *listener, int64_t now_ms);
void listener_close(struct listener *listener); /* and the strangers; NULL is fine */

#endif
