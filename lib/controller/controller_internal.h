/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of the controller's connections, shared by controller.c and controller_start.c alone.
 */
#ifndef BERTH_CONTROLLER_CONTROLLER_INTERNAL_H
#define BERTH_CONTROLLER_CONTROLLER_INTERNAL_H

#include "controller/controller.h"
#include "overlay/connection.h"
#include "overlay/listener.h"

#define CONTROLLER_REAP_MS 500 /* from the end of an agent's connection to that of its process */
#define CONTROLLER_MAX_UNAUTHENTICATED 256 /* peers at once, besides the expected nodes */

struct controller_node {
	struct connection *connection; /* direct; NULL: through its parent, or none */
	char address[80];	       /* where it listens for its children, "" not known */
	char dir[128];
	bool hello_received; /* HELLO came */
	bool placed;	     /* it has its place in the tree */
	bool moved,
		detached; /* connected to its parent; to the controller, although it has a parent */
	bool lost;
	int64_t ended_ms;    /* its connection ended while its process lived; 0: not so */
	char ended_why[240]; /* and how */
};

struct controller {
	struct loop *loop;
	const struct launch_options *launch; /* borrowed */
	int port;			     /* MASTER_PORT, which node 0 holds; 0: any */
	struct controller_events events;
	struct secret secret;
	char secret_source[4200]; /* with launchers that have secret_from_cookie */
	char secret_file[4200]; /* a file that holds the secret until all agents are there, or "" */
	struct connection_owner owner;
	struct listener *listener;
	int probe_port; /* of node 0's agent, 0 not known */
	size_t fanout, count, placed;
	struct controller_node *nodes;
	struct connection **unidentified; /* proved the secret, have not sent HELLO yet */
	size_t unidentified_count;
	struct launcher_process *processes;
	size_t process_count;
	int64_t silence_due_ms; /* no node is silent for too long before; 0: no node's silence
				   counts */
	bool paused, stopping;
};

/* controller.c: receives from the agents' connections; context is to be set. */
extern const struct connection_owner controller_connection_owner;
/* The port on which agents connect; 0 with socket pairs. */
int controller_port(const struct controller *controller);
void controller_mark_lost(struct controller *controller, size_t node, const char *why);

/* controller_start.c: no agent needs the file with the secret any longer. */
void controller_remove_secret_file(struct controller *controller);
/* controller_start.c: what agents that never came have printed; loses their nodes. */
void controller_read_launcher_output(struct controller *controller);
/* controller_start.c: the child of this process that is the node's agent, or NULL. */
struct launcher_process *controller_agent_process(struct controller *controller, size_t node);

#endif
