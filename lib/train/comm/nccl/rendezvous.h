/* SPDX-License-Identifier: BSD-3-Clause */
/* What a GPU comm's ranks tell each other through rendezvous/ranks.h, independent of NCCL. It uses
 * neither CUDA nor NCCL. */
#ifndef BERTH_TRAIN_COMM_NCCL_RENDEZVOUS_H
#define BERTH_TRAIN_COMM_NCCL_RENDEZVOUS_H

#include <stdbool.h>

#include "base/error.h"
#include "rendezvous/exchange.h"
#include "train/comm/meeting.h"
#include "train/comm/nccl/watch.h"

#define NCCL_RENDEZVOUS_ID_BYTES 128 /* NCCL_UNIQUE_ID_BYTES */

struct nccl_rendezvous {
	struct ranks *ranks; /* borrowed, as meeting */
	const struct meeting *meeting;
	int rank, size;
	bool asked; /* nccl_rendezvous_check_failure got an answer before */
};

/* Rank 0's NCCL id, or why it has none: input on rank 0, output on the others. Return own's error,
 * which all ranks have alike, or -ERR_NETWORK after timeout_ms. */
struct nccl_rendezvous_id {
	struct error err;
	unsigned char bytes[NCCL_RENDEZVOUS_ID_BYTES];
};
int nccl_rendezvous_share(const struct nccl_rendezvous *rendezvous, int timeout_ms,
			  struct nccl_rendezvous_id *id, struct error *err);

/* announce: publish that this rank enters NCCL's initialisation. missing: list the ranks, with
 * hosts, that have not announced within wait_ms in all. */
int nccl_rendezvous_announce(const struct nccl_rendezvous *rendezvous, struct error *err);
void nccl_rendezvous_missing(const struct nccl_rendezvous *rendezvous, int wait_ms,
			     struct ranks_list *missing);

/* send_report: publish this rank's position. collect_reports: gather the others' within wait_ms in
 * all. reports[size] is room for them; reported[size] points to those of ranks that sent one and is
 * NULL for the others. */
int nccl_rendezvous_send_report(const struct nccl_rendezvous *rendezvous,
				const struct watch_report *own, struct error *err);
void nccl_rendezvous_collect_reports(const struct nccl_rendezvous *rendezvous, int wait_ms,
				     struct watch_report *reports,
				     const struct watch_report **reported);

/* Publish that this rank has given up, and why: for ranks that would wait for it or have not
 * noticed. */
int nccl_rendezvous_fail(const struct nccl_rendezvous *rendezvous, const char *why,
			 struct error *err);
/* Has a rank given up? Waits at most wait_ms (plus 1 s if rank 0's machine is slow).
 * - NCCL_PEER_FAILED: why is the reason that the first of them published.
 * - NCCL_PEER_RANK_0_ENDED: rank 0, which keeps the published values, has ended.
 * - NCCL_PEERS_UNKNOWN: the rendezvous runs over PMIx; its launcher ends the job if a rank
 * fails. */
enum nccl_peer_state {
	NCCL_PEERS_RUNNING,
	NCCL_PEER_FAILED,
	NCCL_PEER_RANK_0_ENDED,
	NCCL_PEERS_UNKNOWN
};
enum nccl_peer_state nccl_rendezvous_check_failure(struct nccl_rendezvous *rendezvous, int wait_ms,
						   char *why, size_t size);

#endif
