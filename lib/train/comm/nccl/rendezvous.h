/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of a GPU comm meet through ranks.h, before and beside NCCL. No CUDA, no NCCL. */
#ifndef BERTH_TRAIN_COMM_NCCL_RENDEZVOUS_H
#define BERTH_TRAIN_COMM_NCCL_RENDEZVOUS_H

#include <stdbool.h>

#include "base/error.h"
#include "rendezvous/ranks.h"
#include "train/comm/nccl/watch.h"
#include "train/comm/shared_gpu.h"

#define MEET_ID_SIZE 128 /* NCCL_UNIQUE_ID_BYTES */

struct meet {
	struct ranks *ranks; /* borrowed */
	int rank, size;
	char (*hosts)[64]; /* [size]; owned */
	bool shared;	   /* some GPU has more than one rank */
	bool asked;	   /* by meet_ended, and answered */
};

/* Everybody's card goes to rank 0, which looks at all of them; its word and id come back. id: in on
 * rank 0, out on the others. Collective; meet_free after success and failure.
 * -ERR_NETWORK past timeout_ms names the ranks that did not come; gpus_check's errors are the same
 * on all ranks. */
int meet_begin(struct ranks *ranks, const struct gpu_card *own, bool allow_shared, int timeout_ms,
	       unsigned char id[MEET_ID_SIZE], struct meet *out, struct error *err);
void meet_free(struct meet *meet);

/* Say that this rank goes into NCCL's initialisation; who has not said so within wait_ms in all:
 * their numbers ("1,3", with hosts) or "". */
int meet_enter(const struct meet *meet, struct error *err);
void meet_missing(const struct meet *meet, int wait_ms, char *text, size_t size);

/* Say where this rank stands; then hear the others, wait_ms in all. words[size]: filled for those
 * that spoke, heard[size] says who did. */
int meet_tell(const struct meet *meet, const struct watch_word *own, struct error *err);
void meet_hear(const struct meet *meet, int wait_ms, struct watch_word *words, bool *heard);

/* This rank has given up, and why: for those that would wait for it, or have not noticed. */
int meet_end(const struct meet *meet, const char *why, struct error *err);
/* Has a rank given up? ENDED: why is what the first of them said. GONE: rank 0, which keeps the
 * ranks' words, has ended. NOBODY_TO_ASK: the ranks meet by PMIx, whose launcher ends a job of
 * which a rank has failed. Waits wait_ms at most (and 1 s where rank 0's machine is slow). */
enum meet_end { MEET_GOES_ON, MEET_ENDED, MEET_GONE, MEET_NOBODY_TO_ASK };
enum meet_end meet_ended(struct meet *meet, int wait_ms, char *why, size_t size);

#endif
