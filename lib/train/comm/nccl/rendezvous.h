/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of a GPU comm meet through ranks.h, before and beside NCCL. No CUDA, no NCCL. */
#ifndef BERTH_TRAIN_COMM_NCCL_RENDEZVOUS_H
#define BERTH_TRAIN_COMM_NCCL_RENDEZVOUS_H

#include <stdbool.h>

#include "base/error.h"
#include "rendezvous/ranks.h"
#include "train/comm/nccl/watch.h"
#include "train/comm/shared_gpu.h"

#define NCCL_RENDEZVOUS_ID_BYTES 128 /* NCCL_UNIQUE_ID_BYTES */

struct nccl_rendezvous {
	struct ranks *ranks; /* borrowed */
	int rank, size;
	char (*hosts)[64]; /* [size]; owned */
	bool shared;	   /* some GPU has more than one rank */
	bool asked;	   /* by nccl_rendezvous_check_failure, and answered */
};

/* Everybody's card goes to rank 0, which looks at all of them; its word and id come back. id: in on
 * rank 0, out on the others. Collective; nccl_rendezvous_free after success and failure.
 * -ERR_NETWORK past timeout_ms names the ranks that did not come; gpus_check's errors are the same
 * on all ranks. */
int nccl_rendezvous_begin(struct ranks *ranks, const struct rank_gpu *own, bool allow_shared,
			  int timeout_ms, unsigned char id[NCCL_RENDEZVOUS_ID_BYTES],
			  struct nccl_rendezvous *out, struct error *err);
void nccl_rendezvous_free(struct nccl_rendezvous *rendezvous);

/* Say that this rank goes into NCCL's initialisation; who has not said so within wait_ms in all:
 * their numbers ("1,3", with hosts) or "". */
int nccl_rendezvous_announce(const struct nccl_rendezvous *rendezvous, struct error *err);
void nccl_rendezvous_missing(const struct nccl_rendezvous *rendezvous, int wait_ms, char *text,
			     size_t size);

/* Say where this rank stands; then hear the others, wait_ms in all. reports[size]: filled for those
 * that spoke, received[size] says who did. */
int nccl_rendezvous_send_report(const struct nccl_rendezvous *rendezvous,
				const struct watch_report *own, struct error *err);
void nccl_rendezvous_collect_reports(const struct nccl_rendezvous *rendezvous, int wait_ms,
				     struct watch_report *reports, bool *received);

/* This rank has given up, and why: for those that would wait for it, or have not noticed. */
int nccl_rendezvous_fail(const struct nccl_rendezvous *rendezvous, const char *why,
			 struct error *err);
/* Has a rank given up? ENDED: why is what the first of them said. GONE: rank 0, which keeps the
 * ranks' words, has ended. NOBODY_TO_ASK: the ranks meet by PMIx, whose launcher ends a job of
 * which a rank has failed. Waits wait_ms at most (and 1 s where rank 0's machine is slow). */
enum nccl_peer_state {
	NCCL_PEERS_RUNNING,
	NCCL_PEER_FAILED,
	NCCL_PEER_RANK_0_ENDED,
	NCCL_PEERS_UNKNOWN
};
enum nccl_peer_state nccl_rendezvous_check_failure(struct nccl_rendezvous *rendezvous, int wait_ms,
						   char *why, size_t size);

#endif
