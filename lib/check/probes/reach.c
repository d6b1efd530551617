/* SPDX-License-Identifier: BSD-3-Clause */
/* The matrix: every node against every address of every other, all at once, until a deadline. Who
 * answers proves which node it is. And the head's port, tried the same way. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/loop.h"
#include "check/check_internal.h"
#include "overlay/socket.h"
#include "overlay/wire.h"

#define WAIT_MS 1500 /* for one address; TCP asks a second time after 1 s */
#define AT_ONCE 128

/* ---- a node's side ---- */

struct attempt {
	size_t node, address; /* place in the question */
	int fd;
	bool connected;
	size_t sent, got;
	int64_t begun_ms;
	unsigned char question[WIRE_HELLO_BYTES], answer[WIRE_PROBE_ANSWER_BYTES];
};

static const char *word_of(int error)
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

/* Go on as far as it goes without waiting: the word when it is over, else NULL. */
static const char *step(const struct prober *prober, struct attempt *attempt, int node)
{
	char job[128];
	ssize_t n;

	if (!attempt->connected) {
		int error = 0;
		socklen_t size = sizeof error;

		if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
			return word_of(error ? error : errno);
		attempt->connected = true;
	}
	if (attempt->sent < sizeof attempt->question) {
		n = send(attempt->fd, attempt->question + attempt->sent,
			 sizeof attempt->question - attempt->sent, MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return word_of(errno);
		attempt->sent += n > 0 ? (size_t)n : 0;
		return NULL;
	}
	n = recv(attempt->fd, attempt->answer + attempt->got, sizeof attempt->answer - attempt->got,
		 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return NULL;
	if (n <= 0)
		return "unauthenticated";
	attempt->got += (size_t)n;
	if (attempt->got < sizeof attempt->answer)
		return NULL;
	identity(prober, (size_t)node, job, sizeof job);
	return wire_probe_answered(&prober->secret, job, attempt->question, attempt->answer)
		       ? "ok"
		       : "unauthenticated";
}

/* Begin; the word when it is over at once. */
static const char *begin(const struct prober *prober, struct attempt *attempt, int node,
			 const char *address)
{
	struct sockaddr_storage to;
	socklen_t size;
	char job[128];
	int under_way;

	if (socket_parse(address, &to, &size, NULL))
		return "-";
	errno = 0;
	if (socket_connect(&to, size, &attempt->fd, &under_way, NULL))
		return word_of(errno);
	attempt->begun_ms = clock_now_ms();
	identity(prober, (size_t)node, job, sizeof job);
	wire_probe_question(&prober->secret, job, attempt->question);
	return NULL;
}

struct sweep {
	const struct prober *prober;
	const json_t *nodes; /* [{node, addresses: ["10.0.0.1:4711", ""]}] */
	json_t *rows;
	struct attempt *attempts; /* [AT_ONCE], fd -1: free */
	size_t node, address;	  /* the next one to begin */
	size_t busy;
};

static void put(struct sweep *sweep, const struct attempt *attempt, const char *word)
{
	json_array_set_new(json_array_get(sweep->rows, attempt->node), attempt->address,
			   json_string(word));
}

static int node_at(const struct sweep *sweep, size_t place)
{
	return (int)json_integer_value(
		json_object_get(json_array_get(sweep->nodes, place), "node"));
}

/* The next address of the question into a free place; false: none is left. */
static bool begin_next(struct sweep *sweep, struct attempt *attempt)
{
	for (; sweep->node < json_array_size(sweep->nodes); sweep->node++, sweep->address = 0) {
		const json_t *list =
			json_object_get(json_array_get(sweep->nodes, sweep->node), "addresses");

		while (sweep->address < json_array_size(list)) {
			const char *address =
				json_string_value(json_array_get(list, sweep->address));
			const char *word;

			*attempt = (struct attempt){
				.node = sweep->node, .address = sweep->address++, .fd = -1};
			if (!address || !*address)
				continue; /* "-" or "self" stands there */
			word = begin(sweep->prober, attempt, node_at(sweep, attempt->node),
				     address);
			if (!word)
				return true;
			put(sweep, attempt, word);
		}
	}
	return false;
}

static void finish(struct sweep *sweep, struct attempt *attempt, const char *word)
{
	put(sweep, attempt, word);
	close(attempt->fd);
	attempt->fd = -1;
	sweep->busy--;
}

static void wait_round(struct sweep *sweep)
{
	struct pollfd polls[AT_ONCE];
	int64_t now = clock_now_ms(), due = now + WAIT_MS;

	for (size_t i = 0; i < AT_ONCE; i++) {
		const struct attempt *attempt = &sweep->attempts[i];
		bool writes = attempt->sent < sizeof attempt->question;

		polls[i] = (struct pollfd){attempt->fd, writes ? POLLOUT : POLLIN, 0};
		if (attempt->fd >= 0 && attempt->begun_ms + WAIT_MS < due)
			due = attempt->begun_ms + WAIT_MS;
	}
	if (poll(polls, AT_ONCE, due > now ? (int)(due - now) : 0) < 0)
		return;
	now = clock_now_ms();
	for (size_t i = 0; i < AT_ONCE; i++) {
		struct attempt *attempt = &sweep->attempts[i];
		const char *word = NULL;

		if (attempt->fd < 0)
			continue;
		if (polls[i].revents)
			word = step(sweep->prober, attempt, node_at(sweep, attempt->node));
		if (!word && now >= attempt->begun_ms + WAIT_MS)
			word = attempt->connected ? "no-reply" : "timeout";
		if (word)
			finish(sweep, attempt, word);
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

json_t *probe_reach_task(const struct prober *prober, const json_t *question)
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
			more = begin_next(&sweep, &sweep.attempts[i]);
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

/* ---- the head's side ---- */

/* Worth a try: down and link-local ones are not, and other nodes' loopback leads nowhere. */
static bool tried(const struct check *check, const struct machine_address *address)
{
	return address->up && !address->link_local &&
	       (check->pretended || address->sort != IFACE_LOOPBACK);
}

json_t *probe_reach_question(const struct check *check, size_t node)
{
	json_t *nodes = json_array();

	for (size_t j = 0; j < check->count; j++) {
		const struct machine *card = &check->cards[j];
		json_t *list = json_array();

		for (size_t a = 0; a < card->address_count; a++) {
			char text[80] = "";

			if (j != node && !check->nodes[j].missing &&
			    tried(check, &card->addresses[a]))
				check_address(&card->addresses[a], check->nodes[j].port, text,
					      sizeof text);
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
		addresses += check->cards[i].address_count;
	return WAIT_MS * (int)(1 + addresses / AT_ONCE);
}

static const char *mend(const char *word)
{
	if (!strcmp(word, "refused"))
		return "a firewall refuses it: open TCP between the job's nodes";
	if (!strcmp(word, "timeout"))
		return "a firewall or a broken link: open TCP between the job's nodes on this "
		       "network, or leave the node out";
	if (!strcmp(word, "host-unreachable"))
		return "its cable, its port of the switch, its VLAN, in the end its address; leave "
		       "the node out until then";
	if (!strcmp(word, "no-reply"))
		return "something in between takes the connection and passes nothing on: large "
		       "packets may be lost (MTU)";
	if (!strcmp(word, "unauthenticated"))
		return "another machine has this address too: an administrator gives each its own";
	return "no route from here: an administrator looks at the routes and the network's masks";
}

static const char *meaning(const char *word)
{
	if (!strcmp(word, "timeout"))
		return "does not answer: connects are dropped silently";
	if (!strcmp(word, "host-unreachable"))
		return "does not answer: as if nobody on this network had that address";
	if (!strcmp(word, "refused"))
		return "refuses connections";
	if (!strcmp(word, "no-reply"))
		return "takes a connection and does not answer";
	if (!strcmp(word, "unauthenticated"))
		return "is answered by something else";
	return "cannot be reached: there is no route";
}

/* Should other nodes reach this address of node j: one of the chosen interface, or, where nobody
 * asked for another, of a better network. */
static bool wanted(const struct check *check, size_t j, size_t address)
{
	const struct machine *card = &check->cards[j];
	int chosen = check_chosen(check, j);

	if (!check_usable(check, &card->addresses[address]))
		return check->planned && (int)address == chosen;
	if (!check->planned)
		return true;
	if ((int)address == chosen)
		return true;
	if (check->request->wish.iface || check->request->wish.subnet ||
	    check->request->wish.head || chosen < 0)
		return false;
	/* A network beside the chosen one that would have been better. */
	const struct machine_address *a = &card->addresses[address], *b = &card->addresses[chosen];
	int worth = plan_address_worth(card, a), its = plan_address_worth(card, b);

	return worth != its ? worth > its : a->speed_mbps > b->speed_mbps;
}

/* Do i and j both have an address in that network? A node without it is told of elsewhere. */
static bool shares(const struct check *check, size_t i, const struct machine_address *address)
{
	for (size_t a = 0; a < check->cards[i].address_count; a++)
		if (check_usable(check, &check->cards[i].addresses[a]) &&
		    check_same_subnet(&check->cards[i].addresses[a], address))
			return true;
	return false;
}

/* Has another node the same address? That is told by network; what gets there proves nothing. */
static bool is_twin(const struct check *check, size_t node, const struct machine_address *address)
{
	for (size_t j = 0; !check->pretended && j < check->count; j++)
		for (size_t a = 0; j != node && a < check->cards[j].address_count; a++)
			if (check_usable(check, &check->cards[j].addresses[a]) &&
			    check_same_address(&check->cards[j].addresses[a], address))
				return true;
	return false;
}

/* Likewise the one from which i gets to that address: answers come to the other. */
static bool comes_from_twin(const struct check *check, size_t i,
			    const struct machine_address *address)
{
	for (size_t a = 0; a < check->cards[i].address_count; a++)
		if (check_usable(check, &check->cards[i].addresses[a]) &&
		    check_same_subnet(&check->cards[i].addresses[a], address) &&
		    is_twin(check, i, &check->cards[i].addresses[a]))
			return true;
	return false;
}

/* The first bad word from i to j among the wanted addresses; NULL: none. */
static const char *bad_word(const struct check *check, size_t i, size_t j, size_t *address)
{
	for (size_t a = 0; a < check->cards[j].address_count; a++) {
		const char *word = check_word(check, i, j, a);
		const struct machine_address *address_of_j = &check->cards[j].addresses[a];

		if (!word || !strcmp(word, "ok") || !strcmp(word, "-") || !wanted(check, j, a) ||
		    (!shares(check, i, address_of_j) && (int)a != check_chosen(check, j)) ||
		    is_twin(check, j, address_of_j) || comes_from_twin(check, i, address_of_j))
			continue;
		*address = a;
		return word;
	}
	return NULL;
}

/* rows: how many of the others i cannot reach; columns: how many cannot reach it. */
static void tell_pair(struct check *check, size_t at, size_t j, size_t address, const char *word,
		      const char *others)
{
	const struct machine_address *target = &check->cards[j].addresses[address];
	char text[80];

	check_address(target, 0, text, sizeof text);
	if (at == j)
		check_add(check, at, "reach", CHECK_FAULT, mend(word),
			  "its %s %s %s; so say all other nodes", target->iface, text,
			  meaning(word));
	else
		check_add(check, at, "reach", CHECK_FAULT, mend(word), "%s %s of %s %s%s%s",
			  target->iface, text, check->nodes[j].name, meaning(word),
			  others ? "; " : "", others ? others : "");
}

static void judge_row(struct check *check, size_t i, const size_t *columns, size_t alive)
{
	bool told = false;
	size_t lost = 0, first = 0, address = 0, at = 0;
	const char *first_word = NULL;

	for (size_t j = 0; j < check->count; j++) {
		const char *word = j == i ? NULL : bad_word(check, i, j, &at);

		if (!word || (alive > 2 && columns[j] == alive - 1))
			continue; /* nobody reaches j: it is told there */
		if (!lost++) {
			first = j;
			address = at;
			first_word = word;
		}
	}
	bool unreached = alive > 2 && columns[i] == alive - 1;

	/* Where nothing gets through either way, that nobody reaches it is the shorter story. */
	if (lost && !(unreached && lost == alive - 1)) {
		char more[64] = "";

		if (lost > 1)
			snprintf(more, sizeof more, "it does not reach %zu nodes in all", lost);
		tell_pair(check, i, first, address, first_word, lost > 1 ? more : NULL);
		told = true;
	}
	if (unreached) {
		for (size_t j = 0; j < check->count; j++) {
			const char *word = j == i ? NULL : bad_word(check, j, i, &at);

			if (word) {
				tell_pair(check, i, i, at, word, NULL);
				break;
			}
		}
		told = true;
	}
	if (!told)
		check_add(check, i, "reach", CHECK_OK, NULL, "%s",
			  "reaches all other nodes where it should");
}

void probe_reach_judge(struct check *check)
{
	size_t *columns = calloc(check->count, sizeof *columns);
	size_t alive = 0, address;

	for (size_t i = 0; i < check->count; i++)
		alive += !check->nodes[i].missing;
	for (size_t i = 0; columns && check->carded && i < check->count; i++)
		for (size_t j = 0; j < check->count; j++)
			columns[j] += i != j && bad_word(check, i, j, &address);
	for (size_t i = 0; columns && check->carded && i < check->count; i++) {
		if (check->nodes[i].missing)
			continue;
		if (check->count == 1)
			check_add(check, i, "reach", CHECK_SKIPPED, NULL, "one node");
		else if (!check_answer(check, i, "reach?"))
			check_add(check, i, "reach", CHECK_FAULT, "look at the load of the node",
				  "it did not say in time whom it reaches");
		else
			judge_row(check, i, columns, alive);
	}
	free(columns);
}
