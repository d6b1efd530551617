/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes that reach the store of ranks without PMIx. The first byte selects the destination:
 *   U  rank 0, from a connection without a proof   R  rank 0, from rank 1
 *   C  the other ranks, from rank 0 */
#include "fuzz.h"

#include <sys/ioctl.h>

#include "rendezvous/store.c" /* its functions between the bytes and the thread are static */

#define RANKS 3

static const struct store_job job = {.label = "job/0", .secret = {1, 2, 3}};

/* What waits for the peer, as the bytes that it has not read. */
static size_t unread(const struct peer *peer, int fd)
{
	int count = 0;

	CHECK(!ioctl(fd, FIONREAD, &count));
	return peer->channel.out.size + (size_t)count;
}

static void to_server(const uint8_t *data, size_t size, int rank)
{
	struct peer peers[2] = {{.rank = rank}, {.rank = 2}};
	unsigned char presence[RANKS] = {PEER_PRESENT, PEER_ABSENT, PEER_PRESENT};
	struct store_server server = {.size = RANKS,
				      .job = job,
				      .peers = peers,
				      .count = 2,
				      .room = 2,
				      .presence = presence};
	struct peer *peer = &peers[0];
	int fds[2][2];

	for (size_t i = 0; i < 2; i++) {
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds[i]));
		peers[i].channel.fd = fds[i][0];
		peers[i].channel.limit = peers[i].rank < 0 ? STORE_PROOF_BYTES : STORE_FRAME_MAX;
	}
	if (rank >= 0)
		presence[rank] = PEER_PRESENT;
	for (size_t at = 0, piece; at < size && !peer->closing; at += piece) {
		piece = size - at < 61 ? size - at : 61;
		CHECK(send(fds[0][1], data + at, piece, MSG_NOSIGNAL) == (ssize_t)piece);
		receive(&server, peer);
		CHECK(peer->channel.in.size <= size);
		CHECK(peer->rank == rank); /* no proof without the secret */
		if (rank < 0)
			CHECK(unread(peer, fds[0][1]) <= 512 && !server.entries);
	}
	CHECK(server.total <= size);
	while (server.entries)
		entry_remove(&server, server.entries);
	CHECK(!server.total);
	for (size_t i = 0; i < 2; i++) {
		channel_close(&peers[i].channel);
		close(fds[i][1]);
	}
}

static void to_client(const uint8_t *data, size_t size)
{
	struct store_client client = {.rank = 1, .size = RANKS, .where = "here"};
	struct error err = {0};
	void *value = NULL;
	size_t value_size;
	int fds[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
	CHECK(send(fds[1], data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size);
	shutdown(fds[1], SHUT_WR);
	client.channel = (struct channel){.fd = fds[0], .limit = STORE_FRAME_MAX};
	if (!store_get(&client, 0, "key", 1000, &value, &value_size, &err))
		CHECK(value_size <= size && !((char *)value)[value_size]);
	else
		CHECK(err.code && *err.text);
	if (client.channel.fd >= 0 && store_barrier(&client, 1000, &err))
		CHECK(*err.text);
	channel_close(&client.channel);
	close(fds[1]);
	free(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size || size > 4096)
		return 0;
	if (*data == 'U')
		to_server(data + 1, size - 1, -1);
	else if (*data == 'R')
		to_server(data + 1, size - 1, 1);
	else if (*data == 'C')
		to_client(data + 1, size - 1);
	return 0;
}
