/* SPDX-License-Identifier: BSD-3-Clause */
/* The controller's side of the connections: starts the agents through a launcher, accepts their
 * connections, arranges them as a tree, notices when one is lost. job.h decides what they do.
 *
 *   controller.c         connections: places in the tree, messages, losses
 *   controller_start.c   agents as processes: start, end */
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
	/* A message for the job; node is checked. */
	void (*message)(void *context, size_t node, const struct wire_message *message);
	/* The agent of a node is gone or silent; called once per node. */
	void (*lost)(void *context, size_t node, const char *why);
	/* An unauthenticated peer was rejected, or the like. */
	void (*note)(void *context, const char *text);
};

/* Make the secret, listen if the launcher needs it, start the agents. Makes this process a child
 * subreaper. launch outlives the controller. port: MASTER_PORT, which node 0 holds; 0: any.
 * -ERR_UNAVAILABLE, -ERR_NETWORK. */
int controller_start(struct loop *loop, const struct launch_options *launch, int port,
		     const struct controller_events *events, struct controller **out,
		     struct error *err);

/* To one node, or to all (WIRE_ALL). text is consumed. A node that cannot be reached any longer is
 * no error: lost reports it. */
int controller_send(struct controller *controller, enum message_type type, uint32_t node,
		    uint32_t attempt, uint64_t sequence, json_t *text, const void *data,
		    size_t size, struct error *err);

/* Heartbeats, silences, deadlines of unauthenticated peers; about every second, and after every
 * wake-up. */
void controller_tick(struct controller *controller, int64_t now_ms, bool slept);
/* When the next silence is to be looked at, between two ticks; 0: none before the next tick. */
int64_t controller_silence_due(const struct controller *controller);
/* Which nodes have been silent for too long: the ticks alone would find out up to a second late. */
void controller_check_silence(struct controller *controller, int64_t now_ms);
/* SIGCHLD: reap; what an agent on this machine left behind is ended. */
void controller_reap(struct controller *controller);
/* Stop or resume reading from the agents (heartbeats are still sent). */
void controller_pause(struct controller *controller, bool on);

bool controller_is_lost(const struct controller *controller,
			size_t node); /* it, or an agent on the way to it */
const char *controller_tmpdir(const struct controller *controller,
			      size_t node); /* its private one, "" unknown */
/* The port at which node 0's agent answers probes of its addresses: this process may be on a login
 * node, and the rendezvous is on node 0. */
int controller_probe_port(const struct controller *controller);
/* Names of nodes whose agents are not in place yet, cut at size; their number. */
size_t controller_missing(const struct controller *controller, char *text, size_t size);

/* The last lines of the launcher's tool so far, joined by "; "; "" if there are none. */
void controller_launcher_output(const struct controller *controller, char *text, size_t size);

/* Say goodbye, end the agents that are this process's children (SIGKILL after timeout_ms), and all
 * that descends from them. left (may be NULL): what could not be ended. NULL controller is fine. */
void controller_stop(struct controller *controller, int timeout_ms, char *left, size_t size);

#endif
