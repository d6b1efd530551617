/* SPDX-License-Identifier: BSD-3-Clause */
/* The wire without sockets: two ends, and an attacker who holds the bytes between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "overlay/wire.h"

struct ends {
	struct secret secret;
	struct wire *a, *b; /* connects, accepts */
};

static int open_ends(void **state)
{
	struct ends *ends = calloc(1, sizeof *ends);

	assert_int_equal(secret_generate(&ends->secret, NULL), 0);
	ends->a = wire_new(WIRE_CONNECTS, &ends->secret, "job-1");
	ends->b = wire_new(WIRE_ACCEPTS, &ends->secret, "job-1");
	*state = ends;
	return !ends->a || !ends->b;
}

static int close_ends(void **state)
{
	struct ends *ends = *state;

	wire_free(ends->a);
	wire_free(ends->b);
	free(ends);
	return 0;
}

/* Return a copy of all bytes that from has to send. */
static size_t take(struct wire *from, unsigned char *out, size_t room)
{
	const void *bytes;
	size_t size = wire_output(from, &bytes);

	assert_true(size <= room);
	if (size)
		memcpy(out, bytes, size);
	wire_consume_output(from, size);
	return size;
}

/* Pass the output of from to to, in pieces of at most piece bytes. Return the last result. */
static int carry(struct wire *from, struct wire *to, size_t piece, struct error *err)
{
	static unsigned char buffer[1 << 21];
	size_t size = take(from, buffer, sizeof buffer);

	for (size_t at = 0; at < size; at += piece) {
		int rc = wire_feed(to, buffer + at, size - at < piece ? size - at : piece, err);

		if (rc)
			return rc;
	}
	return 0;
}

static void greet(struct ends *ends, size_t piece)
{
	struct error err = {0};

	assert_int_equal(carry(ends->a, ends->b, piece, &err), 0);
	assert_int_equal(carry(ends->b, ends->a, piece, &err), 0);
	assert_int_equal(carry(ends->a, ends->b, piece, &err), 0);
	assert_int_equal(wire_state(ends->a), WIRE_OPEN);
	assert_int_equal(wire_state(ends->b), WIRE_OPEN);
}

static void say(struct wire *wire, unsigned type, const char *text)
{
	struct wire_message message = {.type = (uint16_t)type,
				       .node = 7,
				       .attempt = 2,
				       .sequence = 1ull << 40,
				       .text = text,
				       .text_size = strlen(text),
				       .data = "\0\1\2",
				       .data_size = 3};

	assert_int_equal(wire_send(wire, &message, NULL), 0);
}

static void hears(struct wire *wire, unsigned type, const char *text)
{
	struct wire_message message;
	struct error err = {0};

	assert_int_equal(wire_next(wire, &message, &err), 1);
	assert_int_equal(message.type, type);
	assert_int_equal(message.node, 7);
	assert_int_equal(message.attempt, 2);
	assert_true(message.sequence == 1ull << 40);
	assert_int_equal(message.text_size, strlen(text));
	assert_memory_equal(message.text, text, message.text_size);
	assert_int_equal(message.data_size, 3);
	assert_memory_equal(message.data, "\0\1\2", 3);
}

static void test_messages_both_ways(void **state)
{
	static const size_t pieces[] = {1, 3, 57, 4096, 1 << 21};
	struct ends *ends = *state;
	struct wire_message message;

	greet(ends, 1);
	for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
		say(ends->a, 1, "up");
		say(ends->a, 2, "and up again");
		say(ends->b, 3, "down");
		assert_int_equal(carry(ends->a, ends->b, pieces[i], NULL), 0);
		assert_int_equal(carry(ends->b, ends->a, pieces[i], NULL), 0);
		hears(ends->b, 1, "up");
		hears(ends->b, 2, "and up again");
		assert_int_equal(wire_next(ends->b, &message, NULL), 0);
		hears(ends->a, 3, "down");
	}
}

static void test_queued_before_the_greeting(void **state)
{
	struct ends *ends = *state;

	say(ends->a, 1, "first");
	say(ends->a, 2, "second");
	assert_int_equal(wire_finish(ends->a, NULL), 0);
	greet(ends, 100);
	hears(ends->b, 1, "first");
	hears(ends->b, 2, "second");
	struct wire_message message;

	assert_int_equal(wire_next(ends->b, &message, NULL), 0);
	assert_int_equal(wire_feed_eof(ends->b, NULL), 0);
}

static void test_large_message_and_limit(void **state)
{
	struct ends *ends = *state;
	struct wire_message big = {.type = 5}, got;
	size_t size = 5 << 20;
	char *data = malloc(size);
	const void *bytes;
	struct error err = {0};

	greet(ends, 4096);
	memset(data, 'x', size);
	big.data = data;
	big.data_size = size;
	assert_int_equal(wire_send(ends->a, &big, NULL), 0);
	while (wire_output(ends->a, &bytes)) {
		size_t n = wire_output(ends->a, &bytes);

		n = n < 100000 ? n : 100000;
		assert_int_equal(wire_feed(ends->b, bytes, n, NULL), 0);
		wire_consume_output(ends->a, n);
	}
	assert_int_equal(wire_next(ends->b, &got, NULL), 1);
	assert_int_equal(got.data_size, size);
	assert_memory_equal(got.data, data, size);
	big.data_size = WIRE_MAX_MESSAGE + 1ull;
	assert_int_equal(wire_send(ends->a, &big, &err), -ERR_DATA);
	free(data);
}

static void test_queue_is_bounded(void **state)
{
	struct ends *ends = *state;
	struct wire_message message = {.type = 1};
	size_t size = 32 << 20;
	struct error err = {0};
	int rc = 0;

	greet(ends, 4096);
	message.data = calloc(1, size);
	message.data_size = size;
	for (int i = 0; i < 20 && !rc; i++)
		rc = wire_send(ends->a, &message, &err);
	assert_int_equal(rc, -ERR_NETWORK);
	assert_non_null(strstr(err.text, "does not read"));
	free((void *)message.data);
}

/* What an attacker may do to a frame in transit. */
enum attack { FLIP, CUT, REPEAT, SWAP, DROP, LENGTH_HUGE, LENGTH_TINY, APPEND };

static void test_tampering(void **state)
{
	static const struct {
		enum attack attack;
		const char *what;
	} rows[] = {
		{FLIP, "a bit of the ciphertext"},
		{REPEAT, "a frame sent twice"},
		{SWAP, "two frames swapped"},
		{DROP, "a frame left out"},
		{LENGTH_HUGE, "a length over the limit"},
		{LENGTH_TINY, "a length below the tag"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ends *ends;
		unsigned char one[512], two[512];
		struct wire_message message;
		struct error err = {0};
		int rc = 0;

		open_ends((void **)&ends);
		greet(ends, 4096);
		say(ends->a, 1, "one");
		size_t n1 = take(ends->a, one, sizeof one);
		say(ends->a, 2, "two");
		size_t n2 = take(ends->a, two, sizeof two);

		switch (rows[i].attack) {
		case FLIP:
			one[20] ^= 1;
			break;
		case SWAP:
			wire_feed(ends->b, two, n2, NULL);
			break;
		case DROP:
			n1 = 0;
			break;
		case LENGTH_HUGE:
			bytes_put_u32(one, WIRE_MAX_MESSAGE + 1000);
			break;
		case LENGTH_TINY:
			bytes_put_u32(one, 3);
			break;
		default:
			break;
		}
		wire_feed(ends->b, one, n1, NULL);
		if (rows[i].attack == REPEAT)
			wire_feed(ends->b, one, n1, NULL);
		wire_feed(ends->b, two, n2, NULL);
		while ((rc = wire_next(ends->b, &message, &err)) > 0)
			assert_int_equal(rows[i].attack, REPEAT);
		if (rc != -ERR_DATA)
			fail_msg("%s was not noticed", rows[i].what);
		assert_int_equal(wire_state(ends->b), WIRE_BROKEN);
		close_ends((void **)&ends);
	}
}

static void test_truncation(void **state)
{
	struct ends *ends = *state;
	unsigned char frame[512];
	struct wire_message message;
	struct error err = {0};

	greet(ends, 4096);
	say(ends->a, 1, "whole");
	size_t size = take(ends->a, frame, sizeof frame);

	assert_int_equal(wire_feed(ends->b, frame, size - 1, NULL), 0);
	assert_int_equal(wire_next(ends->b, &message, NULL), 0);
	assert_int_equal(wire_feed_eof(ends->b, &err), -ERR_NETWORK);
	assert_non_null(strstr(err.text, "the connection broke"));
}

static void test_nothing_after_the_goodbye(void **state)
{
	struct ends *ends = *state;
	struct wire_message message = {.type = 1};

	greet(ends, 4096);
	assert_int_equal(wire_finish(ends->a, NULL), 0);
	assert_int_equal(wire_send(ends->a, &message, NULL), -ERR_NETWORK);
	assert_int_equal(carry(ends->a, ends->b, 4096, NULL), 0);
	assert_int_equal(wire_next(ends->b, &message, NULL), 0);
	wire_feed(ends->b, "more", 4, NULL);
	assert_int_equal(wire_next(ends->b, &message, NULL), -ERR_DATA);
}

static void test_replayed_connection(void **state)
{
	struct ends *ends = *state;
	unsigned char hello[256], proof[1024], answer[256];
	struct error err = {0};
	struct wire_message message;

	say(ends->a, 1, "pay 100");
	size_t hello_size = take(ends->a, hello, sizeof hello);

	wire_feed(ends->b, hello, hello_size, NULL);
	wire_feed(ends->a, answer, take(ends->b, answer, sizeof answer), NULL);
	size_t proof_size = take(ends->a, proof, sizeof proof);

	assert_int_equal(wire_feed(ends->b, proof, proof_size, NULL), 0);
	hears(ends->b, 1, "pay 100");
	/* Replay the same bytes on another connection of the same job. */
	struct wire *victim = wire_new(WIRE_ACCEPTS, &ends->secret, "job-1");

	assert_int_equal(wire_feed(victim, hello, hello_size, NULL), 0);
	take(victim, answer, sizeof answer);
	assert_int_equal(wire_feed(victim, proof, proof_size, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "cannot prove"));
	assert_int_equal(wire_next(victim, &message, NULL), 0);
	const void *bytes;

	assert_int_equal(wire_output(victim, &bytes), 0);
	wire_free(victim);
}

/* An echo of the own bytes must not count as a peer. */
static void test_reflection(void **state)
{
	struct ends *ends = *state;
	unsigned char buffer[256];
	size_t size = take(ends->a, buffer, sizeof buffer);

	assert_int_equal(wire_feed(ends->a, buffer, size, NULL), -ERR_DATA);
}

static void test_strangers_learn_nothing(void **state)
{
	static const struct {
		const char *bytes, *reason;
	} rows[] = {
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a web client"},
		{"SSH-2.0-OpenSSH_9.2\r\n", "ssh"},
		{"B", "nothing yet, but no answer either"},
		{"BERTHnet", "the magic alone"},
		{"BERTHnex\1\0\1\0", "nearly the magic"},
		{"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "zeros"},
	};
	struct ends *ends = *state;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct wire *wire = wire_new(WIRE_ACCEPTS, &ends->secret, "job-1");
		const void *bytes;

		wire_feed(wire, rows[i].bytes, strlen(rows[i].bytes) + 1, NULL);
		if (wire_output(wire, &bytes))
			fail_msg("%s was answered", rows[i].reason);
		assert_int_not_equal(wire_state(wire), WIRE_OPEN);
		wire_free(wire);
	}
}

static void test_another_secret_is_named(void **state)
{
	struct ends *ends = *state;
	struct secret other;
	struct error err = {0};
	char mine[17], theirs[17];

	secret_generate(&other, NULL);
	secret_fingerprint(&ends->secret, mine);
	secret_fingerprint(&other, theirs);
	struct wire *stranger = wire_new(WIRE_CONNECTS, &other, "job-1");

	assert_int_equal(carry(stranger, ends->b, 4096, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, mine));
	assert_non_null(strstr(err.text, theirs));
	/* The connecting side learns that it was rejected; its error shows its own fingerprint. */
	assert_int_equal(carry(ends->b, stranger, 4096, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, theirs));
	assert_null(strstr(err.text, mine));
	wire_free(stranger);
}

static void test_another_job(void **state)
{
	struct ends *ends = *state;
	struct wire *other = wire_new(WIRE_CONNECTS, &ends->secret, "job-2");
	struct error err = {0};

	assert_int_equal(carry(other, ends->b, 4096, &err), 0);
	assert_int_equal(carry(ends->b, other, 4096, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "another job"));
	wire_free(other);
}

/* The accepting side must prove itself, too. */
static void test_impostor_as_controller(void **state)
{
	struct ends *ends = *state;
	unsigned char hello[256], answer[256];
	struct error err = {0};

	wire_feed(ends->b, hello, take(ends->a, hello, sizeof hello), NULL);
	size_t size = take(ends->b, answer, sizeof answer);

	answer[size - 1] ^= 1;
	assert_int_equal(wire_feed(ends->a, answer, size, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "impostor"));
	const void *bytes;

	assert_int_equal(wire_output(ends->a, &bytes), 0);
}

static void test_version(void **state)
{
	struct ends *ends = *state;
	unsigned char hello[256];
	struct error err = {0};
	size_t size = take(ends->a, hello, sizeof hello);

	bytes_put_u16(hello + 8, WIRE_VERSION + 1);
	assert_int_equal(wire_feed(ends->b, hello, size, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "Install the same berth"));
	assert_int_equal(carry(ends->b, ends->a, 4096, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "Install the same berth"));
}

static void test_probe(void **state)
{
	struct ends *ends = *state;
	unsigned char question[WIRE_HELLO_BYTES], answer[512];
	struct secret other;

	handshake_probe_question(&ends->secret, "job-1", 0, question);
	assert_int_equal(wire_feed(ends->b, question, sizeof question, NULL), 0);
	assert_int_equal(wire_state(ends->b), WIRE_CLOSING);
	assert_int_equal(take(ends->b, answer, sizeof answer), WIRE_PROBE_ANSWER_BYTES);
	assert_true(handshake_probe_verify(&ends->secret, "job-1", question, answer));
	assert_false(handshake_probe_verify(&ends->secret, "job-2", question, answer));
	secret_generate(&other, NULL);
	assert_false(handshake_probe_verify(&other, "job-1", question, answer));
	answer[20] ^= 1;
	assert_false(handshake_probe_verify(&ends->secret, "job-1", question, answer));
}

/* A probe with a load is answered after the last byte of its load, and the answer carries as much.
 */
static void test_probe_load(void **state)
{
	struct ends *ends = *state;
	unsigned char question[WIRE_HELLO_BYTES + 10], answer[512], load[WIRE_PROBE_LOAD_MAX] = {1};
	struct error err = {0};
	size_t got = 0, more;

	handshake_probe_question(&ends->secret, "job-1", 50000, question);
	assert_int_equal(wire_feed(ends->b, question, sizeof question, NULL),
			 0); /* 10 bytes of it */
	assert_int_equal(wire_state(ends->b), WIRE_PROBED);
	assert_int_equal(wire_feed(ends->b, load, 49989, NULL), 0);
	assert_int_equal(take(ends->b, answer, sizeof answer), 0);
	assert_int_equal(wire_feed(ends->b, load, 1, NULL), 0);
	assert_int_equal(wire_state(ends->b), WIRE_CLOSING);
	assert_int_equal(take(ends->b, answer, WIRE_PROBE_ANSWER_BYTES), WIRE_PROBE_ANSWER_BYTES);
	assert_true(handshake_probe_verify(&ends->secret, "job-1", question, answer));
	while ((more = take(ends->b, load, sizeof load)))
		got += more;
	assert_int_equal(got, 50000);

	struct wire *other = wire_new(WIRE_ACCEPTS, &ends->secret, "job-1");

	handshake_probe_question(&ends->secret, "job-1", WIRE_PROBE_LOAD_MAX + 1, question);
	assert_int_equal(wire_feed(other, question, WIRE_HELLO_BYTES, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "load is 65537 bytes"));
	wire_free(other);
}

static void test_decode(void **state)
{
	struct wire_message message = {.type = 3, .text = "{}", .text_size = 2}, got;
	unsigned char plain[64];
	static const struct {
		size_t at;
		unsigned char value;
		const char *what;
	} rows[] = {
		{2, 1, "flags"},   {20, 9, "another job"}, {28, 7, "message 7"},
		{36, 200, "text"}, {40, 1, "claims"},	   {39, 255, "claims"},
	};

	(void)state;
	assert_int_equal(wire_plain_size(&message), 46);
	wire_encode(&message, 5, 6, plain);
	assert_int_equal(wire_decode(plain, 46, 5, 6, &got, NULL), 0);
	assert_int_equal(got.type, 3);
	for (size_t size = 0; size < 46; size++)
		assert_int_equal(wire_decode(plain, size, 5, 6, &got, NULL), -ERR_DATA);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		unsigned char old = plain[rows[i].at];
		struct error err = {0};

		plain[rows[i].at] = rows[i].value;
		assert_int_equal(wire_decode(plain, 46, 5, 6, &got, &err), -ERR_DATA);
		if (!strstr(err.text, rows[i].what))
			fail_msg("'%s' does not name '%s'", err.text, rows[i].what);
		plain[rows[i].at] = old;
	}
}

static void test_secret_text(void **state)
{
	struct ends *ends = *state;
	struct secret back;
	char text[80];
	struct error err = {0};

	secret_format(&ends->secret, text);
	assert_int_equal(strlen(text), 64);
	assert_int_equal(secret_parse(text, &back, NULL), 0);
	assert_memory_equal(&back, &ends->secret, sizeof back);
	strcat(text, "00");
	assert_int_equal(secret_parse(text, &back, &err), -ERR_DATA);
	assert_null(strstr(err.text, text)); /* not shown */
	text[63] = 0;
	assert_int_equal(secret_parse(text, &back, NULL), -ERR_DATA);
	text[62] = 'g';
	assert_int_equal(secret_parse(text, &back, NULL), -ERR_DATA);
	assert_int_equal(secret_parse("", &back, NULL), -ERR_DATA);
}

#define BOTH(test) cmocka_unit_test_setup_teardown(test, open_ends, close_ends)

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_messages_both_ways),
		BOTH(test_queued_before_the_greeting),
		BOTH(test_large_message_and_limit),
		BOTH(test_queue_is_bounded),
		cmocka_unit_test(test_tampering),
		BOTH(test_truncation),
		BOTH(test_nothing_after_the_goodbye),
		BOTH(test_replayed_connection),
		BOTH(test_reflection),
		BOTH(test_strangers_learn_nothing),
		BOTH(test_another_secret_is_named),
		BOTH(test_another_job),
		BOTH(test_impostor_as_controller),
		BOTH(test_version),
		BOTH(test_probe),
		BOTH(test_probe_load),
		cmocka_unit_test(test_decode),
		BOTH(test_secret_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
