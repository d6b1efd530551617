/* SPDX-License-Identifier: BSD-3-Clause */
/* The reachability matrix: every node connects to every address of the nodes that it has to try,
 * all at once, until a deadline. The answer proves which node it is. MASTER_PORT is tested in the
 * same way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop.h"
#include "check/check_internal.h"
#include "overlay/address_probe.h"
#include "overlay/socket.h"

#define CONNECT_MS 1500 /* for one address; TCP retries after 1 s */
#define ANSWER_MS 8000	/* after its kernel has accepted: the prober may wait for a core */
#define AT_ONCE 128
/* Larger jobs try a sample: all pairs of 1,000 nodes would be 100 MB of questions, and minutes if
 * connects are dropped. */
#define ALL_PAIRS 64 /* nodes */

/* ---- a node's side ---- */

struct attempt {
	struct address_probe probe;
	struct sweep *sweep;
	size_t node, address; /* indices in the rows */
	char job[128];
};

struct sweep {
	const struct prober *prober;
	const json_t *nodes; /* [{node, addresses: ["10.0.0.1:4711", ""]}] */
	json_t *rows;	     /* [node][address]; null: not tried */
	struct loop *loop;
	struct attempt *attempts; /* [AT_ONCE] */
	size_t node, address;	  /* the next one to start */
	size_t busy;
};

static void record(const struct attempt *attempt, enum address_probe_outcome outcome)
{
	static const char *const names[] = {
		[ADDRESS_PROBE_PENDING] = "-",
		[ADDRESS_PROBE_OK] = "ok",
		[ADDRESS_PROBE_REFUSED] = "refused",
		[ADDRESS_PROBE_TIMEOUT] = "timeout",
		[ADDRESS_PROBE_HOST_UNREACHABLE] = "host-unreachable",
		[ADDRESS_PROBE_UNREACHABLE] = "unreachable",
		[ADDRESS_PROBE_UNAUTHENTICATED] = "unauthenticated",
		[ADDRESS_PROBE_NO_REPLY] = "no-reply",
	};

	json_array_set_new(json_array_get(attempt->sweep->rows, attempt->node), attempt->address,
			   json_string(names[outcome]));
}

static void on_done(struct address_probe *probe, enum address_probe_outcome outcome);

/* Return true if the attempt is under way. */
static bool start_attempt(struct attempt *attempt, const char *address)
{
	const struct prober *prober = attempt->sweep->prober;
	struct address_probe_request request = {.secret = &prober->secret,
						.job = attempt->job,
						.connect_ms = CONNECT_MS,
						.answer_ms = ANSWER_MS,
						.done = on_done};
	struct sockaddr_storage to;
	enum address_probe_outcome outcome;
	socklen_t size;

	if (socket_parse(address, &to, &size, NULL))
		return false; /* it is "-" */
	/* Each node answers as a job of its own, so that the answer proves which node it is. */
	snprintf(attempt->job, sizeof attempt->job, "%s/%d", prober->token, (int)attempt->node);
	outcome = address_probe_start(&attempt->probe, attempt->sweep->loop, &request, &to, size);
	if (outcome != ADDRESS_PROBE_PENDING)
		record(attempt, outcome);
	return outcome == ADDRESS_PROBE_PENDING;
}

/* Start the question's next address; it takes this attempt's place. */
static void start_next(struct attempt *attempt)
{
	struct sweep *sweep = attempt->sweep;

	for (; sweep->node < json_array_size(sweep->nodes); sweep->node++, sweep->address = 0) {
		const json_t *entry = json_array_get(sweep->nodes, sweep->node);
		const json_t *list = json_object_get(entry, "addresses");

		while (sweep->address < json_array_size(list)) {
			const char *address =
				json_string_value(json_array_get(list, sweep->address));

			attempt->node = (size_t)json_integer_value(json_object_get(entry, "node"));
			attempt->address = sweep->address++;
			/* Without an address it is "-" or "self". */
			if (address && *address && start_attempt(attempt, address)) {
				sweep->busy++;
				return;
			}
		}
	}
}

static void on_done(struct address_probe *probe, enum address_probe_outcome outcome)
{
	struct attempt *attempt = LOOP_OWNER(probe, struct attempt, probe);

	record(attempt, outcome);
	attempt->sweep->busy--;
	start_next(attempt);
}

static json_t *empty_rows(const struct prober *prober, const json_t *nodes)
{
	json_t *rows = json_array(), *entry;
	size_t i;

	for (i = 0; i < prober->node_count; i++)
		json_array_append_new(rows, json_null());
	json_array_foreach(nodes, i, entry)
	{
		size_t node = (size_t)json_integer_value(json_object_get(entry, "node"));
		json_t *row = json_array();

		for (size_t a = json_array_size(json_object_get(entry, "addresses")); a; a--)
			json_array_append_new(
				row, json_string(node == prober->node_index ? "self" : "-"));
		json_array_set_new(rows, node, row);
	}
	return rows;
}

json_t *probe_reach_run(const struct prober *prober, const json_t *question)
{
	struct sweep sweep = {.prober = prober, .nodes = json_object_get(question, "nodes")};

	if (loop_new(&sweep.loop, NULL))
		return NULL;
	sweep.attempts = calloc(AT_ONCE, sizeof *sweep.attempts);
	sweep.rows = empty_rows(prober, sweep.nodes);
	for (size_t i = 0; sweep.attempts && i < AT_ONCE; i++) {
		sweep.attempts[i] = (struct attempt){.probe.source.fd = -1, .sweep = &sweep};
		start_next(&sweep.attempts[i]);
	}
	while (sweep.busy && !loop_once(sweep.loop, NULL)) {
	}
	for (size_t i = 0; sweep.attempts && i < AT_ONCE; i++)
		address_probe_stop(&sweep.attempts[i].probe);
	loop_free(sweep.loop);
	free(sweep.attempts);
	return json_pack("{s:o}", "rows", sweep.rows);
}

/* ---- the controller's side ---- */

/* Is the address worth trying? Addresses that are down or link-local are not, nor is other nodes'
 * loopback. */
static bool is_worth_trying(const struct check *check, const struct inventory_address *address)
{
	return address->up && !address->link_local &&
	       (check->simulated || address->type != IFACE_LOOPBACK);
}

/* Does node i try node j? All try the first node; of many nodes, each tries those that follow it,
 * and others at equal distances. */
static bool tries(const struct check *check, size_t i, size_t j)
{
	size_t distance = (j + check->count - i) % check->count, half = ALL_PAIRS / 2;

	return check->count <= ALL_PAIRS || !j || distance <= half ||
	       distance % (check->count / half) == 0;
}

json_t *probe_reach_question(const struct check *check, size_t node)
{
	json_t *nodes = json_array();

	for (size_t j = 0; j < check->count; j++) {
		const struct inventory *inventory = &check->inventories[j];
		json_t *list;

		if (!tries(check, node, j))
			continue;
		list = json_array();
		for (size_t a = 0; a < inventory->address_count; a++) {
			char text[80] = "";

			if (j != node && !check->nodes[j].missing &&
			    is_worth_trying(check, &inventory->addresses[a]))
				inventory_address_format(&inventory->addresses[a],
							 check->nodes[j].port, text, sizeof text);
			json_array_append_new(list, json_string(text));
		}
		json_array_append_new(nodes,
				      json_pack("{s:i, s:o}", "node", (int)j, "addresses", list));
	}
	return json_pack("{s:s, s:o}", "ask", "reach", "nodes", nodes);
}

int probe_reach_ms(const struct check *check)
{
	size_t most = 0;

	for (size_t i = 0; i < check->count; i++) {
		size_t addresses = 0;

		for (size_t j = 0; j < check->count; j++)
			addresses += tries(check, i, j) ? check->inventories[j].address_count : 0;
		most = addresses > most ? addresses : most;
	}
	return CONNECT_MS * (int)(1 + most / AT_ONCE) + ANSWER_MS;
}

/* What an outcome means, and how to fix it. */
struct meaning {
	const char *outcome, *seen, *fix;
};

static const struct meaning *meaning_of(const char *outcome)
{
	static const struct meaning meanings[] = {
		{"refused", "refuses connections",
		 "a firewall refuses it: open TCP between the job's nodes"},
		{"timeout", "does not answer: connects are dropped silently",
		 "a firewall or a broken link: open TCP between the job's nodes on this network, "
		 "or exclude the node"},
		{"host-unreachable",
		 "does not answer: no host on this network seems to have that address",
		 "check its cable, its switch port, its VLAN, then its address; exclude the node "
		 "until it is fixed"},
		{"no-reply", "accepts a connection but does not answer",
		 "something in between accepts the connection but forwards nothing: large packets "
		 "may be lost (MTU)"},
		{"unauthenticated", "is answered by another machine",
		 "another machine has this address too: ask an administrator to give each its own"},
		{NULL, "cannot be reached: there is no route",
		 "no route from here: ask an administrator to check the routes and netmasks"},
	};
	const struct meaning *meaning = meanings;

	while (meaning->outcome && strcmp(meaning->outcome, outcome))
		meaning++;
	return meaning;
}

/* Should other nodes reach this address of node j? It is one of the chosen interface or, unless the
 * user requested another, of a better network. */
static bool should_be_reachable(const struct check *check, size_t j, size_t address)
{
	const struct inventory *inventory = &check->inventories[j];
	int chosen = check_chosen_address(check, j);

	if (!check_address_usable(check, &inventory->addresses[address]))
		return check->planned && (int)address == chosen;
	if (!check->planned)
		return true;
	if ((int)address == chosen)
		return true;
	if (check->request->plan_request.iface || check->request->plan_request.subnet ||
	    check->request->plan_request.master_addr || chosen < 0)
		return false;
	/* A network other than the chosen one that would be better. */
	return check_better_address(inventory, &inventory->addresses[address], inventory,
				    &inventory->addresses[chosen]);
}

/* Does another node have the same address? The network probe reports that; connections to it prove
 * nothing. */
static bool is_duplicate_address(const struct check *check, size_t node,
				 const struct inventory_address *address)
{
	for (size_t j = 0; !check->simulated && j < check->count; j++)
		for (size_t a = 0; j != node && a < check->inventories[j].address_count; a++)
			if (check_address_usable(check, &check->inventories[j].addresses[a]) &&
			    inventory_address_equal(&check->inventories[j].addresses[a], address))
				return true;
	return false;
}

/* The same for the source address from which i reaches it: answers go to the other node. */
static bool source_is_duplicate(const struct check *check, size_t i,
				const struct inventory_address *address)
{
	for (size_t a = 0; a < check->inventories[i].address_count; a++)
		if (check_address_usable(check, &check->inventories[i].addresses[a]) &&
		    check_same_subnet(&check->inventories[i].addresses[a], address) &&
		    is_duplicate_address(check, i, &check->inventories[i].addresses[a]))
			return true;
	return false;
}

/* The first failed outcome from i to j among the addresses that matter; NULL: none. */
static const char *first_failure(const struct check *check, size_t i, size_t j, size_t *address)
{
	for (size_t a = 0; a < check->inventories[j].address_count; a++) {
		const char *outcome = check_reach_outcome(check, i, j, a);
		const struct inventory_address *address_of_j = &check->inventories[j].addresses[a];

		if (!outcome || !strcmp(outcome, "ok") || !strcmp(outcome, "-") ||
		    !should_be_reachable(check, j, a) ||
		    (!check_address_in_subnet(check, i, address_of_j, true) &&
		     (int)a != check_chosen_address(check, j)) ||
		    is_duplicate_address(check, j, address_of_j) ||
		    source_is_duplicate(check, i, address_of_j))
			continue;
		*address = a;
		return outcome;
	}
	return NULL;
}

/* rows: how many of the others i cannot reach; columns: how many cannot reach it. */
static void report_pair(struct check *check, size_t at, size_t j, size_t address,
			const char *outcome, const char *others)
{
	const struct inventory_address *target = &check->inventories[j].addresses[address];
	const struct meaning *meaning = meaning_of(outcome);
	char text[80];

	inventory_address_format(target, 0, text, sizeof text);
	if (at == j)
		check_add(check, at, "reach", CHECK_FAULT, meaning->fix,
			  "its %s %s %s, according to all other nodes", target->iface, text,
			  meaning->seen);
	else
		check_add(check, at, "reach", CHECK_FAULT, meaning->fix, "%s %s of %s %s%s%s",
			  target->iface, text, check->nodes[j].name, meaning->seen,
			  others ? "; " : "", others ? others : "");
}

/* Of a node: how many others have tried it, how many of them have failed. */
struct column {
	size_t tried, failed;
};

/* No node reaches it, of at least two. */
static bool is_unreached(const struct column *column)
{
	return column->tried > 1 && column->failed == column->tried;
}

static void judge_row(struct check *check, size_t i, const struct column *columns)
{
	bool reported = false, unreached = is_unreached(&columns[i]);
	size_t lost = 0, tried = 0, first = 0, address = 0, at = 0;
	const char *first_outcome = NULL;

	for (size_t j = 0; j < check->count; j++) {
		const char *outcome = j == i ? NULL : first_failure(check, i, j, &at);

		tried += j != i && tries(check, i, j) && !check->nodes[j].missing;
		if (!outcome || is_unreached(&columns[j]))
			continue; /* no node reaches j, which is reported there */
		if (!lost++) {
			first = j;
			address = at;
			first_outcome = outcome;
		}
	}
	/* If nothing gets through in either direction, report only that no node reaches it. */
	if (lost && !(unreached && lost == tried)) {
		char more[64] = "";

		if (lost > 1)
			snprintf(more, sizeof more, "it does not reach %zu nodes in total", lost);
		report_pair(check, i, first, address, first_outcome, lost > 1 ? more : NULL);
		reported = true;
	}
	if (unreached) {
		for (size_t j = 0; j < check->count; j++) {
			const char *outcome = j == i ? NULL : first_failure(check, j, i, &at);

			if (outcome) {
				report_pair(check, i, i, at, outcome, NULL);
				break;
			}
		}
		reported = true;
	}
	if (reported)
		return;
	check_add(check, i, "reach", CHECK_OK, NULL, "reaches %s on every network that matters",
		  check->count <= ALL_PAIRS ? "all other nodes"
					    : "the first node and a sample of the others");
}

static void judge(struct check *check)
{
	struct column *columns = calloc(check->count, sizeof *columns);
	size_t address;

	for (size_t i = 0; columns && i < check->count; i++)
		for (size_t j = 0; j < check->count; j++) {
			if (i == j || check->nodes[i].missing || !tries(check, i, j))
				continue;
			columns[j].tried++;
			columns[j].failed += first_failure(check, i, j, &address) != NULL;
		}
	for (size_t i = 0; columns && i < check->count; i++) {
		if (check->nodes[i].missing)
			continue;
		if (check->count == 1)
			check_add(check, i, "reach", CHECK_SKIPPED, NULL, "one node");
		else if (!check_answer(check, i, "reach?"))
			check_add(check, i, "reach", CHECK_FAULT, "check the load of the node",
				  "it did not report in time which nodes it reaches");
		else
			judge_row(check, i, columns);
	}
	free(columns);
}

const struct check_probe probe_reach = {"reach", .run = probe_reach_run, .judge = judge};
