/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/probes.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "overlay/address_probe.h"
#include "overlay/socket.h"

#define CANDIDATES_MAX 1024 /* of the first node, and of those of other roles */
#define STARTS_PER_MS 4	    /* how many nodes start to probe within a millisecond */
#define LEVEL_MS 1000	    /* extra time for each level of the tree below this node */

struct candidate {
	struct address_probe probe;
	struct agent_probes *round;
	struct sockaddr_storage address; /* family 0: skip this address */
	socklen_t size;
};

struct agent_probes {
	struct loop *loop;
	struct agent_uplink *uplink;
	const struct agent_params *params;
	size_t node_count; /* nodes of the job */
	size_t count;	   /* number of the controller's addresses */
	size_t load;	   /* bytes that follow each question and each answer */
	/* For each address: how many nodes of the subtree reach it, a node that also owns it, and
	 * one that connects to it but passes no data; -1: none. */
	int reached[CANDIDATES_MAX], shared[CANDIDATES_MAX], stalled[CANDIDATES_MAX];
	int64_t deadline_ms, give_up_ms;
	struct loop_timer timer;		/* until started, own_done and sent in turn */
	bool started, own_done, sent, extended; /* the last: the deadline was extended */
	size_t nodes, expected;			/* of the subtree: answered so far, and in all */
	struct candidate candidates[];		/* [count] */
};

/* Does this node own the address itself? Then a node that reaches the address may have reached
 * this node instead of the controller. */
static bool owns_address(const struct inventory *inventory, const struct sockaddr_storage *address)
{
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

static void send_when_complete(struct agent_probes *round)
{
	json_t *reached, *shared, *stalled;

	if (round->sent || !round->own_done || round->nodes < round->expected)
		return;
	round->sent = true;
	loop_timer_stop(&round->timer);
	reached = json_array();
	shared = json_array();
	stalled = json_array();
	for (size_t i = 0; i < round->count; i++) {
		json_array_append_new(reached, json_integer(round->reached[i]));
		json_array_append_new(shared, json_integer(round->shared[i]));
		json_array_append_new(stalled, json_integer(round->stalled[i]));
	}
	agent_uplink_report(round->uplink, MESSAGE_PROBED,
			    &(struct message_probed){(int)round->nodes, reached, shared, stalled});
}

static void finish_own_probes(struct agent_probes *round)
{
	if (round->own_done)
		return;
	round->own_done = true;
	round->nodes++;
	for (size_t i = 0; i < round->count; i++) {
		/* Connected, but its time is over. */
		if (round->candidates[i].probe.source.fd >= 0 &&
		    round->candidates[i].probe.connected && round->stalled[i] < 0)
			round->stalled[i] = (int)round->params->node_index;
		address_probe_stop(&round->candidates[i].probe);
	}
	loop_timer_set(round->loop, &round->timer, round->give_up_ms);
	send_when_complete(round);
}

/* A node that has reached no address at all is more likely busy than cut off, and the job cannot
 * run without it. So extend its deadline once. */
static bool extend_deadline(struct agent_probes *round)
{
	if (round->extended)
		return false;
	for (size_t i = 0; i < round->count; i++)
		if (address_probe_answered(&round->candidates[i].probe))
			return false;
	round->extended = true;
	round->deadline_ms += AGENT_PROBE_EXTENSION_MS;
	return true;
}

static bool is_waiting(const struct agent_probes *round)
{
	for (size_t i = 0; i < round->count; i++)
		if (round->candidates[i].probe.source.fd >= 0)
			return true;
	return false;
}

static void on_probe_done(struct address_probe *probe, enum address_probe_outcome outcome)
{
	struct candidate *candidate = LOOP_OWNER(probe, struct candidate, probe);
	struct agent_probes *round = candidate->round;

	round->reached[candidate - round->candidates] += outcome == ADDRESS_PROBE_OK;
	if (!is_waiting(round))
		finish_own_probes(round);
}

static void start_probes(struct agent_probes *round)
{
	struct address_probe_request request = {.secret = &round->params->secret,
						.job = round->params->job,
						.load = (uint32_t)round->load,
						.done = on_probe_done};

	round->started = true;
	for (size_t i = 0; i < round->count; i++) {
		struct candidate *candidate = &round->candidates[i];

		if (candidate->address.ss_family)
			address_probe_start(&candidate->probe, round->loop, &request,
					    &candidate->address, candidate->size);
	}
	loop_timer_set(round->loop, &round->timer, round->deadline_ms);
	if (!is_waiting(round))
		finish_own_probes(round);
}

static void on_due(struct loop_timer *timer)
{
	struct agent_probes *round = LOOP_OWNER(timer, struct agent_probes, timer);

	if (!round->started) {
		start_probes(round);
	} else if (!round->own_done && extend_deadline(round)) {
		loop_timer_set(round->loop, timer, round->deadline_ms);
	} else if (!round->own_done) {
		finish_own_probes(round);
	} else if (!round->sent) {
		round->expected = round->nodes; /* stop waiting for nodes that did not answer */
		send_when_complete(round);
	}
}

void agent_probes_merge(struct agent_probes *round, const struct message_probed *answer)
{
	if (!round || round->sent)
		return;
	message_add_probed(answer, round->node_count, round->count, round->reached, round->shared,
			   round->stalled, &round->nodes);
	send_when_complete(round);
}

/* Parse the addresses of PROBE; an empty string means: skip this one. */
static int read_addresses(struct agent_probes *round, const json_t *list,
			  const struct inventory *inventory, struct error *err)
{
	size_t node = round->params->node_index;
	int rc = 0;

	for (size_t i = 0; !rc && i < round->count; i++) {
		const char *address = json_string_value(json_array_get(list, i));

		if (!address || !*address)
			continue;
		rc = socket_parse(address, &round->candidates[i].address,
				  &round->candidates[i].size, err);
		if (!rc && node > 0 && owns_address(inventory, &round->candidates[i].address))
			round->shared[i] = (int)node;
	}
	return rc;
}

int agent_probes_start(struct loop *loop, struct agent_uplink *uplink,
		       const struct children *children, const struct agent_params *params,
		       const struct inventory *inventory, const struct message_probe *question,
		       struct agent_probes **out, struct error *err)
{
	size_t count = json_array_size(question->addresses);
	int rc;

	if (*out)
		return error_set(err, ERR_DATA, "PROBE arrived twice");
	if (count > CANDIDATES_MAX)
		return error_set(err, ERR_DATA, "PROBE lists %zu addresses; the limit is %d", count,
				 CANDIDATES_MAX);

	struct agent_probes *round = calloc(1, sizeof *round + count * sizeof *round->candidates);

	if (!round)
		return error_memory(err, "probing the controller's addresses");
	round->loop = loop;
	round->uplink = uplink;
	round->params = params;
	round->node_count = children->node_count;
	round->load = (size_t)question->load;
	for (; round->count < count; round->count++) {
		round->candidates[round->count] =
			(struct candidate){.probe.source.fd = -1, .round = round};
		round->shared[round->count] = round->stalled[round->count] = -1;
	}
	rc = read_addresses(round, question->addresses, inventory, err);
	if (rc) {
		agent_probes_free(round);
		return rc;
	}
	round->expected = children_subtree_size(children, NULL);
	round->timer.due = on_due;
	loop_timer_after(loop, &round->timer, (int64_t)(params->node_index / STARTS_PER_MS));
	round->deadline_ms = loop_now_ms(loop) + question->deadline_ms;
	round->give_up_ms = round->deadline_ms + AGENT_PROBE_EXTENSION_MS +
			    (int64_t)children_subtree_height(children) * LEVEL_MS;
	*out = round;
	return 0;
}

void agent_probes_free(struct agent_probes *round)
{
	if (!round)
		return;
	loop_timer_stop(&round->timer);
	for (size_t i = 0; i < round->count; i++)
		address_probe_stop(&round->candidates[i].probe);
	free(round);
}
