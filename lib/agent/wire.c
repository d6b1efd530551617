/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/wire.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "agent/bytes.h"

#define MAGIC "BERTHnet"
#define PLAIN_HEADER 44
#define FRAME_OVERHEAD (4 + crypto_secretstream_xchacha20poly1305_ABYTES)
#define STREAM_HEADER crypto_secretstream_xchacha20poly1305_HEADERBYTES
#define NONCE_BYTES 32
#define PROOF_BYTES 32

enum hello_kind { HELLO_JOIN = 1, HELLO_PROBE = 2 };
enum answer_status { ANSWER_WELCOME = 0, ANSWER_VERSION = 1, ANSWER_SECRET = 2, ANSWER_PROBE = 3 };

/* Offsets within the three greetings. */
enum {
	AT_VERSION = 8,
	AT_KIND = 10, /* HELLO's kind, ANSWER's status */
	AT_BODY = 12,
	HELLO_FINGERPRINT = AT_BODY,
	HELLO_NONCE = 24,
	ANSWER_NONCE = AT_BODY,
	ANSWER_HEADER = 44,
	ANSWER_PROOF = 72,
};

struct wire {
	enum wire_role role;
	enum wire_state state;
	bool answered;     /* WIRE_ACCEPTS: our answer is queued, the proof is awaited */
	bool finished_out; /* the final frame is queued */
	bool finished_in;  /* and has come in */
	uint64_t job;
	uint64_t sent, received; /* messages */
	struct wire_secret secret;
	unsigned char job_hash[32];
	unsigned char hello[WIRE_HELLO_BYTES];
	unsigned char answer[WIRE_ANSWER_BYTES];
	crypto_secretstream_xchacha20poly1305_state push, pull;
	struct bytes in;      /* not yet understood */
	struct bytes out;     /* to be written */
	struct bytes waiting; /* plain messages queued before WIRE_OPEN */
	struct bytes plain;   /* the message wire_next gave last */
};

/* ---- secrets ---- */

static int sodium_start(struct error *err)
{
	if (sodium_init() < 0)
		return error_set(err, ERR_UNAVAILABLE, "libsodium cannot start: no random numbers "
						       "from the kernel");
	return 0;
}

int wire_secret_make(struct wire_secret *out, struct error *err)
{
	int rc = sodium_start(err);

	if (!rc)
		randombytes_buf(out->bytes, sizeof out->bytes);
	return rc;
}

int wire_secret_parse(const char *text, struct wire_secret *out, struct error *err)
{
	struct wire_secret secret;
	size_t size = 0;
	const char *end = NULL;
	int rc = sodium_start(err);

	if (rc)
		return rc;
	if (sodium_hex2bin(secret.bytes, sizeof secret.bytes, text, strlen(text), NULL, &size,
			   &end) ||
	    *end || size != sizeof secret.bytes)
		return error_set(err, ERR_DATA,
				 "the secret must be %d hexadecimal digits and nothing else; it has "
				 "%zu characters",
				 WIRE_SECRET_BYTES * 2, strlen(text));
	*out = secret;
	wire_secret_forget(&secret);
	return 0;
}

void wire_secret_format(const struct wire_secret *secret, char text[65])
{
	sodium_bin2hex(text, 65, secret->bytes, sizeof secret->bytes);
}

static void fingerprint(const struct wire_secret *secret, unsigned char out[8])
{
	static const char what[] = "berth fingerprint 1";
	unsigned char hash[32];

	crypto_generichash(hash, sizeof hash, (const unsigned char *)what, sizeof what,
			   secret->bytes, sizeof secret->bytes);
	memcpy(out, hash, 8);
}

void wire_secret_fingerprint(const struct wire_secret *secret, char text[17])
{
	unsigned char bytes[8];

	fingerprint(secret, bytes);
	sodium_bin2hex(text, 17, bytes, sizeof bytes);
}

void wire_secret_forget(struct wire_secret *secret)
{
	sodium_memzero(secret, sizeof *secret);
}

/* ---- greeting ---- */

/* Keyed by the secret: what, the job, and the greetings up to that point. */
static void keyed(const struct wire *wire, const char *what, size_t answer_bytes,
		  const unsigned char *extra, size_t extra_bytes, unsigned char out[32])
{
	crypto_generichash_state state;

	crypto_generichash_init(&state, wire->secret.bytes, sizeof wire->secret.bytes, 32);
	crypto_generichash_update(&state, (const unsigned char *)what, strlen(what) + 1);
	crypto_generichash_update(&state, wire->job_hash, sizeof wire->job_hash);
	crypto_generichash_update(&state, wire->hello, sizeof wire->hello);
	crypto_generichash_update(&state, wire->answer, answer_bytes);
	crypto_generichash_update(&state, extra, extra_bytes);
	crypto_generichash_final(&state, out, 32);
	sodium_memzero(&state, sizeof state);
}

static void hash_job(const char *job, unsigned char out[32])
{
	crypto_generichash(out, 32, (const unsigned char *)job, strlen(job), NULL, 0);
}

static void put_head(unsigned char *out, uint16_t kind)
{
	memcpy(out, MAGIC, 8);
	bytes_put_u16(out + AT_VERSION, WIRE_VERSION);
	bytes_put_u16(out + AT_KIND, kind);
}

static void make_hello(const struct wire_secret *secret, uint16_t kind,
		       unsigned char out[WIRE_HELLO_BYTES])
{
	memset(out, 0, WIRE_HELLO_BYTES);
	put_head(out, kind);
	fingerprint(secret, out + HELLO_FINGERPRINT);
	randombytes_buf(out + HELLO_NONCE, NONCE_BYTES);
}

struct wire *wire_new(enum wire_role role, const struct wire_secret *secret, const char *job)
{
	struct wire *wire = sodium_init() < 0 ? NULL : calloc(1, sizeof *wire);

	if (!wire)
		return NULL;
	wire->role = role;
	wire->secret = *secret;
	hash_job(job, wire->job_hash);
	memcpy(&wire->job, wire->job_hash, sizeof wire->job);
	if (role == WIRE_CONNECTS) {
		make_hello(secret, HELLO_JOIN, wire->hello);
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

static int broken(struct wire *wire, int rc)
{
	wire->state = WIRE_BROKEN;
	return rc;
}

static int refuse(struct wire *wire, enum answer_status status, struct error *err)
{
	unsigned char text[AT_BODY];

	put_head(text, status);
	if (bytes_add(&wire->out, text, sizeof text))
		return broken(wire, error_memory(err, "a refusal"));
	wire->state = WIRE_CLOSING;
	return 0;
}

/* The keys depend on the nonces alone, not on the stream headers: each side makes its own header
 * with its key before it has seen the other's. */
static void start_pull(struct wire *wire, const unsigned char header[STREAM_HEADER])
{
	unsigned char key[32];

	keyed(wire, wire->role == WIRE_ACCEPTS ? "berth key in 1" : "berth key out 1", ANSWER_HEADER,
	      NULL, 0, key);
	crypto_secretstream_xchacha20poly1305_init_pull(&wire->pull, header, key);
	sodium_memzero(key, sizeof key);
}

static void start_push(struct wire *wire, unsigned char header[STREAM_HEADER])
{
	unsigned char key[32];

	keyed(wire, wire->role == WIRE_ACCEPTS ? "berth key out 1" : "berth key in 1", ANSWER_HEADER,
	      NULL, 0, key);
	crypto_secretstream_xchacha20poly1305_init_push(&wire->push, header, key);
	sodium_memzero(key, sizeof key);
}

static int take_hello(struct wire *wire, struct error *err)
{
	unsigned char mine[8];
	const unsigned char *hello = wire->in.data;

	if (memcmp(hello, MAGIC, wire->in.size < 8 ? wire->in.size : 8))
		return broken(wire, error_set(err, ERR_DATA, "a stranger connected: its first bytes "
							     "are no greeting of berth's"));
	if (wire->in.size < AT_BODY)
		return 0;
	unsigned version = bytes_get_u16(hello + AT_VERSION), kind = bytes_get_u16(hello + AT_KIND);

	if (version != WIRE_VERSION) {
		error_set(err, ERR_DATA,
			  "the other side speaks version %u of the protocol, this side %d: the same "
			  "berth must be installed on all nodes",
			  version, WIRE_VERSION);
		refuse(wire, ANSWER_VERSION, NULL);
		return -ERR_DATA;
	}
	if (wire->in.size < WIRE_HELLO_BYTES)
		return 0;
	memcpy(wire->hello, hello, WIRE_HELLO_BYTES);
	bytes_drop(&wire->in, WIRE_HELLO_BYTES);
	fingerprint(&wire->secret, mine);
	if (sodium_memcmp(mine, wire->hello + HELLO_FINGERPRINT, 8)) {
		char ours[17], text[17];

		sodium_bin2hex(text, sizeof text, wire->hello + HELLO_FINGERPRINT, 8);
		sodium_bin2hex(ours, sizeof ours, mine, 8);
		error_set(err, ERR_DATA,
			  "the other side's secret has the fingerprint %s, this side's %s: give "
			  "both the same secret",
			  text, ours);
		refuse(wire, ANSWER_SECRET, NULL);
		return -ERR_DATA;
	}
	if (kind == HELLO_PROBE) {
		unsigned char answer[WIRE_PROBE_ANSWER_BYTES];

		put_head(answer, ANSWER_PROBE);
		keyed(wire, "berth probe 1", 0, NULL, 0, answer + AT_BODY);
		wire->state = WIRE_CLOSING;
		return bytes_add(&wire->out, answer, sizeof answer)
			       ? broken(wire, error_memory(err, "an answer"))
			       : 0;
	}
	if (kind != HELLO_JOIN)
		return broken(wire, error_set(err, ERR_DATA, "a greeting of kind %u is unknown", kind));
	put_head(wire->answer, ANSWER_WELCOME);
	randombytes_buf(wire->answer + ANSWER_NONCE, NONCE_BYTES);
	start_push(wire, wire->answer + ANSWER_HEADER);
	keyed(wire, "berth accepts 1", ANSWER_PROOF, NULL, 0, wire->answer + ANSWER_PROOF);
	wire->answered = true;
	if (bytes_add(&wire->out, wire->answer, WIRE_ANSWER_BYTES))
		return broken(wire, error_memory(err, "a greeting"));
	return 0;
}

/* Send what was queued before the connection was open. */
static int send_waiting(struct wire *wire, struct error *err)
{
	bool finish = wire->finished_out;
	size_t at = 0;
	int rc = 0;

	wire->finished_out = false;
	while (!rc && at < wire->waiting.size) {
		struct wire_message message;
		uint32_t size = bytes_get_u32(wire->waiting.data + at);

		rc = wire_decode(wire->waiting.data + at + 4, size, wire->job, 0, &message, err);
		if (!rc)
			rc = wire_send(wire, &message, err);
		at += 4 + size;
	}
	bytes_free(&wire->waiting);
	if (!rc && finish)
		rc = wire_finish(wire, err);
	return rc ? broken(wire, rc) : 0;
}

static int take_answer(struct wire *wire, struct error *err)
{
	const unsigned char *answer = wire->in.data;
	unsigned char proof[PROOF_BYTES], mine[WIRE_PROOF_BYTES];
	char text[17];

	if (memcmp(answer, MAGIC, wire->in.size < 8 ? wire->in.size : 8))
		return broken(wire, error_set(err, ERR_DATA, "what answers there is no berth"));
	if (wire->in.size < AT_BODY)
		return 0;
	unsigned version = bytes_get_u16(answer + AT_VERSION), status = bytes_get_u16(answer + AT_KIND);

	wire_secret_fingerprint(&wire->secret, text);
	if (status == ANSWER_VERSION || version != WIRE_VERSION)
		return broken(wire, error_set(err, ERR_DATA,
					      "the other side speaks version %u of the protocol, this "
					      "side %d: the same berth must be installed on all nodes",
					      version, WIRE_VERSION));
	if (status == ANSWER_SECRET)
		return broken(wire, error_set(err, ERR_DATA,
					      "the other side has a secret other than this side's, whose "
					      "fingerprint is %s: give both the same secret",
					      text));
	if (status != ANSWER_WELCOME)
		return broken(wire, error_set(err, ERR_DATA, "an answer of kind %u is unknown", status));
	if (wire->in.size < WIRE_ANSWER_BYTES)
		return 0;
	memcpy(wire->answer, answer, WIRE_ANSWER_BYTES);
	bytes_drop(&wire->in, WIRE_ANSWER_BYTES);
	keyed(wire, "berth accepts 1", ANSWER_PROOF, NULL, 0, proof);
	if (sodium_memcmp(proof, wire->answer + ANSWER_PROOF, PROOF_BYTES))
		return broken(wire, error_set(err, ERR_DATA,
					      "the other side does not prove the secret %s of this job: "
					      "it belongs to another job, or is an impostor",
					      text));
	start_push(wire, mine);
	keyed(wire, "berth connects 1", WIRE_ANSWER_BYTES, mine, STREAM_HEADER, mine + STREAM_HEADER);
	start_pull(wire, wire->answer + ANSWER_HEADER);
	if (bytes_add(&wire->out, mine, sizeof mine))
		return broken(wire, error_memory(err, "a greeting"));
	wire->state = WIRE_OPEN;
	return send_waiting(wire, err);
}

static int take_proof(struct wire *wire, struct error *err)
{
	unsigned char proof[PROOF_BYTES];

	if (wire->in.size < WIRE_PROOF_BYTES)
		return 0;
	keyed(wire, "berth connects 1", WIRE_ANSWER_BYTES, wire->in.data, STREAM_HEADER, proof);
	if (sodium_memcmp(proof, wire->in.data + STREAM_HEADER, PROOF_BYTES))
		return broken(wire, error_set(err, ERR_DATA,
					      "a stranger connected that cannot prove the secret of this "
					      "job (a replay, or another job's agent)"));
	start_pull(wire, wire->in.data);
	bytes_drop(&wire->in, WIRE_PROOF_BYTES);
	wire->state = WIRE_OPEN;
	return send_waiting(wire, err);
}

int wire_feed(struct wire *wire, const void *bytes, size_t size, struct error *err)
{
	if (wire->state == WIRE_CLOSING)
		return 0; /* nothing more is wanted from it */
	if (wire->state == WIRE_BROKEN)
		return error_set(err, ERR_NETWORK, "the connection is already broken");
	if (bytes_add(&wire->in, bytes, size))
		return broken(wire, error_memory(err, "a message"));
	if (wire->state == WIRE_GREETING && wire->role == WIRE_CONNECTS)
		return take_answer(wire, err);
	if (wire->state == WIRE_GREETING && !wire->answered) {
		int rc = take_hello(wire, err);

		if (rc || !wire->answered)
			return rc;
	}
	if (wire->state == WIRE_GREETING)
		return take_proof(wire, err);
	return 0;
}

int wire_feed_end(struct wire *wire, struct error *err)
{
	if (wire->state == WIRE_CLOSING || wire->finished_in)
		return 0;
	if (wire->state == WIRE_GREETING)
		return broken(wire, error_set(err, ERR_NETWORK,
					      "the connection was closed during the greeting"));
	return broken(wire, error_set(err, ERR_NETWORK, "the connection ended without a goodbye"));
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
		return error_set(err, ERR_DATA, "a message of %zu bytes is shorter than its header", size);
	uint32_t text_size = bytes_get_u32(bytes + 36), data_size = bytes_get_u32(bytes + 40);

	if (bytes_get_u16(bytes + 2))
		return error_set(err, ERR_DATA, "a message has flags that are unknown here");
	if (bytes_get_u64(bytes + 20) != job)
		return error_set(err, ERR_DATA, "a message of another job");
	if (bytes_get_u64(bytes + 28) != count)
		return error_set(err, ERR_DATA, "message %llu came where %llu was due",
				 (unsigned long long)bytes_get_u64(bytes + 28),
				 (unsigned long long)count);
	if ((uint64_t)text_size + data_size != size - PLAIN_HEADER)
		return error_set(err, ERR_DATA,
				 "a message of %zu bytes claims %u bytes of text and %u of data", size,
				 text_size, data_size);
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

int wire_next(struct wire *wire, struct wire_message *out, struct error *err)
{
	if (wire->state != WIRE_OPEN || wire->in.size < 4)
		return 0;
	uint32_t size = bytes_get_u32(wire->in.data);
	unsigned char tag;
	unsigned long long plain_size;

	if (wire->finished_in)
		return broken(wire, error_set(err, ERR_DATA, "bytes came after the end"));
	if (size < crypto_secretstream_xchacha20poly1305_ABYTES ||
	    size > WIRE_MAX_MESSAGE + PLAIN_HEADER + FRAME_OVERHEAD)
		return broken(wire, error_set(err, ERR_DATA,
					      "a frame of %u bytes; the limit is %u", size,
					      WIRE_MAX_MESSAGE));
	if (wire->in.size - 4 < size)
		return 0;
	if (bytes_reserve(&wire->plain, size))
		return broken(wire, error_memory(err, "a message"));
	if (crypto_secretstream_xchacha20poly1305_pull(&wire->pull, wire->plain.data, &plain_size,
						       &tag, wire->in.data + 4, size, wire->in.data,
						       4))
		return broken(wire, error_set(err, ERR_DATA, "a message was altered, repeated or left "
							     "out on its way"));
	bytes_drop(&wire->in, 4 + (size_t)size);
	if (tag == crypto_secretstream_xchacha20poly1305_TAG_FINAL) {
		wire->finished_in = true;
		return 0;
	}
	int rc = wire_decode(wire->plain.data, plain_size, wire->job, wire->received++, out, err);

	return rc ? broken(wire, rc) : 1;
}

static int push_frame(struct wire *wire, const unsigned char *plain, size_t size, unsigned char tag,
		      struct error *err)
{
	uint32_t cipher = (uint32_t)(size + crypto_secretstream_xchacha20poly1305_ABYTES);
	unsigned char *out = bytes_extend(&wire->out, 4 + (size_t)cipher);

	if (!out)
		return error_memory(err, "a message to be sent");
	bytes_put_u32(out, cipher);
	crypto_secretstream_xchacha20poly1305_push(&wire->push, out + 4, NULL, plain, size, out, 4,
						   tag);
	return 0;
}

int wire_send(struct wire *wire, const struct wire_message *message, struct error *err)
{
	size_t size = wire_plain_size(message);

	if (wire->state == WIRE_BROKEN || wire->state == WIRE_CLOSING || wire->finished_out)
		return error_set(err, ERR_NETWORK, "the connection has ended");
	if (message->text_size > WIRE_MAX_MESSAGE || message->data_size > WIRE_MAX_MESSAGE ||
	    size - PLAIN_HEADER > WIRE_MAX_MESSAGE)
		return error_set(err, ERR_DATA, "a message of %zu bytes; the limit is %u", size,
				 WIRE_MAX_MESSAGE);
	if (wire->out.size + wire->waiting.size + size > WIRE_MAX_QUEUE)
		return error_set(err, ERR_NETWORK,
				 "more than %u MiB wait to be sent: the other side does not read",
				 WIRE_MAX_QUEUE >> 20);
	if (wire->state == WIRE_GREETING) {
		unsigned char *at = bytes_extend(&wire->waiting, 4 + size);

		if (!at)
			return error_memory(err, "a message to be sent");
		bytes_put_u32(at, (uint32_t)size);
		wire_encode(message, wire->job, 0, at + 4);
		return 0;
	}
	unsigned char small[4096], *plain = size <= sizeof small ? small : malloc(size);

	if (!plain)
		return error_memory(err, "a message to be sent");
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
	if (wire->state == WIRE_GREETING)
		return 0; /* send_waiting comes back to it */
	return push_frame(wire, (const unsigned char *)"", 0,
			  crypto_secretstream_xchacha20poly1305_TAG_FINAL, err);
}

size_t wire_output(const struct wire *wire, const void **bytes)
{
	*bytes = wire->out.data;
	return wire->out.size;
}

void wire_wrote(struct wire *wire, size_t size)
{
	bytes_drop(&wire->out, size);
}

/* ---- probes ---- */

static void probe_proof(const struct wire_secret *secret, const char *job,
			const unsigned char question[WIRE_HELLO_BYTES], unsigned char out[32])
{
	struct wire wire = {.secret = *secret};

	hash_job(job, wire.job_hash);
	memcpy(wire.hello, question, WIRE_HELLO_BYTES);
	keyed(&wire, "berth probe 1", 0, NULL, 0, out);
	wire_secret_forget(&wire.secret);
}

void wire_probe_question(const struct wire_secret *secret, const char *job,
			 unsigned char question[WIRE_HELLO_BYTES])
{
	make_hello(secret, HELLO_PROBE, question);
}

bool wire_probe_answered(const struct wire_secret *secret, const char *job,
			 const unsigned char question[WIRE_HELLO_BYTES],
			 const unsigned char answer[WIRE_PROBE_ANSWER_BYTES])
{
	unsigned char head[AT_BODY], proof[32];

	put_head(head, ANSWER_PROBE);
	probe_proof(secret, job, question, proof);
	return !memcmp(head, answer, AT_BODY) && !sodium_memcmp(proof, answer + AT_BODY, 32);
}
