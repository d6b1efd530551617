/* SPDX-License-Identifier: BSD-3-Clause */
/* The wire: authenticated, encrypted messages between head and agents, without any I/O: bytes
 * go in, messages and bytes come out (connection.h moves them over a socket).
 *
 *   connects -> accepts  HELLO   magic, version, kind, fingerprint, nonce
 *   accepts -> connects  ANSWER  magic, version, status, nonce, stream header, proof
 *   connects -> accepts  PROOF   stream header, proof
 *   then frames both ways: length (4 bytes, little endian), that many bytes of ciphertext
 *
 * Proofs are BLAKE2b keyed by the secret over all that was said so far and the job's name; the
 * two directions have keys of their own (libsodium's secretstream: an altered, repeated, reordered
 * or missing frame is detected, and so is an end before the final one). Both nonces are new for
 * each connection, so a recorded one proves nothing. Until the other side has proved itself it
 * is told a refusal at most, and it costs us one struct of a few hundred bytes.
 *
 * kind PROBE is the question "are you the head of this job?" (design.md section 4): it is answered
 * by the keyed hash of its nonce and the connection ends. */
#ifndef BERTH_OVERLAY_WIRE_H
#define BERTH_OVERLAY_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "overlay/secret.h"

#define WIRE_VERSION 1
#define WIRE_MAX_MESSAGE (64u << 20) /* bytes of one message, text and data together */
#define WIRE_MAX_QUEUE (256u << 20)  /* bytes waiting to be sent; more is an error */
#define WIRE_HIGH_WATER (1u << 20)   /* a queue longer than this asks senders to wait */
#define WIRE_HELLO_BYTES 56
#define WIRE_ANSWER_BYTES 104
#define WIRE_PROOF_BYTES 56

/* One message. text (JSON, not parsed here) and data are borrowed until the next wire_next. */
struct wire_message {
	uint16_t type; /* enum message_type, see messages.h */
	uint32_t node; /* going down: for whom (WIRE_ALL: everybody); going up: from whom */
	uint32_t attempt;
	uint64_t sequence; /* the collective or the question it belongs to, 0 otherwise */
	const char *text;  /* not NUL-terminated */
	size_t text_size;
	const void *data;
	size_t data_size;
};
#define WIRE_ALL UINT32_MAX

enum wire_role { WIRE_CONNECTS, WIRE_ACCEPTS };
enum wire_state {
	WIRE_HANDSHAKE, /* the other side has not proved itself yet */
	WIRE_OPEN,
	WIRE_CLOSING, /* flush the output, then close: a refusal or a probe's answer */
	WIRE_BROKEN,  /* wire_feed or wire_next has failed */
};

struct wire; /* one end of one connection */

/* job: its name; both ends must mean the same. The secret is copied. NULL: memory out. */
struct wire *wire_new(enum wire_role role, const struct secret *secret, const char *job);
void wire_free(struct wire *wire); /* NULL is fine; keys are wiped */
enum wire_state wire_state(const struct wire *wire);

/* Bytes from the other side. 0; -ERR_DATA, -ERR_NETWORK: close the connection, err says what
 * was wrong (version, secret by fingerprint, tampering). WIRE_ACCEPTS: a stranger's rubbish
 * queues no byte of answer. */
int wire_feed(struct wire *wire, const void *bytes, size_t size, struct error *err);
/* The other side has closed. 0 when it had said so (wire_finish), else -ERR_NETWORK. */
int wire_feed_eof(struct wire *wire, struct error *err);

/* The next whole message: 1, 0 when there is none yet, negative as wire_feed. */
int wire_next(struct wire *wire, struct wire_message *out, struct error *err);

/* Queue a message (before WIRE_OPEN it waits for it). -ERR_DATA: larger than the limit;
 * -ERR_NETWORK: the queue is full (the other side reads too slowly or not at all). */
int wire_send(struct wire *wire, const struct wire_message *message, struct error *err);
/* Queue the end: nothing may be sent after it. */
int wire_finish(struct wire *wire, struct error *err);

/* Bytes to be written, borrowed until the next call; wire_consume_output says how many were. */
size_t wire_output(const struct wire *wire, const void **bytes);
void wire_consume_output(struct wire *wire, size_t size);

/* A probe (see above): the bytes to send, and whether answer is the head's. */
#define WIRE_PROBE_ANSWER_BYTES 44
void handshake_probe_question(const struct secret *secret, const char *job,
			      unsigned char question[WIRE_HELLO_BYTES]);
bool handshake_probe_verify(const struct secret *secret, const char *job,
			    const unsigned char question[WIRE_HELLO_BYTES],
			    const unsigned char answer[WIRE_PROBE_ANSWER_BYTES]);

/* A message as the plain bytes of a frame, and back; for tests and fuzzing. decode borrows from
 * bytes. -ERR_DATA names the field. encode: out has wire_plain_size(message) bytes. */
size_t wire_plain_size(const struct wire_message *message);
void wire_encode(const struct wire_message *message, uint64_t job, uint64_t count,
		 unsigned char *out);
int wire_decode(const unsigned char *bytes, size_t size, uint64_t job, uint64_t count,
		struct wire_message *out, struct error *err);

#endif
