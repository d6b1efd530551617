/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes from an unauthenticated peer to an agent or the controller, and contents of messages. The
 * first byte selects the destination:
 *   S  to the side that accepts     C  to the side that connects     O  into an open connection
 *   M  a message's plain bytes      G  entries of a collective       L  lists of strings
 *   R  records of output */
#include "fuzz.h"

#include "base/bytes.h"
#include "overlay/tree.h"
#include "overlay/messages.h"
#include "overlay/wire.h"

static const struct secret secret = {{1, 2, 3}};

/* Unauthenticated bytes open no connection, however they are split, and get almost no answer. */
static void greet(enum wire_role role, const uint8_t *data, size_t size)
{
	struct wire *wire = wire_new(role, &secret, "job");
	struct wire_message message;
	struct error err = {0};
	size_t piece = size ? data[0] % 67 + 1 : 1;
	const void *out;

	CHECK(wire);
	for (size_t at = 0; at < size; at += piece)
		if (wire_feed(wire, data + at, size - at < piece ? size - at : piece, &err))
			break;
	CHECK(wire_state(wire) != WIRE_OPEN);
	CHECK(wire_next(wire, &message, &err) <= 0);
	CHECK(wire_output(wire, &out) <= WIRE_ANSWER_BYTES);
	wire_feed_eof(wire, &err);
	wire_free(wire);
}

static void move(struct wire *from, struct wire *to)
{
	const void *bytes;
	size_t size = wire_output(from, &bytes);

	CHECK(!wire_feed(to, bytes, size, NULL));
	wire_consume_output(from, size);
}

/* An open connection delivers no message that the other side did not send. */
static void forge(const uint8_t *data, size_t size)
{
	struct wire *a = wire_new(WIRE_CONNECTS, &secret, "job");
	struct wire *b = wire_new(WIRE_ACCEPTS, &secret, "job");
	struct wire_message message;
	struct error err = {0};

	CHECK(a && b);
	move(a, b);
	move(b, a);
	move(a, b);
	CHECK(wire_state(a) == WIRE_OPEN && wire_state(b) == WIRE_OPEN);
	wire_feed(b, data, size, &err);
	CHECK(wire_next(b, &message, &err) <= 0);
	CHECK(wire_feed_eof(b, &err) < 0);
	wire_free(a);
	wire_free(b);
}

static void decode(const uint8_t *data, size_t size)
{
	struct wire_message message;
	struct error err = {0};
	unsigned char *again;

	if (wire_decode(data, size, 0, 0, &message, &err)) {
		CHECK(err.code == ERR_DATA && *err.text);
		return;
	}
	CHECK(wire_plain_size(&message) == size);
	again = malloc(size);
	CHECK(again);
	wire_encode(&message, 0, 0, again);
	CHECK(!memcmp(again, data, size));
	free(again);
}

static void gather(const uint8_t *data, size_t size)
{
	struct gathers gathers = {0};
	struct gather *it = gathers_get(&gathers, 1);
	struct error err = {0};
	void *joined = NULL;
	size_t joined_size;

	CHECK(it);
	if (gather_merge(it, data, size, 64, &err))
		CHECK(err.code == ERR_DATA && !it->entries.size);
	else if (!gather_join(it, 64, &joined, &joined_size, &err))
		CHECK(joined_size + 8 * it->nodes == size);
	else
		CHECK(err.code == ERR_DATA && it->nodes > 1);
	free(joined);
	gathers_free(&gathers);
}

static void strings(const uint8_t *data, size_t size)
{
	const unsigned char *at = data;
	const char **list;
	size_t count, total;
	struct error err = {0};

	while (!bytes_next_strings(&at, &size, &list, &count, &err)) {
		total = 0;
		for (size_t i = 0; i < count; i++)
			total += strlen(list[i]) + 1;
		CHECK(!list[count] && total <= (size_t)(at - data));
		free(list);
	}
}

static void records(const uint8_t *data, size_t size)
{
	const unsigned char *at = data;
	struct message_output output;
	struct bytes again = {0};
	size_t left = size;

	while (message_next_output(&at, &left, &output, NULL) > 0)
		CHECK(output.size <= size && !message_add_output(&again, &output));
	CHECK(again.size + left == size);
	bytes_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	/* Exactly this size on the heap: a sanitizer detects a read past it. */
	uint8_t *rest = malloc(size);

	CHECK(rest);
	size--;
	memcpy(rest, data + 1, size);
	if (*data == 'S')
		greet(WIRE_ACCEPTS, rest, size);
	else if (*data == 'C')
		greet(WIRE_CONNECTS, rest, size);
	else if (*data == 'O')
		forge(rest, size);
	else if (*data == 'M')
		decode(rest, size);
	else if (*data == 'G')
		gather(rest, size);
	else if (*data == 'L')
		strings(rest, size);
	else if (*data == 'R')
		records(rest, size);
	free(rest);
	return 0;
}
