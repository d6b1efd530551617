/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames: queues, encryption and limits. What precedes WIRE_OPEN is in handshake.c. */
#include "overlay/wire.h"

#include <stdlib.h>
#include <string.h>

#include "overlay/wire_internal.h"

#define PLAIN_HEADER 44
#define FRAME_OVERHEAD (4 + crypto_secretstream_xchacha20poly1305_ABYTES)

struct wire *wire_new(enum wire_role role, const struct secret *secret, const char *job)
{
	struct wire *wire = sodium_init() < 0 ? NULL : calloc(1, sizeof *wire);

	if (!wire)
		return NULL;
	wire->role = role;
	wire->secret = *secret;
	handshake_hash_job(job, wire->job_hash);
	memcpy(&wire->job, wire->job_hash, sizeof wire->job);
	if (role == WIRE_CONNECTS) {
		handshake_make_hello(wire);
		if (bytes_add(&wire->out, wire->hello, sizeof wire->hello)) {
			wire_free(wire);
			return NULL;
		}
	}
	return wire;
}

void wire_free(struct wire *wire)
{
	if (!wire)
		return;
	bytes_free(&wire->in);
	bytes_free(&wire->out);
	bytes_free(&wire->waiting);
	bytes_free(&wire->plain);
	sodium_memzero(wire, sizeof *wire);
	free(wire);
}

enum wire_state wire_state(const struct wire *wire)
{
	return wire->state;
}

int wire_send_queued(struct wire *wire, struct error *err)
{
	bool finish = wire->finished_out;
	size_t at = 0;
	int rc = 0;

	/* wire_send refuses a message after the final frame, so that frame follows them below. */
	wire->finished_out = false;
	while (!rc && at < wire->waiting.size) {
		struct wire_message message;
		uint32_t size = bytes_get_u32(wire->waiting.data + at);

		/* They wait with the number 0; wire_send gives each its own. */
		rc = wire_decode(wire->waiting.data + at + 4, size, wire->job, 0, &message, err);
		if (!rc)
			rc = wire_send(wire, &message, err);
		at += 4 + size;
	}
	bytes_free(&wire->waiting);
	if (!rc && finish)
		rc = wire_finish(wire, err);
	return rc;
}

static int fail(struct wire *wire, int rc)
{
	wire->state = WIRE_BROKEN;
	return rc;
}

int wire_feed(struct wire *wire, const void *bytes, size_t size, struct error *err)
{
	if (wire->state == WIRE_CLOSING)
		return 0; /* nothing more is expected from the peer */
	if (wire->state == WIRE_BROKEN)
		return error_set(err, ERR_NETWORK, "the connection is already broken");
	if (wire->state == WIRE_PROBED)
		return handshake_take_load(wire, size, err);
	if (bytes_add(&wire->in, bytes, size))
		return fail(wire, error_memory(err, "a message"));
	int rc = wire->state == WIRE_HANDSHAKE ? handshake_receive(wire, err) : 0;

	/* A refusal is still to be written. */
	return rc && wire->state != WIRE_CLOSING ? fail(wire, rc) : rc;
}

int wire_feed_eof(struct wire *wire, struct error *err)
{
	if (wire->state == WIRE_CLOSING || wire->state == WIRE_PROBED || wire->finished_in)
		return 0;
	error_set(err, ERR_NETWORK,
		  wire->state == WIRE_HANDSHAKE
			  ? "the connection was closed during the handshake"
			  : "the connection broke: its process has ended, or the network failed");
	return fail(wire, -ERR_NETWORK);
}

/* ---- messages ---- */

size_t wire_plain_size(const struct wire_message *message)
{
	return PLAIN_HEADER + message->text_size + message->data_size;
}

void wire_encode(const struct wire_message *message, uint64_t job, uint64_t count,
		 unsigned char *out)
{
	bytes_put_u16(out, message->type);
	bytes_put_u16(out + 2, 0);
	bytes_put_u32(out + 4, message->node);
	bytes_put_u32(out + 8, message->attempt);
	bytes_put_u64(out + 12, message->sequence);
	bytes_put_u64(out + 20, job);
	bytes_put_u64(out + 28, count);
	bytes_put_u32(out + 36, (uint32_t)message->text_size);
	bytes_put_u32(out + 40, (uint32_t)message->data_size);
	if (message->text_size)
		memcpy(out + PLAIN_HEADER, message->text, message->text_size);
	if (message->data_size)
		memcpy(out + PLAIN_HEADER + message->text_size, message->data, message->data_size);
}

int wire_decode(const unsigned char *bytes, size_t size, uint64_t job, uint64_t count,
		struct wire_message *out, struct error *err)
{
	if (size < PLAIN_HEADER)
		return error_set(err, ERR_DATA, "a message of %zu bytes is shorter than its header",
				 size);
	uint32_t text_size = bytes_get_u32(bytes + 36), data_size = bytes_get_u32(bytes + 40);

	if (bytes_get_u16(bytes + 2))
		return error_set(err, ERR_DATA, "a message has unknown flags");
	if (bytes_get_u64(bytes + 20) != job)
		return error_set(err, ERR_DATA, "received a message of another job");
	if (bytes_get_u64(bytes + 28) != count)
		return error_set(err, ERR_DATA, "received message %llu; expected %llu",
				 (unsigned long long)bytes_get_u64(bytes + 28),
				 (unsigned long long)count);
	if ((uint64_t)text_size + data_size != size - PLAIN_HEADER)
		return error_set(err, ERR_DATA,
				 "a message of %zu bytes claims %u bytes of text and %u of data",
				 size, text_size, data_size);
	*out = (struct wire_message){
		.type = bytes_get_u16(bytes),
		.node = bytes_get_u32(bytes + 4),
		.attempt = bytes_get_u32(bytes + 8),
		.sequence = bytes_get_u64(bytes + 12),
		.text = (const char *)bytes + PLAIN_HEADER,
		.text_size = text_size,
		.data = bytes + PLAIN_HEADER + text_size,
		.data_size = data_size,
	};
	return 0;
}

/* As wire_next, but a failure leaves the wire as it is. */
static int take_message(struct wire *wire, struct wire_message *out, struct error *err)
{
	if (wire->state != WIRE_OPEN || wire->in.size < 4)
		return 0;
	uint32_t size = bytes_get_u32(wire->in.data);
	unsigned char tag;
	unsigned long long plain_size;

	if (wire->finished_in)
		return error_set(err, ERR_DATA, "received bytes after the final frame");
	/* The length is plain text and can be verified only once the whole frame has arrived.
	 * Without this limit an altered one could make us wait for up to 4 GiB. */
	if (size < crypto_secretstream_xchacha20poly1305_ABYTES ||
	    size > WIRE_MAX_MESSAGE + PLAIN_HEADER + FRAME_OVERHEAD)
		return error_set(err, ERR_DATA, "received a frame of %u bytes; the limit is %u",
				 size, WIRE_MAX_MESSAGE);
	if (wire->in.size - 4 < size)
		return 0;
	if (bytes_reserve(&wire->plain, size))
		return error_memory(err, "a message");
	/* The length is authenticated, too, as additional data. */
	if (crypto_secretstream_xchacha20poly1305_pull(&wire->pull, wire->plain.data, &plain_size,
						       &tag, wire->in.data + 4, size, wire->in.data,
						       4))
		return error_set(err, ERR_DATA,
				 "a message was altered, repeated or lost in transit");
	bytes_drop(&wire->in, 4 + (size_t)size);
	if (tag == crypto_secretstream_xchacha20poly1305_TAG_FINAL) {
		wire->finished_in = true;
		return 0;
	}
	int rc = wire_decode(wire->plain.data, plain_size, wire->job, wire->received++, out, err);

	return rc ? rc : 1;
}

int wire_next(struct wire *wire, struct wire_message *out, struct error *err)
{
	int rc = take_message(wire, out, err);

	return rc < 0 ? fail(wire, rc) : rc;
}

static int push_frame(struct wire *wire, const unsigned char *plain, size_t size, unsigned char tag,
		      struct error *err)
{
	uint32_t cipher = (uint32_t)(size + crypto_secretstream_xchacha20poly1305_ABYTES);
	unsigned char *out = bytes_extend(&wire->out, 4 + (size_t)cipher);

	if (!out)
		return error_memory(err, "an outgoing message");
	bytes_put_u32(out, cipher);
	crypto_secretstream_xchacha20poly1305_push(&wire->push, out + 4, NULL, plain, size, out, 4,
						   tag);
	return 0;
}

int wire_send(struct wire *wire, const struct wire_message *message, struct error *err)
{
	size_t size = wire_plain_size(message);

	if (wire->state == WIRE_BROKEN || wire->state == WIRE_CLOSING || wire->finished_out)
		return error_set(err, ERR_NETWORK, "the connection is closed");
	if (message->text_size > WIRE_MAX_MESSAGE || message->data_size > WIRE_MAX_MESSAGE ||
	    size - PLAIN_HEADER > WIRE_MAX_MESSAGE)
		return error_set(err, ERR_DATA,
				 "cannot send a message of %zu bytes; the limit is %u", size,
				 WIRE_MAX_MESSAGE);
	if (wire->out.size + wire->waiting.size + size > WIRE_MAX_QUEUE)
		return error_set(err, ERR_NETWORK,
				 "more than %u MiB are waiting to be sent: the peer does not read",
				 WIRE_MAX_QUEUE >> 20);
	if (wire->state == WIRE_HANDSHAKE) {
		unsigned char *at = bytes_extend(&wire->waiting, 4 + size);

		if (!at)
			return error_memory(err, "an outgoing message");
		bytes_put_u32(at, (uint32_t)size);
		wire_encode(message, wire->job, 0, at + 4);
		return 0;
	}
	unsigned char small[4096], *plain = size <= sizeof small ? small : malloc(size);

	if (!plain)
		return error_memory(err, "an outgoing message");
	wire_encode(message, wire->job, wire->sent++, plain);
	int rc = push_frame(wire, plain, size, 0, err);

	sodium_memzero(plain, size);
	if (plain != small)
		free(plain);
	return rc;
}

int wire_finish(struct wire *wire, struct error *err)
{
	if (wire->state == WIRE_BROKEN || wire->state == WIRE_CLOSING || wire->finished_out)
		return 0;
	wire->finished_out = true;
	if (wire->state == WIRE_HANDSHAKE)
		return 0; /* wire_send_queued calls this again */
	return push_frame(wire, (const unsigned char *)"", 0,
			  crypto_secretstream_xchacha20poly1305_TAG_FINAL, err);
}

size_t wire_output(const struct wire *wire, const void **bytes)
{
	/* A probe's load may have any value: send zeros, which need no memory of the wire's own. */
	static const unsigned char load[16384];

	*bytes = wire->out.size ? wire->out.data : load;
	if (wire->out.size || !wire->load_out)
		return wire->out.size;
	return wire->load_out < sizeof load ? wire->load_out : sizeof load;
}

void wire_consume_output(struct wire *wire, size_t size)
{
	if (wire->out.size)
		bytes_drop(&wire->out, size);
	else
		wire->load_out -= size;
}
