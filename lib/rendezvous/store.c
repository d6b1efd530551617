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
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "hostlist/idset.h"
#include "rendezvous/store.h"

struct entry {
	struct entry *next;
	int rank;
	size_t size;
	char key[STORE_KEY_MAX + 1];
	unsigned char data[];
};

struct peer {
	struct channel channel;
	int64_t hello_until; /* 0: it has sent a valid proof */
	int rank;	     /* -1 before its proof */
	struct frame hello;  /* kind 0: none yet */
	struct store_nonces nonces;
	uint32_t waiting;  /* STORE_BARRIER or STORE_GET in progress, 0: none */
	uint64_t number;   /* of the request in progress */
	uint64_t barriers; /* entered, including those given up */
	int get_rank;
	char get_key[STORE_KEY_MAX + 1];
	bool closing;
};

enum presence { PEER_ABSENT, PEER_PRESENT, PEER_LEFT };

struct store_server {
	int listener, wake;
	int size;
	struct store_job job;
	pthread_t thread;
	struct peer *peers;
	size_t count, room;
	unsigned char *presence; /* [size] */
	struct entry *entries;
	size_t total;
	atomic_int_least64_t stop_until; /* 0: store_stop was not called */
};

/* Close the connection without sending what waits. */
static void give_up(struct peer *peer)
{
	peer->closing = true;
	bytes_free(&peer->channel.out);
}

static void reply(struct peer *peer, enum store_kind kind, const void *data, size_t size)
{
	struct frame frame = {.kind = kind, .token = peer->number, .size = size};

	if (channel_send(&peer->channel, &frame, data))
		give_up(peer);
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
static struct entry *entry_find(const struct store_server *server, int rank, const char *key)
{
	bool any = rank == STORE_ANY;
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
	} else if (peer->get_rank != STORE_ANY && server->presence[peer->get_rank] == PEER_LEFT) {
		snprintf(text, sizeof text, "rank %d has left without putting '%s'", peer->get_rank,
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

static void put(struct store_server *server, struct peer *peer, const char *key, const void *value,
		size_t size)
{
	struct entry *old = entry_find(server, peer->rank, key), *entry = NULL;

	if (server->total - (old ? old->size : 0) + size <= STORE_TOTAL_MAX)
		entry = malloc(sizeof *entry + size);
	if (!entry) {
		reply_failed(peer, "the values of all ranks exceed the size limit");
		return;
	}
	entry_remove(server, old);
	*entry = (struct entry){.next = server->entries, .rank = peer->rank, .size = size};
	memcpy(entry->key, key, strlen(key) + 1);
	if (size)
		memcpy(entry->data, value, size);
	server->entries = entry;
	server->total += entry->size;
	reply(peer, STORE_DONE, NULL, 0);
	get_check_all(server);
}

/* ---- peers that come and go ---- */

/* Answer a HELLO with a challenge. Return false if it is not allowed. */
static bool hello(struct store_server *server, struct peer *peer, const struct frame *frame,
		  const void *data)
{
	unsigned char challenge[STORE_NONCE_BYTES + STORE_PROOF_BYTES];

	if (peer->hello.kind || frame->kind != STORE_HELLO || frame->size != STORE_NONCE_BYTES)
		return false;
	peer->hello = *frame;
	memcpy(peer->nonces.client, data, STORE_NONCE_BYTES);
	if (getrandom(peer->nonces.server, STORE_NONCE_BYTES, 0) != STORE_NONCE_BYTES)
		return false;
	memcpy(challenge, peer->nonces.server, STORE_NONCE_BYTES);
	store_proof(&server->job, "server", &peer->nonces, frame->number, frame->token,
		    challenge + STORE_NONCE_BYTES);
	reply(peer, STORE_CHALLENGE, challenge, sizeof challenge);
	return true;
}

/* Check a proof, then whether the rank fits. Return false if it is not a proof. */
static bool prove(struct store_server *server, struct peer *peer, const struct frame *frame,
		  const unsigned char *data)
{
	unsigned char expected[STORE_PROOF_BYTES], differ = 0;
	int rank = peer->hello.number;
	char text[256] = "";

	if (!peer->hello.kind || frame->kind != STORE_PROVE || frame->size != STORE_PROOF_BYTES)
		return false;
	store_proof(&server->job, "client", &peer->nonces, rank, peer->hello.token, expected);
	for (size_t i = 0; i < sizeof expected; i++)
		/* Compare all bytes: the time must not show how many of them are right. */
		differ |= expected[i] ^ data[i];
	if (differ)
		snprintf(text, sizeof text, "it belongs to another job");
	else if (peer->hello.token != (uint64_t)server->size)
		snprintf(text, sizeof text, "rank 0 has WORLD_SIZE %d, rank %d has %llu",
			 server->size, rank, (unsigned long long)peer->hello.token);
	else if (rank < 0 || rank >= server->size)
		snprintf(text, sizeof text, "there is no rank %d", rank);
	else if (server->presence[rank] != PEER_ABSENT)
		snprintf(text, sizeof text,
			 "rank %d is already connected: two processes have RANK %d", rank, rank);
	if (*text) {
		reply(peer, STORE_REFUSED, text, strlen(text));
		peer->closing = true;
		return true;
	}
	peer->rank = rank;
	peer->hello_until = 0;
	peer->channel.limit = STORE_FRAME_MAX;
	server->presence[rank] = PEER_PRESENT;
	reply(peer, STORE_WELCOME, NULL, 0);
	return true;
}

static void cancel_request(struct store_server *server, struct peer *peer)
{
	struct idset *set = idset_new();

	for (int rank = 0; set && rank < server->size && rank <= IDSET_MAX; rank++)
		if (peer->waiting != STORE_GET || rank == peer->get_rank)
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

/* The bytes of the key and its NUL at the start of a frame's data; 0: there is no valid key. */
static size_t key_bytes(const struct frame *frame, const void *data)
{
	size_t size = frame->size ? strnlen(data, frame->size) : 0;

	return size && size <= STORE_KEY_MAX && size < frame->size ? size + 1 : 0;
}

/* Handle one message; false if it is not allowed. */
static bool handle(struct store_server *server, struct peer *peer, const struct frame *frame,
		   const char *data)
{
	size_t key = key_bytes(frame, data);

	if (peer->rank < 0)
		return hello(server, peer, frame, data) ||
		       prove(server, peer, frame, (const unsigned char *)data);
	/* It may have given up one request whose answer it has not read, but no more. */
	if (peer->channel.out.size > STORE_UNANSWERED_MAX)
		return false;
	if (frame->kind == STORE_CANCEL) {
		peer->number = frame->token;
		cancel_request(server, peer);
		return true;
	}
	if (peer->waiting)
		return false;
	peer->number = frame->token;
	switch (frame->kind) {
	case STORE_PUT:
		if (!key || frame->size - key > STORE_VALUE_MAX)
			return false;
		put(server, peer, data, data + key, frame->size - key);
		return true;
	case STORE_GET:
		if (key != frame->size || !key || frame->number < STORE_ANY ||
		    frame->number >= server->size)
			return false;
		peer->waiting = STORE_GET;
		peer->get_rank = frame->number;
		memcpy(peer->get_key, data, key);
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
	struct frame frame;
	const void *data;
	int rc = 0;

	while (!peer->closing && (rc = channel_next(&peer->channel, &frame, &data)) > 0)
		if (!handle(server, peer, &frame, data))
			give_up(peer);
	if (rc < 0)
		give_up(peer);
}

static void receive(struct store_server *server, struct peer *peer)
{
	bool gone = channel_fill(&peer->channel) != 0;

	/* The peer may have sent a request, such as a put, just before it left. */
	parse(server, peer);
	if (gone)
		give_up(peer);
}

static void transmit(struct peer *peer)
{
	if (channel_flush(&peer->channel, 0) < 0)
		give_up(peer);
}

static bool peer_add(struct store_server *server, int fd, int rank)
{
	if (!array_reserve(&server->peers, server->count, &server->room, sizeof *server->peers))
		return false;
	server->peers[server->count++] = (struct peer){
		.channel = {.fd = fd, .limit = rank < 0 ? STORE_PROOF_BYTES : STORE_FRAME_MAX},
		.rank = rank,
		.hello_until = rank < 0 ? clock_now_ms() + STORE_HELLO_MS : 0};
	return true;
}

static void peer_remove(struct store_server *server, size_t index)
{
	struct peer *peer = &server->peers[index];
	int rank = peer->rank;

	channel_close(&peer->channel);
	*peer = server->peers[--server->count];
	if (rank < 0)
		return;
	server->presence[rank] = PEER_LEFT;
	barrier_check(server);
	get_check_all(server);
}

/* Drop the oldest connection without a proof, so that a flood displaces its own connections. */
static void accept_all(struct store_server *server)
{
	int fd;

	for (int i = 0; i < STORE_UNIDENTIFIED_MAX; i++) {
		size_t unidentified = 0, oldest = 0;

		fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			return;
		for (size_t p = 0; p < server->count; p++) {
			if (server->peers[p].rank >= 0)
				continue;
			if (!unidentified++ ||
			    server->peers[p].hello_until < server->peers[oldest].hello_until)
				oldest = p;
		}
		if (unidentified >= STORE_UNIDENTIFIED_MAX)
			peer_remove(server, oldest);
		if (!peer_add(server, fd, -1))
			close(fd);
	}
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
		if ((peer->closing && !peer->channel.out.size) ||
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

			fds[i + 2] =
				(struct pollfd){peer->channel.fd,
						(short)((peer->closing ? 0 : POLLIN) |
							(peer->channel.out.size ? POLLOUT : 0)),
						0};
		}
		/* At least that often, the time limits of proofs and of store_stop are checked. */
		int ready = poll(fds, count + 2, 200);
		eventfd_t wakes;

		for (size_t i = 0; ready > 0 && i < count; i++)
			if (fds[i + 2].revents & (POLLIN | POLLHUP | POLLERR))
				receive(server, &server->peers[i]);
		if (ready > 0 && fds[0].revents)
			(void)!eventfd_read(server->wake, &wakes);
		/* After the peers: this adds and removes some, and fds[i + 2] belongs to peers[i]
		 * only until then. */
		if (ready > 0 && fds[1].revents)
			accept_all(server);
		free(fds);
		drop_late_peers(server);
	}
	return NULL;
}

static void server_free(struct store_server *server)
{
	while (server->count)
		channel_close(&server->peers[--server->count].channel);
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

int store_serve(const char *address, int port, int size, const struct store_job *job,
		struct store_server **out, int *own, struct error *err)
{
	struct store_server *server = calloc(1, sizeof *server);
	int pair[2] = {-1, -1};

	if (!server)
		return error_memory(err, "rank 0's key-value store");
	server->size = size;
	server->job = *job;
	server->presence = calloc((size_t)size, 1);
	server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	server->listener = store_listen(address, port, err);
	if (server->listener < 0) {
		server_free(server);
		return -ERR_NETWORK;
	}
	/* Rank 0 is a peer like the others, over a socket pair, so all requests take the same path.
	 */
	if (!server->presence || server->wake < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) ||
	    !peer_add(server, pair[0], 0)) {
		if (pair[0] >= 0)
			close(pair[0]);
		goto failed;
	}
	server->presence[0] = PEER_PRESENT;
	if (thread_start(&server->thread, serve, server))
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
