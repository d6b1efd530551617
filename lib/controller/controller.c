/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/controller.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "controller/controller_internal.h"
#include "overlay/socket.h"
#include "overlay/tree.h"

static void place(struct head *head, size_t node)
{
	json_t *detached;

	if (head->nodes[node].placed)
		return;
	head->nodes[node].placed = true;
	if (++head->placed < head->count)
		return;
	head_take_back(head);
	detached = json_array();
	for (size_t i = 0; i < head->count; i++)
		if (head->nodes[i].detached)
			json_array_append_new(detached, json_integer((json_int_t)i));
	head_send(head, MESSAGE_TREE, WIRE_ALL, 0, 0, json_pack("{s:o}", "detached", detached),
		  NULL, 0, NULL);
	head->events.attached(head->events.context);
}

/* ---- losses ---- */

void head_lose(struct head *head, size_t node, const char *why)
{
	struct head_node *it = &head->nodes[node];

	if (it->lost || head->stopping)
		return;
	it->lost = true;
	/* Here an agent may be stopped, not dead; nothing of it may run on. */
	struct engine_child *child = head_child(head, node);

	if (child && child->pid > 0 && head->options.engine->one_machine)
		kill(child->pid, SIGKILL);
	head->events.lost(head->events.context, node, why);
}

bool head_is_lost(const struct head *head, size_t node)
{
	long at = (long)node;

	while (at >= 0) {
		if (head->nodes[at].lost)
			return true;
		if (head->nodes[at].link || head->nodes[at].ended_ms)
			return false;
		at = tree_parent((size_t)at, head->fanout);
	}
	return !head->nodes[node].placed ? head->nodes[node].lost : true;
}

/* ---- messages ---- */

static struct link *route(struct head *head, size_t node)
{
	long at = (long)node;

	while (at >= 0 && !head->nodes[at].link)
		at = tree_parent((size_t)at, head->fanout);
	return at < 0 ? NULL : head->nodes[at].link;
}

int head_send(struct head *head, enum agent_message type, uint32_t node, uint32_t attempt,
	      uint64_t sequence, json_t *text, const void *data, size_t size, struct error *err)
{
	int rc = 0;

	if (node == WIRE_ALL) {
		for (size_t i = 0; i < head->count && !rc; i++)
			if (head->nodes[i].link)
				rc = proto_send(head->nodes[i].link, type, node, attempt, sequence,
						json_incref(text), data, size, err);
		json_decref(text);
	} else {
		struct link *link = node < head->count ? route(head, node) : NULL;

		if (link)
			return proto_send(link, type, node, attempt, sequence, text, data, size,
					  err);
		json_decref(text);
	}
	/* Too large is our own defect; a dead link is told by lost. */
	return rc == -ERR_NETWORK ? 0 : rc;
}

static bool has_children(const struct head *head, size_t node)
{
	size_t first, end;

	tree_children((long)node, head->count, head->fanout, &first, &end);
	return first < end;
}

static bool answers_reach(const struct head *head, size_t node)
{
	return node == 0 && head->count > 1;
}

static void send_move(struct head *head, size_t node)
{
	long parent = tree_parent(node, head->fanout);
	struct head_node *it = &head->nodes[node];

	if (parent < 0 || it->placed || !it->link || !head->nodes[parent].address[0])
		return;
	proto_send(it->link, MESSAGE_MOVE, (uint32_t)node, 0, 0,
		   json_pack("{s:I, s:s}", "node", (json_int_t)parent, "address",
			     head->nodes[parent].address),
		   NULL, 0, NULL);
}

static void forget_unknown(struct head *head, struct link *link)
{
	for (size_t i = 0; i < head->unknown_count; i++)
		if (head->unknown[i] == link)
			head->unknown[i] = head->unknown[--head->unknown_count];
}

static void take_hello(struct head *head, struct link *link, const struct wire_message *message)
{
	JSON_AUTO text = NULL;
	const char *folder = NULL;
	size_t node = message->node;

	forget_unknown(head, link);
	if (node >= head->count || head->nodes[node].greeted || proto_text(message, &text, NULL) ||
	    json_get_string("HELLO", text, "folder", &folder, NULL)) {
		char why[160];

		snprintf(why, sizeof why, "%s says it is node %zu, which is %s; refused",
			 link->peer, node,
			 node < head->count ? "here already" : "none of this job's");
		head->events.note(head->events.context, why);
		link_close(link);
		return;
	}
	struct head_node *it = &head->nodes[node];

	it->greeted = true;
	it->link = link;
	link->node_index = (long)node;
	link_pause(link, head->paused);
	snprintf(it->folder, sizeof it->folder, "%s", folder);
	long parent = tree_parent(node, head->fanout);

	proto_send(link, MESSAGE_WELCOME, (uint32_t)node, 0, 0,
		   json_pack("{s:I, s:I, s:b, s:b, s:i}", "nodes", (json_int_t)head->count,
			     "fanout", (json_int_t)head->fanout, "listen", has_children(head, node) || answers_reach(head, node),
			     "move", parent >= 0, "port", node == 0 ? head->options.port : -1),
		   NULL, 0, NULL);
	if (parent < 0)
		place(head, node);
	else
		send_move(head, node);
}

static void take_listens(struct head *head, size_t node, const struct wire_message *message)
{
	JSON_AUTO text = NULL;
	int64_t port;
	size_t first, end;

	if (proto_text(message, &text, NULL) ||
	    json_get_int("LISTENS", text, "port", 1, 65535, &port, NULL) || !head->nodes[node].link)
		return;
	if (node == 0)
		head->reach_port = (int)port;
	socket_peer_with_port(head->nodes[node].link->fd, (int)port, head->nodes[node].address,
			      sizeof head->nodes[node].address);
	tree_children((long)node, head->count, head->fanout, &first, &end);
	for (size_t i = first; i < end; i++)
		send_move(head, i);
}

static void take_lost(struct head *head, const struct wire_message *message)
{
	JSON_AUTO text = NULL;
	const char *why;
	int64_t node;

	if (!proto_text(message, &text, NULL) &&
	    !json_get_int("LOST", text, "node", 0, (int64_t)head->count - 1, &node, NULL) &&
	    !json_get_string("LOST", text, "why", &why, NULL))
		head_lose(head, (size_t)node, why);
}

/* An agent speaks for its own subtree only. (What a node that has moved sends through its parent
 * may be here before its last words on the old connection are.) */
static bool speaks_for(const struct head *head, const struct link *link, size_t node)
{
	long at = (long)node;

	while (at >= 0 && head->nodes[at].link != link)
		at = tree_parent((size_t)at, head->fanout);
	return at >= 0;
}

static void on_message(void *context, struct link *link, const struct wire_message *message)
{
	struct head *head = context;
	size_t node = message->node;

	if (link->node_index < 0) {
		if (message->type == MESSAGE_HELLO)
			take_hello(head, link, message);
		return;
	}
	if (node >= head->count || message->type == MESSAGE_BEAT || head->stopping)
		return;
	if (!speaks_for(head, link, node))
		return;
	switch (message->type) {
	case MESSAGE_LISTENS:
		take_listens(head, node, message);
		break;
	case MESSAGE_MOVED:
		head->nodes[node].moved = true;
		head->nodes[node].link = NULL;
		link->node_index = -1; /* its goodbye follows */
		head->unknown[head->unknown_count++] = link;
		place(head, node);
		break;
	case MESSAGE_STAYS:
		head->nodes[node].detached = true;
		place(head, node);
		break;
	case MESSAGE_LOST:
		take_lost(head, message);
		break;
	default:
		head->events.message(head->events.context, node, message);
	}
}

static void on_opened(void *context, struct link *link)
{
	(void)context;
	(void)link; /* HELLO says who it is */
}

static void on_ended(void *context, struct link *link, const struct error *why)
{
	struct head *head = context;

	forget_unknown(head, link);
	if (link->node_index >= 0) {
		struct head_node *node = &head->nodes[link->node_index];
		struct engine_child *child = head_child(head, (size_t)link->node_index);

		node->link = NULL;
		if (!node->moved) {
			snprintf(node->ended_why, sizeof node->ended_why, "%s",
				 why ? why->text : "its agent left before the end");
			/* A child says more by its end than by a closed socket; it follows soon. */
			if (child && child->pid > 0)
				node->ended_ms = clock_now_ms();
			else
				head_lose(head, (size_t)link->node_index, node->ended_why);
		}
	}
	link_close(link);
}

const struct link_owner head_link_owner = {NULL, on_opened, on_message, on_ended};

/* ---- time ---- */

int64_t head_silence_due(const struct head *head)
{
	return head->silence_ms;
}

void head_look_at_silence(struct head *head, int64_t now_ms)
{
	head->silence_ms = 0;
	for (size_t i = 0; i < head->count; i++) {
		struct link *link = head->nodes[i].link;
		char why[96];

		if (!link || link->paused)
			continue;

		int64_t due = link->heard_ms + head->options.node_timeout_ms + 1;

		if (now_ms < due) {
			if (!head->silence_ms || due < head->silence_ms)
				head->silence_ms = due;
			continue;
		}
		snprintf(why, sizeof why, "its agent was silent for %d s",
			 head->options.node_timeout_ms / 1000);
		head->nodes[i].link = NULL;
		link_close(link);
		head_lose(head, i, why);
	}
}

void head_tick(struct head *head, int64_t now_ms, bool slept)
{
	if (head->listener)
		listener_tick(head->listener, now_ms);
	head_listen_to_engine(head);
	for (size_t i = 0; i < head->count; i++) {
		struct link *link = head->nodes[i].link;
		int64_t ended_ms = head->nodes[i].ended_ms;

		if (ended_ms && now_ms - ended_ms > HEAD_END_MS) {
			head->nodes[i].ended_ms = 0;
			head_lose(head, i, head->nodes[i].ended_why);
		}
		if (link && slept)
			link->heard_ms = now_ms;
	}
	head_look_at_silence(head, now_ms);
	for (size_t i = 0; i < head->count; i++)
		if (head->nodes[i].link)
			proto_send(head->nodes[i].link, MESSAGE_BEAT, WIRE_ALL, 0, 0, NULL, NULL, 0,
				   NULL);
}

void head_pause(struct head *head, bool on)
{
	if (head->paused == on)
		return;
	head->paused = on;
	for (size_t i = 0; i < head->count; i++)
		if (head->nodes[i].link)
			link_pause(head->nodes[i].link, on);
}

const char *head_folder(const struct head *head, size_t node)
{
	return head->nodes[node].folder;
}

int head_reach_port(const struct head *head)
{
	return head->reach_port ? head->reach_port : head_port(head);
}

int head_port(const struct head *head)
{
	return head->listener ? listener_port(head->listener) : 0;
}

size_t head_missing(const struct head *head, char *text, size_t size)
{
	size_t missing = 0;

	text[0] = 0;
	for (size_t i = 0; i < head->count; i++) {
		size_t used = strlen(text);

		if (head->nodes[i].placed)
			continue;
		if (missing++ < 8)
			snprintf(text + used, size - used, "%s%s", used ? ", " : "",
				 head->options.alloc->nodes[i].name);
	}
	if (missing > 8)
		snprintf(text + strlen(text), size - strlen(text), " and %zu more", missing - 8);
	return missing;
}
