/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the ranks of a training meet before a communicator opens. Each says what it has; then
 * either all train on the same device over the same communicator, or all end with one message. */
#ifndef BERTH_TRAIN_COMM_MEETING_H
#define BERTH_TRAIN_COMM_MEETING_H

#include "rendezvous/ranks.h"
#include "train/comm/comm.h"

#define MEETING_SETTINGS 40

/* A setting that must be the same on all ranks: otherwise they would wait for each other, or their
 * weights would drift apart unnoticed. */
struct meeting_setting {
	const char *name; /* "--batch"; used in the message */
	double value;
	bool mark; /* value is a fingerprint, which messages do not show */
};
struct meeting_rules {
	const struct meeting_setting *settings; /* at most MEETING_SETTINGS */
	size_t setting_count;
	bool allow_shared_gpu;
};

/* What a rank has; sent between ranks of one build. */
struct meeting_facts {
	char host[64];
	char device[16], comm[8]; /* their names; "" with err */
	char library[48];	  /* of comm_ops.prepare */
	char gpu[48];		  /* its UUID, if the comm runs on GPUs; may be "" */
	char instead[320];	  /* why not a GPU, or not NCCL; "" if it has them */
	double settings[MEETING_SETTINGS];
	struct error err; /* why it cannot take part; code 0: it can */
};

/* What rank 0 decided. */
struct meeting {
	struct error err; /* of all ranks; code 0: they can train together */
	int32_t first;	  /* the rank that reports err */
	bool shared_gpu;  /* some GPU has more than one rank */
	bool one_node;
	char hosts[][64]; /* by rank */
};

/* This rank's facts. If out->err is set, only its host; choice may be NULL then. */
void meeting_describe(const struct comm_choice *choice, const struct comm_request *request,
		      const struct meeting_rules *rules, struct meeting_facts *out);

/* facts[size], by rank; *out has room for as many hosts, and is zeros. Pure. GPUs are compared by
 * UUID, which is unique in the world: a container may give each rank another host name. Of settings
 * that differ, the first is named. */
void meeting_decide(const struct meeting_facts *facts, int size, const struct meeting_rules *rules,
		    struct meeting *out);

/* Collective: rank 0 decides, and sends its decision. *out is for free(), and NULL if none came.
 * Of several ranks that have the same error, only (*out)->first should report it. Return the
 * decision's error, or -ERR_NETWORK after timeout_ms, naming the ranks that did not come. */
int meeting_hold(struct ranks *ranks, const struct meeting_facts *own,
		 const struct meeting_rules *rules, int timeout_ms, struct meeting **out,
		 struct error *err);

#endif
