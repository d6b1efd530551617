/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/uplink.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "overlay/socket.h"

#define CONNECT_MS 20000 /* to reach the controller at any of its addresses */
#define CONNECT_ONE_MS 3000
#define CONNECT_NEXT_MS 250 /* then try the next address in parallel */
#define REFUSED_MS 3000	    /* give up if all connections are refused for so long */
#define PARENT_MS 5000	    /* time to reach the parent before staying with the controller */

/* ---- sending ---- */

void agent_uplink_send(struct agent_uplink *uplink, enum message_type type, uint64_t sequence,
		       const void *body, const void *data, size_t size)
{
	struct error err = {0};

	if (!uplink->connection || uplink->lost)
		message_drop(type, body);
	else if (message_send(uplink->connection, type, (uint32_t)uplink->params->node_index,
			      uplink->attempt, sequence, body, data, size, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
}

void agent_uplink_report(struct agent_uplink *uplink, enum message_type type, const void *body)
{
	agent_uplink_send(uplink, type, 0, body, NULL, 0);
}

void agent_uplink_forward(struct agent_uplink *uplink, const struct wire_message *message)
{
	struct error err = {0};

	if (uplink->connection && connection_send(uplink->connection, message, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
}

void agent_uplink_fail(struct agent_uplink *uplink, const struct error *err)
{
	agent_uplink_report(
		uplink, MESSAGE_FAILED,
		&(struct message_failed){err->code ? err->code : ERR_INTERNAL, err->text, false});
}

void agent_uplink_note(struct agent_uplink *uplink, const char *format, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	agent_uplink_report(uplink, MESSAGE_NOTE, &(struct message_note){text});
}

bool agent_uplink_is_full(const struct agent_uplink *uplink)
{
	return uplink->connection && connection_queued_bytes(uplink->connection) > WIRE_HIGH_WATER;
}

/* ---- reaching the controller ---- */

/* Append an entry to a list separated by commas that has room for it. */
static void list_append(char *list, const char *entry)
{
	sprintf(list + strlen(list), "%s%s", *list ? "," : "", entry);
}

/* Remove the entry, which is in the list. */
static void list_remove(char *list, const char *entry)
{
	size_t length = strlen(entry);
	char *at = list;

	while (strncmp(at, entry, length) || (at[length] && at[length] != ','))
		at += strcspn(at, ",") + 1;
	if (at[length])
		memmove(at, at + length + 1, strlen(at + length + 1) + 1);
	else
		at[at > list ? -1 : 0] = 0;
}

/* One round over the controller's addresses. */
struct race {
	const char *list;
	struct pollfd *polls; /* [most], in the order of the list; fd -1: closed */
	size_t most, started, open;
	bool refused; /* all connections so far were refused */
	int winner;   /* a socket; -1: none yet */
	size_t winner_index;
	struct error *err; /* error of the last connection that failed */
};

static int race_open(struct race *race, const char *list, struct error *err)
{
	*race = (struct race){.list = list, .most = 1, .refused = true, .winner = -1, .err = err};
	for (const char *at = list; *at; at++)
		race->most += *at == ',';
	race->polls = calloc(race->most, sizeof *race->polls);
	return race->polls ? 0 : error_memory(err, "the controller's addresses");
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
		race->winner_index = race->started - 1;
		wait->fd = -1;
	} else {
		race->open++;
	}
}

/* Check the pending connections. Return true if one has failed, so that the next may begin. */
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
			race->winner_index = i;
		} else {
			race_failed(race, i, error);
			close(wait->fd);
			failed = true;
		}
		wait->fd = -1;
	}
	return failed;
}

/* Try all addresses, each CONNECT_NEXT_MS after the one before, or at once if that one has
 * failed. The first that answers wins. So a network that silently drops packets delays a start
 * by CONNECT_NEXT_MS, not by a connection timeout. */
static int connect_round(const char *list, int *out, char *winner, size_t size, bool *refused,
			 struct error *err)
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
	if (!rc && race.winner >= 0)
		race_address(&race, race.winner_index, winner, size);
	return rc ? rc : race.winner < 0 ? -ERR_NETWORK : 0;
}

/* Wait for the given time. Return 128+N if a signal that ends jobs arrives, else 0. Other
 * signals are dropped, because no rank runs yet. */
static int backoff(const struct agent_uplink *uplink, int ms, struct error *err)
{
	struct signalfd_siginfo info;
	struct pollfd wait = {uplink->signals, POLLIN, 0};

	poll(&wait, 1, ms);
	while (read(uplink->signals, &info, sizeof info) == sizeof info)
		if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM ||
		    info.ssi_signo == SIGHUP || info.ssi_signo == SIGQUIT)
			return error_set(err, 128 + (int)info.ssi_signo,
					 "stopped by %s while waiting for the controller",
					 strsignal((int)info.ssi_signo));
	return 0;
}

/* Try the addresses left in untried repeatedly until one answers, the time is up, or a signal
 * arrives. */
static int connect_controller(struct agent_uplink *uplink, int *out, struct error *err)
{
	int connect_timeout_ms = uplink->params->connect_timeout_ms;
	int64_t started = clock_now_ms(), hoped = started;
	int64_t limit_ms = connect_timeout_ms ? connect_timeout_ms : CONNECT_MS;
	int64_t refused_ms = connect_timeout_ms ? connect_timeout_ms : REFUSED_MS;
	bool refused;

	do {
		int rc = connect_round(uplink->untried, out, uplink->winner, sizeof uplink->winner,
				       &refused, err);

		if (!rc)
			return 0;
		if (!refused)
			hoped = clock_now_ms();
		rc = backoff(uplink, 200, err);
		if (rc)
			return rc;
	} while (clock_now_ms() < started + limit_ms && clock_now_ms() < hoped + refused_ms);
	return error_prefix(err, "cannot reach the controller from this node within %d s",
			    (int)((clock_now_ms() - started) / 1000));
}

/* ---- the connection, and the next one ---- */

static int send_hello(struct agent_uplink *uplink, struct connection *connection, struct error *err)
{
	return message_send(connection, MESSAGE_HELLO, (uint32_t)uplink->params->node_index, 0, 0,
			    &(struct message_hello){uplink->dir}, NULL, 0, err);
}

static int open_connection(struct agent_uplink *uplink, int fd, bool connecting,
			   struct connection **out, struct error *err)
{
	int rc = connection_open(uplink->loop, fd, connecting, WIRE_CONNECTS,
				 &uplink->params->secret, uplink->params->job, &uplink->owner, out,
				 err);

	return rc ? rc : send_hello(uplink, *out, err);
}

static int reach_controller(struct agent_uplink *uplink, struct error *err)
{
	const struct agent_params *params = uplink->params;
	int fd = params->fd;
	int rc = fd < 0 ? connect_controller(uplink, &fd, err) : 0;

	if (!rc && params->fd < 0)
		list_remove(uplink->untried, uplink->winner);
	if (!rc)
		rc = open_connection(uplink, fd, false, &uplink->connection, err);
	if (!rc)
		log_info(LOG_AGENT, "node %zu of job %s connected to %s", params->node_index,
			 params->job, uplink->connection->peer);
	return rc;
}

static void report_move_failed(struct agent_uplink *uplink, const char *why)
{
	log_info(LOG_AGENT, "cannot move to the parent in the tree: %s", why);
	agent_uplink_report(uplink, MESSAGE_MOVE_FAILED, NULL);
	uplink->events.settled(uplink->events.context);
}

void agent_uplink_move(struct agent_uplink *uplink, const struct message_move *move)
{
	struct error err = {0};
	struct sockaddr_storage to;
	socklen_t size;
	int fd, under_way;

	if (socket_parse(move->address, &to, &size, &err) ||
	    socket_connect(&to, size, &fd, &under_way, &err) ||
	    open_connection(uplink, fd, under_way, &uplink->next, &err))
		report_move_failed(uplink, err.text);
}

static void on_opened(void *context, struct connection *connection)
{
	struct agent_uplink *uplink = context;

	if (connection != uplink->next)
		return;
	agent_uplink_report(uplink, MESSAGE_MOVED, NULL);
	connection_finish(uplink->connection, 500);
	connection_close(uplink->connection);
	uplink->connection = connection;
	uplink->next = NULL;
	uplink->has_parent = true;
	log_info(LOG_AGENT, "moved to the parent in the tree, %s", connection->peer);
	uplink->events.settled(uplink->events.context);
}

static void on_message(void *context, struct connection *connection,
		       const struct wire_message *message)
{
	struct agent_uplink *uplink = context;

	if (message->type != MESSAGE_HEARTBEAT && connection == uplink->connection)
		uplink->events.message(uplink->events.context, message);
}

static void lose(struct agent_uplink *uplink, const struct error *why)
{
	if (uplink->lost)
		return;
	uplink->lost = true;
	/* A move to a parent in progress has nothing left to replace. */
	connection_close(uplink->next);
	uplink->next = NULL;
	uplink->events.lost(uplink->events.context, why);
}

/* The peer did not authenticate, so it may not be the controller: bridges such as docker0 have the
 * same address on every node. Try the other addresses. Return false if none is left. */
static bool try_others(struct agent_uplink *uplink, const struct error *why)
{
	struct error err = {0};
	int rc = 0;

	if (why && why->code == ERR_DATA && !uplink->refused.code)
		uplink->refused = *why;
	if (!uplink->untried)
		return false;
	log_info(LOG_AGENT, "%s is not the controller: %s", uplink->winner,
		 why ? why->text : "it closed the connection");
	/* A flooded controller drops peers without answering, so try this address again. */
	if (!why || why->code != ERR_DATA) {
		list_append(uplink->untried, uplink->winner);
		rc = backoff(uplink, 200, &err);
	}
	if (!*uplink->untried || clock_now_ms() > uplink->started_ms + CONNECT_MS)
		return false;
	uplink->connection = NULL;
	if (rc || reach_controller(uplink, &err))
		lose(uplink, uplink->refused.code ? &uplink->refused : &err);
	return true;
}

static void on_ended(void *context, struct connection *connection, const struct error *why)
{
	struct agent_uplink *uplink = context;

	if (connection == uplink->next) {
		uplink->next = NULL;
		report_move_failed(uplink, why ? why->text : "the peer closed the connection");
	} else if (connection == uplink->connection) {
		if (connection->open || !try_others(uplink, why)) {
			/* A wrong secret explains more than an address that does not answer. */
			lose(uplink,
			     !connection->open && uplink->refused.code ? &uplink->refused : why);
			uplink->connection = NULL;
		}
	}
	connection_close(connection);
}

static void check_peers(struct agent_uplink *uplink, int64_t now_ms)
{
	struct connection *connection = uplink->connection;
	int node_timeout_ms = uplink->params->node_timeout_ms;

	if (connection && !connection->open && uplink->untried &&
	    now_ms - connection->opened_ms > CONNECTION_HANDSHAKE_MS) {
		struct error err;

		error_set(&err, ERR_NETWORK, "no answer from %s within %d s", connection->peer,
			  CONNECTION_HANDSHAKE_MS / 1000);
		on_ended(uplink, connection, &err);
		connection = uplink->connection;
	}
	bool silent = connection && !connection->paused &&
		      now_ms - connection->received_ms > node_timeout_ms;
	/* A controller that is stopped must not end the job. A parent that is stopped does, because
	 * the controller then misses it. */
	bool suspended =
		silent && !uplink->has_parent && connection_answers(connection, node_timeout_ms);

	if (connection && suspended != uplink->suspended) {
		uplink->suspended = suspended;
		log_info(LOG_AGENT, "the controller is %s",
			 suspended ? "silent, but its node answers: it is suspended" : "back");
		uplink->events.suspended(uplink->events.context, suspended);
	}
	if (silent && !suspended) {
		struct error err;

		error_set(&err, ERR_NETWORK, "no heartbeat from %s for %d s", connection->peer,
			  node_timeout_ms / 1000);
		agent_uplink_fail(uplink, &err); /* the peer may only have had no CPU */
		lose(uplink, &err);
		uplink->connection = NULL;
		connection_close(connection);
	}
	connection = uplink->next;
	if (connection && now_ms - connection->opened_ms > PARENT_MS) {
		uplink->next = NULL;
		connection_close(connection);
		report_move_failed(uplink, "no answer within 5 s");
	}
}

static void on_second(struct loop_timer *timer)
{
	struct agent_uplink *uplink = LOOP_OWNER(timer, struct agent_uplink, second);

	loop_timer_after(uplink->loop, timer, CONNECTION_HEARTBEAT_MS);
	agent_uplink_report(uplink, MESSAGE_HEARTBEAT, NULL);
	check_peers(uplink, loop_now_ms(uplink->loop));
}

void agent_uplink_init(struct agent_uplink *uplink, struct loop *loop,
		       const struct agent_params *params, const char *dir,
		       const struct agent_uplink_events *events)
{
	*uplink = (struct agent_uplink){
		.loop = loop,
		.params = params,
		.dir = dir,
		.events = *events,
		.owner = {uplink, on_opened, on_message, on_ended},
		.second.due = on_second,
	};
}

int agent_uplink_open(struct agent_uplink *uplink, int signals, struct error *err)
{
	uplink->signals = signals;
	uplink->started_ms = clock_now_ms();
	if (uplink->params->fd < 0) {
		uplink->untried = strdup(uplink->params->controller_addresses);
		if (!uplink->untried)
			return error_memory(err, "the controller's addresses");
	}
	loop_timer_after(uplink->loop, &uplink->second, CONNECTION_HEARTBEAT_MS);
	return reach_controller(uplink, err);
}

void agent_uplink_close(struct agent_uplink *uplink)
{
	loop_timer_stop(&uplink->second);
	connection_close(uplink->next);
	if (uplink->connection)
		connection_finish(uplink->connection, 1000);
	connection_close(uplink->connection);
	free(uplink->untried);
}
