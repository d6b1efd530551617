/* SPDX-License-Identifier: BSD-3-Clause */
/* gloo: a TCP connection between each two ranks, and collectives over them. mesh.cc alone calls
 * gloo; no exception leaves it. All functions block, and only one thread may call them at a time.
 * Errors: -ERR_NETWORK with gloo's message, or -ERR_UNAVAILABLE if memory is out. */
#ifndef BERTH_TRAIN_COMM_GLOO_MESH_H
#define BERTH_TRAIN_COMM_GLOO_MESH_H

#include <stdint.h>

#include "train/comm/comm.h"

#define MESH_WORD_BYTES 32 /* what one rank sends to another to prove that it is that rank */
#define MESH_ADDRESS_BYTES 192

/* What a rank sends to another before they connect, on a channel that only the job can read. */
struct mesh_contact {
	unsigned char word[MESH_WORD_BYTES];
	char address[MESH_ADDRESS_BYTES]; /* gloo's own form */
};

struct gloo_mesh; /* opaque */

/* interface: the name of a network interface whose first address is used; if "", address is: a
 * numeric one of this machine. Starts a thread that inherits this thread's mask of signals. */
int gloo_mesh_new(int rank, int size, const char *interface, const char *address,
		  struct gloo_mesh **out, struct error *err);
void gloo_mesh_free(struct gloo_mesh *mesh); /* NULL is allowed */

/* Listen for the other ranks, and write to contacts[size] how each of them connects. Drops the
 * connections of an earlier try. timeout_ms: of each wait in gloo_mesh_connect. */
int gloo_mesh_listen(struct gloo_mesh *mesh, int timeout_ms, struct mesh_contact *contacts,
		     struct error *err);
/* Connect to all ranks, and check that each end sends the word that this rank expects, so that
 * no other program sits there. contacts[rank * size + peer] is what rank sent to peer. The error
 * names the rank whose connection failed; it is -ERR_DATA if the word was wrong. */
int gloo_mesh_connect(struct gloo_mesh *mesh, int timeout_ms, const struct mesh_contact *contacts,
		      struct error *err);
/* Reset all connections, so that the other ranks notice. */
void gloo_mesh_reset(struct gloo_mesh *mesh);

enum mesh_kind { MESH_ALL_REDUCE, MESH_BROADCAST, MESH_ALL_GATHER, MESH_BARRIER };

/* A collective, as in comm.h. */
struct mesh_job {
	enum mesh_kind kind;
	void *data;
	const void *from;
	size_t count; /* elements, or bytes */
	enum element_type type;
	enum comm_reduce reduce;
	int root;
};
/* It is complete on return; every wait in it ends after timeout_ms. */
int gloo_mesh_run(struct gloo_mesh *mesh, const struct mesh_job *job, int timeout_ms,
		  struct error *err);

/* Which libgloo is loaded: hexadecimal digits that are equal for equal builds; "" if it carries
 * none. */
void gloo_mesh_build(char text[48]);

#endif
