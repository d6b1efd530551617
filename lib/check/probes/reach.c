/* SPDX-License-Identifier: BSD-3-Clause */
/* The reachability matrix: every node connects to every address of every other node, all at once,
 * until a deadline. The answer proves which node it is. MASTER_PORT is tested in the same way. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "check/check_internal.h"
#include "overlay/socket.h"
#include "overlay/wire.h"

#define CONNECT_MS 1500 /* for one address; TCP retries after 1 s */
#define ANSWER_MS 8000	/* after its kernel has accepted: the prober may wait for a core */
#define AT_ONCE 128

/* ---- a node's side ---- */

struct connect_attempt {
	size_t node, address; /* indices in the question */
	int fd;
	bool connected;
	size_t sent, received;
	int64_t due_ms; /* when to give up */
	unsigned char question[WIRE_HELLO_BYTES], answer[WIRE_PROBE_ANSWER_BYTES];
};

static const char *outcome_of_errno(int error)
{
	switch (error) {
	case ECONNREFUSED:
		return "refused";
	case ETIMEDOUT:
		return "timeout";
	case EHOSTUNREACH:
		return "host-unreachable";
	default:
		return "unreachable";
	}
}

static void identity(const struct prober *prober, size_t node, char *out, size_t size)
{
	snprintf(out, size, "%s/%zu", prober->token, node);
}

/* Advance as far as possible without waiting. Return the outcome once it is known, else NULL. */
static const char *advance_attempt(const struct prober *prober, struct connect_attempt *attempt,
				   int node)
{
	char job[128];
	ssize_t n;

	if (!attempt->connected) {
		int error = 0;
		socklen_t size = sizeof error;

		if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
			return outcome_of_errno(error ? error : errno);
		attempt->connected = true;
		attempt->due_ms = clock_now_ms() + ANSWER_MS;
	}
	if (attempt->sent < sizeof attempt->question) {
		n = send(attempt->fd, attempt->question + attempt->sent,
			 sizeof attempt->question - attempt->sent, MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return outcome_of_errno(errno);
		attempt->sent += n > 0 ? (size_t)n : 0;
		return NULL;
	}
	n = recv(attempt->fd, attempt->answer + attempt->received,
		 sizeof attempt->answer - attempt->received, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return NULL;
	if (n <= 0)
		return "unauthenticated";
	attempt->received += (size_t)n;
	if (attempt->received < sizeof attempt->answer)
		return NULL;
	identity(prober, (size_t)node, job, sizeof job);
	return handshake_probe_verify(&prober->secret, job, attempt->question, attempt->answer)
		       ? "ok"
		       : "unauthenticated";
}

/* Start an attempt. Return the outcome if it is known at once, else NULL. */
static const char *start_attempt(const struct prober *prober, struct connect_attempt *attempt,
				 int node, const char *address)
{
	struct sockaddr_storage to;
	socklen_t size;
	char job[128];
	int under_way;

	if (socket_parse(address, &to, &size, NULL))
		return "-";
	errno = 0;
	if (socket_connect(&to, size, &attempt->fd, &under_way, NULL))
		return outcome_of_errno(errno);
	attempt->due_ms = clock_now_ms() + CONNECT_MS;
	identity(prober, (size_t)node, job, sizeof job);
	handshake_probe_question(&prober->secret, job, 0, attempt->question);
	return NULL;
}

struct sweep {
	const struct prober *prober;
	const json_t *nodes; /* [{node, addresses: ["10.0.0.1:4711", ""]}] */
	json_t *rows;
	struct connect_attempt *attempts; /* [AT_ONCE], fd -1: free */
	size_t node, address;		  /* the next one to start */
	size_t busy;
};

static void record(struct sweep *sweep, const struct connect_attempt *attempt, const char *outcome)
{
	json_array_set_new(json_array_get(sweep->rows, attempt->node), attempt->address,
			   json_string(outcome));
}

static int node_at(const struct sweep *sweep, size_t index)
{
	return (int)json_integer_value(
		json_object_get(json_array_get(sweep->nodes, index), "node"));
}

/* Start the question's next address in a free slot; false: none is left. */
static bool start_next(struct sweep *sweep, struct connect_attempt *attempt)
{
	for (; sweep->node < json_array_size(sweep->nodes); sweep->node++, sweep->address = 0) {
		const json_t *list =
			json_object_get(json_array_get(sweep->nodes, sweep->node), "addresses");

		while (sweep->address < json_array_size(list)) {
			const char *address =
				json_string_value(json_array_get(list, sweep->address));
			const char *outcome;

			*attempt = (struct connect_attempt){
				.node = sweep->node, .address = sweep->address++, .fd = -1};
			if (!address || !*address)
				continue; /* it is "-" or "self" */
			outcome = start_attempt(sweep->prober, attempt,
						node_at(sweep, attempt->node), address);
			if (!outcome)
				return true;
			record(sweep, attempt, outcome);
		}
	}
	return false;
}

static void finish(struct sweep *sweep, struct connect_attempt *attempt, const char *outcome)
{
	record(sweep, attempt, outcome);
	close(attempt->fd);
	attempt->fd = -1;
	sweep->busy--;
}

static void wait_round(struct sweep *sweep)
{
	struct pollfd polls[AT_ONCE];
	int64_t now = clock_now_ms(), due = now + ANSWER_MS;

	for (size_t i = 0; i < AT_ONCE; i++) {
		const struct connect_attempt *attempt = &sweep->attempts[i];
		bool writes = attempt->sent < sizeof attempt->question;

		polls[i] = (struct pollfd){attempt->fd, writes ? POLLOUT : POLLIN, 0};
		if (attempt->fd >= 0 && attempt->due_ms < due)
			due = attempt->due_ms;
	}
	if (poll(polls, AT_ONCE, due > now ? (int)(due - now) : 0) < 0)
		return;
	now = clock_now_ms();
	for (size_t i = 0; i < AT_ONCE; i++) {
		struct connect_attempt *attempt = &sweep->attempts[i];
		const char *outcome = NULL;

		if (attempt->fd < 0)
			continue;
		if (polls[i].revents)
			outcome = advance_attempt(sweep->prober, attempt,
						  node_at(sweep, attempt->node));
		if (!outcome && now >= attempt->due_ms)
			outcome = attempt->connected ? "no-reply" : "timeout";
		if (outcome)
			finish(sweep, attempt, outcome);
	}
}

static json_t *empty_rows(const struct prober *prober, const json_t *nodes)
{
	json_t *rows = json_array(), *entry;
	size_t i;

	json_array_foreach(nodes, i, entry)
	{
		json_t *row = json_array();
		bool self = (size_t)json_integer_value(json_object_get(entry, "node")) ==
			    prober->node_index;

		for (size_t a = json_array_size(json_object_get(entry, "addresses")); a; a--)
			json_array_append_new(row, json_string(self ? "self" : "-"));
		json_array_append_new(rows, row);
	}
	return rows;
}

json_t *probe_reach_run(const struct prober *prober, const json_t *question)
{
	struct sweep sweep = {.prober = prober, .nodes = json_object_get(question, "nodes")};
	bool more = true;

	sweep.attempts = calloc(AT_ONCE, sizeof *sweep.attempts);
	if (!sweep.attempts)
		return NULL;
	sweep.rows = empty_rows(prober, sweep.nodes);
	for (size_t i = 0; i < AT_ONCE; i++)
		sweep.attempts[i].fd = -1;
	do {
		for (size_t i = 0; more && i < AT_ONCE; i++) {
			if (sweep.attempts[i].fd >= 0)
				continue;
			more = start_next(&sweep, &sweep.attempts[i]);
			sweep.busy += more;
			if (!more)
				sweep.attempts[i].fd = -1;
		}
		if (sweep.busy)
			wait_round(&sweep);
	} while (sweep.busy || more);
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

json_t *probe_reach_question(const struct check *check, size_t node)
{
	json_t *nodes = json_array();

	for (size_t j = 0; j < check->count; j++) {
		const struct inventory *inventory = &check->inventories[j];
		json_t *list = json_array();

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
	size_t addresses = 0;

	for (size_t i = 0; i < check->count; i++)
		addresses += check->inventories[i].address_count;
	return CONNECT_MS * (int)(1 + addresses / AT_ONCE) + ANSWER_MS;
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

static void judge_row(struct check *check, size_t i, const size_t *columns, size_t alive)
{
	bool reported = false;
	size_t lost = 0, first = 0, address = 0, at = 0;
	const char *first_outcome = NULL;

	for (size_t j = 0; j < check->count; j++) {
		const char *outcome = j == i ? NULL : first_failure(check, i, j, &at);

		if (!outcome || (alive > 2 && columns[j] == alive - 1))
			continue; /* no node reaches j, which is reported there */
		if (!lost++) {
			first = j;
			address = at;
			first_outcome = outcome;
		}
	}
	bool unreached = alive > 2 && columns[i] == alive - 1;

	/* If nothing gets through in either direction, report only that no node reaches it. */
	if (lost && !(unreached && lost == alive - 1)) {
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
	if (!reported)
		check_add(check, i, "reach", CHECK_OK, NULL, "%s",
			  "reaches all other nodes on every network that matters");
}

void probe_reach_judge(struct check *check)
{
	size_t *columns = calloc(check->count, sizeof *columns);
	size_t alive = 0, address;

	for (size_t i = 0; i < check->count; i++)
		alive += !check->nodes[i].missing;
	for (size_t i = 0; columns && i < check->count; i++)
		for (size_t j = 0; j < check->count; j++)
			columns[j] += i != j && first_failure(check, i, j, &address);
	for (size_t i = 0; columns && i < check->count; i++) {
		if (check->nodes[i].missing)
			continue;
		if (check->count == 1)
			check_add(check, i, "reach", CHECK_SKIPPED, NULL, "one node");
		else if (!check_answer(check, i, "reach?"))
			check_add(check, i, "reach", CHECK_FAULT, "check the load of the node",
				  "it did not report in time which nodes it reaches");
		else
			judge_row(check, i, columns, alive);
	}
	free(columns);
}
