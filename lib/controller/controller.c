/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/controller.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/controller_internal.h"
#include "overlay/socket.h"
#include "overlay/tree.h"

#define QUERY_MS 2000

static void mark_placed(struct controller *controller, size_t node)
{
	json_t *detached;

	if (controller->nodes[node].placed)
		return;
	controller->nodes[node].placed = true;
	if (++controller->placed < controller->count)
		return;
	controller_remove_secret_file(controller);
	detached = json_array();
	for (size_t i = 0; i < controller->count; i++)
		if (controller->nodes[i].detached)
			json_array_append_new(detached, json_integer((json_int_t)i));
	controller_send(controller, MESSAGE_TREE, WIRE_ALL, 0, 0, &(struct message_tree){detached},
			NULL, 0, NULL);
	controller->events.attached(controller->events.context);
}

/* ---- losses ---- */

void controller_mark_lost(struct controller *controller, size_t node, const char *why)
{
	struct controller_node *it = &controller->nodes[node];

	if (it->lost || controller->stopping)
		return;
	it->lost = true;
	log_info(LOG_CONTROLLER, "node %zu (%s) is lost: %s", node,
		 controller->launch->alloc->nodes[node].name, why);
	/* On this host the agent may be stopped rather than dead, so kill it: its ranks must not
	 * run on. */
	struct launcher_process *process = controller_agent_process(controller, node);

	if (process && process->pid > 0 && controller->launch->launcher->single_host)
		kill(process->pid, SIGKILL);
	controller->events.lost(controller->events.context, node, why);
}

/* An agent's connection has ended. If the agent, or the tool that stands for it, is a child
 * process, its exit status explains more and follows, or is known. */
static void lose(struct controller *controller, size_t node, const char *why)
{
	struct controller_node *it = &controller->nodes[node];
	struct launcher_process *process = controller_agent_process(controller, node);

	if (!process || process->pid <= 0) {
		controller_mark_lost(controller, node, it->ended_why[0] ? it->ended_why : why);
	} else if (!it->ended_ms) {
		snprintf(it->ended_why, sizeof it->ended_why, "%s", why);
		it->ended_ms = loop_now_ms(controller->loop);
	}
}

bool controller_is_lost(const struct controller *controller, size_t node)
{
	long at = (long)node;

	while (at >= 0) {
		if (controller->nodes[at].lost)
			return true;
		if (controller->nodes[at].connection || controller->nodes[at].ended_ms)
			return false;
		at = tree_parent((size_t)at, controller->fanout);
	}
	return !controller->nodes[node].placed ? controller->nodes[node].lost : true;
}

/* ---- messages ---- */

static struct connection *route(struct controller *controller, size_t node)
{
	long at = (long)node;

	while (at >= 0 && !controller->nodes[at].connection)
		at = tree_parent((size_t)at, controller->fanout);
	return at < 0 ? NULL : controller->nodes[at].connection;
}

static int send_text(struct controller *controller, enum message_type type, uint32_t node,
		     uint32_t attempt, uint64_t sequence, const char *text, const void *data,
		     size_t size, struct error *err)
{
	struct connection *connection;
	int rc = 0;

	if (node != WIRE_ALL) {
		connection = node < controller->count ? route(controller, node) : NULL;
		return connection ? message_send_text(connection, type, node, attempt, sequence,
						      text, data, size, err)
				  : 0;
	}
	/* One that reads no more must not keep the others from their message. */
	for (size_t i = 0; i < controller->count && (!rc || rc == -ERR_NETWORK); i++)
		if (controller->nodes[i].connection)
			rc = message_send_text(controller->nodes[i].connection, type, node, attempt,
					       sequence, text, data, size, err);
	/* A message that is too large is a defect of berth; a lost connection is reported
	 * through lost. */
	return rc == -ERR_NETWORK ? 0 : rc;
}

int controller_send(struct controller *controller, enum message_type type, uint32_t node,
		    uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		    size_t size, struct error *err)
{
	char *text = message_write(type, body);
	int rc = controller ? send_text(controller, type, node, attempt, sequence, text, data, size,
					err)
			    : 0;

	free(text);
	return rc;
}

static bool has_children(const struct controller *controller, size_t node)
{
	size_t first, end;

	tree_children((long)node, controller->count, controller->fanout, &first, &end);
	return first < end;
}

static bool answers_probes(const struct controller *controller, size_t node)
{
	return node == 0 && controller->count > 1;
}

static void send_move(struct controller *controller, size_t node)
{
	long parent = tree_parent(node, controller->fanout);
	struct controller_node *it = &controller->nodes[node];

	if (parent < 0 || it->placed || !it->connection || !controller->nodes[parent].address[0])
		return;
	message_send(it->connection, MESSAGE_MOVE, (uint32_t)node, 0, 0,
		     &(struct message_move){controller->nodes[parent].address}, NULL, 0, NULL);
}

static void remove_unidentified(struct controller *controller, struct connection *connection)
{
	for (size_t i = 0; i < controller->unidentified_count; i++)
		if (controller->unidentified[i] == connection)
			controller->unidentified[i] =
				controller->unidentified[--controller->unidentified_count];
}

static void handle_hello(struct controller *controller, struct connection *connection,
			 const struct message *message)
{
	size_t node = message->wire->node;

	remove_unidentified(controller, connection);
	if (node >= controller->count || controller->nodes[node].hello_received ||
	    !message->hello.dir) {
		char why[160];

		snprintf(why, sizeof why, "rejected %s: it claims to be node %zu, which is %s",
			 connection->peer, node,
			 node < controller->count ? "already connected" : "not in this job");
		controller->events.note(controller->events.context, why);
		connection_close(connection);
		return;
	}
	struct controller_node *it = &controller->nodes[node];

	log_info(LOG_CONTROLLER, "the agent of node %zu (%s) connected from %s", node,
		 controller->launch->alloc->nodes[node].name, connection->peer);
	it->hello_received = true;
	it->connection = connection;
	connection->node_index = (long)node;
	connection_pause(connection, controller->paused);
	snprintf(it->dir, sizeof it->dir, "%s", message->hello.dir);
	long parent = tree_parent(node, controller->fanout);
	char room[256], outer[1024];
	const char *scope = controller_scope(controller->launch, room, sizeof room);
	/* Rank 0 is on another node than the first if other runs use all GPUs of that. */
	bool reserves = node == 0 || (scope && !controller->port);

	controller_run_names(controller->launch->env, outer, sizeof outer);
	message_send(connection, MESSAGE_WELCOME, (uint32_t)node, 0, 0,
		     &(struct message_welcome){
			     .nodes = (int)controller->count,
			     .fanout = (int)controller->fanout,
			     .listen = has_children(controller, node) ||
				       answers_probes(controller, node),
			     .move = parent >= 0,
			     .port = reserves ? controller->port : -1,
			     .scope = scope,
			     .outer = outer,
		     },
		     NULL, 0, NULL);
	if (parent < 0)
		mark_placed(controller, node);
	else
		send_move(controller, node);
}

static void handle_listening(struct controller *controller, size_t node,
			     const struct message_listening *listening)
{
	struct controller_node *it = &controller->nodes[node];
	size_t first, end;

	if (!it->connection)
		return;
	if (node == 0)
		controller->probe_port = listening->port;
	socket_peer_with_port(it->connection->fd, listening->port, it->address, sizeof it->address);
	tree_children((long)node, controller->count, controller->fanout, &first, &end);
	for (size_t i = first; i < end; i++)
		send_move(controller, i);
}

static void handle_lost(struct controller *controller, const struct message_lost *lost)
{
	if ((size_t)lost->node >= controller->count)
		return;
	if (lost->ended)
		lose(controller, (size_t)lost->node, lost->why);
	else
		controller_mark_lost(controller, (size_t)lost->node, lost->why);
}

/* An agent may send messages of its own subtree only. After a move, messages through the parent
 * may arrive before the last ones on the old connection. */
static bool speaks_for(const struct controller *controller, const struct connection *connection,
		       size_t node)
{
	long at = (long)node;

	while (at >= 0 && controller->nodes[at].connection != connection)
		at = tree_parent((size_t)at, controller->fanout);
	return at >= 0;
}

/* The tree's own messages; all others are the job's. Return false for one that is not. */
static bool handle(struct controller *controller, struct connection *connection,
		   const struct message *message)
{
	size_t node = message->wire->node;

	switch (message->wire->type) {
	case MESSAGE_LISTENING:
		handle_listening(controller, node, &message->listening);
		return true;
	case MESSAGE_MOVED:
		controller->nodes[node].moved = true;
		controller->nodes[node].connection = NULL;
		connection->node_index = -1; /* its final frame follows */
		controller->unidentified[controller->unidentified_count++] = connection;
		mark_placed(controller, node);
		return true;
	case MESSAGE_MOVE_FAILED:
		controller->nodes[node].detached = true;
		mark_placed(controller, node);
		return true;
	case MESSAGE_LOST:
		handle_lost(controller, &message->lost);
		return true;
	default:
		return false;
	}
}

static void on_message(void *context, struct connection *connection,
		       const struct wire_message *wire)
{
	struct controller *controller = context;
	struct message message;
	struct error err = {0};
	size_t node = wire->node;
	bool known = connection->node_index >= 0;

	if (known ? wire->type == MESSAGE_HEARTBEAT || controller->stopping ||
			    node >= controller->count || !speaks_for(controller, connection, node)
		  : wire->type != MESSAGE_HELLO)
		return;
	if (message_read(wire, &message, &err) && known)
		controller->events.failed(controller->events.context, node, &err);
	else if (!known)
		handle_hello(controller, connection, &message);
	else if (!handle(controller, connection, &message))
		controller->events.message(controller->events.context, node, &message);
	message_free(&message);
}

static void on_ended(void *context, struct connection *connection, const struct error *why)
{
	struct controller *controller = context;

	remove_unidentified(controller, connection);
	if (connection->node_index >= 0) {
		struct controller_node *node = &controller->nodes[connection->node_index];

		node->connection = NULL;
		if (!node->moved)
			lose(controller, (size_t)connection->node_index,
			     why ? why->text
				 : "its agent closed the connection before the job's end");
	}
	connection_close(connection);
}

const struct connection_owner controller_connection_owner = {NULL, NULL, on_message, on_ended};

const char *controller_scope(const struct launch_options *launch, char *out, size_t size)
{
	const struct alloc *alloc = launch->alloc;
	bool scheduled = alloc->source == ALLOC_FROM_SLURM || alloc->source == ALLOC_FROM_PBS;

	if (launch->launcher->single_host && alloc->node_count > 1)
		return NULL;
	snprintf(out, size, "%s%s%s", scheduled ? alloc_from_name(alloc->source) : "",
		 scheduled ? " " : "", scheduled ? alloc->job_id : "");
	return out;
}

int64_t controller_begun_us(void)
{
	static int64_t first_us;

	if (!first_us)
		first_us = clock_wall_us();
	return first_us;
}

/* Containers may share a host name, and have the same pids. */
void controller_run_names(const struct env *env, char *out, size_t size)
{
	const char *outer = env_get(env, CONTROLLER_ENV_RUN);
	char host[65] = "";

	gethostname(host, sizeof host - 1);
	snprintf(out, size, "%s%s%s-%ld-%lld", outer ? outer : "", outer ? "," : "", host,
		 (long)getpid(), (long long)controller_begun_us());
}

/* ---- time ---- */

/* On a login node (salloc) this process is not suspended with its job. */
static bool job_is_suspended(const struct controller *controller)
{
	const struct launch_options *launch = controller->launch;

	return job_status_is_suspended(launch->env, launch->alloc, QUERY_MS);
}

static void check_silence(struct controller *controller, int64_t now_ms)
{
	int suspended = -1; /* not asked yet */
	int64_t next_ms = INT64_MAX;

	for (size_t i = 0; i < controller->count; i++) {
		struct connection *connection = controller->nodes[i].connection;
		char why[96];

		if (!connection || connection->paused)
			continue;

		int64_t due = connection->received_ms + controller->launch->node_timeout_ms + 1;

		if (now_ms < due) {
			if (due < next_ms)
				next_ms = due;
			continue;
		}
		if (suspended < 0 &&
		    connection_answers(connection, controller->launch->node_timeout_ms))
			suspended = job_is_suspended(controller);
		if (suspended > 0) {
			connection->received_ms = now_ms;
			continue;
		}
		snprintf(why, sizeof why, "no heartbeat from its agent for %d s",
			 controller->launch->node_timeout_ms / 1000);
		controller->nodes[i].connection = NULL;
		connection_close(connection);
		controller_mark_lost(controller, i, why);
	}
	if (next_ms < INT64_MAX)
		loop_timer_set(controller->loop, &controller->silence, next_ms);
}

/* Once a second would be up to a second late. */
void controller_on_silence(struct loop_timer *timer)
{
	struct controller *controller = LOOP_OWNER(timer, struct controller, silence);

	check_silence(controller, loop_now_ms(controller->loop));
}

void controller_on_second(struct loop_timer *timer)
{
	struct controller *controller = LOOP_OWNER(timer, struct controller, second);
	int64_t now_ms = loop_now_ms(controller->loop);

	loop_timer_after(controller->loop, timer, CONNECTION_HEARTBEAT_MS);
	controller_read_launcher_output(controller);
	for (size_t i = 0; i < controller->count; i++) {
		int64_t ended_ms = controller->nodes[i].ended_ms;

		if (ended_ms && now_ms - ended_ms > CONTROLLER_REAP_MS) {
			controller->nodes[i].ended_ms = 0;
			controller_mark_lost(controller, i, controller->nodes[i].ended_why);
		}
	}
	check_silence(controller, now_ms);
	for (size_t i = 0; i < controller->count; i++)
		if (controller->nodes[i].connection)
			message_send(controller->nodes[i].connection, MESSAGE_HEARTBEAT, WIRE_ALL,
				     0, 0, NULL, NULL, 0, NULL);
}

void controller_pause(struct controller *controller, bool on)
{
	if (!controller || controller->paused == on)
		return;
	controller->paused = on;
	for (size_t i = 0; i < controller->count; i++)
		if (controller->nodes[i].connection)
			connection_pause(controller->nodes[i].connection, on);
}

const char *controller_tmpdir(const struct controller *controller, size_t node)
{
	return controller->nodes[node].dir;
}

int controller_probe_port(const struct controller *controller)
{
	return controller->probe_port ? controller->probe_port : controller_port(controller);
}

int controller_port(const struct controller *controller)
{
	return controller->listener ? listener_port(controller->listener) : 0;
}

size_t controller_missing(const struct controller *controller, char *text, size_t size)
{
	size_t missing = 0;

	text[0] = 0;
	for (size_t i = 0; i < controller->count; i++) {
		if (!controller->nodes[i].placed && missing++ < 8)
			text_append(text, size, "%s%s", *text ? ", " : "",
				    controller->launch->alloc->nodes[i].name);
	}
	if (missing > 8)
		text_append(text, size, " and %zu more", missing - 8);
	return missing;
}
