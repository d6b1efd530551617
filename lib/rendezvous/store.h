/* SPDX-License-Identifier: BSD-3-Clause */
/* The exchange of processes that have no PMIx: barrier and key-value over TCP, hosted by a thread
 * of rank 0 at MASTER_ADDR:MASTER_PORT.
 *
 * Each message is a head of STORE_HEADER_BYTES bytes, big-endian, then the key, then the data. A
 * client has one request under way; the answer carries its number. Values are those of the job
 * alone: whoever connects must name the job's label, size and a free rank within STORE_HELLO_MS,
 * and anything else ends the connection. There is no secret to prove: RANK and its kin bring none.
 */
#ifndef BERTH_RENDEZVOUS_STORE_H
#define BERTH_RENDEZVOUS_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STORE_MAGIC 0x42524b31u /* "BRK1" */
#define STORE_HEADER_BYTES 20
#define STORE_KEY_MAX 255
#define STORE_VALUE_MAX (16u << 20)  /* bytes of one value */
#define STORE_TOTAL_MAX (256u << 20) /* bytes of all values */
#define STORE_UNIDENTIFIED_MAX 64    /* connections that have not said who they are */
#define STORE_HELLO_MS 5000

enum store_type {
	STORE_HELLO = 1, /* rank; number: world size; data: the label -> WELCOME or REFUSED */
	STORE_WELCOME,
	STORE_REFUSED, /* data: why */
	STORE_PUT,     /* key, data -> DONE or FAILED */
	STORE_DONE,
	STORE_GET, /* rank or STORE_ANY, key -> VALUE or FAILED, when it is known */
	STORE_VALUE,
	STORE_BARRIER, /* -> DONE when all have come, or FAILED */
	STORE_FAILED,  /* data: why */
	STORE_CANCEL,  /* the request under way -> MISSING */
	STORE_MISSING, /* data: the ranks that were waited for, "1,3" */
	STORE_BYE,     /* no answer */
};

#define STORE_ANY (-1) /* in place of a rank: of all that put the key the first */

struct store_message {
	uint32_t type, rank, number, size;
	uint32_t key_size;
	char key[STORE_KEY_MAX + 1]; /* NUL-terminated */
};

/* The head in wire form, and back. store_header_read: 0, or -1 when it is not one of ours or breaks
 * a limit; the key comes after the head and is not read. */
void store_header_write(const struct store_message *message,
			unsigned char header[STORE_HEADER_BYTES]);
int store_header_read(const unsigned char header[STORE_HEADER_BYTES],
		      struct store_message *message);

/* ---- rank 0's side ---- */

struct store_server; /* opaque */

/* Listen at address (where that is no address of this machine: at all) and port, serve size ranks
 * in a thread. *own: a connection for this process, welcomed already as rank 0; the caller closes
 * it. -ERR_NETWORK names the address and says who may have taken the port. */
int store_serve(const char *address, int port, int size, const char *label,
		struct store_server **out, int *own, struct error *err);
/* A listening socket there, or -1 with err. */
int store_listen(const char *address, int port, struct error *err);
/* Wait until all ranks that ever came have said goodbye, at most linger_ms; then end the thread. */
void store_stop(struct store_server *server, int linger_ms); /* NULL is fine */

/* ---- every rank's side ---- */

struct store_client {
	int fd; /* -1: not connected */
	int rank, size;
	uint32_t number;
	char where[96]; /* "ADDRESS port N", for messages */
};

/* Connect and say hello, again and again until it works or the time is over. */
int store_connect(const char *address, int port, int rank, int size, const char *label,
		  int timeout_ms, struct store_client *out, struct error *err);
int store_barrier(struct store_client *client, int timeout_ms, struct error *err);
int store_put(struct store_client *client, const char *key, const void *data, size_t size,
	      int timeout_ms, struct error *err);
/* rank: or STORE_ANY. */
int store_get(struct store_client *client, int rank, const char *key, int timeout_ms, void **data,
	      size_t *size, struct error *err);
void store_close(struct store_client *client); /* says goodbye */

#endif
