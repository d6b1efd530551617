/* SPDX-License-Identifier: BSD-3-Clause */
/* What the ranks of a communication library tell each other, through rendezvous/ranks.h, before it
 * connects them. */
#ifndef BERTH_RENDEZVOUS_EXCHANGE_H
#define BERTH_RENDEZVOUS_EXCHANGE_H

#include "rendezvous/ranks.h"

/* Ranks for a message, "1 on node-b,3 on node-d and 2 more": initially zeros. */
struct ranks_list {
	char text[512];
	int count, named;
	size_t end; /* of the named ones in text */
};
void ranks_list_add(struct ranks_list *list, int rank, const char *host); /* host may be NULL */

/* How much time each of several gets has. */
int ranks_left_ms(int64_t until);
/* Get a value of exactly size bytes; otherwise -ERR_DATA. */
int ranks_get_exact(struct ranks *ranks, int rank, const char *key, int timeout_ms, void *to,
		    size_t size, struct error *err);
/* Each rank puts own; all[rank * size_bytes] receives every rank's. Return 0; -ERR_NETWORK after
 * timeout_ms, with the ranks that have put nothing in *missing (err does not name them); or
 * -ERR_DATA. */
int ranks_exchange(struct ranks *ranks, const char *key, const void *own, size_t size_bytes,
		   int timeout_ms, void *all, struct ranks_list *missing, struct error *err);
/* Add the ranks that have not put key within wait_ms in all. */
void ranks_find_missing(struct ranks *ranks, const char *key, const char (*hosts)[64], int wait_ms,
			struct ranks_list *missing);

#endif
