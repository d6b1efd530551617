/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/nccl/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define KEY_ID "berth.nccl.id"
#define KEY_ENTERED "berth.nccl.in"
#define KEY_POSITION "berth.nccl.at"
#define KEY_FAILURE "berth.nccl.end"

int nccl_rendezvous_share(const struct nccl_rendezvous *rendezvous, int timeout_ms,
			  struct nccl_rendezvous_id *id, struct error *err)
{
	int rc = rendezvous->rank ? ranks_get_exact(rendezvous->ranks, 0, KEY_ID, timeout_ms, id,
						    sizeof *id, err)
				  : ranks_put(rendezvous->ranks, KEY_ID, id, sizeof *id, err);

	id->err.text[sizeof id->err.text - 1] = 0;
	if (!rc && id->err.code)
		rc = error_set(err, id->err.code, "%s", id->err.text);
	return rc;
}

/* ---- who is missing ---- */

int nccl_rendezvous_announce(const struct nccl_rendezvous *rendezvous, struct error *err)
{
	return ranks_put(rendezvous->ranks, KEY_ENTERED, "in", 2, err);
}

void nccl_rendezvous_missing(const struct nccl_rendezvous *rendezvous, int wait_ms,
			     struct ranks_list *missing)
{
	ranks_find_missing(rendezvous->ranks, KEY_ENTERED, rendezvous->meeting->hosts, wait_ms,
			   missing);
}

int nccl_rendezvous_send_report(const struct nccl_rendezvous *rendezvous,
				const struct watch_report *own, struct error *err)
{
	return ranks_put(rendezvous->ranks, KEY_POSITION, own, sizeof *own, err);
}

void nccl_rendezvous_collect_reports(const struct nccl_rendezvous *rendezvous, int wait_ms,
				     struct watch_report *reports,
				     const struct watch_report **reported)
{
	int64_t until = clock_now_ms() + wait_ms;

	for (int rank = 0; rank < rendezvous->size; rank++)
		reported[rank] =
			rank == rendezvous->rank ||
					ranks_get_exact(rendezvous->ranks, rank, KEY_POSITION,
							ranks_left_ms(until), &reports[rank],
							sizeof reports[rank], NULL)
				? NULL
				: &reports[rank];
}

/* ---- who has given up ---- */

int nccl_rendezvous_fail(const struct nccl_rendezvous *rendezvous, const char *why,
			 struct error *err)
{
	return ranks_put(rendezvous->ranks, KEY_FAILURE, why, strlen(why), err);
}

enum nccl_peer_state nccl_rendezvous_check_failure(struct nccl_rendezvous *rendezvous, int wait_ms,
						   char *why, size_t size)
{
	void *data;
	size_t got;
	int rc = ranks_get_any(rendezvous->ranks, KEY_FAILURE, wait_ms, &data, &got, NULL);

	if (rc == -ERR_UNAVAILABLE)
		return rendezvous->asked ? NCCL_PEER_RANK_0_ENDED : NCCL_PEERS_UNKNOWN;
	rendezvous->asked = true;
	if (rc)
		return NCCL_PEERS_RUNNING;
	snprintf(why, size, "%s", (const char *)data);
	free(data);
	return NCCL_PEER_FAILED;
}
