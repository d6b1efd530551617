/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/json.h"
#include "base/log.h"
#include "overlay/tree.h"

/* Connections at the door at once beside the children that are expected. */
#define STRANGERS 64

static struct link *child(const struct agent *agent, size_t node)
{
	for (size_t i = 0; i < agent->below_count; i++)
		if (agent->below[i]->node_index == (long)node)
			return agent->below[i];
	return NULL;
}

bool agent_tree_below(const struct agent *agent, size_t node)
{
	size_t self = agent->params.node_index;
	long at = (long)node;

	/* Upwards from node: through a detached one the head is reached without this agent. */
	while (at >= 0 && at != (long)self) {
		if (agent->detached && agent->detached[at])
			return false;
		at = tree_parent((size_t)at, agent->fanout);
	}
	return at == (long)self;
}

/* To the children through which it reaches its node, or to all. */
void agent_tree_down(struct agent *agent, const struct wire_message *message)
{
	struct error err = {0};

	if (message->node == WIRE_ALL) {
		for (size_t i = 0; i < agent->below_count; i++)
			link_send(agent->below[i], message, NULL);
		return;
	}
	if (message->node >= agent->node_count)
		return;
	long next = tree_towards((long)agent->params.node_index, message->node, agent->fanout);
	struct link *link = next < 0 ? NULL : child(agent, (size_t)next);

	/* No child: it is lost, which the head has been told. */
	if (link && link_send(link, message, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
}

static void lost(struct agent *agent, size_t node, const char *why)
{
	agent_say(agent, MESSAGE_LOST, 0,
		  json_pack("{s:I, s:o}", "node", (json_int_t)node, "why", json_text(why)), NULL,
		  0);
}

static void forget(struct agent *agent, struct link *link)
{
	for (size_t i = 0; i < agent->below_count; i++)
		if (agent->below[i] == link)
			agent->below[i] = agent->below[--agent->below_count];
}

static void below_hello(struct agent *agent, struct link *link, const struct wire_message *message)
{
	size_t node = message->node;

	/* One connection a child: a second one is no friend even with the secret. */
	if (node >= agent->node_count ||
	    tree_parent(node, agent->fanout) != (long)agent->params.node_index ||
	    child(agent, node)) {
		agent_note(agent,
			   "%s says it is node %zu, which is no child of this node or is here "
			   "already; refused",
			   link->peer, node);
		forget(agent, link);
		link_close(link);
		return;
	}
	link->node_index = (long)node;
}

static void below_message(void *context, struct link *link, const struct wire_message *message)
{
	struct agent *agent = context;
	struct error err = {0};

	if (link->node_index < 0) {
		if (message->type == MESSAGE_HELLO)
			below_hello(agent, link, message);
		return;
	}
	/* A child speaks for its own subtree only. */
	if (message->node >= agent->node_count || !agent_tree_below(agent, message->node) ||
	    message->type == MESSAGE_BEAT)
		return;
	switch (message->type) {
	case MESSAGE_REACHED:
		agent_reach_merge(agent, message);
		return;
	case MESSAGE_GATHER:
		agent_pmix_contribution(agent, message);
		return;
	default:
		if (agent->up && link_send(agent->up, message, &err))
			log_line(LOG_WARNING, "agent", "%s", err.text);
	}
}

static void below_ended(void *context, struct link *link, const struct error *why)
{
	struct agent *agent = context;

	forget(agent, link);
	if (link->node_index >= 0 && !agent->gone)
		lost(agent, (size_t)link->node_index, why ? why->text : "its agent left");
	link_close(link);
}

static void below_opened(void *context, struct link *link)
{
	(void)context;
	(void)link; /* HELLO says who it is */
}

static void friend(void *context, struct link *link)
{
	struct agent *agent = context;

	if (agent->below_count >= agent->fanout) {
		link_close(link);
		return;
	}
	link->owner = &agent->below_owner;
	agent->below[agent->below_count++] = link;
}

static void refused(void *context, const char *text)
{
	agent_note(context, "%s", text);
}

int agent_tree_listen(struct agent *agent, struct error *err)
{
	struct listener_events events = {agent, friend, refused};
	int rc;

	agent->below_owner = (struct link_owner){agent, below_opened, below_message, below_ended};
	agent->below = calloc(agent->fanout, sizeof *agent->below);
	if (!agent->below)
		return error_memory(err, "the agents below");
	rc = listener_open(agent->loop, 0, &agent->params.secret, agent->params.job,
			   agent->fanout + STRANGERS +
				   (agent->params.node_index ? 0 : listener_probes(agent->node_count)),
			   &events, &agent->listener, err);
	if (!rc)
		agent_say(agent, MESSAGE_LISTENS, 0,
			  json_pack("{s:i}", "port", listener_port(agent->listener)), NULL, 0);
	return rc;
}

int agent_tree_settled(struct agent *agent, const json_t *text, struct error *err)
{
	json_t *list, *entry;
	size_t i;
	int rc = json_get_array("TREE", text, "detached", &list, err);

	if (rc)
		return rc;
	json_array_foreach(list, i, entry)
	{
		json_int_t node = json_integer_value(entry);

		if (!json_is_integer(entry) || node < 0 || node >= (json_int_t)agent->node_count)
			return error_set(err, ERR_DATA, "TREE names a node that does not exist");
		agent->detached[node] = true;
	}
	return 0;
}

void agent_tree_tick(struct agent *agent, int64_t now_ms, bool slept)
{
	if (agent->listener)
		listener_tick(agent->listener, now_ms);
	for (size_t i = 0; i < agent->below_count; i++) {
		struct link *link = agent->below[i];

		if (slept)
			link->heard_ms = now_ms;
		if (link->paused || now_ms - link->heard_ms <= agent->params.node_timeout_ms) {
			proto_send(link, MESSAGE_BEAT, WIRE_ALL, agent->attempt, 0, NULL, NULL, 0,
				   NULL);
			continue;
		}
		char why[96];

		snprintf(why, sizeof why, "its agent was silent for %d s",
			 agent->params.node_timeout_ms / 1000);
		if (link->node_index >= 0)
			lost(agent, (size_t)link->node_index, why);
		forget(agent, link);
		link_close(link);
		i--;
	}
}

void agent_tree_close(struct agent *agent, bool goodbye)
{
	while (agent->below_count) {
		struct link *link = agent->below[--agent->below_count];

		if (goodbye)
			link_finish(link, 500);
		link_close(link);
	}
	free(agent->below);
	agent->below = NULL;
	listener_close(agent->listener);
	agent->listener = NULL;
}
