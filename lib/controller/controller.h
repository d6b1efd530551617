/* SPDX-License-Identifier: BSD-3-Clause */
/* The head's side of the connections: starts the agents by an engine, takes their connections in,
 * arranges them as a tree, notices when one is lost. What is done with them is job.h's.
 *
 *   controller.c         connections: places in the tree, messages, losses
 *   controller_start.c   agents as processes: start, end */
#ifndef BERTH_CONTROLLER_CONTROLLER_H
#define BERTH_CONTROLLER_CONTROLLER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "base/loop.h"
#include "launch/launcher.h"
#include "overlay/messages.h"
#include "overlay/wire.h"

struct head; /* opaque */

struct head_events {
	void *context;
	/* Every agent is there and has its place in the tree. */
	void (*attached)(void *context);
	/* A message for the job; node is checked. */
	void (*message)(void *context, size_t node, const struct wire_message *message);
	/* The agent of a node is gone or silent; told once a node. */
	void (*lost)(void *context, size_t node, const char *why);
	/* Something at the door that is no friend, or the like. */
	void (*note)(void *context, const char *text);
};

struct head_options {
	const struct alloc *alloc; /* outlives the head */
	const struct engine *engine;
	const struct env *env;
	const char *program; /* this berth's path, for engines that exec */
	int node_timeout_ms;
	size_t fanout; /* 0: TREE_FANOUT */
	int port;      /* MASTER_PORT that node 0 holds; 0: any */
};

/* Make the secret, listen where the engine needs it, start the agents. Makes this process a child
 * subreaper. -ERR_UNAVAILABLE, -ERR_NETWORK. */
int head_start(struct loop *loop, const struct head_options *options,
	       const struct head_events *events, struct head **out, struct error *err);

/* To one node, or to all (WIRE_ALL). text is consumed. A node that cannot be reached any longer is
 * no error: it was or will be told by lost. */
int head_send(struct head *head, enum agent_message type, uint32_t node, uint32_t attempt,
	      uint64_t sequence, json_t *text, const void *data, size_t size, struct error *err);

/* Beats, silences, strangers' deadlines; about every second, and after every wake-up. */
void head_tick(struct head *head, int64_t now_ms, bool slept);
/* When the next silence is to be looked at, between two ticks; 0: none before the next tick. */
int64_t head_silence_due(const struct head *head);
/* Which nodes have been silent for too long: the ticks alone would find out up to a second late. */
void head_look_at_silence(struct head *head, int64_t now_ms);
/* SIGCHLD: reap; what an agent on this machine left behind is ended. */
void head_reap(struct head *head);
/* Stop or go on reading from the agents (beats still go out). */
void head_pause(struct head *head, bool on);

bool head_is_lost(const struct head *head, size_t node); /* it, or an agent on the way to it */
const char *head_folder(const struct head *head, size_t node); /* its private one, "" unknown */
/* The port on which agents connect; 0 with socket pairs. */
int head_port(const struct head *head);
/* The port at which node 0's agent answers who looks for the head's address: this process may be
 * on a login node, and the ranks meet on node 0. */
int head_reach_port(const struct head *head);
/* Names of nodes whose agents are not in place yet, cut at size; their number. */
size_t head_missing(const struct head *head, char *text, size_t size);

/* What the engine's tool has printed so far, its last lines joined by "; "; "" when nothing. */
void head_words(const struct head *head, char *text, size_t size);

/* Say goodbye, end the agents that are this process's children (SIGKILL after timeout_ms), and all
 * that descends from them. left (may be NULL): what could not be ended. NULL head is fine. */
void head_stop(struct head *head, int timeout_ms, char *left, size_t size);

#endif
