/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-reduce over the chosen NIC: the order of the ring, and what its answers mean. */
#include <string.h>

#include "base/json.h"
#include "check/check_internal.h"

#define SLOW_PART 5	    /* a link is slow below 1/5 of the best one ... */
#define SLOW_STATED_PART 50 /* ... or below 1/50 of its NIC's nominal speed */
#define COUNTED_PERCENT 90

static size_t successor(const struct check *check, size_t node)
{
	return (node + 1) % check->count;
}

static size_t predecessor(const struct check *check, size_t node)
{
	return (node + check->count - 1) % check->count;
}

/* The address that the ring uses at a node; only if the ring is possible. */
static const struct inventory_address *ring_address(const struct check *check, size_t node)
{
	return &check->inventories[node].addresses[check_chosen_address(check, node)];
}

bool probe_ring_possible(const struct check *check)
{
	if (!check->planned || check->count < 2)
		return false;
	for (size_t i = 0; i < check->count; i++) {
		size_t next = successor(check, i);
		int chosen = check_chosen_address(check, next);
		const char *outcome =
			chosen >= 0 ? check_reach_outcome(check, i, next, (size_t)chosen) : NULL;

		if (check->nodes[i].missing || !outcome || strcmp(outcome, "ok") ||
		    check_chosen_address(check, i) < 0)
			return false;
	}
	return true;
}

json_t *probe_ring_question(const struct check *check, size_t node)
{
	size_t next = successor(check, node), prev = predecessor(check, node);
	const struct inventory_address *own = ring_address(check, node);
	char own_text[80], next_text[80];

	inventory_address_format(own, 1, own_text, sizeof own_text);
	inventory_address_format(ring_address(check, next), check->nodes[next].ring_port, next_text,
				 sizeof next_text);
	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:o}", "ask", "ring", "place",
			 (int)node, "count", (int)check->count, "next_node", (int)next, "prev_node",
			 (int)prev, "next", next_text, "own", own_text, "iface",
			 json_text(own->iface));
}

/* The rate of the link from the node before it in Mb/s, best of all rounds; -1: not measured. It is
 * the sender's, of the time in which the link was busy; an old kernel knows only when the bytes
 * arrived. */
static double rate_into(const struct check *check, size_t node)
{
	const json_t *answer = check_answer(check, node, "ring?");
	const json_t *sender = check_answer(check, predecessor(check, node), "ring?");
	int64_t bytes = 0, ms = 0, acked = 0, link_us = 0;
	double rate, best = check->nodes[node].best_mbps;

	if (!answer || json_is_string(json_object_get(answer, "problem")) ||
	    json_get_int("ring", answer, "received", 0, INT64_MAX, &bytes, NULL) ||
	    json_get_int("ring", answer, "ms", 1, INT64_MAX, &ms, NULL))
		return -1;
	rate = (double)bytes * 8 / 1000 / (double)ms;
	if (!json_get_int("ring", sender, "acked", 1, INT64_MAX, &acked, NULL) &&
	    !json_get_int("ring", sender, "link_us", 1, INT64_MAX, &link_us, NULL))
		rate = (double)acked * 8 / (double)link_us;
	return rate > best ? rate : best;
}

static double best_rate(const struct check *check)
{
	double best = -1;

	for (size_t i = 0; i < check->count; i++)
		if (rate_into(check, i) > best)
			best = rate_into(check, i);
	return best;
}

/* Simulated nodes share one machine, so their rates only show its load. */
static bool is_slow(const struct check *check, size_t node, double best)
{
	int64_t stated = ring_address(check, node)->speed_mbps;
	double rate = rate_into(check, node);

	return rate >= 0 && !check->simulated &&
	       (rate * SLOW_PART < best ||
		(stated > 0 && rate * SLOW_STATED_PART < (double)stated));
}

bool probe_ring_should_repeat(struct check *check)
{
	double best = best_rate(check);
	bool repeat = false;

	for (size_t i = 0; i < check->count; i++) {
		if (!check_answer(check, i, "ring?") || rate_into(check, i) < 0)
			return false; /* it broke, and that is reported instead */
		repeat |= is_slow(check, i, best);
	}
	for (size_t i = 0; repeat && i < check->count; i++) {
		check->nodes[i].best_mbps = rate_into(check, i);
		json_object_del(check->nodes[i].answers, "ring?");
	}
	return repeat;
}

static bool judge_bytes(struct check *check, size_t i, const json_t *answer)
{
	int64_t sent = 0, count = 0;

	if (json_get_int("ring", answer, "sent", 0, INT64_MAX, &sent, NULL) ||
	    json_get_int("ring", answer, "counted", 0, INT64_MAX, &count, NULL) ||
	    count * 100 >= sent * COUNTED_PERCENT)
		return false;
	check_add(check, i, "ring", CHECK_FAULT,
		  "ask an administrator to check the routes: traffic to the chosen network leaves "
		  "through another NIC",
		  "%lld MiB were sent, but %s counted %lld MiB", (long long)(sent >> 20),
		  ring_address(check, i)->iface, (long long)(count >> 20));
	return true;
}

static void judge_node(struct check *check, size_t i, double best)
{
	const json_t *answer = check_answer(check, i, "ring?");
	size_t prev = predecessor(check, i);
	const struct inventory_address *own = ring_address(check, i);
	double rate = rate_into(check, i);
	int64_t sent = 0;

	if (!answer) {
		check_add(check, i, "ring", CHECK_FAULT, "check the load of the node",
			  "no result of the all-reduce within %d s", PROBE_RING_MS / 1000);
		return;
	}
	if (*check_text(answer, "problem")) {
		check_add(check, i, "ring", CHECK_FAULT,
			  "look at the first node that reports this: firewall, MTU, cable",
			  "all-reduce over %s: %s", own->iface, check_text(answer, "problem"));
		return;
	}
	if (judge_bytes(check, i, answer))
		return;
	json_get_int("ring", answer, "sent", 0, INT64_MAX, &sent, NULL);
	if (is_slow(check, i, best))
		check_add(check, i, "ring", CHECK_FAULT,
			  "exclude one of the two nodes and check again; ask an administrator to "
			  "look at the slow one's cable, port or driver",
			  "receives from %s at %.0f Mb/s over %s%s; the best link has %.0f Mb/s",
			  check->nodes[prev].name, rate, own->iface,
			  own->speed_mbps > 0 ? ", whose nominal speed is much higher" : "", best);
	else
		check_add(check, i, "ring", CHECK_OK, NULL,
			  "all-reduce of 1 KiB to 4 MiB: sums correct; %.0f Mb/s from %s, %lld MiB "
			  "sent over %s",
			  rate, check->nodes[prev].name, (long long)(sent >> 20), own->iface);
}

static void judge(struct check *check)
{
	bool possible = probe_ring_possible(check);
	double best = possible ? best_rate(check) : -1;

	for (size_t i = 0; i < check->count; i++) {
		if (check->nodes[i].missing)
			continue;
		if (check->count == 1)
			check_add(check, i, "ring", CHECK_SKIPPED, NULL, "one node");
		else if (!possible)
			check_add(check, i, "ring", CHECK_SKIPPED, NULL,
				  "not all nodes reach each other over one network");
		else
			judge_node(check, i, best);
	}
}

const struct check_probe probe_ring = {"ring", .run = probe_ring_run, .judge = judge};
