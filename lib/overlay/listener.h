/* SPDX-License-Identifier: BSD-3-Clause */
/* A listening socket and its unauthenticated peers. Each such peer costs little and must
 * authenticate within CONNECTION_HANDSHAKE_MS. There are at most limit of them; when one more
 * connects, the listener drops the oldest. An authentic peer needs only two round trips, so
 * only a flood of more than that many connections within this time keeps an authentic peer out. */
#ifndef BERTH_OVERLAY_LISTENER_H
#define BERTH_OVERLAY_LISTENER_H

#include <stddef.h>

#include "base/error.h"
#include "base/loop.h"
#include "overlay/connection.h"

struct listener; /* opaque */

/* The listener calls authenticated once for each peer that has authenticated. The callback takes
 * the connection over and sets connection->owner to its own. rejected (may be NULL) receives the
 * reason why a peer was dropped. It is called at most once per second, with the number of other
 * rejections since the last call. */
struct listener_events {
	void *context;
	void (*authenticated)(void *context, struct connection *connection);
	void (*rejected)(void *context, const char *text);
};

/* Listen on port; 0 picks any. secret, job and events are copied. Return 0, or -ERR_NETWORK as
 * socket_listen does. */
int listener_open(struct loop *loop, int port, const struct secret *secret, const char *job,
		  size_t limit, const struct listener_events *events, struct listener **out,
		  struct error *err);
/* How much to add to limit when all nodes probe the controller's addresses at once (MESSAGE_PROBE),
 * with one connection per address. It covers the connections that arrive while a few slow answers
 * are under way; the kernel queues the rest. */
size_t listener_probe_limit(size_t nodes);
int listener_port(const struct listener *listener);
/* Also drops unauthenticated peers; NULL is allowed. */
void listener_close(struct listener *listener);

#endif
