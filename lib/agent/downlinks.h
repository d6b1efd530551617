/* SPDX-License-Identifier: BSD-3-Clause */
/* The agents below this one in the tree: accepts their connections, notices when one is lost,
 * forwards messages. It knows the shape of the tree. */
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
	void *context;		   /* passed to merge */
	size_t node_count, fanout; /* of the tree; 0 before set_tree */
	bool *detached;		   /* [node_count]: stays connected to the controller */
	struct listener *listener;
	struct connection_owner owner;
	struct connection **connections; /* room for fanout */
	size_t count;
	struct loop_timer second; /* for heartbeats, and to look for silent children */
};

/* params is borrowed. merge receives each message from below that speaks for its own subtree; it
 * returns true if the answers of the subtree go up as one, false to pass the message on as it is.
 */
void agent_downlinks_init(struct agent_downlinks *downlinks, struct loop *loop,
			  struct agent_uplink *uplink, const struct agent_params *params,
			  bool (*merge)(void *context, const struct wire_message *message),
			  void *context);
/* Set the size of the tree (WELCOME). Call it once. */
int agent_downlinks_set_tree(struct agent_downlinks *downlinks, size_t node_count, size_t fanout,
			     struct error *err);
/* Listen for children, and report the port (LISTENING); from now on, send them heartbeats, and
 * report silent ones as lost. Call it once, after set_tree. */
int agent_downlinks_listen(struct agent_downlinks *downlinks, struct error *err);
/* Handle TREE: all nodes have connected, and those in tree stay connected to the controller. */
int agent_downlinks_set_detached(struct agent_downlinks *downlinks, const struct message_tree *tree,
				 struct error *err);
/* Send SIGNAL to all nodes below, in place of a controller that is suspended. */
void agent_downlinks_signal(struct agent_downlinks *downlinks, int number);
/* Forward a message from above to its node, or to all. */
void agent_downlinks_forward(struct agent_downlinks *downlinks, const struct wire_message *message);
/* Stop or continue reading from the children. */
void agent_downlinks_pause(struct agent_downlinks *downlinks, bool on);
/* Close all connections, with or without a final frame, and free everything. Pass it no message
 * from above afterwards. It may be called again. */
void agent_downlinks_close(struct agent_downlinks *downlinks, bool goodbye);

/* How many nodes reach the controller through this one, itself included. If rank_count (ranks of
 * each node) is not NULL, count only nodes with ranks. */
size_t agent_downlinks_subtree_size(const struct agent_downlinks *downlinks, const int *rank_count);
/* How many levels of agents are below this one. */
int agent_downlinks_subtree_height(const struct agent_downlinks *downlinks);

#endif
