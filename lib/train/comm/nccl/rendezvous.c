/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/nccl/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define KEY_GPU "berth.nccl.card"
#define KEY_DECISION "berth.nccl.go"
#define KEY_ENTERED "berth.nccl.in"
#define KEY_POSITION "berth.nccl.at"
#define KEY_FAILURE "berth.nccl.end"
/* Other ranks wait longer for rank 0's decision than rank 0 waits for them: it names who is
 * missing. */
#define DECISION_MS 5000

/* Rank 0's decision, and the hosts. */
struct decision {
	struct error err;
	int32_t shared;
	unsigned char id[NCCL_RENDEZVOUS_ID_BYTES];
	char hosts[][64]; /* [size] */
};

/* ---- begin ---- */

static int collect_gpus(struct ranks *ranks, struct rank_gpu *rank_gpus, int size, int timeout_ms,
			struct error *err)
{
	int64_t until = clock_now_ms() + timeout_ms;
	struct ranks_list missing = {0};

	for (int rank = 1; rank < size; rank++) {
		struct error why = {0};
		int rc = ranks_get_exact(ranks, rank, KEY_GPU, ranks_left_ms(until),
					 &rank_gpus[rank], sizeof rank_gpus[rank], &why);

		if (rc == -ERR_DATA) {
			*err = why;
			return rc;
		}
		if (rc)
			ranks_list_add(&missing, rank, NULL);
	}
	return missing.count
		       ? error_set(err, ERR_NETWORK,
				   "rank%s %s did not start NCCL within %d s. Look for earlier "
				   "errors in the output, or raise --comm-timeout",
				   missing.count > 1 ? "s" : "", missing.text, timeout_ms / 1000)
		       : 0;
}

/* On rank 0. */
static int decide(struct ranks *ranks, const struct rank_gpu *own, bool allow_shared,
		  int timeout_ms, const unsigned char *id, struct nccl_rendezvous *rendezvous,
		  struct error *err)
{
	size_t hosts_size = (size_t)rendezvous->size * sizeof *rendezvous->hosts;
	struct rank_gpu *rank_gpus = calloc((size_t)rendezvous->size, sizeof *rank_gpus);
	struct decision *decision = calloc(1, sizeof *decision + hosts_size);
	int rc;

	if (!rank_gpus || !decision) {
		rc = error_memory(err, "the ranks' GPUs");
		goto out;
	}
	rank_gpus[0] = *own;
	rc = collect_gpus(ranks, rank_gpus, rendezvous->size, timeout_ms, &decision->err);
	if (!rc)
		rc = gpus_check(rank_gpus, rendezvous->size, allow_shared, &rendezvous->shared,
				&decision->err);
	decision->shared = rendezvous->shared;
	memcpy(decision->id, id, sizeof decision->id);
	for (int rank = 0; rank < rendezvous->size; rank++)
		memcpy(decision->hosts[rank], rank_gpus[rank].host, sizeof *decision->hosts);
	memcpy(rendezvous->hosts, decision->hosts, hosts_size);
	if (rc && err)
		*err = decision->err;

	int put = ranks_put(ranks, KEY_DECISION, decision, sizeof *decision + hosts_size,
			    rc ? NULL : err);

	rc = rc ? rc : put;
out:
	free(decision);
	free(rank_gpus);
	return rc;
}

static int apply_decision(struct ranks *ranks, int timeout_ms, unsigned char *id,
			  struct nccl_rendezvous *rendezvous, struct error *err)
{
	size_t hosts_size = (size_t)rendezvous->size * sizeof *rendezvous->hosts;
	struct decision *decision = calloc(1, sizeof *decision + hosts_size);
	int rc = decision ? ranks_get_exact(ranks, 0, KEY_DECISION, timeout_ms, decision,
					    sizeof *decision + hosts_size, err)
			  : error_memory(err, "the ranks' GPUs");

	if (rc) {
		rc = rc == -ERR_NETWORK ? error_prefix(err, "waiting for rank 0's decision") : rc;
		goto out;
	}
	memcpy(rendezvous->hosts, decision->hosts, hosts_size);
	rendezvous->shared = decision->shared;
	memcpy(id, decision->id, sizeof decision->id);
	decision->err.text[sizeof decision->err.text - 1] = 0;
	if (decision->err.code)
		rc = error_set(err, decision->err.code, "%s", decision->err.text);
out:
	free(decision);
	return rc;
}

int nccl_rendezvous_begin(struct ranks *ranks, const struct rank_gpu *own, bool allow_shared,
			  int timeout_ms, unsigned char id[NCCL_RENDEZVOUS_ID_BYTES],
			  struct nccl_rendezvous *out, struct error *err)
{
	const struct ranks_place *place = ranks_place(ranks);

	*out = (struct nccl_rendezvous){.ranks = ranks, .rank = place->rank, .size = place->size};
	out->hosts = calloc((size_t)place->size, sizeof *out->hosts);
	if (!out->hosts)
		return error_memory(err, "the ranks' hosts");
	if (!place->rank)
		return decide(ranks, own, allow_shared, timeout_ms, id, out, err);

	int rc = ranks_put(ranks, KEY_GPU, own, sizeof *own, err);

	return rc ? rc : apply_decision(ranks, timeout_ms + DECISION_MS, id, out, err);
}

void nccl_rendezvous_free(struct nccl_rendezvous *rendezvous)
{
	free(rendezvous->hosts);
	rendezvous->hosts = NULL;
}

/* ---- who is missing ---- */

int nccl_rendezvous_announce(const struct nccl_rendezvous *rendezvous, struct error *err)
{
	return ranks_put(rendezvous->ranks, KEY_ENTERED, "in", 2, err);
}

void nccl_rendezvous_missing(const struct nccl_rendezvous *rendezvous, int wait_ms,
			     struct ranks_list *missing)
{
	ranks_find_missing(rendezvous->ranks, KEY_ENTERED, (const char(*)[64])rendezvous->hosts,
			   wait_ms, missing);
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
