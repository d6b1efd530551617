/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of the controller's connections, shared by controller.c and controller_start.c only. */
#ifndef BERTH_CONTROLLER_CONTROLLER_INTERNAL_H
#define BERTH_CONTROLLER_CONTROLLER_INTERNAL_H

#include "base/loop.h"
#include "controller/controller.h"
#include "overlay/children.h"

#define CONTROLLER_REAP_MS 2000 /* from the end of an agent's connection to its process's exit */

struct controller_node {
	char address[80]; /* where it listens for its children; "" if unknown */
	char dir[128];
	bool placed; /* it has its place in the tree */
	bool lost;
	int64_t ended_ms; /* when its connection ended while its process was alive, by loop_now_ms;
			     0: it did not */
	char ended_why[480]; /* why its connection or its launcher's tool ended; "": neither has */
};

struct controller {
	struct controller *next; /* of this process's: its children are all of theirs */
	struct loop *loop;
	const struct launch_options *launch; /* borrowed */
	int port;			     /* MASTER_PORT, which node 0 reserves; 0: any */
	uint16_t ports_seed;		     /* see agent/ports.h */
	struct controller_events events;
	struct secret secret;
	char secret_source[4200]; /* used with launchers that have secret_from_cookie */
	char secret_file[4200]; /* a file that holds the secret until all agents have connected, or
				   "" */
	struct children children;
	int probe_port; /* the port of node 0's agent; 0 if unknown */
	size_t count, placed;
	struct controller_node *nodes;
	struct launcher_process *processes;
	size_t process_count;
	struct loop_timer again;  /* to start the launcher again */
	int64_t start_due_ms;	  /* until when that makes sense */
	pid_t spared;		  /* see controller_spare; 0: none */
	struct loop_timer second; /* to read the launcher's output, and end what has ended */
	/* Handle what the launcher's tools have written, until all agents have connected. Before
	 * the loss of an agent is handled, too: a tool that cannot start one names it, then ends
	 * the others. */
	void (*read_output)(struct controller *controller);
	bool stopping, tool_gave_up;
};

/* controller.c, for controller_start.c: what happens to the agents' connections. */
int controller_init_children(struct controller *controller, struct error *err);
void controller_mark_lost(struct controller *controller, size_t node, const char *why);
/* Remove the file with the secret, which no agent needs any longer. */
void controller_remove_secret_file(struct controller *controller);

#endif
