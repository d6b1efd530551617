/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/head.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/folder.h"
#include "agent/listener.h"
#include "agent/socket.h"
#include "agent/supervise.h"
#include "agent/tree.h"
#include "base/json.h"
#include "base/log.h"

#define STRANGERS 256 /* at the door at once, beside the nodes that are expected */
#define FOLDER_MAX 128

struct head_node {
	struct link *link;    /* straight from the head; NULL: through its parent, or not there */
	char address[80];     /* where it listens for its children, "" not known */
	char folder[FOLDER_MAX];
	bool greeted;	      /* HELLO came */
	bool placed;	      /* it has its place in the tree */
	bool moved, detached; /* below its parent; below the head although the tree says otherwise */
	bool lost;
};

struct head {
	struct loop *loop;
	struct head_options options;
	struct head_events events;
	struct wire_secret secret;
	struct link_owner owner;
	struct listener *listener;
	size_t fanout, count, placed;
	struct head_node *nodes;
	struct link **unknown; /* proved the secret, did not say yet who they are */
	size_t unknown_count;
	struct engine_child *children;
	size_t child_count;
	bool paused, stopping;
};

static void place(struct head *head, size_t node)
{
	json_t *detached;

	if (head->nodes[node].placed)
		return;
	head->nodes[node].placed = true;
	if (++head->placed < head->count)
		return;
	detached = json_array();
	for (size_t i = 0; i < head->count; i++)
		if (head->nodes[i].detached)
			json_array_append_new(detached, json_integer((json_int_t)i));
	head_send(head, MESSAGE_TREE, WIRE_ALL, 0, 0, json_pack("{s:o}", "detached", detached), NULL,
		  0, NULL);
	head->events.attached(head->events.context);
}

/* ---- losses ---- */

static struct engine_child *child_of(struct head *head, size_t node)
{
	for (size_t i = 0; i < head->child_count; i++)
		if (head->children[i].node_index == (long)node)
			return &head->children[i];
	return NULL;
}

static void lose(struct head *head, size_t node, const char *why)
{
	struct head_node *it = &head->nodes[node];

	if (it->lost || head->stopping)
		return;
	it->lost = true;
	/* Here an agent may be stopped, not dead; nothing of it may run on. */
	struct engine_child *child = child_of(head, node);

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
		if (head->nodes[at].link)
			return false;
		at = tree_parent((size_t)at, head->fanout);
	}
	return !head->nodes[node].placed ? head->nodes[node].lost : true;
}

/* Only the agents that still are ours keep their descendants. */
static void sweep(struct head *head, int deadline_ms, char *left, size_t size)
{
	pid_t *except = calloc(head->child_count + 1, sizeof *except);
	size_t count = 0;

	for (size_t i = 0; except && i < head->child_count; i++)
		if (head->children[i].pid > 0)
			except[count++] = head->children[i].pid;
	supervise_kill_descendants(except, except ? count : 0, deadline_ms, left, size);
	free(except);
}

static void describe_end(int status, char *text, size_t size)
{
	if (WIFSIGNALED(status))
		snprintf(text, size, "its agent was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(text, size, "its agent ended with code %d", WEXITSTATUS(status));
}

void head_reap(struct head *head)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		char why[128];

		for (size_t i = 0; i < head->child_count; i++) {
			struct engine_child *child = &head->children[i];

			if (child->pid != pid)
				continue;
			child->pid = 0;
			describe_end(status, why, sizeof why);
			if (child->node_index < 0) {
				/* The engine itself, for all nodes. Its code proves nothing, but
				 * agents that are not there now will not come. */
				for (size_t n = 0; n < head->count; n++)
					if (!head->nodes[n].greeted)
						lose(head, n, why);
				continue;
			}
			struct head_node *node = &head->nodes[child->node_index];

			if (!head->stopping && head->options.engine->one_machine) {
				sweep(head, 2000, NULL, 0);
				folder_remove(node->folder);
			}
			lose(head, (size_t)child->node_index, why);
		}
	}
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

		snprintf(why, sizeof why, "%s says it is node %zu, which is %s; refused", link->peer,
			 node, node < head->count ? "here already" : "none of this job's");
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
		   json_pack("{s:I, s:I, s:b, s:b, s:i}", "nodes", (json_int_t)head->count, "fanout",
			     (json_int_t)head->fanout, "listen", has_children(head, node), "move",
			     parent >= 0, "port", node == 0 ? head->options.port : -1),
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
		lose(head, (size_t)node, why);
}

/* An agent speaks for its own subtree only. (What a node that has moved sends through its parent may
 * be here before its last words on the old connection are.) */
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
		struct engine_child *child = child_of(head, (size_t)link->node_index);

		node->link = NULL;
		/* A child says more by its end than by a closed socket: it follows at once. */
		for (int i = 0; i < 20 && !node->moved && child && child->pid > 0; i++) {
			head_reap(head);
			if (child->pid > 0)
				usleep(5000);
		}
		if (!node->moved)
			lose(head, (size_t)link->node_index,
			     why ? why->text : "its agent left before the end");
	}
	link_close(link);
}

static void on_friend(void *context, struct link *link)
{
	struct head *head = context;

	if (head->unknown_count >= head->count + STRANGERS) {
		link_close(link);
		return;
	}
	link->owner = &head->owner;
	head->unknown[head->unknown_count++] = link;
}

static void on_refused(void *context, const char *text)
{
	struct head *head = context;

	head->events.note(head->events.context, text);
}

/* ---- time ---- */

void head_tick(struct head *head, int64_t now_ms, bool slept)
{
	if (head->listener)
		listener_tick(head->listener, now_ms);
	for (size_t i = 0; i < head->count; i++) {
		struct link *link = head->nodes[i].link;

		if (!link)
			continue;
		if (slept)
			link->heard_ms = now_ms;
		if (link->paused || now_ms - link->heard_ms <= head->options.node_timeout_ms) {
			proto_send(link, MESSAGE_BEAT, WIRE_ALL, 0, 0, NULL, NULL, 0, NULL);
			continue;
		}
		char why[96];

		snprintf(why, sizeof why, "its agent was silent for %d s",
			 head->options.node_timeout_ms / 1000);
		head->nodes[i].link = NULL;
		link_close(link);
		lose(head, i, why);
	}
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

/* ---- start and stop ---- */

/* In the child of an engine that does not exec. */
static int be_agent(void *context, size_t node_index, int fd)
{
	struct head *head = context;
	struct error err = {0};
	struct agent_params params = {
		.node_index = node_index,
		.name = head->options.alloc->nodes[node_index].name,
		.job = head->options.alloc->job_id,
		.secret = head->secret,
		.fd = fd,
		.node_timeout_ms = head->options.node_timeout_ms,
		.env = head->options.env,
	};

	if (!agent_run(&params, &err))
		return 0;
	log_line(LOG_DEBUG, "agent", "%s", err.text);
	return err.code;
}

static int start_engine(struct head *head, struct error *err)
{
	char secret[65], address[4096] = "";
	struct engine_job job = {
		.alloc = head->options.alloc,
		.env = head->options.env,
		.program = head->options.program,
		.job = head->options.alloc->job_id,
		.secret = secret,
		.node_timeout_ms = head->options.node_timeout_ms,
		.agent = be_agent,
		.context = head,
	};
	int rc = 0;

	wire_secret_format(&head->secret, secret);
	if (head->options.engine->one_machine)
		snprintf(address, sizeof address, "127.0.0.1:%d", head_port(head));
	else
		rc = socket_own_addresses(head_port(head), address, sizeof address, err);
	job.head = address;
	if (!rc)
		rc = head->options.engine->start(&job, &head->children, &head->child_count, err);
	explicit_bzero(secret, sizeof secret);
	for (size_t i = 0; !rc && i < head->child_count; i++) {
		struct link *link;

		if (head->children[i].fd < 0)
			continue;
		rc = link_open(head->loop, head->children[i].fd, false, WIRE_ACCEPTS, &head->secret,
			       head->options.alloc->job_id, &head->owner, &link, err);
		if (!rc)
			head->unknown[head->unknown_count++] = link;
	}
	return rc;
}

int head_start(struct loop *loop, const struct head_options *options,
	       const struct head_events *events, struct head **out, struct error *err)
{
	struct head *head = calloc(1, sizeof *head);
	struct rlimit limit;
	int rc;

	if (!head)
		return error_memory(err, "the head");
	head->loop = loop;
	head->options = *options;
	head->events = *events;
	head->count = options->alloc->node_count;
	head->fanout = options->fanout ? options->fanout : TREE_FANOUT;
	head->owner = (struct link_owner){head, on_opened, on_message, on_ended};
	head->nodes = calloc(head->count, sizeof *head->nodes);
	head->unknown = calloc(2 * head->count + STRANGERS, sizeof *head->unknown);
	rc = head->nodes && head->unknown ? wire_secret_make(&head->secret, err)
					  : error_memory(err, "the nodes");
	if (!rc)
		rc = supervise_adopt(err);
	if (!rc && !options->engine->by_socket_pair) {
		struct listener_events door = {head, on_friend, on_refused};

		rc = listener_open(loop, 0, &head->secret, options->alloc->job_id,
				   head->count + STRANGERS, &door, &head->listener, err);
	}
	if (!rc)
		rc = start_engine(head, err);
	/* Before the tree is made every agent is connected here. Not for the agents to inherit. */
	if (!options->engine->by_socket_pair && !getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (rc) {
		head_stop(head, 0, NULL, 0);
		return rc;
	}
	*out = head;
	return 0;
}

static void wait_children(struct head *head, int timeout_ms)
{
	int64_t until = loop_now_ms() + timeout_ms;

	for (;;) {
		size_t alive = 0;

		head_reap(head);
		for (size_t i = 0; i < head->child_count; i++)
			alive += head->children[i].pid > 0;
		if (!alive || loop_now_ms() >= until)
			return;
		usleep(alive > 4 ? 5000 : 500);
	}
}

void head_stop(struct head *head, int timeout_ms, char *left, size_t size)
{
	if (!head)
		return;
	head->stopping = true;
	if (left && size)
		left[0] = 0;
	for (size_t i = 0; i < head->unknown_count; i++)
		link_close(head->unknown[i]);
	for (size_t i = 0; i < head->count && head->nodes; i++) {
		if (!head->nodes[i].link)
			continue;
		link_finish(head->nodes[i].link, timeout_ms < 500 ? timeout_ms : 500);
		link_close(head->nodes[i].link);
	}
	listener_close(head->listener);
	wait_children(head, timeout_ms);
	for (size_t i = 0; i < head->child_count; i++)
		if (head->children[i].pid > 0)
			kill(head->children[i].pid, SIGKILL);
	wait_children(head, 2000);
	if (head->options.engine->one_machine) {
		supervise_kill_descendants(NULL, 0, 2000, left, size);
		for (size_t i = 0; i < head->count && head->nodes; i++)
			if (head->nodes[i].folder[0])
				folder_remove(head->nodes[i].folder);
	}
	wire_secret_forget(&head->secret);
	free(head->children);
	free(head->unknown);
	free(head->nodes);
	free(head);
}
