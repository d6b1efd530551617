/* SPDX-License-Identifier: BSD-3-Clause */
/* May a lease that another run wrote be taken over? Pure: lease.c asks for the facts and watches.
 */
#ifndef BERTH_TRAIN_CHECKPOINT_LEASE_STATE_H
#define BERTH_TRAIN_CHECKPOINT_LEASE_STATE_H

#include "train/checkpoint/lease.h"
#include "train/checkpoint/lease_record.h"

struct lease_facts {
	const struct lease_record *record;
	const struct lease_identity *self;
	const char *boot; /* of this machine and PID namespace */
	bool take_over;
	/* These cost time, so they are found once lease_state_of asks for them. */
	bool has_asked, has_age;
	int ended;    /* lease_identity.job_has_ended's answer; -1: unknown */
	double age_s; /* since the last renewal, by the file system's clock */
};

enum lease_state {
	LEASE_RELEASED,
	LEASE_FORCED, /* --take-over */
	LEASE_HERE,   /* a process of this machine: it shows itself whether it runs */
	LEASE_HERE_SAME_JOB,
	LEASE_PREDECESSOR, /* an earlier attempt, or a job that this one continues */
	LEASE_SAME_JOB,	   /* elsewhere: the same attempt may run twice */
	LEASE_JOB_ENDED,
	LEASE_JOB_LISTED,
	LEASE_FUTURE, /* dated so: a clock has jumped */
	LEASE_FRESH,
	LEASE_EXPIRED,
	LEASE_NEEDS_SCHEDULER, /* facts that are missing */
	LEASE_NEEDS_AGE,
};
enum lease_state lease_state_of(const struct lease_facts *facts);

/* How to find out whether a state's run is alive. */
struct lease_rule {
	enum lease_watch { LEASE_WATCH_NOT, LEASE_WATCH_PROCESS, LEASE_WATCH_RENEWALS } watch;
	int process_ms; /* time that the process is given to end */
	bool stale;	/* if nothing is watched */
	/* What lease_state_text writes; NULL: nothing, or a text that quotes the facts. */
	const char *why_stale, *why_alive;
};
extern const struct lease_rule lease_rules[LEASE_NEEDS_SCHEDULER];

/* Why the lease is taken over (stale; empty if that needs no mention) or is not. */
void lease_state_text(const struct lease_facts *facts, enum lease_state state, bool stale,
		      char *text, size_t size);

#endif
