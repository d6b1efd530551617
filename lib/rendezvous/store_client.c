/* SPDX-License-Identifier: BSD-3-Clause */
/* Every rank's side of the store. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/store.h"

#define CANCEL_MS 1000
#define PAUSES 25 /* how long to try an address, in pauses between tries: 250 ms, later 4 s */

/* ---- messages: 0, or an errno ---- */

/* The data are the key with its NUL (if any), then size bytes. */
static int message_send(struct store_client *client, struct frame frame, const char *key,
			const void *value, size_t size, int64_t until)
{
	struct bytes data = {0};
	int rc = 0;

	if ((key && bytes_add(&data, key, strlen(key) + 1)) || bytes_add(&data, value, size))
		rc = ENOMEM;
	frame.size = data.size;
	if (!rc && channel_send(&client->channel, &frame, data.data))
		rc = errno;
	bytes_free(&data);
	if (rc)
		return rc;
	rc = channel_flush(&client->channel, clock_left_ms(until));
	return rc < 0 ? errno : rc ? ETIMEDOUT : 0;
}

/* Receive a message; *text is malloced and NUL-terminated. After ETIMEDOUT the part that came
 * waits for the next call. */
static int message_receive(struct store_client *client, struct frame *frame, char **text,
			   int64_t until)
{
	const void *data;
	bool extended = false;
	int rc, gone = 0;

	while (!(rc = channel_next(&client->channel, frame, &data))) {
		if (gone)
			return gone;
		rc = channel_wait(&client->channel, clock_left_ms(until));
		if (rc < 0)
			return errno;
		if (!rc && (extended || !client->channel.in.size))
			return ETIMEDOUT;
		if (!rc) { /* an answer has begun: it gets more time */
			extended = true;
			until = clock_now_ms() + CANCEL_MS;
			continue;
		}
		if (channel_fill(&client->channel))
			gone = errno;
	}
	if (rc < 0)
		return errno;
	*text = bytes_copy(data, frame->size);
	return *text ? 0 : ENOMEM;
}

static int lost(struct store_client *client, int seen, struct error *err)
{
	channel_close(&client->channel);
	if (seen == EPROTO)
		return error_set(err, ERR_NETWORK,
				 "the peer at %s is not rank 0 of this job: another program uses "
				 "the port; choose another MASTER_PORT",
				 client->where);
	return error_set(err, ERR_NETWORK, "lost the connection to rank 0 at %s: %s", client->where,
			 strerror(seen));
}

/* Send a request and wait for the answer with its number. After ETIMEDOUT the request is still in
 * progress. */
static int request(struct store_client *client, struct frame frame, const char *key,
		   const void *value, size_t size, int64_t until, struct frame *answer, char **text)
{
	frame.token = ++client->number;
	int rc = message_send(client, frame, key, value, size, until);

	if (rc)
		return rc == ETIMEDOUT ? ECONNRESET : rc;
	for (;;) {
		rc = message_receive(client, answer, text, until);
		if (rc || answer->token == client->number)
			return rc;
		free(*text); /* for a request that was given up */
	}
}

/* After a deadline: write the missing ranks to who; "" if they are unknown. */
static void cancel_request(struct store_client *client, char *who, size_t size)
{
	struct frame frame = {.kind = STORE_CANCEL}, answer;
	char *text = NULL;

	who[0] = 0;
	if (!request(client, frame, NULL, NULL, 0, clock_now_ms() + CANCEL_MS, &answer, &text)) {
		if (answer.kind == STORE_MISSING)
			snprintf(who, size, "%s", text);
		free(text);
	}
}

/* ---- connect ---- */

/* Wait until a connect has ended. Return 0, or an errno. */
static int connected(int fd, int64_t until)
{
	struct pollfd poll_fd = {fd, POLLOUT, 0};
	int ready;

	do
		ready = poll(&poll_fd, 1, clock_left_ms(until));
	while (ready < 0 && errno == EINTR);
	return ready < 0 ? errno : ready ? 0 : ETIMEDOUT;
}

static int connect_one(const struct addrinfo *address, int64_t until)
{
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int seen = 0;
	socklen_t size = sizeof seen;

	if (fd < 0)
		return -errno;
	if (connect(fd, address->ai_addr, address->ai_addrlen)) {
		seen = errno == EINPROGRESS ? connected(fd, until) : errno;
		if (!seen && getsockopt(fd, SOL_SOCKET, SO_ERROR, &seen, &size))
			seen = errno;
	}
	if (!seen)
		return fd;
	close(fd);
	return -seen;
}

/* Return a descriptor, or -errno of the last try. If there are several addresses, each gets
 * slice_ms at most, so that one on which no packet arrives does not use up the time of the others.
 */
static int connect_any(const char *address, int port, int slice_ms, int64_t until)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
	char service[16];
	int fd = -EHOSTUNREACH;

	snprintf(service, sizeof service, "%d", port);
	if (getaddrinfo(address, service, &hints, &list))
		return -ENXIO;
	for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
		int64_t slice = clock_now_ms() + slice_ms;

		fd = connect_one(at, list->ai_next && slice < until ? slice : until);
	}
	freeaddrinfo(list);
	return fd;
}

/* Exchange proofs with the peer. Return 0; an errno if the connection broke, which may be because
 * others flood the server; or EACCES with err if the answer is final. */
static int introduce(struct store_client *client, const struct store_job *job, int64_t until,
		     struct error *err)
{
	struct frame frame = {.kind = STORE_HELLO,
			      .number = client->rank,
			      .token = (uint64_t)client->size},
		     answer;
	unsigned char proof[STORE_PROOF_BYTES];
	struct store_nonces nonces;
	char *text = NULL;
	int rc = getrandom(nonces.client, STORE_NONCE_BYTES, 0) == STORE_NONCE_BYTES ? 0 : EIO;

	if (!rc)
		rc = message_send(client, frame, NULL, nonces.client, STORE_NONCE_BYTES, until);
	if (!rc)
		rc = message_receive(client, &answer, &text, until);
	if (rc)
		return rc;
	if (answer.kind != STORE_CHALLENGE ||
	    answer.size != STORE_NONCE_BYTES + STORE_PROOF_BYTES) {
		free(text);
		return EPROTO;
	}
	memcpy(nonces.server, text, STORE_NONCE_BYTES);
	store_proof(job, "server", &nonces, frame.number, frame.token, proof);
	rc = memcmp(proof, text + STORE_NONCE_BYTES, sizeof proof);
	free(text);
	if (rc) {
		error_set(err, ERR_DATA,
			  "the peer at %s does not know this job's secret: it belongs to another "
			  "job, or another program uses the port; choose another MASTER_PORT",
			  client->where);
		return EACCES;
	}
	store_proof(job, "client", &nonces, frame.number, frame.token, proof);
	frame.kind = STORE_PROVE;
	rc = message_send(client, frame, NULL, proof, sizeof proof, until);
	if (!rc)
		rc = message_receive(client, &answer, &text, until);
	if (rc)
		return rc;
	if (answer.kind == STORE_REFUSED) {
		error_set(err, ERR_DATA, "rank 0 at %s rejected rank %d: %s", client->where,
			  client->rank, text);
		rc = EACCES;
	} else if (answer.kind != STORE_WELCOME) {
		rc = EPROTO;
	}
	free(text);
	return rc;
}

int store_connect(const char *address, int port, int rank, int size, const struct store_job *job,
		  int timeout_ms, struct store_client *out, struct error *err)
{
	struct store_client client = {.rank = rank, .size = size};
	int64_t until = clock_now_ms() + timeout_ms, try_until;
	int pause_ms = 10, broke = 0, fd;

	snprintf(client.where, sizeof client.where, "%s port %d", address, port);
	for (;;) {
		fd = connect_any(address, port, PAUSES * pause_ms, until);
		client.channel = (struct channel){.fd = fd, .limit = STORE_FRAME_MAX};
		try_until = clock_now_ms() + STORE_HELLO_MS;
		broke = fd < 0 ? 0
			       : introduce(&client, job, try_until < until ? try_until : until,
					   err);
		if (fd >= 0 && !broke) {
			*out = client;
			return 0;
		}
		if (broke == EPROTO || broke == ENOMEM)
			return lost(&client, broke, err);
		channel_close(&client.channel);
		if (broke == EACCES)
			return -ERR_DATA;
		if (clock_now_ms() + pause_ms >= until)
			break;
		poll(NULL, 0, pause_ms);
		pause_ms = pause_ms < 160 ? pause_ms * 2 : pause_ms;
	}
	if (broke)
		return error_set(
			err, ERR_NETWORK,
			"the peer at %s accepts connections but did not answer within "
			"%d ms (%s): it is busy or flooded, or it is not rank 0 of this job; "
			"if so, choose another MASTER_PORT",
			client.where, timeout_ms, strerror(broke));
	return error_set(err, ERR_NETWORK,
			 "cannot reach rank 0: nothing answered at %s within %d ms (%s)",
			 client.where, timeout_ms,
			 fd == -ENXIO ? "the host name does not resolve" : strerror(-fd));
}

void store_close(struct store_client *client)
{
	if (client->channel.fd < 0)
		return;
	(void)!message_send(client, (struct frame){.kind = STORE_BYE}, NULL, NULL, 0,
			    clock_now_ms() + 100);
	channel_close(&client->channel);
}

/* ---- operations ---- */

/* Check what request returned for what: rc, and the answer if it is 0. Return 0 if the answer is of
 * the type expected; otherwise free text. */
static int check_answer(struct store_client *client, int rc, const struct frame *answer,
			enum store_kind expected, const char *what, char *text, struct error *err)
{
	if (rc)
		return lost(client, rc, err);
	if (answer->kind == expected)
		return 0;
	rc = answer->kind == STORE_FAILED ? error_set(err, ERR_NETWORK, "%s: %s", what, text)
					  : lost(client, EPROTO, err);
	free(text);
	return rc;
}

int store_barrier(struct store_client *client, int timeout_ms, struct error *err)
{
	struct frame frame = {.kind = STORE_BARRIER}, answer;
	char *text = NULL, who[256], what[64];
	int rc = request(client, frame, NULL, NULL, 0, clock_now_ms() + timeout_ms, &answer, &text);

	snprintf(what, sizeof what, "barrier of %d ranks", client->size);
	if (rc == ETIMEDOUT) {
		cancel_request(client, who, sizeof who);
		return error_set(err, ERR_NETWORK, "%s: after %d ms still waiting for rank%s %s",
				 what, timeout_ms, strpbrk(who, ",-") ? "s" : "",
				 *who ? who : "(unknown)");
	}
	rc = check_answer(client, rc, &answer, STORE_DONE, what, text, err);
	if (!rc)
		free(text);
	return rc;
}

int store_put(struct store_client *client, const char *key, const void *data, size_t size,
	      int timeout_ms, struct error *err)
{
	struct frame frame = {.kind = STORE_PUT}, answer;
	char *text = NULL, what[STORE_KEY_MAX + 32];
	int rc;

	if (size > STORE_VALUE_MAX)
		return error_set(err, ERR_DATA,
				 "put of '%s': the value has %zu bytes, expected at most %u", key,
				 size, STORE_VALUE_MAX);
	snprintf(what, sizeof what, "put of '%s'", key);
	rc = request(client, frame, key, data, size, clock_now_ms() + timeout_ms, &answer, &text);
	rc = check_answer(client, rc, &answer, STORE_DONE, what, text, err);
	if (!rc)
		free(text);
	return rc;
}

int store_get(struct store_client *client, int rank, const char *key, int timeout_ms, void **data,
	      size_t *size, struct error *err)
{
	struct frame frame = {.kind = STORE_GET, .number = rank}, answer;
	char *text = NULL, who[64], what[STORE_KEY_MAX + 64], of[24] = "any rank";
	bool any = rank == STORE_ANY;
	int rc;

	if (!any)
		snprintf(of, sizeof of, "rank %d", rank);
	rc = request(client, frame, key, NULL, 0, clock_now_ms() + timeout_ms, &answer, &text);
	if (rc == ETIMEDOUT) {
		cancel_request(client, who, sizeof who);
		return error_set(err, ERR_NETWORK, "%s%s put '%s' within %d ms",
				 any ? "no rank" : of, any ? " has" : " has not", key, timeout_ms);
	}
	snprintf(what, sizeof what, "get of '%s' from %s", key, of);
	rc = check_answer(client, rc, &answer, STORE_VALUE, what, text, err);
	if (rc)
		return rc;
	*data = text;
	*size = answer.size;
	return 0;
}
