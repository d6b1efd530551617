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
#define REFUSED_MS 3000	    /* of nothing but refusals: the head listened before we were started */
#define PARENT_MS 5000	    /* to reach the parent, before the head stays it */

static int send_hello(struct agent *agent, struct connection *connection, struct error *err)
{
	return message_send(connection, MESSAGE_HELLO, (uint32_t)agent->params.node_index, 0, 0,
			    json_pack("{s:I, s:o, s:s, s:i}", "node",
				      (json_int_t)agent->params.node_index, "name",
				      json_text(agent->params.name), "folder", agent->dir, "pid",
				      (int)getpid()),
			    NULL, 0, err);
}

void agent_uplink_send_inventory(struct agent *agent)
{
	struct error err = {0};
	json_t *inventory;

	if (agent->inventory_sent || !agent->inventory_ready || !agent->settled)
		return;
	agent->inventory_sent = true;
	if (agent->worker.discovery_error.code) {
		agent_fail(agent, &agent->worker.discovery_error);
		return;
	}
	inventory = inventory_to_json(&agent->worker.inventory);
	if (!inventory) {
		error_memory(&err, "the card of this node");
		agent_fail(agent, &err);
		return;
	}
	agent_send(agent, MESSAGE_INVENTORY, 0,
		   json_pack("{s:i, s:o}", "port", agent->port, "card", inventory), NULL, 0);
}

static void handle_welcome(struct agent *agent, const json_t *text)
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
	if (port >= 0 && (rc = socket_reserve((int)port, &agent->port_fd, &agent->port, &err)))
		goto fail;
	if (listen && (rc = agent_downlinks_listen(agent, &err)))
		goto fail;
	agent->settled = !move;
	agent_uplink_send_inventory(agent);
	return;
fail:
	agent_fail(agent, &err);
}

static void report_move_failed(struct agent *agent, const char *why)
{
	agent->settled = true;
	agent_send(agent, MESSAGE_MOVE_FAILED, 0, json_pack("{s:o}", "why", json_text(why)), NULL,
		   0);
	agent_uplink_send_inventory(agent);
}

static void handle_move(struct agent *agent, const json_t *text)
{
	struct error err = {0};
	struct sockaddr_storage to;
	socklen_t size;
	const char *address;
	int fd, under_way;

	if (json_get_string("MOVE", text, "address", &address, &err) ||
	    socket_parse(address, &to, &size, &err) ||
	    socket_connect(&to, size, &fd, &under_way, &err) ||
	    connection_open(agent->loop, fd, under_way, WIRE_CONNECTS, &agent->params.secret,
			    agent->params.job, &agent->uplink_owner, &agent->next_uplink, &err) ||
	    send_hello(agent, agent->next_uplink, &err))
		report_move_failed(agent, err.text);
}

static void on_parent_opened(void *context, struct connection *connection)
{
	struct agent *agent = context;

	if (connection != agent->next_uplink)
		return;
	agent_send(agent, MESSAGE_MOVED, 0, NULL, NULL, 0);
	connection_finish(agent->uplink, 500);
	connection_close(agent->uplink);
	agent->uplink = connection;
	agent->next_uplink = NULL;
	agent->settled = true;
	agent_uplink_send_inventory(agent);
}

/* What is for this node, or for everybody. */
static void handle_message(struct agent *agent, const struct wire_message *message)
{
	json_t *text = NULL;
	struct error err = {0};
	int64_t number;
	int rc = 0;

	if (message->text_size && (rc = message_text(message, &text, &err)))
		goto out;
	switch (message->type) {
	case MESSAGE_WELCOME:
		handle_welcome(agent, text);
		break;
	case MESSAGE_MOVE:
		handle_move(agent, text);
		break;
	case MESSAGE_TREE:
		rc = agent_downlinks_set_detached(agent, text, &err);
		break;
	case MESSAGE_PROBE:
		rc = agent_probe_start(agent, text, &err);
		break;
	case MESSAGE_JOB:
		rc = agent_job_read(agent, message, text, &err);
		break;
	case MESSAGE_START:
		rc = agent_ranks_start(agent, message, text, &err);
		break;
	case MESSAGE_SIGNAL:
		rc = json_get_int("SIGNAL", text, "signal", 0, SIGRTMAX, &number, &err);
		if (!rc)
			agent_write_stop_file(agent,
					      json_string_value(json_object_get(text, "stop")));
		if (!rc && number)
			agent_signal(agent, (int)number);
		break;
	case MESSAGE_STOP:
		rc = json_get_int("STOP", text, "grace_ms", 0, 3600000, &number, &err);
		if (!rc)
			agent_ranks_stop(agent, (int)number);
		break;
	case MESSAGE_JOB_OVER:
		rc = json_get_int("OVER", text, "code", 0, 255, &number, &err);
		if (!rc && agent->params.outcome)
			*agent->params.outcome = (struct job_outcome){
				true, json_is_true(json_object_get(text, "again")), (int)number};
		break;
	case MESSAGE_DUMP_STACKS:
		agent_heartbeats_dump_stacks(agent, text);
		break;
	case MESSAGE_STDIN:
		agent_stdin_receive(agent, message);
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

static void on_uplink_message(void *context, struct connection *connection,
			      const struct wire_message *message)
{
	struct agent *agent = context;

	if (message->type == MESSAGE_HEARTBEAT || connection != agent->uplink)
		return;
	if (message->node != (uint32_t)agent->params.node_index)
		agent_downlinks_forward(agent, message);
	if (message->node == (uint32_t)agent->params.node_index || message->node == WIRE_ALL)
		handle_message(agent, message);
}

/* Nobody is above any longer: end what runs, then this process. */
static void uplink_lost(struct agent *agent, const struct error *why)
{
	if (agent->disconnected)
		return;
	agent->disconnected = true;
	if (why) {
		agent->failure = *why;
		error_prefix(&agent->failure, "the connection to the head is lost");
	}
	agent_downlinks_close(agent, !why);
	agent_ranks_stop(agent, 0);
	/* What supervise has not said yet it says from its dispatch. */
	if (!agent->supervise || agent->done_sent)
		agent->finished = true;
}

static void on_uplink_ended(void *context, struct connection *connection, const struct error *why)
{
	struct agent *agent = context;

	if (connection == agent->next_uplink) {
		agent->next_uplink = NULL;
		report_move_failed(agent, why ? why->text : "it closed the connection");
	} else if (connection == agent->uplink) {
		uplink_lost(agent, why);
		agent->uplink = NULL;
	}
	connection_close(connection);
}

/* One round over the head's addresses. */
struct race {
	const char *list;
	struct pollfd *polls; /* [most], in its order; fd -1: over */
	size_t most, started, open;
	bool refused;	   /* nothing but refusals so far */
	int winner;	   /* -1: none yet */
	struct error *err; /* of the last that failed */
};

static int race_open(struct race *race, const char *list, struct error *err)
{
	*race = (struct race){.list = list, .most = 1, .refused = true, .winner = -1, .err = err};
	for (const char *at = list; *at; at++)
		race->most += *at == ',';
	race->polls = calloc(race->most, sizeof *race->polls);
	return race->polls ? 0 : error_memory(err, "the head's addresses");
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

static void race_start_next(struct race *race)
{
	struct pollfd *wait = &race->polls[race->started];
	struct sockaddr_storage to;
	char address[80];
	socklen_t size;
	int under_way;

	*wait = (struct pollfd){.fd = -1, .events = POLLOUT};
	race_address(race, race->started++, address, sizeof address);
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

	for (size_t i = 0; race->winner < 0 && i < race->started; i++) {
		struct pollfd *wait = &race->polls[i];
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

	while (!rc && race.winner < 0 && (race.started < race.most || race.open)) {
		bool more = race.started < race.most;

		now = clock_now_ms();
		if (more && (now >= next_ms || !race.open)) {
			race_start_next(&race);
			more = race.started < race.most;
			next_ms = now + (more ? CONNECT_NEXT_MS : CONNECT_ONE_MS);
		} else if (now >= next_ms) {
			race_failed(&race, race.started - 1, ETIMEDOUT);
			break;
		} else if (poll(race.polls, race.started, (int)(next_ms - now)) > 0 &&
			   race_settle(&race) && more) {
			next_ms = now;
		}
	}
	for (size_t i = 0; i < race.started; i++)
		if (race.polls[i].fd >= 0)
			close(race.polls[i].fd);
	free(race.polls);
	*refused = race.refused;
	*out = race.winner;
	return rc ? rc : race.winner < 0 ? -ERR_NETWORK : 0;
}

/* Wait for so long, or for a signal that ends jobs: 128+N then, else 0. Others have no rank to go
 * to. */
static int backoff(int signals, int ms)
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

/* Try the head's addresses, again and again, until one answers, the time is over, or a signal ends
 * it. */
static int connect_controller(const char *list, int connect_timeout_ms, int signals, int *out,
			      struct error *err)
{
	int64_t started = clock_now_ms(), hoped = started;
	int64_t limit_ms = connect_timeout_ms ? connect_timeout_ms : CONNECT_MS;
	int64_t refused_ms = connect_timeout_ms ? connect_timeout_ms : REFUSED_MS;
	bool refused;

	do {
		int rc = connect_round(list, out, &refused, err);

		if (!rc)
			return 0;
		if (!refused)
			hoped = clock_now_ms();
		rc = backoff(signals, 200);
		if (rc)
			return error_set(err, rc, "stopped by %s while it waited for the head",
					 strsignal(rc - 128));
	} while (clock_now_ms() < started + limit_ms && clock_now_ms() < hoped + refused_ms);
	return error_prefix(err, "the head cannot be reached from this node within %d s",
			    (int)((clock_now_ms() - started) / 1000));
}

int agent_resolve(const char *rendezvous, int connect_timeout_ms, char *out, size_t size,
		  struct error *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	int64_t until = clock_now_ms() + connect_timeout_ms;
	char host[256], service[8];
	struct addrinfo *list = NULL;
	int port, failed,
		rc = alloc_parse_rendezvous("the head", rendezvous, host, sizeof host, &port, err);

	if (rc)
		return rc;
	snprintf(service, sizeof service, "%d", port);
	while ((failed = getaddrinfo(host, service, &hints, &list)) && clock_now_ms() < until)
		usleep(500000);
	if (failed)
		return error_set(err, ERR_NETWORK,
				 "the head's name %s is not known here: %s; give its "
				 "address",
				 host, gai_strerror(failed));
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

int agent_uplink_open(struct agent *agent, struct error *err)
{
	const struct agent_params *params = &agent->params;
	int fd = params->fd;
	int rc =
		fd < 0 ? connect_controller(params->controller_addresses,
					    params->connect_timeout_ms, agent->signals.fd, &fd, err)
		       : 0;

	agent->uplink_owner = (struct connection_owner){agent, on_parent_opened, on_uplink_message,
							on_uplink_ended};
	if (!rc)
		rc = connection_open(agent->loop, fd, false, WIRE_CONNECTS, &params->secret,
				     params->job, &agent->uplink_owner, &agent->uplink, err);
	return rc ? rc : send_hello(agent, agent->uplink, err);
}

void agent_uplink_tick(struct agent *agent, int64_t now_ms, bool slept)
{
	if (agent->uplink && slept)
		agent->uplink->received_ms = now_ms;
	/* On a socket pair the head's end is noticed at once, and a head that is stopped (^Z) is
	 * no reason to end the job. */
	if (agent->uplink && agent->params.fd < 0 && !agent->uplink->paused &&
	    now_ms - agent->uplink->received_ms > agent->params.node_timeout_ms) {
		struct error err;

		error_set(&err, ERR_NETWORK, "%s was silent for %d s", agent->uplink->peer,
			  agent->params.node_timeout_ms / 1000);
		struct connection *connection = agent->uplink;

		uplink_lost(agent, &err);
		agent->uplink = NULL;
		connection_close(connection);
	}
	if (agent->next_uplink && now_ms - agent->next_uplink->opened_ms > PARENT_MS) {
		struct connection *connection = agent->next_uplink;

		agent->next_uplink = NULL;
		connection_close(connection);
		report_move_failed(agent, "no answer within 5 s");
	}
}
