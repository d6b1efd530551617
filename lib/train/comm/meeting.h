/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the ranks of a training meet before a communicator opens. Each says what it has; then
 * either all train on the same device over the same communicator, or all end with one message. */
#ifndef BERTH_TRAIN_COMM_MEETING_H
#define BERTH_TRAIN_COMM_MEETING_H

#include "base/error.h"
#include "rendezvous/ranks.h"

/* What a rank has; sent between ranks of one build. */
struct meeting_facts {
	char host[64];
	char device[16], comm[8]; /* their names; "" with err */
	char instead[320];	  /* why not a GPU, or not NCCL; "" if it has them */
	struct error err;	  /* why it cannot take part; code 0: it can */
};

/* facts[size], by rank. Pure. Return 0 if the ranks can train together, otherwise the error of all
 * of them; *first is the rank that reports it. */
int meeting_decide(const struct meeting_facts *facts, int size, int *first, struct error *err);

/* Collective: rank 0 decides, and sends its decision. Of several ranks that have the same error,
 * only *first should report it. Return meeting_decide's errors, or -ERR_NETWORK after timeout_ms,
 * naming the ranks that did not come. */
int meeting_hold(struct ranks *ranks, const struct meeting_facts *own, int timeout_ms, int *first,
		 struct error *err);

#endif
