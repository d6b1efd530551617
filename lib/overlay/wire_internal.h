/* SPDX-License-Identifier: BSD-3-Clause */
/* One end of a connection, shared by wire.c and handshake.c only. */
#ifndef BERTH_OVERLAY_WIRE_INTERNAL_H
#define BERTH_OVERLAY_WIRE_INTERNAL_H

#include <sodium.h>

#include "base/bytes.h"
#include "overlay/wire.h"

struct wire {
	enum wire_role role;
	enum wire_state state;
	bool answered;	   /* WIRE_ACCEPTS: the answer is queued and the proof is due */
	bool finished_out; /* the final frame is queued */
	bool finished_in;  /* the peer's final frame has arrived */
	uint64_t job;
	uint64_t sent, received; /* number of messages */
	struct secret secret;
	unsigned char job_hash[32];
	unsigned char hello[WIRE_HELLO_BYTES];
	unsigned char answer[WIRE_ANSWER_BYTES];
	crypto_secretstream_xchacha20poly1305_state push, pull;
	size_t load_in, load_out; /* of a probe: bytes to be read, and to be written after out */
	struct bytes in;	  /* received, not yet parsed */
	struct bytes out;	  /* to be written */
	struct bytes waiting;	  /* plain messages queued before WIRE_OPEN */
	struct bytes plain;	  /* the message that wire_next returned last */
};

/* wire.c: both sides have authenticated, so send the messages queued until now. */
int wire_send_queued(struct wire *wire, struct error *err);

/* handshake.c: make the connecting side's HELLO. */
void handshake_make_hello(struct wire *wire);
void handshake_hash_job(const char *job, unsigned char out[32]);
/* Parse what has arrived of HELLO, ANSWER and PROOF. Returns as wire_feed, which marks the wire
 * broken on failure unless a refusal is still to be written (WIRE_CLOSING). */
int handshake_receive(struct wire *wire, struct error *err);

/* handshake.c: take size bytes of a probe's load; after the last one, queue the answer. */
int handshake_take_load(struct wire *wire, size_t size, struct error *err);

#endif
