/* SPDX-License-Identifier: BSD-3-Clause */
/* The exchange of design.md section 4: all of the head's addresses at once, until the deadline.
 * The answers of a subtree go up as one. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/json.h"
#include "overlay/socket.h"
#include "overlay/tree.h"

#define CANDIDATES_MAX 256
#define STARTS_PER_MS 4 /* nodes that begin within a millisecond */
#define LEVEL_MS 1000	/* more time for each level of the tree below */

struct probe {
	struct loop_source source;
	struct reach *reach;
	size_t index;
	unsigned char question[WIRE_HELLO_BYTES], answer[WIRE_PROBE_ANSWER_BYTES];
	size_t sent, got;
};

struct reach {
	struct agent *agent;
	size_t count; /* of the head's addresses */
	struct probe *probes;
	struct sockaddr_storage *addresses; /* family 0: not to be tried */
	socklen_t *sizes;
	int64_t start_ms, deadline_ms, give_up_ms;
	bool started, own_done, sent, alone; /* alone: none was reached by the first deadline */
	size_t nodes, expected; /* whose answers are in, of the subtree */
	int *reached, *shared;
};

static void probe_close(struct probe *probe)
{
	int fd = probe->source.fd;

	if (fd < 0)
		return;
	loop_remove(probe->reach->agent->loop, &probe->source);
	close(fd);
}

static void probe_ready(struct loop_source *source, uint32_t events)
{
	struct probe *probe = (struct probe *)source;
	struct agent *agent = probe->reach->agent;
	ssize_t n;

	if (probe->sent < sizeof probe->question) {
		if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
			return;
		n = send(source->fd, probe->question + probe->sent,
			 sizeof probe->question - probe->sent, MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EINTR) {
			probe_close(probe);
			return;
		}
		probe->sent += n > 0 ? (size_t)n : 0;
		if (probe->sent == sizeof probe->question)
			loop_want(agent->loop, source, EPOLLIN);
		return;
	}
	n = recv(source->fd, probe->answer + probe->got, sizeof probe->answer - probe->got, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	probe->got += n > 0 ? (size_t)n : 0;
	if (probe->got == sizeof probe->answer &&
	    wire_probe_answered(&agent->params.secret, agent->params.job, probe->question,
				probe->answer))
		probe->reach->reached[probe->index]++;
	if (n <= 0 || probe->got == sizeof probe->answer)
		probe_close(probe);
}

static void start_probes(struct reach *reach)
{
	struct agent *agent = reach->agent;

	reach->started = true;
	for (size_t i = 0; i < reach->count; i++) {
		struct probe *probe = &reach->probes[i];
		int fd, under_way;

		if (!reach->addresses[i].ss_family ||
		    socket_connect(&reach->addresses[i], reach->sizes[i], &fd, &under_way, NULL))
			continue;
		wire_probe_question(&agent->params.secret, agent->params.job, probe->question);
		if (loop_add(agent->loop, &probe->source, fd, EPOLLOUT, NULL))
			close(fd);
	}
}

/* Does this node own the address itself? Then others cannot tell it from the head's. */
static bool mine(const struct agent *agent, const struct sockaddr_storage *address)
{
	const struct machine *machine = &agent->worker.machine;
	const void *bytes = address->ss_family == AF_INET
				    ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
				    : &((const struct sockaddr_in6 *)address)->sin6_addr;
	size_t size = address->ss_family == AF_INET ? 4 : 16;

	for (size_t i = 0; i < machine->address_count; i++)
		if (machine->addresses[i].family == address->ss_family &&
		    !memcmp(machine->addresses[i].bytes, bytes, size))
			return true;
	return false;
}

static void finish_when_done(struct reach *reach)
{
	struct agent *agent = reach->agent;
	json_t *reached, *shared;

	if (reach->sent || !reach->own_done || reach->nodes < reach->expected)
		return;
	reach->sent = true;
	reached = json_array();
	shared = json_array();
	for (size_t i = 0; i < reach->count; i++) {
		json_array_append_new(reached, json_integer(reach->reached[i]));
		json_array_append_new(shared, json_integer(reach->shared[i]));
	}
	agent_say(agent, MESSAGE_REACHED, 0,
		  json_pack("{s:I, s:o, s:o}", "nodes", (json_int_t)reach->nodes, "reached",
			    reached, "shared", shared),
		  NULL, 0);
}

static void own_finished(struct reach *reach)
{
	if (reach->own_done)
		return;
	reach->own_done = true;
	reach->nodes++;
	for (size_t i = 0; i < reach->count; i++)
		probe_close(&reach->probes[i]);
	finish_when_done(reach);
}

/* A node that has reached no address at all is more likely busy than cut off, and without it there
 * is no job: it gets more time, once. */
static bool more_time(struct reach *reach)
{
	if (reach->alone)
		return false;
	for (size_t i = 0; i < reach->count; i++)
		if (reach->probes[i].got == sizeof reach->probes[i].answer)
			return false;
	reach->alone = true;
	reach->deadline_ms += AGENT_REACH_ALONE_MS;
	return true;
}

void agent_reach_tick(struct agent *agent, int64_t now_ms)
{
	struct reach *reach = agent->reach;
	bool waiting = false;

	if (!reach || reach->sent)
		return;
	if (!reach->started && now_ms >= reach->start_ms)
		start_probes(reach);
	for (size_t i = 0; reach->started && i < reach->count; i++)
		waiting |= reach->probes[i].source.fd >= 0;
	if ((reach->started && !waiting) || (now_ms >= reach->deadline_ms && !more_time(reach)))
		own_finished(reach);
	if (now_ms >= reach->give_up_ms && !reach->sent) {
		reach->expected = reach->nodes; /* without those that did not answer */
		finish_when_done(reach);
	}
}

int64_t agent_reach_due_ms(const struct agent *agent)
{
	const struct reach *reach = agent->reach;

	if (!reach || reach->sent)
		return -1;
	if (!reach->started)
		return reach->start_ms;
	return reach->own_done ? reach->give_up_ms : reach->deadline_ms;
}

/* What is known of the subtree so far: {nodes, reached, shared}. */
void agent_reach_merge(struct agent *agent, const struct wire_message *message)
{
	struct reach *reach = agent->reach;
	JSON_AUTO text = NULL;
	json_t *reached, *shared;
	int64_t nodes;

	if (!reach || reach->sent || proto_text(message, &text, NULL) ||
	    json_get_int("REACHED", text, "nodes", 1, 1 << 20, &nodes, NULL) ||
	    json_get_array("REACHED", text, "reached", &reached, NULL) ||
	    json_get_array("REACHED", text, "shared", &shared, NULL) ||
	    json_array_size(reached) != reach->count || json_array_size(shared) != reach->count)
		return;
	for (size_t i = 0; i < reach->count; i++) {
		json_int_t owner = json_integer_value(json_array_get(shared, i));

		reach->reached[i] += (int)json_integer_value(json_array_get(reached, i));
		if (owner >= 0 && reach->shared[i] < 0)
			reach->shared[i] = (int)owner;
	}
	reach->nodes += (size_t)nodes;
	finish_when_done(reach);
}

/* How many levels of agents are below this one. */
static int height(const struct agent *agent)
{
	size_t first, end, node = agent->params.node_index;
	int levels = 0;

	for (;;) {
		tree_children((long)node, agent->node_count, agent->fanout, &first, &end);
		if (first == end)
			return levels;
		levels++;
		node = first;
	}
}

static int allocate(struct reach *reach, struct error *err)
{
	size_t n = reach->count + 1;

	reach->probes = calloc(n, sizeof *reach->probes);
	reach->addresses = calloc(n, sizeof *reach->addresses);
	reach->sizes = calloc(n, sizeof *reach->sizes);
	reach->reached = calloc(n, sizeof *reach->reached);
	reach->shared = calloc(n, sizeof *reach->shared);
	if (!reach->probes || !reach->addresses || !reach->sizes || !reach->reached ||
	    !reach->shared)
		return error_memory(err, "trying the head's addresses");
	for (size_t i = 0; i < reach->count; i++) {
		reach->probes[i].source.fd = -1;
		reach->probes[i].source.ready = probe_ready;
		reach->probes[i].reach = reach;
		reach->probes[i].index = i;
		reach->shared[i] = -1;
	}
	return 0;
}

int agent_reach_start(struct agent *agent, const json_t *question, struct error *err)
{
	json_t *list;
	int64_t deadline_ms;
	int rc = json_get_array("REACH", question, "addresses", &list, err);

	if (!rc)
		rc = json_get_int("REACH", question, "deadline_ms", 0, 3600000, &deadline_ms, err);
	if (rc)
		return rc;
	if (agent->reach || json_array_size(list) > CANDIDATES_MAX)
		return error_set(err, ERR_DATA, "REACH names %zu addresses; the limit is %d",
				 json_array_size(list), CANDIDATES_MAX);
	struct reach *reach = calloc(1, sizeof *reach);

	if (!reach)
		return error_memory(err, "trying the head's addresses");
	agent->reach = reach;
	reach->agent = agent;
	reach->count = json_array_size(list);
	rc = allocate(reach, err);
	for (size_t i = 0; !rc && i < reach->count; i++) {
		const char *address = json_string_value(json_array_get(list, i));

		if (!address || !*address)
			continue;
		rc = socket_parse(address, &reach->addresses[i], &reach->sizes[i], err);
		if (!rc && agent->params.node_index > 0 && mine(agent, &reach->addresses[i]))
			reach->shared[i] = (int)agent->params.node_index;
	}
	if (rc)
		return rc;
	for (size_t i = 0; i < agent->node_count; i++)
		reach->expected += agent_tree_below(agent, i);
	reach->start_ms = clock_now_ms() + (int64_t)(agent->params.node_index / STARTS_PER_MS);
	reach->deadline_ms = clock_now_ms() + deadline_ms;
	reach->give_up_ms =
		reach->deadline_ms + AGENT_REACH_ALONE_MS + (int64_t)height(agent) * LEVEL_MS;
	return 0;
}

void agent_reach_close(struct agent *agent)
{
	struct reach *reach = agent->reach;

	if (!reach)
		return;
	for (size_t i = 0; reach->probes && i < reach->count; i++)
		probe_close(&reach->probes[i]);
	free(reach->probes);
	free(reach->addresses);
	free(reach->sizes);
	free(reach->reached);
	free(reach->shared);
	free(reach);
	agent->reach = NULL;
}
