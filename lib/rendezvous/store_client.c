/* SPDX-License-Identifier: BSD-3-Clause */
/* Every rank's side of the store, and the messages' wire form. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/store.h"

#define CANCEL_MS 1000

static void write_u32(unsigned char *to, uint32_t value)
{
	value = htonl(value);
	memcpy(to, &value, sizeof value);
}

static uint32_t read_u32(const unsigned char *from)
{
	uint32_t value;

	memcpy(&value, from, sizeof value);
	return ntohl(value);
}

void store_header_write(const struct store_message *message,
			unsigned char header[STORE_HEADER_BYTES])
{
	write_u32(header, STORE_MAGIC);
	write_u32(header + 4, message->type << 16 | message->key_size);
	write_u32(header + 8, message->rank);
	write_u32(header + 12, message->number);
	write_u32(header + 16, message->size);
}

int store_header_read(const unsigned char header[STORE_HEADER_BYTES], struct store_message *message)
{
	struct store_message read = {0};
	uint32_t type_key = read_u32(header + 4);

	read.type = type_key >> 16;
	read.key_size = type_key & 0xffff;
	read.rank = read_u32(header + 8);
	read.number = read_u32(header + 12);
	read.size = read_u32(header + 16);
	if (read_u32(header) != STORE_MAGIC || read.type < STORE_HELLO || read.type > STORE_BYE ||
	    read.key_size > STORE_KEY_MAX || read.size > STORE_VALUE_MAX)
		return -1;
	bool keyed = read.type == STORE_PUT || read.type == STORE_GET;

	if (keyed != (read.key_size > 0))
		return -1;
	*message = read;
	return 0;
}

/* ---- bytes with a deadline: 0, or an errno ---- */

static int wait_for(int fd, short events, int64_t until)
{
	struct pollfd poll_fd = {fd, events, 0};

	for (;;) {
		int64_t left = until - clock_now_ms();
		int ready = poll(&poll_fd, 1, left > 0 ? (int)left : 0);

		if (ready > 0)
			return 0;
		if (ready < 0 && errno != EINTR)
			return errno;
		if (left <= 0)
			return ETIMEDOUT;
	}
}

/* Send all of data if events is POLLOUT, or receive it if events is POLLIN. */
static int transfer(int fd, short events, void *data, size_t size, int64_t until)
{
	char *at = data;

	while (size) {
		ssize_t n = events == POLLOUT ? send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT)
					      : recv(fd, at, size, MSG_DONTWAIT);

		if (n > 0) {
			at += n;
			size -= (size_t)n;
		} else if (n == 0 && events == POLLIN) {
			return ECONNRESET;
		} else if (errno == EAGAIN) {
			int rc = wait_for(fd, events, until);

			if (rc)
				return rc;
		} else if (errno != EINTR) {
			return errno;
		}
	}
	return 0;
}

/* ---- messages ---- */

static int message_send(const struct store_client *client, const struct store_message *message,
			const void *data, int64_t until)
{
	unsigned char header[STORE_HEADER_BYTES + STORE_KEY_MAX];

	store_header_write(message, header);
	memcpy(header + STORE_HEADER_BYTES, message->key, message->key_size);
	int rc = transfer(client->fd, POLLOUT, header, STORE_HEADER_BYTES + message->key_size,
			  until);

	return rc ? rc : transfer(client->fd, POLLOUT, (void *)data, message->size, until);
}

/* Receive a message; *data is malloced and NUL-terminated. Return 0, an errno, or EPROTO. The
 * deadline applies only to the header: giving up halfway through a message would corrupt the
 * connection. */
static int message_receive(const struct store_client *client, struct store_message *message,
			   char **data, int64_t until)
{
	unsigned char header[STORE_HEADER_BYTES];
	int rc = wait_for(client->fd, POLLIN, until);

	if (!rc)
		rc = transfer(client->fd, POLLIN, header, sizeof header, until + CANCEL_MS);
	if (rc)
		return rc;
	if (store_header_read(header, message) || message->key_size)
		return EPROTO;
	char *bytes = malloc((size_t)message->size + 1);

	if (!bytes)
		return ENOMEM;
	rc = transfer(client->fd, POLLIN, bytes, message->size, until + CANCEL_MS);
	if (rc) {
		free(bytes);
		return rc;
	}
	bytes[message->size] = 0;
	*data = bytes;
	return 0;
}

static int lost(struct store_client *client, int seen, struct error *err)
{
	close(client->fd);
	client->fd = -1;
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
static int request(struct store_client *client, struct store_message *message, const void *data,
		   int64_t until, struct store_message *answer, char **answer_data)
{
	message->number = ++client->number;
	int rc = message_send(client, message, data, until);

	if (rc)
		return rc == ETIMEDOUT ? ECONNRESET : rc;
	for (;;) {
		rc = message_receive(client, answer, answer_data, until);
		if (rc || answer->number == client->number)
			return rc;
		free(*answer_data); /* for a request that was given up */
	}
}

/* After a deadline: write the missing ranks to who; "" if they are unknown. */
static void cancel_request(struct store_client *client, char *who, size_t size)
{
	struct store_message message = {.type = STORE_CANCEL}, answer;
	char *text = NULL;

	who[0] = 0;
	if (!request(client, &message, NULL, clock_now_ms() + CANCEL_MS, &answer, &text)) {
		if (answer.type == STORE_MISSING)
			snprintf(who, size, "%s", text);
		free(text);
	}
}

/* ---- connect ---- */

static int connect_one(const struct addrinfo *address, int64_t until)
{
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int seen = 0;
	socklen_t size = sizeof seen;

	if (fd < 0)
		return -errno;
	if (connect(fd, address->ai_addr, address->ai_addrlen)) {
		seen = errno == EINPROGRESS ? wait_for(fd, POLLOUT, until) : errno;
		if (!seen && getsockopt(fd, SOL_SOCKET, SO_ERROR, &seen, &size))
			seen = errno;
	}
	if (!seen)
		return fd;
	close(fd);
	return -seen;
}

/* Return a descriptor, or -errno of the last try. */
static int connect_any(const char *address, int port, int64_t until)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
	char service[16];
	int fd = -EHOSTUNREACH;

	snprintf(service, sizeof service, "%d", port);
	if (getaddrinfo(address, service, &hints, &list))
		return -ENXIO;
	for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
		fd = connect_one(at, until);
	freeaddrinfo(list);
	return fd;
}

static int send_hello(struct store_client *client, const char *label, int64_t until,
		      struct error *err)
{
	struct store_message message = {.type = STORE_HELLO,
					.rank = (uint32_t)client->rank,
					.number = (uint32_t)client->size,
					.size = (uint32_t)strlen(label)},
			     answer;
	char *text = NULL;
	int rc = message_send(client, &message, label, until);

	if (!rc)
		rc = message_receive(client, &answer, &text, until);
	if (rc)
		return lost(client, rc == ECONNRESET || rc == ETIMEDOUT ? EPROTO : rc, err);
	if (answer.type == STORE_REFUSED) {
		rc = error_set(err, ERR_DATA, "rank 0 at %s rejected rank %d: %s", client->where,
			       client->rank, text);
		close(client->fd);
		client->fd = -1;
	} else if (answer.type != STORE_WELCOME) {
		rc = lost(client, EPROTO, err);
	}
	free(text);
	return rc;
}

int store_connect(const char *address, int port, int rank, int size, const char *label,
		  int timeout_ms, struct store_client *out, struct error *err)
{
	struct store_client client = {.rank = rank, .size = size};
	int64_t until = clock_now_ms() + timeout_ms;
	int pause_ms = 10;

	snprintf(client.where, sizeof client.where, "%s port %d", address, port);
	while ((client.fd = connect_any(address, port, until)) < 0) {
		if (clock_now_ms() + pause_ms >= until)
			return error_set(
				err, ERR_NETWORK,
				"cannot reach rank 0: nothing answered at %s within %d ms (%s)",
				client.where, timeout_ms,
				client.fd == -ENXIO ? "the host name does not resolve"
						    : strerror(-client.fd));
		poll(NULL, 0, pause_ms);
		pause_ms = pause_ms < 160 ? pause_ms * 2 : pause_ms;
	}
	int rc = send_hello(&client, label, until, err);

	if (!rc)
		*out = client;
	return rc;
}

void store_close(struct store_client *client)
{
	struct store_message message = {.type = STORE_BYE};

	if (client->fd < 0)
		return;
	(void)!message_send(client, &message, NULL, clock_now_ms() + 100);
	close(client->fd);
	client->fd = -1;
}

/* ---- operations ---- */

/* Check what request returned for what: rc, and the answer if it is 0. Return 0 if the answer is of
 * the type expected; otherwise free text. */
static int check_answer(struct store_client *client, int rc, const struct store_message *answer,
			enum store_type expected, const char *what, char *text, struct error *err)
{
	if (rc)
		return lost(client, rc, err);
	if (answer->type == expected)
		return 0;
	rc = answer->type == STORE_FAILED ? error_set(err, ERR_NETWORK, "%s: %s", what, text)
					  : lost(client, EPROTO, err);
	free(text);
	return rc;
}

int store_barrier(struct store_client *client, int timeout_ms, struct error *err)
{
	struct store_message message = {.type = STORE_BARRIER}, answer;
	char *text = NULL, who[256], what[64];
	int rc = request(client, &message, NULL, clock_now_ms() + timeout_ms, &answer, &text);

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

static void set_key(struct store_message *message, const char *key)
{
	message->key_size = (uint32_t)strnlen(key, STORE_KEY_MAX);
	memcpy(message->key, key, message->key_size);
}

int store_put(struct store_client *client, const char *key, const void *data, size_t size,
	      int timeout_ms, struct error *err)
{
	struct store_message message = {.type = STORE_PUT, .size = (uint32_t)size}, answer;
	char *text = NULL, what[STORE_KEY_MAX + 32];
	int rc;

	if (size > STORE_VALUE_MAX)
		return error_set(err, ERR_DATA,
				 "put of '%s': the value has %zu bytes, expected at most %u", key,
				 size, STORE_VALUE_MAX);
	set_key(&message, key);
	snprintf(what, sizeof what, "put of '%s'", key);
	rc = request(client, &message, data, clock_now_ms() + timeout_ms, &answer, &text);
	rc = check_answer(client, rc, &answer, STORE_DONE, what, text, err);
	if (!rc)
		free(text);
	return rc;
}

int store_get(struct store_client *client, int rank, const char *key, int timeout_ms, void **data,
	      size_t *size, struct error *err)
{
	struct store_message message = {.type = STORE_GET, .rank = (uint32_t)rank}, answer;
	char *text = NULL, who[64], what[STORE_KEY_MAX + 64], of[24] = "any rank";
	bool any = rank == STORE_ANY;
	int rc;

	set_key(&message, key);
	if (!any)
		snprintf(of, sizeof of, "rank %d", rank);
	rc = request(client, &message, NULL, clock_now_ms() + timeout_ms, &answer, &text);
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
