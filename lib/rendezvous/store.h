/* SPDX-License-Identifier: BSD-3-Clause */
/* Barrier and key-value store over TCP for processes without PMIx. A thread of rank 0 hosts it at
 * MASTER_ADDR:MASTER_PORT.
 *
 * Each message is a header of STORE_HEADER_BYTES bytes, big-endian, then the key, then the data. A
 * client has one request in progress; the answer carries its number. Only the job's own ranks may
 * store values: a client must send the job's label, its size and a free rank within STORE_HELLO_MS.
 * Anything else ends the connection. There is no secret to prove, because RANK and related
 * variables bring none. */
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
#define STORE_UNIDENTIFIED_MAX 64    /* connections that have not sent STORE_HELLO */
#define STORE_HELLO_MS 5000

enum store_type {
	STORE_HELLO = 1, /* rank; number: world size; data: the label -> WELCOME or REFUSED */
	STORE_WELCOME,
	STORE_REFUSED, /* data: the reason */
	STORE_PUT,     /* key, data -> DONE or FAILED */
	STORE_DONE,
	STORE_GET, /* rank or STORE_ANY, key -> VALUE or FAILED, once known */
	STORE_VALUE,
	STORE_BARRIER, /* -> DONE once all ranks have entered, or FAILED */
	STORE_FAILED,  /* data: the reason */
	STORE_CANCEL,  /* the request in progress -> MISSING */
	STORE_MISSING, /* data: the ranks that are missing, "1,3" */
	STORE_BYE,     /* no answer */
};

#define STORE_ANY (-1) /* in place of a rank: the first rank that put the key */

struct store_message {
	uint32_t type, rank, number, size;
	uint32_t key_size;
	char key[STORE_KEY_MAX + 1]; /* NUL-terminated */
};

/* Convert a header to and from wire form. store_header_read returns 0, or -1 if it is not a valid
 * header or exceeds a limit. It does not read the key, which follows the header. */
void store_header_write(const struct store_message *message,
			unsigned char header[STORE_HEADER_BYTES]);
int store_header_read(const unsigned char header[STORE_HEADER_BYTES],
		      struct store_message *message);

/* ---- rank 0's side ---- */

struct store_server; /* opaque */

/* Listen at address and port and serve size ranks in a thread. If address is not one of this
 * machine's, listen on all. *own becomes a connection for this process, already welcomed as rank 0;
 * the caller closes it. Return 0, or -ERR_NETWORK: err names the address and what may have taken
 * the port. */
int store_serve(const char *address, int port, int size, const char *label,
		struct store_server **out, int *own, struct error *err);
/* Return a listening socket there, or -1 with err. */
int store_listen(const char *address, int port, struct error *err);
/* Wait at most linger_ms until all ranks that ever connected have said goodbye (STORE_BYE), then
 * end the thread. */
void store_stop(struct store_server *server, int linger_ms); /* NULL is allowed */

/* ---- every rank's side ---- */

struct store_client {
	int fd; /* -1: not connected */
	int rank, size;
	uint32_t number;
	char where[96]; /* "ADDRESS port N", for messages */
};

/* Connect and send STORE_HELLO, repeatedly, until it works or timeout_ms have passed. */
int store_connect(const char *address, int port, int rank, int size, const char *label,
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
