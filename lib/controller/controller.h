/* SPDX-License-Identifier: BSD-3-Clause */
/* The controller's side of the connections: starts the agents through a launcher, accepts their
 * connections, arranges them as a tree, notices when one is lost. job.h decides what they do.
 *
 *   controller.c         connections: their places in the tree, messages, lost nodes
 *   controller_start.c   agents as processes: start and exit */
#ifndef BERTH_CONTROLLER_CONTROLLER_H
#define BERTH_CONTROLLER_CONTROLLER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/loop.h"
#include "launch/launcher.h"
#include "overlay/messages.h"
#include "overlay/wire.h"

struct controller; /* opaque */

struct controller_events {
	void *context;
	/* Every agent has connected and has its place in the tree. */
	void (*attached)(void *context);
	/* A message for the job; node is valid. */
	void (*message)(void *context, size_t node, const struct message *message);
	/* A node's message could not be read. */
	void (*failed)(void *context, size_t node, const struct error *why);
	/* The agent of a node is lost or silent; called once per node. */
	void (*lost)(void *context, size_t node, const char *why);
	/* A note for the user, for instance: an unauthenticated peer was rejected. */
	void (*note)(void *context, const char *text);
};

/* Create the secret, listen if the launcher needs it, and start the agents. Makes this process a
 * child subreaper. launch must outlive the controller. port: MASTER_PORT, which node 0 reserves;
 * 0: any. -ERR_UNAVAILABLE, -ERR_NETWORK. */
int controller_start(struct loop *loop, const struct launch_options *launch, int port,
		     const struct controller_events *events, struct controller **out,
		     struct error *err);

/* While the run waits in the queue there is no controller yet. These functions then accept NULL:
 * controller_send, _pause, _spare and _stop.
 *
 * Send a message to one node, or to all (WIRE_ALL); body as for message_send. A node that can no
 * longer be reached is not an error: lost reports it. */
int controller_send(struct controller *controller, enum message_type type, uint32_t node,
		    uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		    size_t size, struct error *err);

/* The names of the runs that this one runs in, and its own as the last: host, process and time, the
 * same in all attempts; then a role's. A run minds no claims of these. */
void controller_run_names(const struct launch_options *launch, char *out, size_t size);
/* That time: when this process first asked, in microseconds of the wall clock. */
int64_t controller_begun_us(void);
/* The scope of the job's claims (process/claims.h), in out; NULL for simulated nodes, which have
 * the same GPUs. */
const char *controller_scope(const struct launch_options *launch, char *out, size_t size);

/* Handle SIGCHLD for all controllers of this process: reap children, and kill what an agent on this
 * host left behind. */
void controller_reap(void);
/* Stop or resume reading from the agents (heartbeats are still sent). */
void controller_pause(struct controller *controller, bool on);

bool controller_is_lost(const struct controller *controller,
			size_t node); /* the node's agent, or an agent on the path to it, is lost */
/* Has the launcher's tool ended all agents, because it could not start one? */
bool controller_tool_gave_up(const struct controller *controller);
const char *controller_tmpdir(const struct controller *controller,
			      size_t node); /* its private directory; "" if unknown */
/* The port at which node 0's agent answers probes of its addresses. The rendezvous is on node 0,
 * while this process may run on a login node. */
int controller_probe_port(const struct controller *controller);
/* The first port of a block, see agent/ports.h. With --ports only. */
int controller_first_port(const struct controller *controller, int block);
/* Write the names of nodes whose agents are not in place yet, truncated to size. Return their
 * number. */
size_t controller_missing(const struct controller *controller, char *text, size_t size);

/* Have all processes of the launcher ended? */
bool controller_launcher_ended(struct controller *controller);
/* Write the last lines of the launcher tool's output so far, joined by "; "; "" if there are
 * none. */
void controller_launcher_output(struct controller *controller, char *text, size_t size);

/* Spare this child of the process, the caller's own, when what agents left behind is killed; 0:
 * none. */
void controller_spare(struct controller *controller, pid_t pid);

/* Send the final frames, and end the agents that are this process's children (SIGKILL after
 * timeout_ms) with all their descendants. left (may be NULL): which processes could not be
 * killed. controller may be NULL. Takes at most timeout_ms and CONTROLLER_STOP_MS. */
#define CONTROLLER_STOP_MS 4500
void controller_stop(struct controller *controller, int timeout_ms, char *left, size_t size);

#endif
