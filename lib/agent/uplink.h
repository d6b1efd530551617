/* SPDX-License-Identifier: BSD-3-Clause */
/* The connection of an agent to the controller, or to its parent in the tree. Everything that an
 * agent reports is sent here. */
#ifndef BERTH_AGENT_UPLINK_H
#define BERTH_AGENT_UPLINK_H

#include <jansson.h>
#include <stdbool.h>

#include "agent/agent.h"
#include "base/loop.h"
#include "overlay/messages.h"

struct agent_uplink_events {
	void *context;
	/* A message for this node or one below it has arrived. Heartbeats are not passed on. */
	void (*message)(void *context, const struct wire_message *message);
	/* A move to the parent has succeeded, or it has failed and this node stays connected to
	 * the controller. */
	void (*settled)(void *context);
	/* The controller is silent although its node answers: it is suspended (SIGSTOP, PBS), or
	 * continues. */
	void (*suspended)(void *context, bool on);
	/* The connection has ended; called once. why is NULL if the peer sent its final frame. */
	void (*lost)(void *context, const struct error *why);
};

/* For uplink.c. agent.c sets attempt; agent.c and pmix_relay.c read attempt and lost.
 */
struct agent_uplink {
	struct loop *loop;
	const struct agent_params *params;
	const char *dir;
	struct agent_uplink_events events;
	struct connection_owner owner;
	struct connection *connection; /* to the controller or the parent */
	struct connection *next;       /* the connection to the parent that is being opened */
	uint32_t attempt;	  /* the attempt that this node's messages belong to; 0 at first */
	bool lost;		  /* the connection has ended */
	bool has_parent;	  /* connection leads to the parent, not to the controller */
	bool suspended;		  /* the last event suspended was on */
	struct loop_timer second; /* for a heartbeat, and to look for a silent peer */
	/* Until the controller has authenticated itself: */
	char *untried;	 /* its addresses except winner; NULL if params->fd is used */
	char winner[80]; /* the address of connection */
	int64_t started_ms;
	struct error refused; /* the first peer with another secret; code 0: none */
	int signals;
};

/* params and dir (the agent's temporary directory) are borrowed, events is copied. */
void agent_uplink_init(struct agent_uplink *uplink, struct loop *loop,
		       const struct agent_params *params, const char *dir,
		       const struct agent_uplink_events *events);
/* Connect to the controller, send HELLO, and a heartbeat once a second from now on. Blocks while it
 * connects; signals is the signalfd that ends the wait. -ERR_NETWORK, or 128+N for a signal. */
int agent_uplink_open(struct agent_uplink *uplink, int signals, struct error *err);
/* Handle MOVE: connect to the parent. settled is called when that has succeeded or failed. */
void agent_uplink_move(struct agent_uplink *uplink, const struct message_move *move);
void agent_uplink_close(struct agent_uplink *uplink); /* sends what is queued first */

/* Send a message of this node; body as for message_send. Dropped once the connection is lost. */
void agent_uplink_send(struct agent_uplink *uplink, enum message_type type, uint64_t sequence,
		       const void *body, const void *data, size_t size);
/* The same for a message without data. */
void agent_uplink_report(struct agent_uplink *uplink, enum message_type type, const void *body);
/* Forward a message from below unchanged. */
void agent_uplink_forward(struct agent_uplink *uplink, const struct wire_message *message);
/* Report that the agent cannot do its part: send FAILED, which ends the attempt. */
void agent_uplink_fail(struct agent_uplink *uplink, const struct error *err);
/* Send NOTE, a sentence for the user. */
void agent_uplink_note(struct agent_uplink *uplink, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Is so much waiting to be sent that producers should pause? */
bool agent_uplink_is_full(const struct agent_uplink *uplink);

#endif
