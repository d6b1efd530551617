/* SPDX-License-Identifier: BSD-3-Clause */
/* The connection of an agent to the controller, or to its parent in the tree. All that an agent
 * reports goes through here. */
#ifndef BERTH_AGENT_UPLINK_H
#define BERTH_AGENT_UPLINK_H

#include <jansson.h>
#include <stdbool.h>

#include "agent/agent.h"
#include "base/loop.h"
#include "overlay/messages.h"

struct agent_uplink_events {
	void *context;
	/* A message came, for this node or one below it. Heartbeats are left out. */
	void (*message)(void *context, const struct wire_message *message);
	/* This node has its parent: a move has succeeded, or failed and the old one remains. */
	void (*settled)(void *context);
	/* The connection is over; called once. why is NULL if the other side said goodbye. */
	void (*lost)(void *context, const struct error *why);
};

/* For uplink.c. agent.c sets attempt; agent.c, downlinks.c and pmix_relay.c read attempt and lost.
 */
struct agent_uplink {
	struct loop *loop;
	const struct agent_params *params;
	const char *dir;
	struct agent_uplink_events events;
	struct connection_owner owner;
	struct connection *connection; /* to the controller or the parent */
	struct connection *next;       /* to the parent, being opened */
	uint32_t attempt;	       /* of which this node's messages are; 0 at first */
	bool lost;		       /* the connection is over */
};

/* params and dir (the agent's temporary directory) are borrowed, events is copied. */
void agent_uplink_init(struct agent_uplink *uplink, struct loop *loop,
		       const struct agent_params *params, const char *dir,
		       const struct agent_uplink_events *events);
/* Connect to the controller and send HELLO. Blocks while it connects; signals is the signalfd that
 * ends the wait. -ERR_NETWORK, or 128+N for a signal. */
int agent_uplink_open(struct agent_uplink *uplink, int signals, struct error *err);
/* Obey MOVE: connect to the parent. settled is called when that has ended, well or not. */
void agent_uplink_move(struct agent_uplink *uplink, const json_t *text);
/* Once a second: give up a parent that is silent. slept: it was this process that did not run. */
void agent_uplink_tick(struct agent_uplink *uplink, int64_t now_ms, bool slept);
void agent_uplink_close(struct agent_uplink *uplink); /* sends what is queued first */

/* Send a message of this node; text is consumed. Dropped once the connection is lost. */
void agent_uplink_send(struct agent_uplink *uplink, enum message_type type, uint64_t sequence,
		       json_t *text, const void *data, size_t size);
/* The same, for a message that is a text alone. */
void agent_uplink_report(struct agent_uplink *uplink, enum message_type type, json_t *text);
/* Pass a message from below on as it is. */
void agent_uplink_forward(struct agent_uplink *uplink, const struct wire_message *message);
/* The agent cannot do its part: send FAILED, which ends the attempt. */
void agent_uplink_fail(struct agent_uplink *uplink, const struct error *err);
/* Send NOTE, a sentence for the user. */
void agent_uplink_note(struct agent_uplink *uplink, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Does so much wait to be sent that those who produce it should pause? */
bool agent_uplink_is_full(const struct agent_uplink *uplink);

#endif
