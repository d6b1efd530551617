/* SPDX-License-Identifier: BSD-3-Clause */
#include "rendezvous/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define MIN_WAIT_MS 20 /* for one rank's value */
#define NAMED_MAX 16
#define REST_BYTES 24 /* for " and N more" */

void ranks_list_add(struct ranks_list *list, int rank, const char *host)
{
	char *end = list->text + list->end;
	size_t room = sizeof list->text - list->end;
	char one[96];
	int size = snprintf(one, sizeof one, "%s%d%s%s", list->count ? "," : "", rank,
			    host ? " on " : "", host ? host : "");

	if (list->named == list->count++ && list->named < NAMED_MAX &&
	    (size_t)size + REST_BYTES < room) {
		memcpy(end, one, (size_t)size + 1);
		list->named++;
		list->end += (size_t)size;
	} else {
		snprintf(end, room, " and %d more", list->count - list->named);
	}
}

int ranks_left_ms(int64_t until)
{
	int64_t left = until - clock_now_ms();

	return left > MIN_WAIT_MS ? (int)left : MIN_WAIT_MS;
}

int ranks_get_exact(struct ranks *ranks, int rank, const char *key, int timeout_ms, void *to,
		    size_t size, struct error *err)
{
	void *data;
	size_t got;
	int rc = ranks_get(ranks, rank, key, timeout_ms, &data, &got, err);

	if (rc)
		return rc;
	if (got == size)
		memcpy(to, data, size);
	else
		rc = error_set(err, ERR_DATA,
			       "rank %d stored %zu bytes as %s, expected %zu: it runs another "
			       "version of berth",
			       rank, got, key, size);
	free(data);
	return rc;
}

int ranks_exchange(struct ranks *ranks, const char *key, const void *own, size_t size_bytes,
		   int timeout_ms, void *all, struct ranks_list *missing, struct error *err)
{
	const struct ranks_place *place = ranks_place(ranks);
	int64_t until = clock_now_ms() + timeout_ms;
	int rc = ranks_put(ranks, key, own, size_bytes, err);

	for (int rank = 0; !rc && rank < place->size; rank++) {
		char *to = (char *)all + (size_t)rank * size_bytes;

		if (rank == place->rank)
			memcpy(to, own, size_bytes);
		else
			rc = ranks_get_exact(ranks, rank, key, ranks_left_ms(until), to, size_bytes,
					     err);
		if (rc == -ERR_NETWORK) {
			ranks_list_add(missing, rank, NULL);
			rc = 0;
		}
	}
	return rc ? rc : missing->count ? error_set(err, ERR_NETWORK, "ranks are missing") : 0;
}

void ranks_find_missing(struct ranks *ranks, const char *key, const char (*hosts)[64], int wait_ms,
			struct ranks_list *missing)
{
	const struct ranks_place *place = ranks_place(ranks);
	int64_t until = clock_now_ms() + wait_ms;

	for (int rank = 0; rank < place->size; rank++) {
		void *data;
		size_t size;

		if (rank == place->rank)
			continue;
		if (ranks_get(ranks, rank, key, ranks_left_ms(until), &data, &size, NULL))
			ranks_list_add(missing, rank, hosts[rank]);
		else
			free(data);
	}
}
