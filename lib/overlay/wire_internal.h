/* SPDX-License-Identifier: BSD-3-Clause */
/* One end of a connection, shared by wire.c and handshake.c alone. */
#ifndef BERTH_OVERLAY_WIRE_INTERNAL_H
#define BERTH_OVERLAY_WIRE_INTERNAL_H

#include <sodium.h>

#include "base/bytes.h"
#include "overlay/wire.h"

struct wire {
	enum wire_role role;
	enum wire_state state;
	bool answered;	   /* WIRE_ACCEPTS: our answer is queued, the proof is awaited */
	bool finished_out; /* the final frame is queued */
	bool finished_in;  /* and has come in */
	uint64_t job;
	uint64_t sent, received; /* messages */
	struct secret secret;
	unsigned char job_hash[32];
	unsigned char hello[WIRE_HELLO_BYTES];
	unsigned char answer[WIRE_ANSWER_BYTES];
	crypto_secretstream_xchacha20poly1305_state push, pull;
	struct bytes in;      /* not yet understood */
	struct bytes out;     /* to be written */
	struct bytes waiting; /* plain messages queued before WIRE_OPEN */
	struct bytes plain;   /* the message wire_next gave last */
};

/* wire.c. Mark it broken; returns rc. */
int wire_fail(struct wire *wire, int rc);
/* Both sides are proved: send what was queued until now. */
int wire_send_queued(struct wire *wire, struct error *err);

/* handshake.c. The first thing that the connecting side says. */
void handshake_make_hello(struct wire *wire);
void handshake_hash_job(const char *job, unsigned char out[32]);
/* Understand what came so far of HELLO, ANSWER, PROOF: as wire_feed. */
int handshake_receive(struct wire *wire, struct error *err);

#endif
