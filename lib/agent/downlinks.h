/* SPDX-License-Identifier: BSD-3-Clause */
/* The agents below this one in the tree: accepts them, watches them, passes messages on. Knows the
 * shape of the tree. */
#ifndef BERTH_AGENT_DOWNLINKS_H
#define BERTH_AGENT_DOWNLINKS_H

#include "agent/uplink.h"
#include "overlay/listener.h"

/* For downlinks.c; agent.c and address_probe.c read node_count. */
struct agent_downlinks {
	struct loop *loop;
	struct agent_uplink *uplink;
	const struct agent_params *params;
	bool (*merge)(void *context, const struct wire_message *message);
	void *context;		   /* of merge */
	size_t node_count, fanout; /* of the tree; 0 before set_tree */
	bool *detached;		   /* [node_count]: remains the controller's child */
	struct listener *listener;
	struct connection_owner owner;
	struct connection **connections; /* room for fanout */
	size_t count;
};

/* params is borrowed. merge receives each message from below that speaks for its own subtree; it
 * returns true if the answers of the subtree go up as one, false to pass the message on as it is.
 */
void agent_downlinks_init(struct agent_downlinks *downlinks, struct loop *loop,
			  struct agent_uplink *uplink, const struct agent_params *params,
			  bool (*merge)(void *context, const struct wire_message *message),
			  void *context);
/* WELCOME: the size of the tree. Once. */
int agent_downlinks_set_tree(struct agent_downlinks *downlinks, size_t node_count, size_t fanout,
			     struct error *err);
/* Listen for children, and report the port (LISTENING). Once, after set_tree. */
int agent_downlinks_listen(struct agent_downlinks *downlinks, struct error *err);
/* TREE: all nodes are there, and those in text remain the controller's children. */
int agent_downlinks_set_detached(struct agent_downlinks *downlinks, const json_t *text,
				 struct error *err);
/* Pass a message from above on to its node, or to all. */
void agent_downlinks_forward(struct agent_downlinks *downlinks, const struct wire_message *message);
/* Once a second: send heartbeats, report silent children as lost. slept: see agent_uplink_tick. */
void agent_downlinks_tick(struct agent_downlinks *downlinks, int64_t now_ms, bool slept);
/* Stop or continue reading from the children. */
void agent_downlinks_pause(struct agent_downlinks *downlinks, bool on);
/* Close all connections, with a goodbye or without, and free everything. No message may come from
 * above after it. Calling it again is fine. */
void agent_downlinks_close(struct agent_downlinks *downlinks, bool goodbye);

/* How many nodes reach the controller through this one, itself included. rank_count, by node, or
 * NULL: only those with ranks. */
size_t agent_downlinks_subtree_size(const struct agent_downlinks *downlinks, const int *rank_count);
/* How many levels of agents are below this one. */
int agent_downlinks_subtree_height(const struct agent_downlinks *downlinks);

#endif
