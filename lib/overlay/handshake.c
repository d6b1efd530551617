/* SPDX-License-Identifier: BSD-3-Clause */
/* How two ends prove to each other that they have the secret: HELLO, ANSWER, PROOF; and the
 * probe. */
#include <string.h>

#include "overlay/wire_internal.h"

#define MAGIC "BERTHnet"
#define STREAM_HEADER crypto_secretstream_xchacha20poly1305_HEADERBYTES
#define NONCE_BYTES 32
#define PROOF_BYTES 32

enum hello_kind { HELLO_JOIN = 1, HELLO_PROBE = 2 };
enum answer_status { ANSWER_WELCOME = 0, ANSWER_VERSION = 1, ANSWER_SECRET = 2, ANSWER_PROBE = 3 };

/* Offsets within the three handshake messages. */
enum {
	AT_VERSION = 8,
	AT_KIND = 10, /* HELLO's kind, ANSWER's status */
	AT_BODY = 12,
	HELLO_FINGERPRINT = AT_BODY,
	HELLO_LOAD = 20, /* of a probe, else 0 */
	HELLO_NONCE = 24,
	ANSWER_NONCE = AT_BODY,
	ANSWER_HEADER = 44,
	ANSWER_PROOF = 72,
};

/* A hash of a label, the job, and the handshake so far, keyed with the secret. */
static void keyed_hash(const struct wire *wire, const char *label, size_t answer_bytes,
		       const unsigned char *extra, size_t extra_bytes, unsigned char out[32])
{
	crypto_generichash_state state;

	crypto_generichash_init(&state, wire->secret.bytes, sizeof wire->secret.bytes, 32);
	/* The label separates the uses of the hash, so that a proof, which is public, is not a key.
	 */
	crypto_generichash_update(&state, (const unsigned char *)label, strlen(label) + 1);
	crypto_generichash_update(&state, wire->job_hash, sizeof wire->job_hash);
	crypto_generichash_update(&state, wire->hello, sizeof wire->hello);
	crypto_generichash_update(&state, wire->answer, answer_bytes);
	crypto_generichash_update(&state, extra, extra_bytes);
	crypto_generichash_final(&state, out, 32);
	sodium_memzero(&state, sizeof state);
}

void handshake_hash_job(const char *job, unsigned char out[32])
{
	crypto_generichash(out, 32, (const unsigned char *)job, strlen(job), NULL, 0);
}

static void put_header(unsigned char *out, uint16_t kind)
{
	memcpy(out, MAGIC, 8);
	bytes_put_u16(out + AT_VERSION, WIRE_VERSION);
	bytes_put_u16(out + AT_KIND, kind);
}

static void make_hello(const struct secret *secret, uint16_t kind,
		       unsigned char out[WIRE_HELLO_BYTES])
{
	memset(out, 0, WIRE_HELLO_BYTES);
	put_header(out, kind);
	secret_fingerprint_bytes(secret, out + HELLO_FINGERPRINT);
	randombytes_buf(out + HELLO_NONCE, NONCE_BYTES);
}

/* Say why, if there is memory for it; the connection ends either way. Returns -ERR_DATA. */
static int reject(struct wire *wire, enum answer_status status)
{
	unsigned char text[AT_BODY];

	put_header(text, status);
	if (!bytes_add(&wire->out, text, sizeof text))
		wire->state = WIRE_CLOSING;
	return -ERR_DATA;
}

static int version_differs(unsigned version, struct error *err)
{
	return error_set(err, ERR_DATA,
			 "the peer uses protocol version %u, this berth uses %d. Install the same "
			 "berth on all nodes.",
			 version, WIRE_VERSION);
}

/* The keys depend only on the nonces, not on the stream headers: each side makes its own header
 * with its key before it has seen the other's. So the hash covers ANSWER up to its stream header.
 * "in" is the direction towards the accepting side. */
static void start_pull(struct wire *wire, const unsigned char header[STREAM_HEADER])
{
	unsigned char key[32];

	keyed_hash(wire, wire->role == WIRE_ACCEPTS ? "berth key in 1" : "berth key out 1",
		   ANSWER_HEADER, NULL, 0, key);
	crypto_secretstream_xchacha20poly1305_init_pull(&wire->pull, header, key);
	sodium_memzero(key, sizeof key);
}

static void start_push(struct wire *wire, unsigned char header[STREAM_HEADER])
{
	unsigned char key[32];

	keyed_hash(wire, wire->role == WIRE_ACCEPTS ? "berth key out 1" : "berth key in 1",
		   ANSWER_HEADER, NULL, 0, key);
	crypto_secretstream_xchacha20poly1305_init_push(&wire->push, header, key);
	sodium_memzero(key, sizeof key);
}

int handshake_take_load(struct wire *wire, size_t size, struct error *err)
{
	unsigned char answer[WIRE_PROBE_ANSWER_BYTES];

	wire->load_in -= size < wire->load_in ? size : wire->load_in;
	if (wire->load_in)
		return 0;
	put_header(answer, ANSWER_PROBE);
	keyed_hash(wire, "berth probe 1", 0, NULL, 0, answer + AT_BODY);
	if (bytes_add(&wire->out, answer, sizeof answer))
		return error_memory(err, "an answer");
	wire->load_out = bytes_get_u32(wire->hello + HELLO_LOAD);
	wire->state = WIRE_CLOSING;
	return 0;
}

static int handle_hello(struct wire *wire, struct error *err)
{
	unsigned char fingerprint[8];
	const unsigned char *hello = wire->in.data;

	/* Compare even the first part of the magic: a peer that speaks another protocol may wait
	 * for an answer after fewer than 8 bytes. */
	if (memcmp(hello, MAGIC, wire->in.size < 8 ? wire->in.size : 8))
		return error_set(err, ERR_DATA,
				 "an unauthenticated peer was rejected: its first bytes are not a "
				 "berth handshake");
	if (wire->in.size < AT_BODY)
		return 0;
	/* Check the version before waiting for the rest, whose size may depend on it. */
	unsigned version = bytes_get_u16(hello + AT_VERSION), kind = bytes_get_u16(hello + AT_KIND);

	if (version != WIRE_VERSION) {
		version_differs(version, err);
		return reject(wire, ANSWER_VERSION);
	}
	if (wire->in.size < WIRE_HELLO_BYTES)
		return 0;
	memcpy(wire->hello, hello, WIRE_HELLO_BYTES);
	bytes_drop(&wire->in, WIRE_HELLO_BYTES);
	secret_fingerprint_bytes(&wire->secret, fingerprint);
	if (sodium_memcmp(fingerprint, wire->hello + HELLO_FINGERPRINT, 8)) {
		char own_text[17], text[17];

		sodium_bin2hex(text, sizeof text, wire->hello + HELLO_FINGERPRINT, 8);
		sodium_bin2hex(own_text, sizeof own_text, fingerprint, 8);
		error_set(err, ERR_DATA,
			  "the peer's secret has fingerprint %s, this one has %s. Use the same "
			  "secret on both sides.",
			  text, own_text);
		return reject(wire, ANSWER_SECRET);
	}
	if (kind == HELLO_PROBE) {
		wire->state = WIRE_PROBED;
		wire->load_in = bytes_get_u32(wire->hello + HELLO_LOAD);
		if (wire->load_in > WIRE_PROBE_LOAD_MAX)
			return error_set(err, ERR_DATA, "a probe's load is %zu bytes, at most %d",
					 wire->load_in, WIRE_PROBE_LOAD_MAX);
		/* The first part of the load may have come with HELLO. */
		return handshake_take_load(wire, wire->in.size, err);
	}
	if (kind != HELLO_JOIN)
		return error_set(err, ERR_DATA, "unknown handshake kind %u", kind);
	put_header(wire->answer, ANSWER_WELCOME);
	randombytes_buf(wire->answer + ANSWER_NONCE, NONCE_BYTES);
	start_push(wire, wire->answer + ANSWER_HEADER);
	keyed_hash(wire, "berth accepts 1", ANSWER_PROOF, NULL, 0, wire->answer + ANSWER_PROOF);
	wire->answered = true;
	if (bytes_add(&wire->out, wire->answer, WIRE_ANSWER_BYTES))
		return error_memory(err, "a handshake");
	return 0;
}

static int handle_answer(struct wire *wire, struct error *err)
{
	const unsigned char *answer = wire->in.data;
	unsigned char expected[PROOF_BYTES], message[WIRE_PROOF_BYTES]; /* PROOF */
	char text[17];

	if (memcmp(answer, MAGIC, wire->in.size < 8 ? wire->in.size : 8))
		return error_set(err, ERR_DATA, "the peer that answered is not berth");
	if (wire->in.size < AT_BODY)
		return 0;
	unsigned version = bytes_get_u16(answer + AT_VERSION),
		 status = bytes_get_u16(answer + AT_KIND);

	secret_fingerprint(&wire->secret, text);
	if (status == ANSWER_VERSION || version != WIRE_VERSION)
		return version_differs(version, err);
	if (status == ANSWER_SECRET)
		return error_set(err, ERR_DATA,
				 "the peer has another secret than this one, whose fingerprint is "
				 "%s. Use the same secret on both sides.",
				 text);
	if (status != ANSWER_WELCOME)
		return error_set(err, ERR_DATA, "unknown handshake answer %u", status);
	if (wire->in.size < WIRE_ANSWER_BYTES)
		return 0;
	memcpy(wire->answer, answer, WIRE_ANSWER_BYTES);
	bytes_drop(&wire->in, WIRE_ANSWER_BYTES);
	keyed_hash(wire, "berth accepts 1", ANSWER_PROOF, NULL, 0, expected);
	if (sodium_memcmp(expected, wire->answer + ANSWER_PROOF, PROOF_BYTES))
		return error_set(err, ERR_DATA,
				 "the peer did not prove that it has this job's secret "
				 "(fingerprint %s): it belongs to another job or is an impostor. "
				 "Machines started by hand need the same --rdzv-endpoint.",
				 text);
	start_push(wire, message);
	keyed_hash(wire, "berth connects 1", WIRE_ANSWER_BYTES, message, STREAM_HEADER,
		   message + STREAM_HEADER);
	start_pull(wire, wire->answer + ANSWER_HEADER);
	if (bytes_add(&wire->out, message, sizeof message))
		return error_memory(err, "a handshake");
	wire->state = WIRE_OPEN;
	return wire_send_queued(wire, err);
}

static int handle_proof(struct wire *wire, struct error *err)
{
	unsigned char proof[PROOF_BYTES];

	if (wire->in.size < WIRE_PROOF_BYTES)
		return 0;
	keyed_hash(wire, "berth connects 1", WIRE_ANSWER_BYTES, wire->in.data, STREAM_HEADER,
		   proof);
	if (sodium_memcmp(proof, wire->in.data + STREAM_HEADER, PROOF_BYTES))
		return error_set(err, ERR_DATA,
				 "an unauthenticated peer was rejected: it cannot prove that it "
				 "has this job's secret (a replay, or another job's agent)");
	start_pull(wire, wire->in.data);
	bytes_drop(&wire->in, WIRE_PROOF_BYTES);
	wire->state = WIRE_OPEN;
	return wire_send_queued(wire, err);
}

void handshake_make_hello(struct wire *wire)
{
	make_hello(&wire->secret, HELLO_JOIN, wire->hello);
}

int handshake_receive(struct wire *wire, struct error *err)
{
	if (wire->role == WIRE_CONNECTS)
		return handle_answer(wire, err);
	if (!wire->answered) {
		int rc = handle_hello(wire, err);

		if (rc || !wire->answered)
			return rc;
	}
	return handle_proof(wire, err);
}

/* ---- probes ---- */

void handshake_probe_question(const struct secret *secret, const char *job, uint32_t load,
			      unsigned char question[WIRE_HELLO_BYTES])
{
	make_hello(secret, HELLO_PROBE, question);
	bytes_put_u32(question + HELLO_LOAD, load);
}

bool handshake_probe_verify(const struct secret *secret, const char *job,
			    const unsigned char question[WIRE_HELLO_BYTES],
			    const unsigned char answer[WIRE_PROBE_ANSWER_BYTES])
{
	unsigned char header[AT_BODY], proof[32];
	struct wire wire = {.secret = *secret};

	handshake_hash_job(job, wire.job_hash);
	memcpy(wire.hello, question, WIRE_HELLO_BYTES);
	keyed_hash(&wire, "berth probe 1", 0, NULL, 0, proof);
	secret_wipe(&wire.secret);
	put_header(header, ANSWER_PROBE);
	return !memcmp(header, answer, AT_BODY) && !sodium_memcmp(proof, answer + AT_BODY, 32);
}
