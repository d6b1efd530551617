/* SPDX-License-Identifier: BSD-3-Clause */
/* The connection of an agent to the head, or to its parent in the tree: reaching it, being given a
 * place, obeying. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "alloc/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "overlay/socket.h"

#define CONNECT_MS 20000 /* to reach the head at any of its addresses */
#define CONNECT_ONE_MS 3000
#define CONNECT_NEXT_MS 250 /* one address without an answer: the next is tried beside it */
#define REFUSED_MS 3000 /* of nothing but refusals: the head listened before we were started */
#define PARENT_MS 5000	/* to reach the parent, before the head stays it */

static int say_hello(struct agent *agent, struct link *link, struct error *err)
{
	return proto_send(link, MESSAGE_HELLO, (uint32_t)agent->params.node_index, 0, 0,
			  json_pack("{s:I, s:o, s:s, s:i}", "node",
				    (json_int_t)agent->params.node_index, "name",
				    json_text(agent->params.name), "folder", agent->folder, "pid",
				    (int)getpid()),
			  NULL, 0, err);
}

void agent_up_card(struct agent *agent)
{
	struct error err = {0};
	json_t *card;

	if (agent->carded || !agent->machine_ready || !agent->settled)
		return;
	agent->carded = true;
	if (agent->worker.machine_error.code) {
		agent_fail(agent, &agent->worker.machine_error);
		return;
	}
	card = machine_to_json(&agent->worker.machine);
	if (!card) {
		error_memory(&err, "the card of this node");
		agent_fail(agent, &err);
		return;
	}
	agent_say(agent, MESSAGE_CARD, 0,
		  json_pack("{s:i, s:o}", "port", agent->port, "card", card), NULL, 0);
}

static void take_welcome(struct agent *agent, const json_t *text)
{
	struct error err = {0};
	int64_t nodes, fanout, port;
	int listen, move;
	int rc = json_get_int("WELCOME", text, "nodes", 1, 1 << 20, &nodes, &err);

	if (!rc)
		rc = json_get_int("WELCOME", text, "fanout", 1, 4096, &fanout, &err);
	if (!rc)
		rc = json_get_int("WELCOME", text, "port", -1, 65535, &port, &err);
	if (!rc)
		rc = json_get_bool("WELCOME", text, "listen", &listen, &err);
	if (!rc)
		rc = json_get_bool("WELCOME", text, "move", &move, &err);
	if (!rc && agent->welcomed)
		rc = error_set(&err, ERR_DATA, "a second WELCOME");
	if (rc)
		goto fail;
	agent->welcomed = true;
	agent->node_count = (size_t)nodes;
	agent->fanout = (size_t)fanout;
	agent->detached = calloc(agent->node_count, sizeof *agent->detached);
	if (!agent->detached) {
		rc = error_memory(&err, "the nodes of the job");
		goto fail;
	}
	if (port >= 0 && (rc = socket_hold((int)port, &agent->port_fd, &agent->port, &err)))
		goto fail;
	if (listen && (rc = agent_tree_listen(agent, &err)))
		goto fail;
	agent->settled = !move;
	agent_up_card(agent);
	return;
fail:
	agent_fail(agent, &err);
}

static void stay(struct agent *agent, const char *why)
{
	agent->settled = true;
	agent_say(agent, MESSAGE_STAYS, 0, json_pack("{s:o}", "why", json_text(why)), NULL, 0);
	agent_up_card(agent);
}

static void take_move(struct agent *agent, const json_t *text)
{
	struct error err = {0};
	struct sockaddr_storage to;
	socklen_t size;
	const char *address;
	int fd, under_way;

	if (json_get_string("MOVE", text, "address", &address, &err) ||
	    socket_parse(address, &to, &size, &err) ||
	    socket_connect(&to, size, &fd, &under_way, &err) ||
	    link_open(agent->loop, fd, under_way, WIRE_CONNECTS, &agent->params.secret,
		      agent->params.job, &agent->up_owner, &agent->up_next, &err) ||
	    say_hello(agent, agent->up_next, &err))
		stay(agent, err.text);
}

static void up_opened(void *context, struct link *link)
{
	struct agent *agent = context;

	if (link != agent->up_next)
		return;
	agent_say(agent, MESSAGE_MOVED, 0, NULL, NULL, 0);
	link_finish(agent->up, 500);
	link_close(agent->up);
	agent->up = link;
	agent->up_next = NULL;
	agent->settled = true;
	agent_up_card(agent);
}

/* What is for this node, or for everybody. */
static void obey(struct agent *agent, const struct wire_message *message)
{
	json_t *text = NULL;
	struct error err = {0};
	int64_t number;
	int rc = 0;

	if (message->text_size && (rc = proto_text(message, &text, &err)))
		goto out;
	switch (message->type) {
	case MESSAGE_WELCOME:
		take_welcome(agent, text);
		break;
	case MESSAGE_MOVE:
		take_move(agent, text);
		break;
	case MESSAGE_TREE:
		rc = agent_tree_settled(agent, text, &err);
		break;
	case MESSAGE_REACH:
		rc = agent_reach_start(agent, text, &err);
		break;
	case MESSAGE_JOB:
		rc = agent_ranks_job(agent, message, text, &err);
		break;
	case MESSAGE_START:
		rc = agent_ranks_start(agent, message, text, &err);
		break;
	case MESSAGE_SIGNAL:
		rc = json_get_int("SIGNAL", text, "signal", 0, SIGRTMAX, &number, &err);
		if (!rc)
			agent_say_stop(agent, json_string_value(json_object_get(text, "stop")));
		if (!rc && number)
			agent_signal(agent, (int)number);
		break;
	case MESSAGE_STOP:
		rc = json_get_int("STOP", text, "grace_ms", 0, 3600000, &number, &err);
		if (!rc)
			agent_ranks_stop(agent, (int)number);
		break;
	case MESSAGE_OVER:
		rc = json_get_int("OVER", text, "code", 0, 255, &number, &err);
		if (!rc && agent->params.end)
			*agent->params.end = (struct agent_end){
				true, json_is_true(json_object_get(text, "again")), (int)number};
		break;
	case MESSAGE_LOOK:
		agent_beats_answer(agent, text);
		break;
	case MESSAGE_INPUT:
		agent_input_take(agent, message);
		break;
	case MESSAGE_GATHERED:
		agent_pmix_gathered(agent, message);
		break;
	case MESSAGE_FETCH:
		agent_pmix_fetch(agent, message, text);
		break;
	case MESSAGE_FETCHED:
		agent_pmix_fetched(agent, message, text);
		break;
	default:
		rc = error_set(&err, ERR_DATA, "a message of type %u is unknown here",
			       message->type);
	}
out:
	json_decref(text);
	if (rc)
		agent_fail(agent, &err);
}

static void up_message(void *context, struct link *link, const struct wire_message *message)
{
	struct agent *agent = context;

	if (message->type == MESSAGE_BEAT || link != agent->up)
		return;
	if (message->node != (uint32_t)agent->params.node_index)
		agent_tree_down(agent, message);
	if (message->node == (uint32_t)agent->params.node_index || message->node == WIRE_ALL)
		obey(agent, message);
}

/* Nobody is above any longer: end what runs, then this process. */
static void up_lost(struct agent *agent, const struct error *why)
{
	if (agent->gone)
		return;
	agent->gone = true;
	if (why) {
		agent->failure = *why;
		error_prefix(&agent->failure, "the connection to the head is lost");
	}
	agent_tree_close(agent, !why);
	agent_ranks_stop(agent, 0);
	/* What supervise has not said yet it says from its dispatch. */
	if (!agent->supervise || agent->told_done)
		agent->finished = true;
}

static void up_ended(void *context, struct link *link, const struct error *why)
{
	struct agent *agent = context;

	if (link == agent->up_next) {
		agent->up_next = NULL;
		stay(agent, why ? why->text : "it closed the connection");
	} else if (link == agent->up) {
		up_lost(agent, why);
		agent->up = NULL;
	}
	link_close(link);
}

/* One round over the head's addresses. */
struct race {
	const char *list;
	struct pollfd *waits; /* [most], in its order; fd -1: over */
	size_t most, begun, open;
	bool refused;	   /* nothing but refusals so far */
	int winner;	   /* -1: none yet */
	struct error *err; /* of the last that failed */
};

static int race_open(struct race *race, const char *list, struct error *err)
{
	*race = (struct race){.list = list, .most = 1, .refused = true, .winner = -1, .err = err};
	for (const char *at = list; *at; at++)
		race->most += *at == ',';
	race->waits = calloc(race->most, sizeof *race->waits);
	return race->waits ? 0 : error_memory(err, "the head's addresses");
}

static void race_address(const struct race *race, size_t index, char *out, size_t size)
{
	const char *at = race->list;

	for (; index; index--)
		at += strcspn(at, ",") + 1;
	snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
}

static void race_failed(struct race *race, size_t index, int error)
{
	char address[80];

	race_address(race, index, address, sizeof address);
	race->refused &= error == ECONNREFUSED;
	error_set(race->err, ERR_NETWORK, "connecting to %s: %s", address, strerror(error));
}

static void race_begin(struct race *race)
{
	struct pollfd *wait = &race->waits[race->begun];
	struct sockaddr_storage to;
	char address[80];
	socklen_t size;
	int under_way;

	*wait = (struct pollfd){.fd = -1, .events = POLLOUT};
	race_address(race, race->begun++, address, sizeof address);
	if (socket_parse(address, &to, &size, race->err)) {
		race->refused = false;
		return;
	}
	if (socket_connect(&to, size, &wait->fd, &under_way, race->err)) {
		race->refused &= errno == ECONNREFUSED;
		wait->fd = -1;
	} else if (!under_way) {
		race->winner = wait->fd;
		wait->fd = -1;
	} else {
		race->open++;
	}
}

/* What has come of those under way; true: one has failed, the next may begin. */
static bool race_settle(struct race *race)
{
	bool failed = false;

	for (size_t i = 0; race->winner < 0 && i < race->begun; i++) {
		struct pollfd *wait = &race->waits[i];
		socklen_t length = sizeof(int);
		int error = 0;

		if (wait->fd < 0 || !wait->revents)
			continue;
		race->open--;
		getsockopt(wait->fd, SOL_SOCKET, SO_ERROR, &error, &length);
		if (!error) {
			race->winner = wait->fd;
		} else {
			race_failed(race, i, error);
			close(wait->fd);
			failed = true;
		}
		wait->fd = -1;
	}
	return failed;
}

/* All addresses, each CONNECT_NEXT_MS after the one before, or at once when that has failed; the
 * first that answers wins. A network that drops connects silently costs CONNECT_NEXT_MS so, and not
 * a time-out at each start. */
static int connect_round(const char *list, int *out, bool *refused, struct error *err)
{
	int64_t next_ms = 0, now;
	struct race race;
	int rc = race_open(&race, list, err);

	while (!rc && race.winner < 0 && (race.begun < race.most || race.open)) {
		bool more = race.begun < race.most;

		now = clock_now_ms();
		if (more && (now >= next_ms || !race.open)) {
			race_begin(&race);
			more = race.begun < race.most;
			next_ms = now + (more ? CONNECT_NEXT_MS : CONNECT_ONE_MS);
		} else if (now >= next_ms) {
			race_failed(&race, race.begun - 1, ETIMEDOUT);
			break;
		} else if (poll(race.waits, race.begun, (int)(next_ms - now)) > 0 &&
			   race_settle(&race) && more) {
			next_ms = now;
		}
	}
	for (size_t i = 0; i < race.begun; i++)
		if (race.waits[i].fd >= 0)
			close(race.waits[i].fd);
	free(race.waits);
	*refused = race.refused;
	*out = race.winner;
	return rc ? rc : race.winner < 0 ? -ERR_NETWORK : 0;
}

/* Wait for so long, or for a signal that ends jobs: 128+N then, else 0. Others have no rank to go to. */
static int nap(int signals, int ms)
{
	struct signalfd_siginfo info;
	struct pollfd wait = {signals, POLLIN, 0};

	poll(&wait, 1, ms);
	while (read(signals, &info, sizeof info) == sizeof info)
		if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM ||
		    info.ssi_signo == SIGHUP || info.ssi_signo == SIGQUIT)
			return 128 + (int)info.ssi_signo;
	return 0;
}

/* Try the head's addresses, again and again, until one answers, the time is over, or a signal ends it. */
static int connect_head(const char *list, int patience_ms, int signals, int *out, struct error *err)
{
	int64_t begun = clock_now_ms(), hoped = begun;
	int64_t limit_ms = patience_ms ? patience_ms : CONNECT_MS;
	int64_t refused_ms = patience_ms ? patience_ms : REFUSED_MS;
	bool refused;

	do {
		int rc = connect_round(list, out, &refused, err);

		if (!rc)
			return 0;
		if (!refused)
			hoped = clock_now_ms();
		rc = nap(signals, 200);
		if (rc)
			return error_set(err, rc, "stopped by %s while it waited for the head",
					 strsignal(rc - 128));
	} while (clock_now_ms() < begun + limit_ms && clock_now_ms() < hoped + refused_ms);
	return error_prefix(err, "the head cannot be reached from this node within %d s",
			    (int)((clock_now_ms() - begun) / 1000));
}

int agent_resolve(const char *meet, int patience_ms, char *out, size_t size, struct error *err)
{
	const struct addrinfo wish = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	int64_t until = clock_now_ms() + patience_ms;
	char host[256], service[8];
	struct addrinfo *list = NULL;
	int port, failed, rc = alloc_read_meet("the head", meet, host, sizeof host, &port, err);

	if (rc)
		return rc;
	snprintf(service, sizeof service, "%d", port);
	while ((failed = getaddrinfo(host, service, &wish, &list)) && clock_now_ms() < until)
		usleep(500000);
	if (failed)
		return error_set(err, ERR_NETWORK, "the head's name %s is not known here: %s; give its "
				 "address", host, gai_strerror(failed));
	out[0] = '\0';
	for (const struct addrinfo *at = list; at; at = at->ai_next) {
		char address[INET6_ADDRSTRLEN];
		size_t used = strlen(out);

		if (!getnameinfo(at->ai_addr, at->ai_addrlen, address, sizeof address, NULL, 0,
				 NI_NUMERICHOST) &&
		    used + sizeof address + 12 < size)
			snprintf(out + used, size - used,
				 at->ai_family == AF_INET6 ? "%s[%s]:%d" : "%s%s:%d",
				 used ? "," : "", address, port);
	}
	freeaddrinfo(list);
	return 0;
}

int agent_up_open(struct agent *agent, struct error *err)
{
	const struct agent_params *params = &agent->params;
	int fd = params->fd;
	int rc = fd < 0 ? connect_head(params->head, params->patience_ms, agent->signals.fd, &fd, err) : 0;

	agent->up_owner = (struct link_owner){agent, up_opened, up_message, up_ended};
	if (!rc)
		rc = link_open(agent->loop, fd, false, WIRE_CONNECTS, &params->secret, params->job,
			       &agent->up_owner, &agent->up, err);
	return rc ? rc : say_hello(agent, agent->up, err);
}

void agent_up_tick(struct agent *agent, int64_t now_ms, bool slept)
{
	if (agent->up && slept)
		agent->up->heard_ms = now_ms;
	/* On a socket pair the head's end is noticed at once, and a head that is stopped (^Z) is
	 * no reason to end the job. */
	if (agent->up && agent->params.fd < 0 && !agent->up->paused &&
	    now_ms - agent->up->heard_ms > agent->params.node_timeout_ms) {
		struct error err;

		error_set(&err, ERR_NETWORK, "%s was silent for %d s", agent->up->peer,
			  agent->params.node_timeout_ms / 1000);
		struct link *link = agent->up;

		up_lost(agent, &err);
		agent->up = NULL;
		link_close(link);
	}
	if (agent->up_next && now_ms - agent->up_next->opened_ms > PARENT_MS) {
		struct link *link = agent->up_next;

		agent->up_next = NULL;
		link_close(link);
		stay(agent, "no answer within 5 s");
	}
}
