/* SPDX-License-Identifier: BSD-3-Clause */
/* The agents that are connected to this process, the controller or an inner agent of the tree:
 * which peer is which node, who may speak for whom, who is silent, and what goes to whom. Each
 * child is sent a heartbeat once a second.
 *
 * At first every agent is connected to the controller; those that have a parent move to it, or stay
 * (detached) if they do not reach it. */
#ifndef BERTH_OVERLAY_CHILDREN_H
#define BERTH_OVERLAY_CHILDREN_H

#include "base/loop.h"
#include "overlay/connection.h"
#include "overlay/listener.h"
#include "overlay/messages.h"

struct children_events {
	void *context;
	/* A node has connected; its HELLO. May be NULL. */
	void (*hello)(void *context, struct connection *connection,
		      const struct wire_message *message);
	/* A message of a node that its connection may speak for. */
	void (*message)(void *context, struct connection *connection,
			const struct wire_message *message);
	/* A child's connection has ended, or (ended is false) the child was silent for too long. */
	void (*lost)(void *context, size_t node, bool ended, const char *why);
	/* A peer was rejected: a sentence for the user. */
	void (*rejected)(void *context, const char *text);
	/* Is a child that is silent although its host answers suspended, with the whole job? May
	 * be NULL: no. */
	bool (*suspended)(void *context);
};

/* For children.c; others read node_count, fanout and nodes. Zero-initialised: none yet. */
struct children {
	struct loop *loop;
	long self; /* this process's node; -1: the controller */
	size_t node_count, fanout;
	int silence_ms; /* a child that is silent for longer is lost */
	struct children_events events;
	struct connection_owner owner;
	struct listener *listener;
	struct children_node {
		struct connection *connection; /* NULL: it reaches this process in another way, or
						  not at all */
		bool known;		       /* its HELLO has arrived */
		bool detached;		       /* see above; set_detached, or the owner sets it */
	} * nodes;			       /* [node_count] */
	/* Authenticated peers that are no node's connection: before HELLO, or after a move. */
	struct connection **unidentified;
	size_t unidentified_count, unidentified_limit;
	struct loop_timer second;  /* for heartbeats */
	struct loop_timer silence; /* no child can be silent for too long before */
	bool paused;
};

/* Set the shape of the tree. -ERR_UNAVAILABLE: no memory. */
int children_init(struct children *children, struct loop *loop, long self, size_t node_count,
		  size_t fanout, int silence_ms, const struct children_events *events,
		  struct error *err);
/* Listen for the children on port (0: any). probed: all nodes probe this process's addresses
 * (MESSAGE_PROBE). As listener_open. */
int children_listen(struct children *children, int port, const struct secret *secret,
		    const char *job, bool probed, struct error *err);
int children_port(const struct children *children); /* 0: it does not listen */
/* Take over one end of a socket pair with a child. As connection_open. */
int children_adopt(struct children *children, int fd, const struct secret *secret, const char *job,
		   struct error *err);
/* The nodes that stay connected to the controller; only integers of nodes are allowed. -ERR_DATA.
 */
int children_set_detached(struct children *children, const json_t *nodes, struct error *err);
/* node is connected to its parent now. Its connection here will end, which is no loss. */
void children_moved(struct children *children, size_t node);

/* Send a message to the child that leads to its node, or to all children (WIRE_ALL). A child that
 * cannot be reached is not an error: lost reports it. -ERR_DATA: the message is too large. */
int children_forward(struct children *children, const struct wire_message *message,
		     struct error *err);
/* The same for a message that is written here; body as for message_send. */
int children_send(struct children *children, enum message_type type, uint32_t node,
		  uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		  size_t size, struct error *err);
/* Stop or continue reading from the children. Heartbeats are still sent. */
void children_pause(struct children *children, bool on);
/* Close all connections and free everything. finish_ms: how long the final frame of each may take;
 * -1: send none. It may be called again. */
void children_close(struct children *children, int finish_ms);

/* Has the node's HELLO arrived? */
bool children_known(const struct children *children, size_t node);
/* How many nodes reach the controller through this one, itself included. If rank_count (ranks of
 * each node) is not NULL, count only nodes with ranks. */
size_t children_subtree_size(const struct children *children, const int *rank_count);
/* How many levels of agents are below this one. */
int children_subtree_height(const struct children *children);

#endif
