/* SPDX-License-Identifier: BSD-3-Clause */
/* Every agent connects to this process first. Once its parent listens, MOVE sends it there; it has
 * its place (placed) when MOVED or MOVE_FAILED has arrived. An agent without a parent has it at
 * once. */
#include "controller/controller.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/ports.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/controller_internal.h"
#include "overlay/socket.h"
#include "overlay/tree.h"

#define QUERY_MS 2000

void controller_remove_secret_file(struct controller *controller)
{
	if (controller->secret_file[0])
		unlink(controller->secret_file);
	controller->secret_file[0] = '\0';
}

static void mark_placed(struct controller *controller, size_t node)
{
	json_t *detached;

	if (controller->nodes[node].placed)
		return;
	controller->nodes[node].placed = true;
	if (++controller->placed < controller->count)
		return;
	/* All agents have read it. */
	controller_remove_secret_file(controller);
	detached = json_array();
	for (size_t i = 0; i < controller->count; i++)
		if (controller->children.nodes[i].detached)
			json_array_append_new(detached, json_integer((json_int_t)i));
	controller_send(controller, MESSAGE_TREE, WIRE_ALL, 0, 0, &(struct message_tree){detached},
			NULL, 0, NULL);
	controller->events.attached(controller->events.context);
}

/* ---- losses ---- */

static struct launcher_process *agent_process(struct controller *controller, size_t node)
{
	for (size_t i = 0; i < controller->process_count; i++)
		if (controller->processes[i].node_index == (long)node)
			return &controller->processes[i];
	return NULL;
}

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
	struct launcher_process *process = agent_process(controller, node);

	if (process && process->pid > 0 && launcher_is_here(controller->launch->launcher))
		kill(process->pid, SIGKILL);
	controller->events.lost(controller->events.context, node, why);
}

/* An agent's connection has ended. If the agent, or the tool that stands for it, is a child
 * process, its exit status explains more and follows, or is known. */
static void lose(struct controller *controller, size_t node, const char *why)
{
	struct controller_node *it = &controller->nodes[node];
	struct launcher_process *process = agent_process(controller, node);

	if (!process || process->pid <= 0) {
		controller_mark_lost(controller, node, it->ended_why[0] ? it->ended_why : why);
	} else if (!it->ended_ms) {
		snprintf(it->ended_why, sizeof it->ended_why, "%s", why);
		it->ended_ms = loop_now_ms(controller->loop);
	}
}

bool controller_tool_gave_up(const struct controller *controller)
{
	return controller->tool_gave_up;
}

bool controller_is_lost(const struct controller *controller, size_t node)
{
	long at = (long)node;

	while (at >= 0) {
		if (controller->nodes[at].lost)
			return true;
		if (controller->children.nodes[at].connection || controller->nodes[at].ended_ms)
			return false;
		at = tree_parent((size_t)at, controller->children.fanout);
	}
	/* No node of the path is connected. If the node had a place, its connection has ended; if
	 * not, it may still be on its way. */
	return controller->nodes[node].placed;
}

/* ---- messages ---- */

int controller_send(struct controller *controller, enum message_type type, uint32_t node,
		    uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		    size_t size, struct error *err)
{
	if (controller)
		return children_send(&controller->children, type, node, attempt, sequence, body,
				     data, size, err);
	message_drop(type, body);
	return 0;
}

static bool has_children(const struct controller *controller, size_t node)
{
	size_t first, end;

	tree_children((long)node, controller->count, controller->children.fanout, &first, &end);
	return first < end;
}

static bool answers_probes(const struct controller *controller, size_t node)
{
	/* Node 0 listens even without children: all nodes probe its addresses, to find those that
	 * the ranks can use. So do those of other roles. */
	return node == 0 && (controller->count > 1 || controller->launch->role);
}

static void send_move(struct controller *controller, size_t node)
{
	long parent = tree_parent(node, controller->children.fanout);
	struct connection *connection = controller->children.nodes[node].connection;

	if (parent < 0 || controller->nodes[node].placed || !connection ||
	    !controller->nodes[parent].address[0])
		return;
	message_send(connection, MESSAGE_MOVE, (uint32_t)node, 0, 0,
		     &(struct message_move){controller->nodes[parent].address}, NULL, 0, NULL);
}

static void handle_hello(struct controller *controller, struct connection *connection,
			 const struct message *message)
{
	size_t node = message->wire->node;
	struct controller_node *it = &controller->nodes[node];

	log_info(LOG_CONTROLLER, "the agent of node %zu (%s) connected from %s", node,
		 controller->launch->alloc->nodes[node].name, connection->peer);
	snprintf(it->dir, sizeof it->dir, "%s", message->hello.dir ? message->hello.dir : "");
	long parent = tree_parent(node, controller->children.fanout);
	char room[256], outer[1024];
	const char *scope = controller_scope(controller->launch, room, sizeof room);
	/* Rank 0 is on another node than the first if other runs use all GPUs of that. */
	bool reserves = node == 0 || (scope && !controller->port);

	controller_run_names(controller->launch, outer, sizeof outer);
	message_send(connection, MESSAGE_WELCOME, (uint32_t)node, 0, 0,
		     &(struct message_welcome){
			     .nodes = (int)controller->count,
			     .fanout = (int)controller->children.fanout,
			     .listen = has_children(controller, node) ||
				       answers_probes(controller, node),
			     .move = parent >= 0,
			     .port = reserves ? controller->port : -1,
			     /* Simulated nodes share one machine's ports. */
			     .ports = node && launcher_is_here(controller->launch->launcher)
					      ? 0
					      : controller->launch->ports,
			     .seed = controller->ports_seed,
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
	struct connection *connection = controller->children.nodes[node].connection;
	struct controller_node *it = &controller->nodes[node];
	size_t first, end;

	if (!connection)
		return;
	if (node == 0)
		controller->probe_port = listening->port;
	/* The agent has reached this process from this address, so its children try it. One that
	 * fails stays connected here. */
	socket_peer_with_port(connection->fd, listening->port, it->address, sizeof it->address);
	tree_children((long)node, controller->count, controller->children.fanout, &first, &end);
	for (size_t i = first; i < end; i++)
		send_move(controller, i);
}

static void on_lost(void *context, size_t node, bool ended, const char *why)
{
	((struct controller *)context)->read_output(context);
	if (ended)
		lose(context, node, why);
	else
		controller_mark_lost(context, node, why);
}

/* The tree's own messages; all others are the job's. Return false for one that is not. */
static bool handle(struct controller *controller, const struct message *message)
{
	size_t node = message->wire->node;

	switch (message->wire->type) {
	case MESSAGE_LISTENING:
		handle_listening(controller, node, &message->listening);
		return true;
	case MESSAGE_MOVED:
		children_moved(&controller->children, node);
		mark_placed(controller, node);
		return true;
	case MESSAGE_MOVE_FAILED:
		controller->children.nodes[node].detached = true;
		mark_placed(controller, node);
		return true;
	case MESSAGE_LOST:
		if ((size_t)message->lost.node < controller->count)
			on_lost(controller, (size_t)message->lost.node, message->lost.ended,
				message->lost.why);
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

	if (controller->stopping)
		return;
	if (message_read(wire, &message, &err))
		controller->events.failed(controller->events.context, wire->node, &err);
	else if (wire->type == MESSAGE_HELLO)
		handle_hello(controller, connection, &message);
	else if (!handle(controller, &message))
		controller->events.message(controller->events.context, wire->node, &message);
	message_free(&message);
}

static void on_rejected(void *context, const char *text)
{
	struct controller *controller = context;

	controller->events.note(controller->events.context, text);
}

/* On a login node (salloc) this process is not suspended with its job. */
static bool job_is_suspended(void *context)
{
	const struct controller *controller = context;

	return job_status_is_suspended(controller->launch->env, controller->launch->alloc,
				       QUERY_MS);
}

int controller_init_children(struct controller *controller, struct error *err)
{
	const struct launch_options *launch = controller->launch;
	struct children_events events = {controller, on_message,  on_message,
					 on_lost,    on_rejected, job_is_suspended};
	uint16_t *seed = &controller->ports_seed;

	if (launch->first_port)
		*seed = (uint16_t)agent_ports_seed(launch->ports, launch->first_port);
	else if (launch->ports && getrandom(seed, sizeof *seed, 0) != sizeof *seed)
		*seed = (uint16_t)getpid();
	return children_init(&controller->children, controller->loop, -1, controller->count,
			     launch->fan_out ? (size_t)launch->fan_out : TREE_FANOUT,
			     launch->node_timeout_ms, &events, err);
}

const char *controller_scope(const struct launch_options *launch, char *out, size_t size)
{
	const struct alloc *alloc = launch->alloc;
	bool scheduled = alloc->source == ALLOC_FROM_SLURM || alloc->source == ALLOC_FROM_PBS;

	if (alloc->simulated)
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
void controller_run_names(const struct launch_options *launch, char *out, size_t size)
{
	const char *outer = env_get(launch->env, "BERTH_RUN");
	char host[65] = "";

	gethostname(host, sizeof host - 1);
	snprintf(out, size, "%s%s%s-%ld-%lld%s%s", outer ? outer : "", outer ? "," : "", host,
		 (long)getpid(), (long long)controller_begun_us(), launch->role ? "." : "",
		 launch->role ? launch->role : "");
}

void controller_pause(struct controller *controller, bool on)
{
	if (controller)
		children_pause(&controller->children, on);
}

const char *controller_tmpdir(const struct controller *controller, size_t node)
{
	return controller->nodes[node].dir;
}

int controller_first_port(const struct controller *controller, int block)
{
	return agent_ports_first(controller->launch->ports, controller->ports_seed, block);
}

int controller_probe_port(const struct controller *controller)
{
	return controller->probe_port ? controller->probe_port
				      : children_port(&controller->children);
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
