/* SPDX-License-Identifier: BSD-3-Clause */
#include "overlay/children.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>

#include "base/bytes.h"
#include "overlay/socket.h"
#include "overlay/tree.h"

/* How many unauthenticated and how many unidentified peers there may be at once besides the
 * expected children. */
#define MAX_UNIDENTIFIED 256

/* The nodes that may be connected here. */
static void bounds(const struct children *children, size_t *first, size_t *end)
{
	*first = *end = 0;
	if (!children->nodes)
		return;
	if (children->self < 0)
		*end = children->node_count;
	else
		tree_children(children->self, children->node_count, children->fanout, first, end);
}

bool children_known(const struct children *children, size_t node)
{
	return children->nodes && children->nodes[node].known;
}

/* ---- peers that have not said who they are ---- */

static void on_second(struct loop_timer *timer);

static void add_unidentified(struct children *children, struct connection *connection)
{
	connection->owner = &children->owner;
	children->unidentified[children->unidentified_count++] = connection;
	if (!children->second.due) {
		children->second.due = on_second;
		loop_timer_after(children->loop, &children->second, CONNECTION_HEARTBEAT_MS);
	}
}

static void remove_unidentified(struct children *children, struct connection *connection)
{
	for (size_t i = 0; i < children->unidentified_count; i++)
		if (children->unidentified[i] == connection)
			children->unidentified[i] =
				children->unidentified[--children->unidentified_count];
}

static void on_authenticated(void *context, struct connection *connection)
{
	struct children *children = context;

	if (children->unidentified_count < children->unidentified_limit)
		add_unidentified(children, connection);
	else
		connection_close(connection);
}

static void on_rejected(void *context, const char *text)
{
	struct children *children = context;

	children->events.rejected(children->events.context, text);
}

static void handle_hello(struct children *children, struct connection *connection,
			 const struct wire_message *message)
{
	size_t first, end, node = message->node;
	bool expected;

	bounds(children, &first, &end);
	expected = node >= first && node < end;
	remove_unidentified(children, connection);
	/* One connection per node: a second one is rejected even with the secret. */
	if (!expected || children->nodes[node].known) {
		char why[160];

		snprintf(why, sizeof why, "rejected %s: it claims to be node %zu, which is %s",
			 connection->peer, node,
			 expected	      ? "already connected"
			 : children->self < 0 ? "not in this job"
					      : "not a child of this node");
		connection_close(connection);
		on_rejected(children, why);
		return;
	}
	children->nodes[node].known = true;
	children->nodes[node].connection = connection;
	connection->node_index = (long)node;
	connection_pause(connection, children->paused);
	if (children->events.hello)
		children->events.hello(children->events.context, connection, message);
}

/* ---- messages ---- */

/* A connection may send messages of its own subtree only. At the controller, messages through the
 * parent may arrive before the last ones on the old connection. */
static bool speaks_for(const struct children *children, const struct connection *connection,
		       size_t node)
{
	long at = (long)node;

	while (at >= 0 && children->nodes[at].connection != connection) {
		if (children->nodes[at].detached)
			return false;
		at = tree_parent((size_t)at, children->fanout);
	}
	return at >= 0;
}

static void on_message(void *context, struct connection *connection,
		       const struct wire_message *message)
{
	struct children *children = context;

	if (connection->node_index < 0) {
		if (message->type == MESSAGE_HELLO)
			handle_hello(children, connection, message);
		return;
	}
	if (message->type != MESSAGE_HEARTBEAT && message->node < children->node_count &&
	    speaks_for(children, connection, message->node))
		children->events.message(children->events.context, connection, message);
}

static void on_ended(void *context, struct connection *connection, const struct error *why)
{
	struct children *children = context;
	long node = connection->node_index;

	remove_unidentified(children, connection);
	if (node >= 0) {
		children->nodes[node].connection = NULL;
		children->events.lost(children->events.context, (size_t)node, true,
				      why ? why->text
					  : "its agent closed the connection before the job's end");
	}
	connection_close(connection);
}

static struct connection *route(const struct children *children, size_t node)
{
	long at = (long)node;

	while (at >= 0 && !children->nodes[at].connection)
		at = tree_parent((size_t)at, children->fanout);
	return at < 0 ? NULL : children->nodes[at].connection;
}

int children_forward(struct children *children, const struct wire_message *message,
		     struct error *err)
{
	size_t first, end;
	int rc = 0;

	bounds(children, &first, &end);
	/* One that reads no more must not keep the others from their message. */
	if (message->node == WIRE_ALL) {
		for (size_t i = first; i < end && (!rc || rc == -ERR_NETWORK); i++)
			if (children->nodes[i].connection)
				rc = message_forward(children->nodes[i].connection, message, err);
	} else if (children->nodes && message->node < children->node_count) {
		struct connection *next = route(children, message->node);

		rc = next ? message_forward(next, message, err) : 0;
	}
	return rc == -ERR_NETWORK ? 0 : rc;
}

int children_send(struct children *children, enum message_type type, uint32_t node,
		  uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		  size_t size, struct error *err)
{
	char *text = message_write(type, body);
	struct wire_message message = message_wire(type, node, attempt, sequence, text, data, size);
	int rc = text ? children_forward(children, &message, err) : error_memory(err, "a message");

	free(text);
	return rc;
}

void children_pause(struct children *children, bool on)
{
	size_t first, end;

	bounds(children, &first, &end);
	if (children->paused == on)
		return;
	children->paused = on;
	for (size_t i = first; i < end; i++)
		if (children->nodes[i].connection)
			connection_pause(children->nodes[i].connection, on);
}

/* ---- time ---- */

static void check_silence(struct children *children)
{
	int64_t now_ms = loop_now_ms(children->loop), next_ms = INT64_MAX;
	int suspended = -1; /* not asked yet */
	size_t first, end;

	bounds(children, &first, &end);
	for (size_t i = first; i < end; i++) {
		struct connection *connection = children->nodes[i].connection;
		char why[200], down[IF_NAMESIZE];

		if (!connection || connection->paused)
			continue;

		int64_t due_ms = connection->received_ms + children->silence_ms + 1;

		if (now_ms < due_ms) {
			if (due_ms < next_ms)
				next_ms = due_ms;
			continue;
		}
		if (suspended < 0 && children->events.suspended &&
		    connection_answers(connection, children->silence_ms))
			suspended = children->events.suspended(children->events.context);
		if (suspended > 0) {
			connection->received_ms = now_ms;
			continue;
		}
		snprintf(why, sizeof why, "no heartbeat from its agent for %d s",
			 children->silence_ms / 1000);
		/* Which end was cut off? */
		if (socket_is_down(connection->fd, down)) {
			struct utsname own;

			uname(&own);
			text_append(why, sizeof why, "; on %s, %s is down", own.nodename, down);
		}
		children->nodes[i].connection = NULL;
		connection_close(connection);
		children->events.lost(children->events.context, i, false, why);
	}
	if (next_ms < INT64_MAX)
		loop_timer_set(children->loop, &children->silence, next_ms);
}

/* Once a second would be up to a second late. */
static void on_silence(struct loop_timer *timer)
{
	check_silence(LOOP_OWNER(timer, struct children, silence));
}

static void on_second(struct loop_timer *timer)
{
	struct children *children = LOOP_OWNER(timer, struct children, second);
	struct wire_message heartbeat =
		message_wire(MESSAGE_HEARTBEAT, WIRE_ALL, 0, 0, "", NULL, 0);
	int64_t now_ms = loop_now_ms(children->loop);

	loop_timer_after(children->loop, timer, CONNECTION_HEARTBEAT_MS);
	for (size_t i = children->unidentified_count; i-- > 0;) {
		struct connection *connection = children->unidentified[i];

		if (now_ms - connection->received_ms <= children->silence_ms)
			continue;
		remove_unidentified(children, connection);
		connection_close(connection);
	}
	check_silence(children);
	children_forward(children, &heartbeat, NULL);
}

/* ---- life ---- */

int children_init(struct children *children, struct loop *loop, long self, size_t node_count,
		  size_t fanout, int silence_ms, const struct children_events *events,
		  struct error *err)
{
	*children = (struct children){
		.loop = loop,
		.self = self,
		.node_count = node_count,
		.fanout = fanout,
		.silence_ms = silence_ms,
		.events = *events,
		.owner = {children, NULL, on_message, on_ended},
		.nodes = calloc(node_count, sizeof *children->nodes),
		.silence.due = on_silence,
	};
	if (children->nodes) {
		size_t first, end;

		bounds(children, &first, &end);
		children->unidentified_limit = end - first + MAX_UNIDENTIFIED;
		/* Room for those that move, too. */
		children->unidentified = calloc(children->unidentified_limit + end - first,
						sizeof *children->unidentified);
	}
	return children->unidentified ? 0 : error_memory(err, "the job's nodes");
}

int children_listen(struct children *children, int port, const struct secret *secret,
		    const char *job, bool probed, struct error *err)
{
	struct listener_events events = {children, on_authenticated, on_rejected};
	size_t limit = children->unidentified_limit +
		       (probed ? listener_probe_limit(children->node_count) : 0);

	return listener_open(children->loop, port, secret, job, limit, &events, &children->listener,
			     err);
}

int children_port(const struct children *children)
{
	return children->listener ? listener_port(children->listener) : 0;
}

int children_adopt(struct children *children, int fd, const struct secret *secret, const char *job,
		   struct error *err)
{
	struct connection *connection;
	int rc = connection_open(children->loop, fd, false, WIRE_ACCEPTS, secret, job,
				 &children->owner, &connection, err);

	if (!rc)
		add_unidentified(children, connection);
	return rc;
}

int children_set_detached(struct children *children, const json_t *nodes, struct error *err)
{
	json_t *entry;
	size_t i;

	json_array_foreach(nodes, i, entry)
	{
		json_int_t node = json_integer_value(entry);

		if (!json_is_integer(entry) || node < 0 || !children->nodes ||
		    node >= (json_int_t)children->node_count)
			return error_set(err, ERR_DATA, "TREE names a node that does not exist");
		children->nodes[node].detached = true;
	}
	return 0;
}

void children_moved(struct children *children, size_t node)
{
	struct connection *connection = children->nodes[node].connection;

	if (!connection)
		return;
	children->nodes[node].connection = NULL;
	connection->node_index = -1;
	add_unidentified(children, connection); /* its final frame follows */
}

void children_close(struct children *children, int finish_ms)
{
	size_t first, end;

	bounds(children, &first, &end);
	loop_timer_stop(&children->second);
	loop_timer_stop(&children->silence);
	while (children->unidentified_count)
		connection_close(children->unidentified[--children->unidentified_count]);
	for (size_t i = first; i < end; i++) {
		if (children->nodes[i].connection && finish_ms >= 0)
			connection_finish(children->nodes[i].connection, finish_ms);
		connection_close(children->nodes[i].connection);
	}
	listener_close(children->listener);
	free(children->unidentified);
	free(children->nodes);
	children->listener = NULL;
	children->unidentified = NULL;
	children->nodes = NULL;
}

/* ---- the shape of the tree below ---- */

/* Do node's messages reach the controller through this agent (this node included)? */
static bool in_subtree(const struct children *children, size_t node)
{
	long at = (long)node;

	/* A detached node reaches the controller without this agent. */
	while (at >= 0 && at != children->self) {
		if (children->nodes && children->nodes[at].detached)
			return false;
		at = tree_parent((size_t)at, children->fanout);
	}
	return at == children->self;
}

size_t children_subtree_size(const struct children *children, const int *rank_count)
{
	size_t count = 0;

	for (size_t i = 0; i < children->node_count; i++)
		count += (!rank_count || rank_count[i] > 0) && in_subtree(children, i);
	return count;
}

int children_subtree_height(const struct children *children)
{
	size_t first, end;
	long node = children->self;
	int levels = 0;

	for (;;) {
		tree_children(node, children->node_count, children->fanout, &first, &end);
		if (first == end)
			return levels;
		levels++;
		node = (long)first;
	}
}
