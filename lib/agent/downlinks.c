/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/json.h"
#include "base/log.h"
#include "overlay/tree.h"

/* Connections at the door at once beside the children that are expected. */
#define MAX_UNAUTHENTICATED 64

static struct connection *find_downlink(const struct agent *agent, size_t node)
{
	for (size_t i = 0; i < agent->downlink_count; i++)
		if (agent->downlinks[i]->node_index == (long)node)
			return agent->downlinks[i];
	return NULL;
}

bool agent_downlinks_in_subtree(const struct agent *agent, size_t node)
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
void agent_downlinks_forward(struct agent *agent, const struct wire_message *message)
{
	struct error err = {0};

	if (message->node == WIRE_ALL) {
		for (size_t i = 0; i < agent->downlink_count; i++)
			connection_send(agent->downlinks[i], message, NULL);
		return;
	}
	if (message->node >= agent->node_count)
		return;
	long next = tree_next_hop((long)agent->params.node_index, message->node, agent->fanout);
	struct connection *connection = next < 0 ? NULL : find_downlink(agent, (size_t)next);

	/* No child: it is lost, which the head has been told. */
	if (connection && connection_send(connection, message, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
}

static void report_lost(struct agent *agent, size_t node, const char *why)
{
	agent_send(agent, MESSAGE_LOST, 0,
		   json_pack("{s:I, s:o}", "node", (json_int_t)node, "why", json_text(why)), NULL,
		   0);
}

static void remove_downlink(struct agent *agent, struct connection *connection)
{
	for (size_t i = 0; i < agent->downlink_count; i++)
		if (agent->downlinks[i] == connection)
			agent->downlinks[i] = agent->downlinks[--agent->downlink_count];
}

static void handle_hello(struct agent *agent, struct connection *connection,
			 const struct wire_message *message)
{
	size_t node = message->node;

	/* One connection a child: a second one is no friend even with the secret. */
	if (node >= agent->node_count ||
	    tree_parent(node, agent->fanout) != (long)agent->params.node_index ||
	    find_downlink(agent, node)) {
		agent_note(agent,
			   "%s says it is node %zu, which is no child of this node or is here "
			   "already; refused",
			   connection->peer, node);
		remove_downlink(agent, connection);
		connection_close(connection);
		return;
	}
	connection->node_index = (long)node;
}

static void on_downlink_message(void *context, struct connection *connection,
				const struct wire_message *message)
{
	struct agent *agent = context;
	struct error err = {0};

	if (connection->node_index < 0) {
		if (message->type == MESSAGE_HELLO)
			handle_hello(agent, connection, message);
		return;
	}
	/* A child speaks for its own subtree only. */
	if (message->node >= agent->node_count ||
	    !agent_downlinks_in_subtree(agent, message->node) || message->type == MESSAGE_HEARTBEAT)
		return;
	switch (message->type) {
	case MESSAGE_PROBED:
		agent_probe_merge(agent, message);
		return;
	case MESSAGE_GATHER:
		agent_pmix_contribution(agent, message);
		return;
	default:
		if (agent->uplink && connection_send(agent->uplink, message, &err))
			log_line(LOG_WARNING, "agent", "%s", err.text);
	}
}

static void on_downlink_ended(void *context, struct connection *connection, const struct error *why)
{
	struct agent *agent = context;

	remove_downlink(agent, connection);
	if (connection->node_index >= 0 && !agent->disconnected)
		report_lost(agent, (size_t)connection->node_index,
			    why ? why->text : "its agent left");
	connection_close(connection);
}

static void on_downlink_opened(void *context, struct connection *connection)
{
	(void)context;
	(void)connection; /* HELLO says who it is */
}

static void on_authenticated(void *context, struct connection *connection)
{
	struct agent *agent = context;

	if (agent->downlink_count >= agent->fanout) {
		connection_close(connection);
		return;
	}
	connection->owner = &agent->downlink_owner;
	agent->downlinks[agent->downlink_count++] = connection;
}

static void on_rejected(void *context, const char *text)
{
	agent_note(context, "%s", text);
}

int agent_downlinks_listen(struct agent *agent, struct error *err)
{
	struct listener_events events = {agent, on_authenticated, on_rejected};
	int rc;

	agent->downlink_owner = (struct connection_owner){agent, on_downlink_opened,
							  on_downlink_message, on_downlink_ended};
	agent->downlinks = calloc(agent->fanout, sizeof *agent->downlinks);
	if (!agent->downlinks)
		return error_memory(err, "the agents below");
	rc = listener_open(
		agent->loop, 0, &agent->params.secret, agent->params.job,
		agent->fanout + MAX_UNAUTHENTICATED +
			(agent->params.node_index ? 0 : listener_probe_limit(agent->node_count)),
		&events, &agent->listener, err);
	if (!rc)
		agent_send(agent, MESSAGE_LISTENING, 0,
			   json_pack("{s:i}", "port", listener_port(agent->listener)), NULL, 0);
	return rc;
}

int agent_downlinks_set_detached(struct agent *agent, const json_t *text, struct error *err)
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

void agent_downlinks_tick(struct agent *agent, int64_t now_ms, bool slept)
{
	if (agent->listener)
		listener_tick(agent->listener, now_ms);
	for (size_t i = 0; i < agent->downlink_count; i++) {
		struct connection *connection = agent->downlinks[i];

		if (slept)
			connection->received_ms = now_ms;
		if (connection->paused ||
		    now_ms - connection->received_ms <= agent->params.node_timeout_ms) {
			message_send(connection, MESSAGE_HEARTBEAT, WIRE_ALL, agent->attempt, 0,
				     NULL, NULL, 0, NULL);
			continue;
		}
		char why[96];

		snprintf(why, sizeof why, "its agent was silent for %d s",
			 agent->params.node_timeout_ms / 1000);
		if (connection->node_index >= 0)
			report_lost(agent, (size_t)connection->node_index, why);
		remove_downlink(agent, connection);
		connection_close(connection);
		i--;
	}
}

void agent_downlinks_close(struct agent *agent, bool goodbye)
{
	while (agent->downlink_count) {
		struct connection *connection = agent->downlinks[--agent->downlink_count];

		if (goodbye)
			connection_finish(connection, 500);
		connection_close(connection);
	}
	free(agent->downlinks);
	agent->downlinks = NULL;
	listener_close(agent->listener);
	agent->listener = NULL;
}
