/* SPDX-License-Identifier: BSD-3-Clause */
/* The wire protocol: authenticated, encrypted messages between controller and agents. It does no
 * I/O: bytes go in, messages and bytes come out. connection.h moves them over a socket.
 *
 *   connects -> accepts  HELLO   magic, version, kind, fingerprint, nonce
 *   accepts -> connects  ANSWER  magic, version, status, nonce, stream header, proof
 *   connects -> accepts  PROOF   stream header, proof
 *   then frames both ways: length (4 bytes, little endian), that many bytes of ciphertext
 *
 * Proofs are BLAKE2b keyed by the secret, over the whole handshake so far and the job's name. Each
 * direction has keys of its own (libsodium's secretstream). An altered, repeated, reordered or
 * missing frame is detected, and so is a connection that ends before the final frame. Both nonces
 * are new for each connection, so a recorded handshake proves nothing. An unauthenticated peer
 * receives at most a refusal, and costs one struct of a few hundred bytes.
 *
 * A HELLO of kind PROBE asks "are you part of this job?". The answer is the keyed hash of its
 * nonce; then the connection ends. HELLO is not MESSAGE_HELLO, which follows the handshake.
 *
 * A frame's plain text is a header of 44 bytes, little endian, and the message's text and data:
 *   type (2), 0 (2), node (4), attempt (4), sequence (8), job (8), count (8), text size (4),
 *   data size (4)
 * job is the start of the hashed job name, count the message's number in its direction. */
#ifndef BERTH_OVERLAY_WIRE_H
#define BERTH_OVERLAY_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "overlay/secret.h"

#define WIRE_VERSION 4
#define WIRE_MAX_MESSAGE (64u << 20) /* bytes of one message, text and data together */
#define WIRE_MAX_QUEUE (256u << 20)  /* bytes waiting to be sent; more is an error */
#define WIRE_HIGH_WATER                                                                            \
	(1u << 20) /* above this, agents stop reading output: agent_uplink_is_full */
#define WIRE_HELLO_BYTES 56
#define WIRE_ANSWER_BYTES 104
#define WIRE_PROOF_BYTES 56
#define WIRE_PROBE_LOAD_MAX 65536

/* One message. text (JSON, not parsed here) and data are borrowed until the next wire_next. */
struct wire_message {
	uint16_t type; /* enum message_type, see messages.h */
	/* Going down: the destination (WIRE_ALL: every node). Going up: the origin. */
	uint32_t node;
	uint32_t attempt;
	uint64_t sequence; /* the collective or request it belongs to, else 0 */
	const char *text;  /* not NUL-terminated */
	size_t text_size;
	const void *data;
	size_t data_size;
};
#define WIRE_ALL UINT32_MAX

enum wire_role { WIRE_CONNECTS, WIRE_ACCEPTS };
enum wire_state {
	WIRE_HANDSHAKE, /* the peer has not authenticated yet */
	WIRE_OPEN,
	WIRE_PROBED,  /* the peer is a probe: read its load */
	WIRE_CLOSING, /* flush the output, then close: a refusal or a probe's answer */
	WIRE_BROKEN,  /* wire_feed or wire_next failed */
};

struct wire; /* one end of one connection */

/* job is the job's name; both ends must pass the same. The secret is copied. NULL if memory is
 * out. */
struct wire *wire_new(enum wire_role role, const struct secret *secret, const char *job);
void wire_free(struct wire *wire); /* wipes the keys; NULL is allowed */
enum wire_state wire_state(const struct wire *wire);

/* Take bytes from the peer. Return 0, or -ERR_DATA or -ERR_NETWORK: close the connection then. err
 * holds the cause (version, fingerprint of the secret, tampering). On the accepting side, garbage
 * from an unauthenticated peer queues no answer. */
int wire_feed(struct wire *wire, const void *bytes, size_t size, struct error *err);
/* The peer has closed the connection. Return 0 if its final frame came first (wire_finish), else
 * -ERR_NETWORK. */
int wire_feed_eof(struct wire *wire, struct error *err);

/* Get the next whole message. Return 1, 0 if there is none yet, or a negative code as wire_feed. */
int wire_next(struct wire *wire, struct wire_message *out, struct error *err);

/* Queue a message; before WIRE_OPEN it waits for the handshake. Return 0, -ERR_DATA if it exceeds
 * the limit, or -ERR_NETWORK if the queue is full because the peer reads too slowly or not at
 * all. */
int wire_send(struct wire *wire, const struct wire_message *message, struct error *err);
/* Queue the final frame. Nothing may be sent after it. */
int wire_finish(struct wire *wire, struct error *err);

/* Bytes to write, borrowed until the next call. wire_consume_output removes those that were
 * written. */
size_t wire_output(const struct wire *wire, const void **bytes);
void wire_consume_output(struct wire *wire, size_t size);

/* A probe (see above): make the bytes to send, and check whether an answer is the controller's.
 * After the question and after the answer follow load bytes of any value (at most
 * WIRE_PROBE_LOAD_MAX): some networks pass small packets only. */
#define WIRE_PROBE_ANSWER_BYTES 44
void handshake_probe_question(const struct secret *secret, const char *job, uint32_t load,
			      unsigned char question[WIRE_HELLO_BYTES]);
bool handshake_probe_verify(const struct secret *secret, const char *job,
			    const unsigned char question[WIRE_HELLO_BYTES],
			    const unsigned char answer[WIRE_PROBE_ANSWER_BYTES]);

/* Convert a message to the plain bytes of a frame and back, for tests and fuzzing. wire_encode
 * writes wire_plain_size(message) bytes to out. wire_decode borrows from bytes and returns
 * -ERR_DATA naming the field. */
size_t wire_plain_size(const struct wire_message *message);
void wire_encode(const struct wire_message *message, uint64_t job, uint64_t count,
		 unsigned char *out);
int wire_decode(const unsigned char *bytes, size_t size, uint64_t job, uint64_t count,
		struct wire_message *out, struct error *err);

#endif
