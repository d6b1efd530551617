/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/downlinks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/log.h"
#include "overlay/tree.h"

/* How many unauthenticated connections may be open besides those of the expected children. */
#define MAX_UNAUTHENTICATED 64

static struct connection *find_downlink(const struct agent_downlinks *downlinks, size_t node)
{
	for (size_t i = 0; i < downlinks->count; i++)
		if (downlinks->connections[i]->node_index == (long)node)
			return downlinks->connections[i];
	return NULL;
}

/* Do node's messages reach the controller through this agent (this node included)? */
static bool in_subtree(const struct agent_downlinks *downlinks, size_t node)
{
	size_t self = downlinks->params->node_index;
	long at = (long)node;

	/* Walk up from node. A detached node reaches the controller without this agent. */
	while (at >= 0 && at != (long)self) {
		if (downlinks->detached && downlinks->detached[at])
			return false;
		at = tree_parent((size_t)at, downlinks->fanout);
	}
	return at == (long)self;
}

/* Forward a message to the child that leads to its destination, or to all children. */
void agent_downlinks_forward(struct agent_downlinks *downlinks, const struct wire_message *message)
{
	struct error err = {0};

	if (message->node == WIRE_ALL) {
		for (size_t i = 0; i < downlinks->count; i++)
			connection_send(downlinks->connections[i], message, NULL);
		return;
	}
	if (message->node >= downlinks->node_count)
		return;
	long next = tree_next_hop((long)downlinks->params->node_index, message->node,
				  downlinks->fanout);
	struct connection *connection = next < 0 ? NULL : find_downlink(downlinks, (size_t)next);

	/* Without a connection the child is lost, which was already reported. */
	if (connection && connection_send(connection, message, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
}

void agent_downlinks_signal(struct agent_downlinks *downlinks, int number)
{
	for (size_t i = 0; i < downlinks->count; i++)
		message_send(downlinks->connections[i], MESSAGE_SIGNAL, WIRE_ALL,
			     downlinks->uplink->attempt, 0,
			     &(struct message_signal){.signal = number}, NULL, 0, NULL);
}

static void report_lost(struct agent_downlinks *downlinks, size_t node, bool ended, const char *why)
{
	agent_uplink_report(downlinks->uplink, MESSAGE_LOST,
			    &(struct message_lost){(int)node, ended, why});
}

static void remove_downlink(struct agent_downlinks *downlinks, struct connection *connection)
{
	for (size_t i = 0; i < downlinks->count; i++)
		if (downlinks->connections[i] == connection)
			downlinks->connections[i] = downlinks->connections[--downlinks->count];
}

static void handle_hello(struct agent_downlinks *downlinks, struct connection *connection,
			 const struct wire_message *message)
{
	size_t node = message->node;

	/* One connection per child: a second one is rejected even with the secret. */
	if (node >= downlinks->node_count ||
	    tree_parent(node, downlinks->fanout) != (long)downlinks->params->node_index ||
	    find_downlink(downlinks, node)) {
		agent_uplink_note(downlinks->uplink,
				  "rejected %s: it claims to be node %zu, which is not a child of "
				  "this node or is already connected",
				  connection->peer, node);
		remove_downlink(downlinks, connection);
		connection_close(connection);
		return;
	}
	connection->node_index = (long)node;
}

static void on_downlink_message(void *context, struct connection *connection,
				const struct wire_message *message)
{
	struct agent_downlinks *downlinks = context;

	if (connection->node_index < 0) {
		if (message->type == MESSAGE_HELLO)
			handle_hello(downlinks, connection, message);
		return;
	}
	/* A child speaks for its own subtree only. */
	if (message->node >= downlinks->node_count || !in_subtree(downlinks, message->node) ||
	    message->type == MESSAGE_HEARTBEAT)
		return;
	if (!downlinks->merge(downlinks->context, message))
		agent_uplink_forward(downlinks->uplink, message);
}

static void on_downlink_ended(void *context, struct connection *connection, const struct error *why)
{
	struct agent_downlinks *downlinks = context;

	remove_downlink(downlinks, connection);
	if (connection->node_index >= 0 && !downlinks->uplink->lost)
		report_lost(downlinks, (size_t)connection->node_index, true,
			    why ? why->text : "its agent closed the connection");
	connection_close(connection);
}

static void on_authenticated(void *context, struct connection *connection)
{
	struct agent_downlinks *downlinks = context;

	if (downlinks->count >= downlinks->fanout) {
		connection_close(connection);
		return;
	}
	connection->owner = &downlinks->owner;
	downlinks->connections[downlinks->count++] = connection;
}

static void on_rejected(void *context, const char *text)
{
	struct agent_downlinks *downlinks = context;

	agent_uplink_note(downlinks->uplink, "%s", text);
}

static void on_second(struct loop_timer *timer)
{
	struct agent_downlinks *downlinks = LOOP_OWNER(timer, struct agent_downlinks, second);
	int64_t now_ms = loop_now_ms(downlinks->loop);

	loop_timer_after(downlinks->loop, timer, CONNECTION_HEARTBEAT_MS);
	for (size_t i = 0; i < downlinks->count; i++) {
		struct connection *connection = downlinks->connections[i];

		if (connection->paused ||
		    now_ms - connection->received_ms <= downlinks->params->node_timeout_ms) {
			message_send(connection, MESSAGE_HEARTBEAT, WIRE_ALL,
				     downlinks->uplink->attempt, 0, NULL, NULL, 0, NULL);
			continue;
		}
		char why[96];

		snprintf(why, sizeof why, "no heartbeat from its agent for %d s",
			 downlinks->params->node_timeout_ms / 1000);
		if (connection->node_index >= 0)
			report_lost(downlinks, (size_t)connection->node_index, false, why);
		remove_downlink(downlinks, connection);
		connection_close(connection);
		i--;
	}
}

void agent_downlinks_init(struct agent_downlinks *downlinks, struct loop *loop,
			  struct agent_uplink *uplink, const struct agent_params *params,
			  bool (*merge)(void *context, const struct wire_message *message),
			  void *context)
{
	*downlinks = (struct agent_downlinks){
		.loop = loop,
		.uplink = uplink,
		.params = params,
		.merge = merge,
		.context = context,
		.owner = {downlinks, NULL, on_downlink_message, on_downlink_ended},
		.second.due = on_second,
	};
}

int agent_downlinks_set_tree(struct agent_downlinks *downlinks, size_t node_count, size_t fanout,
			     struct error *err)
{
	downlinks->node_count = node_count;
	downlinks->fanout = fanout;
	downlinks->detached = calloc(node_count, sizeof *downlinks->detached);
	return downlinks->detached ? 0 : error_memory(err, "the job's nodes");
}

int agent_downlinks_listen(struct agent_downlinks *downlinks, struct error *err)
{
	struct listener_events events = {downlinks, on_authenticated, on_rejected};
	const struct agent_params *params = downlinks->params;
	size_t limit = downlinks->fanout + MAX_UNAUTHENTICATED +
		       (params->node_index ? 0 : listener_probe_limit(downlinks->node_count));
	int rc;

	downlinks->connections = calloc(downlinks->fanout, sizeof *downlinks->connections);
	if (!downlinks->connections)
		return error_memory(err, "the child agents");
	loop_timer_after(downlinks->loop, &downlinks->second, CONNECTION_HEARTBEAT_MS);
	rc = listener_open(downlinks->loop, 0, &params->secret, params->job, limit, &events,
			   &downlinks->listener, err);
	if (!rc)
		agent_uplink_report(
			downlinks->uplink, MESSAGE_LISTENING,
			&(struct message_listening){listener_port(downlinks->listener)});
	return rc;
}

int agent_downlinks_set_detached(struct agent_downlinks *downlinks, const struct message_tree *tree,
				 struct error *err)
{
	json_t *entry;
	size_t i;

	json_array_foreach(tree->detached, i, entry)
	{
		json_int_t node = json_integer_value(entry);

		if (!json_is_integer(entry) || node < 0 ||
		    node >= (json_int_t)downlinks->node_count)
			return error_set(err, ERR_DATA, "TREE names a node that does not exist");
		downlinks->detached[node] = true;
	}
	return 0;
}

void agent_downlinks_close(struct agent_downlinks *downlinks, bool goodbye)
{
	loop_timer_stop(&downlinks->second);
	while (downlinks->count) {
		struct connection *connection = downlinks->connections[--downlinks->count];

		if (goodbye)
			connection_finish(connection, 500);
		connection_close(connection);
	}
	free(downlinks->connections);
	downlinks->connections = NULL;
	free(downlinks->detached);
	downlinks->detached = NULL;
	listener_close(downlinks->listener);
	downlinks->listener = NULL;
}

void agent_downlinks_pause(struct agent_downlinks *downlinks, bool on)
{
	for (size_t i = 0; i < downlinks->count; i++)
		connection_pause(downlinks->connections[i], on);
}

size_t agent_downlinks_subtree_size(const struct agent_downlinks *downlinks, const int *rank_count)
{
	size_t count = 0;

	for (size_t i = 0; i < downlinks->node_count; i++)
		count += (!rank_count || rank_count[i] > 0) && in_subtree(downlinks, i);
	return count;
}

int agent_downlinks_subtree_height(const struct agent_downlinks *downlinks)
{
	size_t first, end, node = downlinks->params->node_index;
	int levels = 0;

	for (;;) {
		tree_children((long)node, downlinks->node_count, downlinks->fanout, &first, &end);
		if (first == end)
			return levels;
		levels++;
		node = first;
	}
}
