/* SPDX-License-Identifier: BSD-3-Clause */
/* Barrier and key-value store over TCP for processes without PMIx. A thread of rank 0 hosts it at
 * MASTER_ADDR:MASTER_PORT.
 *
 * Messages are frames (rendezvous/channel.h); PUT and GET begin with the key and its NUL. A client
 * has one request in progress; the answer carries its number.
 *
 * Only the job's own ranks may store values. Within STORE_HELLO_MS, client and server each prove
 * that they know the job's label and its secret, with a keyed BLAKE2b hash of two nonces, the
 * client's rank and its world size. The secret comes from BERTH_STORE_SECRET, which berth run sets
 * for its ranks; without it, the label is all that a peer needs to know. Later traffic is not
 * encrypted. */
#ifndef BERTH_RENDEZVOUS_STORE_H
#define BERTH_RENDEZVOUS_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/channel.h"
#include "base/error.h"

#define STORE_KEY_MAX 255
#define STORE_VALUE_MAX (16u << 20) /* bytes of one value */
#define STORE_FRAME_MAX (STORE_KEY_MAX + 1 + STORE_VALUE_MAX)
#define STORE_TOTAL_MAX (256u << 20) /* bytes of all values */
#define STORE_UNANSWERED_MAX                                                                       \
	(STORE_VALUE_MAX + 65536) /* bytes of answers that a client leaves unread */
#define STORE_UNIDENTIFIED_MAX 64 /* connections without a proof; the oldest is dropped */
#define STORE_HELLO_MS 5000

/* A frame's number is a rank, its token the number of the request that it makes or answers. */
enum store_kind {
	STORE_HELLO = 100, /* rank; token: world size; data: a nonce -> CHALLENGE */
	STORE_CHALLENGE,   /* data: the server's nonce and proof */
	STORE_PROVE,	   /* data: the client's proof -> WELCOME or REFUSED */
	STORE_WELCOME,
	STORE_REFUSED, /* data: the reason */
	STORE_PUT,     /* data: key, NUL, value -> DONE or FAILED */
	STORE_DONE,
	STORE_GET, /* rank or STORE_ANY; data: key, NUL -> VALUE or FAILED, once known */
	STORE_VALUE,
	STORE_BARRIER, /* -> DONE once all ranks have entered, or FAILED */
	STORE_FAILED,  /* data: the reason */
	STORE_CANCEL,  /* the request in progress -> MISSING */
	STORE_MISSING, /* data: the ranks that are missing, "1,3" */
	STORE_BYE,     /* no answer */
};

#define STORE_ANY (-1) /* in place of a rank: the first rank that put the key */

/* ---- proofs ---- */

#define STORE_NONCE_BYTES 16
#define STORE_PROOF_BYTES 32

/* What the job's ranks have in common. secret: zeros if there is none. */
struct store_job {
	char label[128];
	unsigned char secret[32];
};
struct store_nonces {
	unsigned char client[STORE_NONCE_BYTES], server[STORE_NONCE_BYTES];
};

/* text: 64 hexadecimal digits, or NULL: no secret. Call it once before the other functions. Return
 * 0, -ERR_DATA (err does not show the text), or -ERR_UNAVAILABLE in a build without libsodium. */
int store_job_set_secret(struct store_job *job, const char *text, struct error *err);
/* who: "client" or "server"; rank and size are the client's. */
void store_proof(const struct store_job *job, const char *who, const struct store_nonces *nonces,
		 int rank, uint64_t size, unsigned char proof[STORE_PROOF_BYTES]);

/* ---- rank 0's side ---- */

struct store_server; /* opaque */

/* Listen at address and port and serve size ranks in a thread. If address is not one of this
 * machine's, listen on all. *own becomes a connection for this process, already welcomed as rank 0;
 * the caller closes it. Return 0, or -ERR_NETWORK: err names the address and what may have taken
 * the port. */
int store_serve(const char *address, int port, int size, const struct store_job *job,
		struct store_server **out, int *own, struct error *err);
/* Return a listening socket there, or -1 with err. */
int store_listen(const char *address, int port, struct error *err);
/* Wait at most linger_ms until all ranks that ever connected have said goodbye (STORE_BYE), then
 * end the thread. */
void store_stop(struct store_server *server, int linger_ms); /* NULL is allowed */

/* ---- every rank's side ---- */

struct store_client {
	struct channel channel; /* fd -1: not connected */
	int rank, size;
	uint64_t number; /* of the last request */
	char where[96];	 /* "ADDRESS port N", for messages */
};

/* Connect and prove, repeatedly, until it works or timeout_ms have passed. Return 0; -ERR_DATA if
 * rank 0 refuses this rank or does not know the secret; or -ERR_NETWORK. */
int store_connect(const char *address, int port, int rank, int size, const struct store_job *job,
		  int timeout_ms, struct store_client *out, struct error *err);
int store_barrier(struct store_client *client, int timeout_ms, struct error *err);
/* A key has 1 to STORE_KEY_MAX bytes. */
int store_put(struct store_client *client, const char *key, const void *data, size_t size,
	      int timeout_ms, struct error *err);
/* rank may be STORE_ANY. */
int store_get(struct store_client *client, int rank, const char *key, int timeout_ms, void **data,
	      size_t *size, struct error *err);
void store_close(struct store_client *client); /* sends STORE_BYE */

#endif
