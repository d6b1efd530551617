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

struct address_probe {
	struct loop_source source;
	struct probe_round *probe_round;
	size_t index;
	unsigned char question[WIRE_HELLO_BYTES], answer[WIRE_PROBE_ANSWER_BYTES];
	size_t sent, received;
};

struct probe_round {
	struct agent *agent;
	size_t count; /* of the head's addresses */
	struct address_probe *probes;
	struct sockaddr_storage *addresses; /* family 0: not to be tried */
	socklen_t *sizes;
	int64_t start_ms, deadline_ms, give_up_ms;
	bool started, own_done, sent, extended; /* alone: none was reached by the first deadline */
	size_t nodes, expected;			/* whose answers are in, of the subtree */
	int *reached, *shared;
};

static void probe_close(struct address_probe *address_probe)
{
	int fd = address_probe->source.fd;

	if (fd < 0)
		return;
	loop_remove(address_probe->probe_round->agent->loop, &address_probe->source);
	close(fd);
}

static void on_probe_ready(struct loop_source *source, uint32_t events)
{
	struct address_probe *address_probe = (struct address_probe *)source;
	struct agent *agent = address_probe->probe_round->agent;
	ssize_t n;

	if (address_probe->sent < sizeof address_probe->question) {
		if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
			return;
		n = send(source->fd, address_probe->question + address_probe->sent,
			 sizeof address_probe->question - address_probe->sent, MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EINTR) {
			probe_close(address_probe);
			return;
		}
		address_probe->sent += n > 0 ? (size_t)n : 0;
		if (address_probe->sent == sizeof address_probe->question)
			loop_modify(agent->loop, source, EPOLLIN);
		return;
	}
	n = recv(source->fd, address_probe->answer + address_probe->received,
		 sizeof address_probe->answer - address_probe->received, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	address_probe->received += n > 0 ? (size_t)n : 0;
	if (address_probe->received == sizeof address_probe->answer &&
	    handshake_probe_verify(&agent->params.secret, agent->params.job,
				   address_probe->question, address_probe->answer))
		address_probe->probe_round->reached[address_probe->index]++;
	if (n <= 0 || address_probe->received == sizeof address_probe->answer)
		probe_close(address_probe);
}

static void start_probes(struct probe_round *probe_round)
{
	struct agent *agent = probe_round->agent;

	probe_round->started = true;
	for (size_t i = 0; i < probe_round->count; i++) {
		struct address_probe *address_probe = &probe_round->probes[i];
		int fd, under_way;

		if (!probe_round->addresses[i].ss_family ||
		    socket_connect(&probe_round->addresses[i], probe_round->sizes[i], &fd,
				   &under_way, NULL))
			continue;
		handshake_probe_question(&agent->params.secret, agent->params.job,
					 address_probe->question);
		if (loop_add(agent->loop, &address_probe->source, fd, EPOLLOUT, NULL))
			close(fd);
	}
}

/* Does this node own the address itself? Then others cannot tell it from the head's. */
static bool owns_address(const struct agent *agent, const struct sockaddr_storage *address)
{
	const struct inventory *inventory = &agent->worker.inventory;
	const void *bytes = address->ss_family == AF_INET
				    ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
				    : &((const struct sockaddr_in6 *)address)->sin6_addr;
	size_t size = address->ss_family == AF_INET ? 4 : 16;

	for (size_t i = 0; i < inventory->address_count; i++)
		if (inventory->addresses[i].family == address->ss_family &&
		    !memcmp(inventory->addresses[i].bytes, bytes, size))
			return true;
	return false;
}

static void send_when_complete(struct probe_round *probe_round)
{
	struct agent *agent = probe_round->agent;
	json_t *reached, *shared;

	if (probe_round->sent || !probe_round->own_done ||
	    probe_round->nodes < probe_round->expected)
		return;
	probe_round->sent = true;
	reached = json_array();
	shared = json_array();
	for (size_t i = 0; i < probe_round->count; i++) {
		json_array_append_new(reached, json_integer(probe_round->reached[i]));
		json_array_append_new(shared, json_integer(probe_round->shared[i]));
	}
	agent_send(agent, MESSAGE_PROBED, 0,
		   json_pack("{s:I, s:o, s:o}", "nodes", (json_int_t)probe_round->nodes, "reached",
			     reached, "shared", shared),
		   NULL, 0);
}

static void finish_own_probes(struct probe_round *probe_round)
{
	if (probe_round->own_done)
		return;
	probe_round->own_done = true;
	probe_round->nodes++;
	for (size_t i = 0; i < probe_round->count; i++)
		probe_close(&probe_round->probes[i]);
	send_when_complete(probe_round);
}

/* A node that has reached no address at all is more likely busy than cut off, and without it there
 * is no job: it gets more time, once. */
static bool extend_deadline(struct probe_round *probe_round)
{
	if (probe_round->extended)
		return false;
	for (size_t i = 0; i < probe_round->count; i++)
		if (probe_round->probes[i].received == sizeof probe_round->probes[i].answer)
			return false;
	probe_round->extended = true;
	probe_round->deadline_ms += AGENT_PROBE_EXTENSION_MS;
	return true;
}

void agent_probe_tick(struct agent *agent, int64_t now_ms)
{
	struct probe_round *probe_round = agent->probe_round;
	bool waiting = false;

	if (!probe_round || probe_round->sent)
		return;
	if (!probe_round->started && now_ms >= probe_round->start_ms)
		start_probes(probe_round);
	for (size_t i = 0; probe_round->started && i < probe_round->count; i++)
		waiting |= probe_round->probes[i].source.fd >= 0;
	if ((probe_round->started && !waiting) ||
	    (now_ms >= probe_round->deadline_ms && !extend_deadline(probe_round)))
		finish_own_probes(probe_round);
	if (now_ms >= probe_round->give_up_ms && !probe_round->sent) {
		probe_round->expected = probe_round->nodes; /* without those that did not answer */
		send_when_complete(probe_round);
	}
}

int64_t agent_probe_due_ms(const struct agent *agent)
{
	const struct probe_round *probe_round = agent->probe_round;

	if (!probe_round || probe_round->sent)
		return -1;
	if (!probe_round->started)
		return probe_round->start_ms;
	return probe_round->own_done ? probe_round->give_up_ms : probe_round->deadline_ms;
}

/* What is known of the subtree so far: {nodes, reached, shared}. */
void agent_probe_merge(struct agent *agent, const struct wire_message *message)
{
	struct probe_round *probe_round = agent->probe_round;
	JSON_AUTO text = NULL;
	json_t *reached, *shared;
	int64_t nodes;

	if (!probe_round || probe_round->sent || message_text(message, &text, NULL) ||
	    json_get_int("REACHED", text, "nodes", 1, 1 << 20, &nodes, NULL) ||
	    json_get_array("REACHED", text, "reached", &reached, NULL) ||
	    json_get_array("REACHED", text, "shared", &shared, NULL) ||
	    json_array_size(reached) != probe_round->count ||
	    json_array_size(shared) != probe_round->count)
		return;
	for (size_t i = 0; i < probe_round->count; i++) {
		json_int_t owner = json_integer_value(json_array_get(shared, i));

		probe_round->reached[i] += (int)json_integer_value(json_array_get(reached, i));
		if (owner >= 0 && probe_round->shared[i] < 0)
			probe_round->shared[i] = (int)owner;
	}
	probe_round->nodes += (size_t)nodes;
	send_when_complete(probe_round);
}

/* How many levels of agents are below this one. */
static int subtree_height(const struct agent *agent)
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

static int allocate(struct probe_round *probe_round, struct error *err)
{
	size_t n = probe_round->count + 1;

	probe_round->probes = calloc(n, sizeof *probe_round->probes);
	probe_round->addresses = calloc(n, sizeof *probe_round->addresses);
	probe_round->sizes = calloc(n, sizeof *probe_round->sizes);
	probe_round->reached = calloc(n, sizeof *probe_round->reached);
	probe_round->shared = calloc(n, sizeof *probe_round->shared);
	if (!probe_round->probes || !probe_round->addresses || !probe_round->sizes ||
	    !probe_round->reached || !probe_round->shared)
		return error_memory(err, "trying the head's addresses");
	for (size_t i = 0; i < probe_round->count; i++) {
		probe_round->probes[i].source.fd = -1;
		probe_round->probes[i].source.ready = on_probe_ready;
		probe_round->probes[i].probe_round = probe_round;
		probe_round->probes[i].index = i;
		probe_round->shared[i] = -1;
	}
	return 0;
}

int agent_probe_start(struct agent *agent, const json_t *question, struct error *err)
{
	json_t *list;
	int64_t deadline_ms;
	int rc = json_get_array("REACH", question, "addresses", &list, err);

	if (!rc)
		rc = json_get_int("REACH", question, "deadline_ms", 0, 3600000, &deadline_ms, err);
	if (rc)
		return rc;
	if (agent->probe_round || json_array_size(list) > CANDIDATES_MAX)
		return error_set(err, ERR_DATA, "REACH names %zu addresses; the limit is %d",
				 json_array_size(list), CANDIDATES_MAX);
	struct probe_round *probe_round = calloc(1, sizeof *probe_round);

	if (!probe_round)
		return error_memory(err, "trying the head's addresses");
	agent->probe_round = probe_round;
	probe_round->agent = agent;
	probe_round->count = json_array_size(list);
	rc = allocate(probe_round, err);
	for (size_t i = 0; !rc && i < probe_round->count; i++) {
		const char *address = json_string_value(json_array_get(list, i));

		if (!address || !*address)
			continue;
		rc = socket_parse(address, &probe_round->addresses[i], &probe_round->sizes[i], err);
		if (!rc && agent->params.node_index > 0 &&
		    owns_address(agent, &probe_round->addresses[i]))
			probe_round->shared[i] = (int)agent->params.node_index;
	}
	if (rc)
		return rc;
	for (size_t i = 0; i < agent->node_count; i++)
		probe_round->expected += agent_downlinks_in_subtree(agent, i);
	probe_round->start_ms =
		clock_now_ms() + (int64_t)(agent->params.node_index / STARTS_PER_MS);
	probe_round->deadline_ms = clock_now_ms() + deadline_ms;
	probe_round->give_up_ms = probe_round->deadline_ms + AGENT_PROBE_EXTENSION_MS +
				  (int64_t)subtree_height(agent) * LEVEL_MS;
	return 0;
}

void agent_probe_close(struct agent *agent)
{
	struct probe_round *probe_round = agent->probe_round;

	if (!probe_round)
		return;
	for (size_t i = 0; probe_round->probes && i < probe_round->count; i++)
		probe_close(&probe_round->probes[i]);
	free(probe_round->probes);
	free(probe_round->addresses);
	free(probe_round->sizes);
	free(probe_round->reached);
	free(probe_round->shared);
	free(probe_round);
	agent->probe_round = NULL;
}
