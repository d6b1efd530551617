/* SPDX-License-Identifier: BSD-3-Clause */
/* Rank 0's side of the store: one thread, one poll loop, no blocking calls. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
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

struct peer {
	int fd;
	int64_t hello_until; /* 0: it has sent its hello */
	int rank;	     /* -1 before hello */
	uint32_t waiting;    /* STORE_BARRIER or STORE_GET in progress, 0: none */
	uint32_t number;     /* of the request in progress */
	uint64_t barriers;   /* entered, including those given up */
	uint32_t get_rank;
	char get_key[STORE_KEY_MAX + 1];
	struct bytes in, out;
	bool closing;
};

enum presence { PEER_ABSENT, PEER_PRESENT, PEER_LEFT };

struct store_server {
	int listener, wake;
	int size;
	char label[128];
	pthread_t thread;
	struct peer *peers;
	size_t count, room;
	unsigned char *presence; /* [size] */
	struct entry *entries;
	size_t total;
	atomic_int_least64_t stop_until; /* 0: store_stop was not called */
};

static void reply(struct peer *peer, enum store_type type, const void *data, size_t size)
{
	struct store_message message = {
		.type = type, .number = peer->number, .size = (uint32_t)size};
	unsigned char header[STORE_HEADER_BYTES];

	store_header_write(&message, header);
	if (bytes_add(&peer->out, header, sizeof header) || bytes_add(&peer->out, data, size))
		peer->closing = true;
}

static void reply_failed(struct peer *peer, const char *text)
{
	peer->waiting = 0;
	reply(peer, STORE_FAILED, text, strlen(text));
}

/* ---- barrier and get ---- */

static void barrier_check(struct store_server *server)
{
	int waiting = 0, gone = -1;
	char text[64];

	for (size_t i = 0; i < server->count; i++)
		waiting += server->peers[i].waiting == STORE_BARRIER;
	for (int rank = 0; rank < server->size && gone < 0; rank++)
		if (server->presence[rank] == PEER_LEFT)
			gone = rank;
	if (!waiting || (waiting < server->size && gone < 0))
		return;
	snprintf(text, sizeof text, "rank %d has left", gone);
	for (size_t i = 0; i < server->count; i++) {
		struct peer *peer = &server->peers[i];

		if (peer->waiting != STORE_BARRIER)
			continue;
		peer->waiting = 0;
		if (waiting == server->size)
			reply(peer, STORE_DONE, NULL, 0);
		else
			reply_failed(peer, text);
	}
}

/* The newest entries come first, so for any rank the last one found was put first. */
static struct entry *entry_find(const struct store_server *server, uint32_t rank, const char *key)
{
	bool any = rank == (uint32_t)STORE_ANY;
	struct entry *found = NULL;

	for (struct entry *entry = server->entries; entry && (any || !found); entry = entry->next)
		if ((any || entry->rank == rank) && !strcmp(entry->key, key))
			found = entry;
	return found;
}

static void get_check(struct store_server *server, struct peer *peer)
{
	const struct entry *entry = entry_find(server, peer->get_rank, peer->get_key);
	char text[STORE_KEY_MAX + 64];

	if (entry) {
		peer->waiting = 0;
		reply(peer, STORE_VALUE, entry->data, entry->size);
	} else if (peer->get_rank != (uint32_t)STORE_ANY &&
		   server->presence[peer->get_rank] == PEER_LEFT) {
		snprintf(text, sizeof text, "rank %u has left without putting '%s'", peer->get_rank,
			 peer->get_key);
		reply_failed(peer, text);
	}
}

static void get_check_all(struct store_server *server)
{
	for (size_t i = 0; i < server->count; i++)
		if (server->peers[i].waiting == STORE_GET)
			get_check(server, &server->peers[i]);
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

static void put(struct store_server *server, struct peer *peer, const struct store_message *message,
		const void *data)
{
	uint32_t rank = (uint32_t)peer->rank;

	entry_remove(server, entry_find(server, rank, message->key));
	struct entry *entry = server->total + message->size <= STORE_TOTAL_MAX
				      ? malloc(sizeof *entry + message->size)
				      : NULL;

	if (!entry) {
		reply_failed(peer, "the values of all ranks exceed the size limit");
		return;
	}
	*entry = (struct entry){.next = server->entries, .rank = rank, .size = message->size};
	memcpy(entry->key, message->key, sizeof entry->key);
	if (message->size)
		memcpy(entry->data, data, message->size);
	server->entries = entry;
	server->total += entry->size;
	reply(peer, STORE_DONE, NULL, 0);
	get_check_all(server);
}

/* ---- peers that come and go ---- */

static void hello(struct store_server *server, struct peer *peer,
		  const struct store_message *message, const void *data)
{
	char text[256] = "";

	if (message->size != strlen(server->label) || memcmp(data, server->label, message->size))
		/* An unauthenticated peer does not learn which: the label is all that it lacks. */
		snprintf(text, sizeof text, "it belongs to another job");
	else if (message->number != (uint32_t)server->size)
		snprintf(text, sizeof text, "rank 0 has WORLD_SIZE %d, rank %u has %u",
			 server->size, message->rank, message->number);
	else if (message->rank >= (uint32_t)server->size)
		snprintf(text, sizeof text, "there is no rank %u", message->rank);
	else if (server->presence[message->rank] != PEER_ABSENT)
		snprintf(text, sizeof text,
			 "rank %u is already connected: two processes have RANK %u", message->rank,
			 message->rank);
	if (*text) {
		reply(peer, STORE_REFUSED, text, strlen(text));
		peer->closing = true;
		return;
	}
	peer->rank = (int)message->rank;
	peer->hello_until = 0;
	server->presence[peer->rank] = PEER_PRESENT;
	reply(peer, STORE_WELCOME, NULL, 0);
}

static void cancel_request(struct store_server *server, struct peer *peer)
{
	struct idset *set = idset_new();

	for (int rank = 0; set && rank < server->size && rank <= IDSET_MAX; rank++)
		if (peer->waiting != STORE_GET || rank == (int)peer->get_rank)
			idset_add(set, rank);
	for (size_t i = 0; set && peer->waiting == STORE_BARRIER && i < server->count; i++)
		/* A rank that has just given up the same barrier did enter it. */
		if (server->peers[i].rank >= 0 && server->peers[i].barriers >= peer->barriers)
			idset_remove(set, server->peers[i].rank);
	char *text = set ? idset_format(set) : NULL;

	peer->waiting = 0;
	reply(peer, STORE_MISSING, text, text ? strlen(text) : 0);
	free(text);
	idset_free(set);
}

/* Handle one message; false if it is not allowed. */
static bool handle(struct store_server *server, struct peer *peer,
		   const struct store_message *message, const void *data)
{
	if (peer->rank < 0) {
		if (message->type != STORE_HELLO)
			return false;
		hello(server, peer, message, data);
		return true;
	}
	if (message->type == STORE_CANCEL) {
		peer->number = message->number;
		cancel_request(server, peer);
		return true;
	}
	if (peer->waiting)
		return false;
	peer->number = message->number;
	switch (message->type) {
	case STORE_PUT:
		put(server, peer, message, data);
		return true;
	case STORE_GET:
		if ((message->rank >= (uint32_t)server->size &&
		     message->rank != (uint32_t)STORE_ANY) ||
		    message->size)
			return false;
		peer->waiting = STORE_GET;
		peer->get_rank = message->rank;
		memcpy(peer->get_key, message->key, sizeof peer->get_key);
		get_check(server, peer);
		return true;
	case STORE_BARRIER:
		peer->waiting = STORE_BARRIER;
		peer->barriers++;
		barrier_check(server);
		return true;
	default: /* STORE_BYE too */
		return false;
	}
}

/* Handle all complete messages of the connection's input. */
static void parse(struct store_server *server, struct peer *peer)
{
	while (!peer->closing && peer->in.size >= STORE_HEADER_BYTES) {
		struct store_message message;

		if (store_header_read(peer->in.data, &message) ||
		    (peer->rank < 0 && message.size > sizeof server->label)) {
			peer->closing = true;
			return;
		}
		size_t whole = STORE_HEADER_BYTES + message.key_size + (size_t)message.size;

		if (peer->in.size < whole)
			return;
		memcpy(message.key, peer->in.data + STORE_HEADER_BYTES, message.key_size);
		message.key[message.key_size] = 0;
		if (strlen(message.key) != message.key_size ||
		    !handle(server, peer, &message,
			    peer->in.data + STORE_HEADER_BYTES + message.key_size))
			peer->closing = true;
		bytes_drop(&peer->in, whole);
	}
}

static void receive(struct store_server *server, struct peer *peer)
{
	unsigned char bytes[65536];
	ssize_t got = recv(peer->fd, bytes, sizeof bytes, MSG_DONTWAIT);

	if (got > 0) {
		if (bytes_add(&peer->in, bytes, (size_t)got))
			peer->closing = true;
		parse(server, peer);
	} else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
		peer->closing = true;
	}
}

static void transmit(struct peer *peer)
{
	while (peer->out.size) {
		ssize_t sent =
			send(peer->fd, peer->out.data, peer->out.size, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent > 0)
			bytes_drop(&peer->out, (size_t)sent);
		else if (errno == EINTR)
			continue;
		else if (errno == EAGAIN)
			return;
		else {
			peer->closing = true;
			peer->out.size = 0;
		}
	}
}

static bool peer_add(struct store_server *server, int fd, int rank)
{
	if (server->count == server->room) {
		size_t room = server->room ? server->room * 2 : 16;
		struct peer *grown = realloc(server->peers, room * sizeof *server->peers);

		if (!grown)
			return false;
		server->peers = grown;
		server->room = room;
	}
	server->peers[server->count++] =
		(struct peer){.fd = fd,
			      .rank = rank,
			      .hello_until = rank < 0 ? clock_now_ms() + STORE_HELLO_MS : 0};
	return true;
}

static void peer_remove(struct store_server *server, size_t index)
{
	struct peer *peer = &server->peers[index];
	int rank = peer->rank;

	close(peer->fd);
	bytes_free(&peer->in);
	bytes_free(&peer->out);
	*peer = server->peers[--server->count];
	if (rank < 0)
		return;
	server->presence[rank] = PEER_LEFT;
	barrier_check(server);
	get_check_all(server);
}

static void accept_one(struct store_server *server)
{
	size_t unidentified = 0;
	int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	for (size_t i = 0; i < server->count; i++)
		unidentified += server->peers[i].rank < 0;
	if (unidentified >= STORE_UNIDENTIFIED_MAX || !peer_add(server, fd, -1))
		close(fd);
}

/* ---- the thread ---- */

/* false if the thread should end. */
static bool stop_check(struct store_server *server)
{
	size_t others = 0;

	for (size_t i = 0; i < server->count; i++)
		others += server->peers[i].rank >= 0;
	int64_t until = server->stop_until;

	return !until || (others && clock_now_ms() < until);
}

static void drop_late_peers(struct store_server *server)
{
	int64_t now = clock_now_ms();

	for (size_t i = 0; i < server->count;) {
		struct peer *peer = &server->peers[i];

		transmit(peer);
		if ((peer->closing && !peer->out.size) ||
		    (peer->hello_until && now > peer->hello_until)) {
			peer_remove(server, i);
			i = 0; /* other peers, also earlier ones, may have got answers */
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
			const struct peer *peer = &server->peers[i];

			fds[i + 2] = (struct pollfd){
				peer->fd, (short)(POLLIN | (peer->out.size ? POLLOUT : 0)), 0};
		}
		int ready = poll(fds, count + 2, 200);
		eventfd_t wakes;

		for (size_t i = 0; ready > 0 && i < count; i++)
			if (fds[i + 2].revents & (POLLIN | POLLHUP | POLLERR))
				receive(server, &server->peers[i]);
		if (ready > 0 && fds[0].revents)
			(void)!eventfd_read(server->wake, &wakes);
		if (ready > 0 && fds[1].revents)
			accept_one(server);
		free(fds);
		drop_late_peers(server);
	}
	return NULL;
}

static void server_free(struct store_server *server)
{
	while (server->count) {
		struct peer *peer = &server->peers[--server->count];

		close(peer->fd);
		bytes_free(&peer->in);
		bytes_free(&peer->out);
	}
	while (server->entries)
		entry_remove(server, server->entries);
	if (server->listener >= 0)
		close(server->listener);
	if (server->wake >= 0)
		close(server->wake);
	free(server->peers);
	free(server->presence);
	free(server);
}

int store_serve(const char *address, int port, int size, const char *label,
		struct store_server **out, int *own, struct error *err)
{
	struct store_server *server = calloc(1, sizeof *server);
	int pair[2] = {-1, -1};

	if (!server)
		return error_memory(err, "rank 0's key-value store");
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
	    !peer_add(server, pair[0], 0)) {
		if (pair[0] >= 0)
			close(pair[0]);
		goto failed;
	}
	server->presence[0] = PEER_PRESENT;
	if (pthread_create(&server->thread, NULL, serve, server))
		goto failed;
	*out = server;
	*own = pair[1];
	return 0;
failed:
	if (pair[1] >= 0)
		close(pair[1]);
	server_free(server);
	return error_memory(err, "rank 0's key-value store");
}

void store_stop(struct store_server *server, int linger_ms)
{
	if (!server)
		return;
	server->stop_until = clock_now_ms() + linger_ms;
	(void)!eventfd_write(server->wake, 1);
	pthread_join(server->thread, NULL);
	server_free(server);
}
