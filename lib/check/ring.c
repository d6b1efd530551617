/* SPDX-License-Identifier: BSD-3-Clause */
/* A node's side of the all-reduce: a ring of the probers' sockets, each bound to its node's own
 * address in the chosen network. It verifies the sums to the last bit, counts the bytes at the NIC,
 * and measures the rate of each link. */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "check/check_internal.h"
#include "overlay/socket.h"

#define TOKEN_BYTES 32
#define RATE_MS 400
#define RATE_MAX_BYTES (512u << 20)
#define RATE_BLOCK (1u << 18)
#define COUNTER_MS 2500 /* some drivers update their counters only every 2 s */

static const size_t sizes[] = {1 << 10, 1 << 18, 1 << 22};
#define SIZES (sizeof sizes / sizeof *sizes)

struct ring {
	const struct prober *prober;
	size_t position, count; /* index in the ring */
	size_t next_node, prev_node;
	struct sockaddr_storage next, own;
	socklen_t next_size, own_size;
	const char *iface;
	int out_fd, in_fd;
	int64_t deadline_ms;
	uint64_t sent_bytes;
	char problem[256]; /* the first problem, or "" */
};

static bool fail(struct ring *ring, const char *what)
{
	if (!*ring->problem)
		snprintf(ring->problem, sizeof ring->problem, "%s", what);
	return false;
}

/* The token that a node sends to the next one, so that no unauthenticated peer joins the ring. */
static void make_token(const struct prober *prober, size_t from, size_t to,
		       unsigned char out[TOKEN_BYTES])
{
	char text[128];

	snprintf(text, sizeof text, "ring %s %zu %zu", prober->token, from, to);
	crypto_generichash(out, TOKEN_BYTES, (const unsigned char *)text, strlen(text),
			   prober->secret.bytes, sizeof prober->secret.bytes);
}

/* Send and receive at the same time; either may be empty. Return false unless both complete. */
static bool exchange(struct ring *ring, const void *out, size_t out_size, void *in, size_t in_size)
{
	const unsigned char *from = out;
	unsigned char *to = in;

	while (out_size || in_size) {
		struct pollfd polls[2] = {{out_size ? ring->out_fd : -1, POLLOUT, 0},
					  {in_size ? ring->in_fd : -1, POLLIN, 0}};
		ssize_t n;

		if (poll(polls, 2, clock_left_ms(ring->deadline_ms)) == 0)
			return fail(ring, in_size ? "the previous node in the ring sends nothing"
						  : "the next node in the ring accepts nothing");
		if (polls[0].revents) {
			n = send(ring->out_fd, from, out_size, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (n < 0 && errno != EAGAIN && errno != EINTR)
				return fail(ring,
					    "the connection to the next node in the ring broke");
			n = n > 0 ? n : 0;
			from += n;
			out_size -= (size_t)n;
			ring->sent_bytes += (uint64_t)n;
		}
		if (polls[1].revents) {
			n = recv(ring->in_fd, to, in_size, MSG_DONTWAIT);
			if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
				return fail(
					ring,
					"the connection from the previous node in the ring broke");
			n = n > 0 ? n : 0;
			to += n;
			in_size -= (size_t)n;
		}
	}
	return true;
}

static bool connect_next(struct ring *ring)
{
	int error = 0;
	socklen_t size = sizeof error;
	struct pollfd poll_out;

	ring->out_fd = socket(ring->next.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ring->out_fd < 0 || bind(ring->out_fd, (struct sockaddr *)&ring->own, ring->own_size))
		return fail(ring, "cannot use its own address in the chosen network");
	if (connect(ring->out_fd, (struct sockaddr *)&ring->next, ring->next_size) &&
	    errno != EINPROGRESS)
		return fail(ring, "cannot connect to the next node in the ring");
	poll_out = (struct pollfd){ring->out_fd, POLLOUT, 0};
	if (poll(&poll_out, 1, clock_left_ms(ring->deadline_ms)) <= 0 ||
	    getsockopt(ring->out_fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
		return fail(ring, "cannot connect to the next node in the ring");
	return true;
}

/* Is it the neighbour? It must send its token within a second. */
static bool is_neighbour(const struct ring *ring, int fd)
{
	unsigned char expected[TOKEN_BYTES], got[TOKEN_BYTES];
	int64_t until = clock_now_ms() + 1000;
	size_t have = 0;

	make_token(ring->prober, ring->prev_node, ring->prober->node_index, expected);
	while (have < sizeof got) {
		struct pollfd wait = {fd, POLLIN, 0};
		int64_t left = until - clock_now_ms();
		ssize_t n;

		if (left <= 0 || poll(&wait, 1, (int)left) <= 0)
			return false;
		n = recv(fd, got + have, sizeof got - have, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		have += n > 0 ? (size_t)n : 0;
	}
	return sodium_memcmp(got, expected, sizeof got) == 0;
}

static bool accept_previous(struct ring *ring)
{
	while (ring->in_fd < 0) {
		struct pollfd listening = {ring->prober->ring_fd, POLLIN, 0};
		int fd;

		if (poll(&listening, 1, clock_left_ms(ring->deadline_ms)) <= 0)
			return fail(ring, "the previous node in the ring did not connect");
		fd = accept4(ring->prober->ring_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			continue;
		if (is_neighbour(ring, fd))
			ring->in_fd = fd;
		else
			close(fd);
	}
	return true;
}

static bool connect_ring(struct ring *ring)
{
	unsigned char token[TOKEN_BYTES];

	if (!connect_next(ring))
		return false;
	make_token(ring->prober, ring->prober->node_index, ring->next_node, token);
	return exchange(ring, token, sizeof token, NULL, 0) && accept_previous(ring);
}

/* Element x of position p is (p + 1) f(x) modulo 2^32, so that each sum is known without the
 * others' data: f(x) count (count + 1) / 2. */
static uint32_t element(size_t x)
{
	return (uint32_t)x * 2246822519u + 374761393u;
}

static size_t chunk_begin(const struct ring *ring, size_t chunk, size_t elements)
{
	return chunk * elements / ring->count;
}

static void add_up(uint32_t *to, const uint32_t *from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] += from[i];
}

/* Reduce-scatter, then all-gather. */
static bool all_reduce(struct ring *ring, uint32_t *data, uint32_t *room, size_t elements)
{
	for (size_t s = 0; s < 2 * (ring->count - 1); s++) {
		bool adds = s < ring->count - 1;
		/* In the second half, forward what was summed last. */
		size_t out = (ring->position + 2 * ring->count - s + (adds ? 0 : 1) +
			      (adds ? 0 : ring->count - 1)) %
			     ring->count;
		size_t in = (out + ring->count - 1) % ring->count;
		size_t from = chunk_begin(ring, out, elements),
		       from_end = chunk_begin(ring, out + 1, elements),
		       to = chunk_begin(ring, in, elements),
		       to_end = chunk_begin(ring, in + 1, elements);

		if (!exchange(ring, data + from, (from_end - from) * sizeof *data,
			      adds ? room : data + to, (to_end - to) * sizeof *data))
			return false;
		if (adds)
			add_up(data + to, room, to_end - to);
	}
	return true;
}

static bool checked_sum(struct ring *ring, size_t bytes, uint32_t *data, uint32_t *room)
{
	size_t elements = bytes / sizeof *data;
	uint32_t places = (uint32_t)((uint64_t)ring->count * (ring->count + 1) / 2);

	for (size_t x = 0; x < elements; x++)
		data[x] = (uint32_t)(ring->position + 1) * element(x);
	if (!all_reduce(ring, data, room, elements))
		return false;
	for (size_t x = 0; x < elements; x++)
		if (data[x] != places * element(x)) {
			char what[128];

			snprintf(what, sizeof what,
				 "the sum of %zu KiB is wrong, first at element %zu", bytes >> 10,
				 x);
			return fail(ring, what);
		}
	return true;
}

/* Send blocks to the next and receive blocks from the previous node. Each is a length and that many
 * bytes; length 0 ends the stream. */
struct flow {
	uint64_t bytes; /* received */
	int64_t first_ms, last_ms;
	int64_t acked, link_us; /* see link_use */
	uint32_t want;		/* remaining bytes of the current block */
	unsigned char header[4];
	size_t header_received;
	bool over;
};

static bool receive_flow(struct ring *ring, struct flow *flow, unsigned char *room)
{
	ssize_t n = flow->want ? recv(ring->in_fd, room, flow->want, MSG_DONTWAIT)
			       : recv(ring->in_fd, flow->header + flow->header_received,
				      4 - flow->header_received, MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		return fail(ring, "the connection from the previous node in the ring broke");
	if (n < 0)
		return true;
	flow->last_ms = clock_now_ms();
	if (!flow->first_ms)
		flow->first_ms = flow->last_ms;
	flow->bytes += (uint64_t)n;
	if (flow->want) {
		flow->want -= (uint32_t)n;
		return true;
	}
	flow->header_received += (size_t)n;
	if (flow->header_received < 4)
		return true;
	flow->header_received = 0;
	flow->want = bytes_get_u32(flow->header);
	flow->over = !flow->want;
	return flow->want <= RATE_BLOCK ||
	       fail(ring, "invalid data from the previous node in the ring");
}

/* Subtract (sign -1), then add (1) what the kernel knows about the link to the next node: the bytes
 * that arrived, and the time in which the link itself held them up. When this end waits for a core
 * there is nothing to send, and when the next node's does its window is shut: neither counts. */
static void link_use(const struct ring *ring, struct flow *flow, int sign)
{
	struct tcp_info info = {0};
	socklen_t size = sizeof info;

	if (getsockopt(ring->out_fd, IPPROTO_TCP, TCP_INFO, &info, &size))
		return;
	flow->acked += sign * (int64_t)info.tcpi_bytes_acked;
	flow->link_us += sign * (int64_t)(info.tcpi_busy_time - info.tcpi_rwnd_limited);
}

static bool measure(struct ring *ring, struct flow *flow)
{
	unsigned char *out = calloc(1, 4 + RATE_BLOCK), *room = malloc(RATE_BLOCK);
	int64_t until = clock_now_ms() + RATE_MS;
	size_t size = 0, at = 0;
	bool ending = false, sent = false, good = out && room;

	link_use(ring, flow, -1);
	while (good && (!sent || !flow->over)) {
		struct pollfd polls[2] = {{sent ? -1 : ring->out_fd, POLLOUT, 0},
					  {flow->over ? -1 : ring->in_fd, POLLIN, 0}};

		if (at == size && !sent) {
			ending = clock_now_ms() >= until || ring->sent_bytes > RATE_MAX_BYTES;
			bytes_put_u32(out, ending ? 0 : RATE_BLOCK);
			size = ending ? 4 : 4 + RATE_BLOCK;
			at = 0;
		}
		if (poll(polls, 2, clock_left_ms(ring->deadline_ms)) == 0)
			good = fail(ring, "the measurement stalled");
		if (good && polls[1].revents)
			good = receive_flow(ring, flow, room);
		if (good && polls[0].revents) {
			ssize_t n = send(ring->out_fd, out + at, size - at,
					 MSG_NOSIGNAL | MSG_DONTWAIT);

			if (n < 0 && errno != EAGAIN && errno != EINTR)
				good = fail(ring,
					    "the connection to the next node in the ring broke");
			at += n > 0 ? (size_t)n : 0;
			ring->sent_bytes += n > 0 ? (uint64_t)n : 0;
			sent = ending && at == size;
		}
	}
	link_use(ring, flow, 1);
	free(out);
	free(room);
	return good;
}

/* Bytes that the interface has sent; -1: unknown. */
static int64_t counted(const char *iface)
{
	char path[128];
	int64_t bytes = -1;

	snprintf(path, sizeof path, "/sys/class/net/%s/statistics/tx_bytes", iface);
	file_read_number(path, 0, INT64_MAX, &bytes);
	return bytes;
}

/* The bytes that the interface has sent since its counter was at `before`; -1: unknown. Waits at
 * most COUNTER_MS until they include all that the ring sent: the last ones may still be in the
 * socket, and drivers may count them later. */
static int64_t counted_since(const struct ring *ring, int64_t before)
{
	int64_t until = clock_now_ms() + COUNTER_MS, count;

	if (before < 0)
		return -1;
	until = until < ring->deadline_ms ? until : ring->deadline_ms;
	while ((count = counted(ring->iface)) >= 0 && !*ring->problem &&
	       (uint64_t)(count - before) < ring->sent_bytes && clock_now_ms() < until)
		poll(NULL, 0, 10);
	return count < 0 ? -1 : count - before;
}

static int read_question(struct ring *ring, const json_t *question)
{
	const char *next, *own;
	int64_t position, count, next_node, prev_node;

	if (json_get_int("ring", question, "place", 0, 1 << 20, &position, NULL) ||
	    json_get_int("ring", question, "count", 2, 1 << 20, &count, NULL) ||
	    json_get_int("ring", question, "next_node", 0, 1 << 20, &next_node, NULL) ||
	    json_get_int("ring", question, "prev_node", 0, 1 << 20, &prev_node, NULL) ||
	    json_get_string("ring", question, "next", &next, NULL) ||
	    json_get_string("ring", question, "own", &own, NULL) ||
	    json_get_string("ring", question, "iface", &ring->iface, NULL) ||
	    socket_parse(next, &ring->next, &ring->next_size, NULL) ||
	    socket_parse(own, &ring->own, &ring->own_size, NULL))
		return -1;
	/* Drop the placeholder port: any port of the own address will do. */
	if (ring->own.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&ring->own)->sin6_port = 0;
	else
		((struct sockaddr_in *)&ring->own)->sin_port = 0;
	ring->position = (size_t)position;
	ring->count = (size_t)count;
	ring->next_node = (size_t)next_node;
	ring->prev_node = (size_t)prev_node;
	return 0;
}

json_t *probe_ring_run(const struct prober *prober, const json_t *question)
{
	struct ring ring = {.prober = prober, .out_fd = -1, .in_fd = -1};
	uint32_t *data = malloc(sizes[SIZES - 1]), *room = malloc(sizes[SIZES - 1]);
	struct flow flow = {0};
	int64_t before;
	json_t *answer;

	if (!data || !room || read_question(&ring, question)) {
		free(data);
		free(room);
		return NULL;
	}
	ring.deadline_ms = clock_now_ms() + PROBE_RING_MS;
	before = counted(ring.iface);
	if (connect_ring(&ring)) {
		bool good = true;

		for (size_t s = 0; good && s < SIZES; s++)
			good = checked_sum(&ring, sizes[s], data, room);
		if (good)
			measure(&ring, &flow);
	}
	answer = json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "problem",
			   json_text(*ring.problem ? ring.problem : NULL), "sent",
			   (json_int_t)ring.sent_bytes, "counted",
			   (json_int_t)counted_since(&ring, before), "received",
			   (json_int_t)flow.bytes, "ms", (json_int_t)(flow.last_ms - flow.first_ms),
			   "acked", (json_int_t)flow.acked, "link_us", (json_int_t)flow.link_us);
	if (ring.out_fd >= 0)
		close(ring.out_fd);
	if (ring.in_fd >= 0)
		close(ring.in_fd);
	free(data);
	free(room);
	return answer;
}
