/* SPDX-License-Identifier: BSD-3-Clause */
/* Rank 0's side of the exchange: one thread, one poll loop, no call that blocks. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "hostlist/idset.h"
#include "rendezvous/store.h"

struct entry {
	struct entry *next;
	uint32_t rank, size;
	char key[STORE_KEY_MAX + 1];
	unsigned char data[];
};

struct connection {
	int fd;
	int64_t hello_until; /* 0: it has said who it is */
	int rank;	     /* -1 before hello */
	uint32_t waiting;    /* STORE_BARRIER or STORE_GET under way, 0 none */
	uint32_t number;     /* of the request under way */
	uint64_t barriers;   /* entered, given up or not */
	uint32_t get_rank;
	char get_key[STORE_KEY_MAX + 1];
	struct bytes in, out;
	bool closing;
};

enum presence { ABSENT, HERE, GONE };

struct store_server {
	int listener, wake;
	int size;
	char label[128];
	pthread_t thread;
	struct connection *connections;
	size_t count, room;
	unsigned char *presence; /* [size] */
	struct entry *entries;
	size_t total;

	pthread_mutex_t lock;
	bool stop;	    /* under lock */
	int64_t stop_until; /* under lock */
};

static void reply(struct connection *connection, enum store_type type, const void *data,
		  size_t size)
{
	struct store_message message = {
		.type = type, .number = connection->number, .size = (uint32_t)size};
	unsigned char head[STORE_HEAD];

	store_head_write(&message, head);
	if (bytes_add(&connection->out, head, sizeof head) ||
	    bytes_add(&connection->out, data, size))
		connection->closing = true;
}

static void reply_failed(struct connection *connection, const char *text)
{
	connection->waiting = 0;
	reply(connection, STORE_FAILED, text, strlen(text));
}

/* ---- barrier and get ---- */

static void barrier_check(struct store_server *server)
{
	int waiting = 0, gone = -1;
	char text[64];

	for (size_t i = 0; i < server->count; i++)
		waiting += server->connections[i].waiting == STORE_BARRIER;
	for (int rank = 0; rank < server->size && gone < 0; rank++)
		if (server->presence[rank] == GONE)
			gone = rank;
	if (!waiting || (waiting < server->size && gone < 0))
		return;
	snprintf(text, sizeof text, "rank %d has left", gone);
	for (size_t i = 0; i < server->count; i++) {
		struct connection *connection = &server->connections[i];

		if (connection->waiting != STORE_BARRIER)
			continue;
		connection->waiting = 0;
		if (waiting == server->size)
			reply(connection, STORE_DONE, NULL, 0);
		else
			reply_failed(connection, text);
	}
}

/* The newest come first: of any rank's the last one found is the first that was put. */
static struct entry *entry_find(const struct store_server *server, uint32_t rank, const char *key)
{
	bool any = rank == (uint32_t)STORE_ANY;
	struct entry *found = NULL;

	for (struct entry *entry = server->entries; entry && (any || !found); entry = entry->next)
		if ((any || entry->rank == rank) && !strcmp(entry->key, key))
			found = entry;
	return found;
}

static void get_check(struct store_server *server, struct connection *connection)
{
	const struct entry *entry = entry_find(server, connection->get_rank, connection->get_key);
	char text[STORE_KEY_MAX + 64];

	if (entry) {
		connection->waiting = 0;
		reply(connection, STORE_VALUE, entry->data, entry->size);
	} else if (connection->get_rank != (uint32_t)STORE_ANY &&
		   server->presence[connection->get_rank] == GONE) {
		snprintf(text, sizeof text, "rank %u has left without putting '%s'",
			 connection->get_rank, connection->get_key);
		reply_failed(connection, text);
	}
}

static void get_check_all(struct store_server *server)
{
	for (size_t i = 0; i < server->count; i++)
		if (server->connections[i].waiting == STORE_GET)
			get_check(server, &server->connections[i]);
}

static void entry_remove(struct store_server *server, const struct entry *old)
{
	for (struct entry **place = &server->entries; *place; place = &(*place)->next) {
		if (*place != old)
			continue;
		struct entry *gone = *place;

		*place = gone->next;
		server->total -= gone->size;
		free(gone);
		return;
	}
}

static void put(struct store_server *server, struct connection *connection,
		const struct store_message *message, const void *data)
{
	uint32_t rank = (uint32_t)connection->rank;

	entry_remove(server, entry_find(server, rank, message->key));
	struct entry *entry = server->total + message->size <= STORE_TOTAL_MAX
				      ? malloc(sizeof *entry + message->size)
				      : NULL;

	if (!entry) {
		reply_failed(connection, "the values of all ranks together are too large");
		return;
	}
	*entry = (struct entry){.next = server->entries, .rank = rank, .size = message->size};
	memcpy(entry->key, message->key, sizeof entry->key);
	if (message->size)
		memcpy(entry->data, data, message->size);
	server->entries = entry;
	server->total += entry->size;
	reply(connection, STORE_DONE, NULL, 0);
	get_check_all(server);
}

/* ---- who comes and goes ---- */

static void hello(struct store_server *server, struct connection *connection,
		  const struct store_message *message, const void *data)
{
	char text[256] = "";

	if (message->size != strlen(server->label) || memcmp(data, server->label, message->size))
		/* A stranger is not told which: the label is all that it lacks. */
		snprintf(text, sizeof text, "this is another job");
	else if (message->number != (uint32_t)server->size)
		snprintf(text, sizeof text, "rank 0 has WORLD_SIZE %d, rank %u has %u",
			 server->size, message->rank, message->number);
	else if (message->rank >= (uint32_t)server->size)
		snprintf(text, sizeof text, "there is no rank %u", message->rank);
	else if (server->presence[message->rank] != ABSENT)
		snprintf(text, sizeof text, "rank %u is here already: two processes have RANK %u",
			 message->rank, message->rank);
	if (*text) {
		reply(connection, STORE_REFUSED, text, strlen(text));
		connection->closing = true;
		return;
	}
	connection->rank = (int)message->rank;
	connection->hello_until = 0;
	server->presence[connection->rank] = HERE;
	reply(connection, STORE_WELCOME, NULL, 0);
}

static void give_up(struct store_server *server, struct connection *connection)
{
	struct idset *set = idset_new();

	for (int rank = 0; set && rank < server->size && rank <= IDSET_MAX; rank++)
		idset_add(set, rank);
	if (connection->waiting == STORE_GET) {
		idset_clear(set);
		if (set && connection->get_rank != (uint32_t)STORE_ANY)
			idset_add(set, (int)connection->get_rank);
	}
	for (size_t i = 0; set && connection->waiting == STORE_BARRIER && i < server->count; i++)
		/* One that has just given up the same barrier was there. */
		if (server->connections[i].rank >= 0 &&
		    server->connections[i].barriers >= connection->barriers)
			idset_remove(set, server->connections[i].rank);
	char *text = set ? idset_format(set) : NULL;

	connection->waiting = 0;
	reply(connection, STORE_MISSING, text, text ? strlen(text) : 0);
	free(text);
	idset_free(set);
}

/* One message; false when it must not be there. */
static bool handle(struct store_server *server, struct connection *connection,
		   const struct store_message *message, const void *data)
{
	if (connection->rank < 0) {
		if (message->type != STORE_HELLO)
			return false;
		hello(server, connection, message, data);
		return true;
	}
	if (message->type == STORE_GIVE_UP) {
		connection->number = message->number;
		give_up(server, connection);
		return true;
	}
	if (connection->waiting)
		return false;
	connection->number = message->number;
	switch (message->type) {
	case STORE_PUT:
		put(server, connection, message, data);
		return true;
	case STORE_GET:
		if ((message->rank >= (uint32_t)server->size &&
		     message->rank != (uint32_t)STORE_ANY) ||
		    message->size)
			return false;
		connection->waiting = STORE_GET;
		connection->get_rank = message->rank;
		memcpy(connection->get_key, message->key, sizeof connection->get_key);
		get_check(server, connection);
		return true;
	case STORE_BARRIER:
		connection->waiting = STORE_BARRIER;
		connection->barriers++;
		barrier_check(server);
		return true;
	case STORE_BYE:
		return false;
	default:
		return false;
	}
}

/* All whole messages of connection's input. */
static void parse(struct store_server *server, struct connection *connection)
{
	while (!connection->closing && connection->in.size >= STORE_HEAD) {
		struct store_message message;

		if (store_head_read(connection->in.data, &message) ||
		    (connection->rank < 0 && message.size > sizeof server->label)) {
			connection->closing = true;
			return;
		}
		size_t whole = STORE_HEAD + message.key_size + (size_t)message.size;

		if (connection->in.size < whole)
			return;
		memcpy(message.key, connection->in.data + STORE_HEAD, message.key_size);
		message.key[message.key_size] = 0;
		if (strlen(message.key) != message.key_size ||
		    !handle(server, connection, &message,
			    connection->in.data + STORE_HEAD + message.key_size))
			connection->closing = true;
		bytes_drop(&connection->in, whole);
	}
}

static void receive(struct store_server *server, struct connection *connection)
{
	unsigned char bytes[65536];
	ssize_t got = recv(connection->fd, bytes, sizeof bytes, MSG_DONTWAIT);

	if (got > 0) {
		if (bytes_add(&connection->in, bytes, (size_t)got))
			connection->closing = true;
		parse(server, connection);
	} else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
		connection->closing = true;
	}
}

static void transmit(struct connection *connection)
{
	while (connection->out.size) {
		ssize_t sent = send(connection->fd, connection->out.data, connection->out.size,
				    MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent > 0)
			bytes_drop(&connection->out, (size_t)sent);
		else if (errno == EINTR)
			continue;
		else if (errno == EAGAIN)
			return;
		else {
			connection->closing = true;
			connection->out.size = 0;
		}
	}
}

static bool connection_add(struct store_server *server, int fd, int rank)
{
	if (server->count == server->room) {
		size_t room = server->room ? server->room * 2 : 16;
		struct connection *grown =
			realloc(server->connections, room * sizeof *server->connections);

		if (!grown)
			return false;
		server->connections = grown;
		server->room = room;
	}
	server->connections[server->count++] = (struct connection){
		.fd = fd, .rank = rank, .hello_until = rank < 0 ? clock_now_ms() + STORE_HELLO_MS : 0};
	return true;
}

static void connection_remove(struct store_server *server, size_t index)
{
	struct connection *connection = &server->connections[index];
	int rank = connection->rank;

	close(connection->fd);
	bytes_free(&connection->in);
	bytes_free(&connection->out);
	*connection = server->connections[--server->count];
	if (rank < 0)
		return;
	server->presence[rank] = GONE;
	barrier_check(server);
	get_check_all(server);
}

static void accept_one(struct store_server *server)
{
	size_t strangers = 0;
	int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	for (size_t i = 0; i < server->count; i++)
		strangers += server->connections[i].rank < 0;
	if (strangers >= STORE_STRANGERS_MAX || !connection_add(server, fd, -1))
		close(fd);
}

/* ---- the thread ---- */

/* false when it is time to end. */
static bool stop_check(struct store_server *server)
{
	size_t others = 0;

	for (size_t i = 0; i < server->count; i++)
		others += server->connections[i].rank >= 0;
	pthread_mutex_lock(&server->lock);
	bool end = server->stop && (!others || clock_now_ms() >= server->stop_until);

	pthread_mutex_unlock(&server->lock);
	return !end;
}

static void sweep(struct store_server *server)
{
	int64_t now = clock_now_ms();

	for (size_t i = 0; i < server->count;) {
		struct connection *connection = &server->connections[i];

		transmit(connection);
		if ((connection->closing && !connection->out.size) ||
		    (connection->hello_until && now > connection->hello_until)) {
			connection_remove(server, i);
			i = 0; /* others may have got answers, also those before it */
		} else {
			i++;
		}
	}
}

static void *serve(void *context)
{
	struct store_server *server = context;

	while (stop_check(server)) {
		size_t count = server->count;
		struct pollfd *fds = calloc(count + 2, sizeof *fds);

		if (!fds)
			break;
		fds[0] = (struct pollfd){server->wake, POLLIN, 0};
		fds[1] = (struct pollfd){server->listener, POLLIN, 0};
		for (size_t i = 0; i < count; i++) {
			const struct connection *connection = &server->connections[i];

			fds[i + 2] = (struct pollfd){
				connection->fd,
				(short)(POLLIN | (connection->out.size ? POLLOUT : 0)), 0};
		}
		int ready = poll(fds, count + 2, 200);
		eventfd_t wakes;

		for (size_t i = 0; ready > 0 && i < count; i++)
			if (fds[i + 2].revents & (POLLIN | POLLHUP | POLLERR))
				receive(server, &server->connections[i]);
		if (ready > 0 && fds[0].revents)
			(void)!eventfd_read(server->wake, &wakes);
		if (ready > 0 && fds[1].revents)
			accept_one(server);
		free(fds);
		sweep(server);
	}
	return NULL;
}

static void server_free(struct store_server *server)
{
	while (server->count) {
		struct connection *connection = &server->connections[--server->count];

		close(connection->fd);
		bytes_free(&connection->in);
		bytes_free(&connection->out);
	}
	while (server->entries)
		entry_remove(server, server->entries);
	if (server->listener >= 0)
		close(server->listener);
	if (server->wake >= 0)
		close(server->wake);
	pthread_mutex_destroy(&server->lock);
	free(server->connections);
	free(server->presence);
	free(server);
}

int store_serve(const char *address, int port, int size, const char *label,
		struct store_server **out, int *own, struct error *err)
{
	struct store_server *server = calloc(1, sizeof *server);
	int pair[2] = {-1, -1};

	if (!server)
		return error_memory(err, "the exchange of rank 0");
	pthread_mutex_init(&server->lock, NULL);
	server->size = size;
	snprintf(server->label, sizeof server->label, "%s", label);
	server->presence = calloc((size_t)size, 1);
	server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	server->listener = store_listen(address, port, err);
	if (server->listener < 0) {
		server_free(server);
		return -ERR_NETWORK;
	}
	if (!server->presence || server->wake < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) ||
	    !connection_add(server, pair[0], 0)) {
		if (pair[0] >= 0)
			close(pair[0]);
		goto failed;
	}
	server->presence[0] = HERE;
	if (pthread_create(&server->thread, NULL, serve, server))
		goto failed;
	*out = server;
	*own = pair[1];
	return 0;
failed:
	if (pair[1] >= 0)
		close(pair[1]);
	server_free(server);
	return error_memory(err, "the exchange of rank 0");
}

void store_stop(struct store_server *server, int linger_ms)
{
	if (!server)
		return;
	pthread_mutex_lock(&server->lock);
	server->stop = true;
	server->stop_until = clock_now_ms() + linger_ms;
	pthread_mutex_unlock(&server->lock);
	(void)!eventfd_write(server->wake, 1);
	pthread_join(server->thread, NULL);
	server_free(server);
}
