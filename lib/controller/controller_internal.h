/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of the head's connections, shared by controller.c and controller_start.c alone. */
#ifndef BERTH_CONTROLLER_CONTROLLER_INTERNAL_H
#define BERTH_CONTROLLER_CONTROLLER_INTERNAL_H

#include "controller/controller.h"
#include "overlay/connection.h"
#include "overlay/listener.h"

#define HEAD_END_MS 500	   /* from the end of an agent's connection to that of its process */
#define HEAD_STRANGERS 256 /* at the door at once, beside the nodes that are expected */

struct head_node {
	struct link *link; /* straight from the head; NULL: through its parent, or not there */
	char address[80];  /* where it listens for its children, "" not known */
	char folder[128];
	bool greeted; /* HELLO came */
	bool placed;  /* it has its place in the tree */
	bool moved,
		detached; /* below its parent; below the head although the tree says otherwise */
	bool lost;
	int64_t ended_ms;    /* its connection ended while its process lived; 0: not so */
	char ended_why[240]; /* and how */
};

struct head {
	struct loop *loop;
	struct head_options options;
	struct head_events events;
	struct wire_secret secret;
	char recipe[4200]; /* with engines that have by_cookie */
	char lent[4200];   /* a file that holds the secret until all agents are there, or "" */
	struct link_owner owner;
	struct listener *listener;
	int reach_port; /* of node 0's agent, 0 not known */
	size_t fanout, count, placed;
	struct head_node *nodes;
	struct link **unknown; /* proved the secret, did not say yet who they are */
	size_t unknown_count;
	struct engine_child *children;
	size_t child_count;
	int64_t silence_ms; /* no node is silent for too long before; 0: no node's silence counts */
	bool paused, stopping;
};

/* controller.c: what the connections of agents tell; context is to be set. */
extern const struct link_owner head_link_owner;
void head_lose(struct head *head, size_t node, const char *why);

/* controller_start.c: no agent needs the file with the secret any longer. */
void head_take_back(struct head *head);
/* controller_start.c: what agents that never came have printed; loses their nodes. */
void head_listen_to_engine(struct head *head);
/* controller_start.c: the child of this process that is the node's agent, or NULL. */
struct engine_child *head_child(struct head *head, size_t node);

#endif
