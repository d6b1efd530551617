/* SPDX-License-Identifier: BSD-3-Clause */
/* Who writes to a folder of checkpoints: FOLDER/.owner, so that two jobs never write to one.
 *
 * It is one JSON object: scheduler, job, attempt, host, boot, pid, started, token, renewals,
 * renewed. While a run lives its file is renewed every OWNER_PERIOD_MS (renewer.h), also while it
 * writes; when it ends well or badly the file is removed. Whose file is gone has lost the folder: a
 * taker may have come and ended in between. A file that a killed run left is taken over by a later
 * attempt of the same job or a job that follows on it, by the same attempt (somewhere else) when it
 * is not renewed while we watch, or when its process is gone (on the same machine), or when its
 * scheduler says that the job is gone, or when it was not renewed for OWNER_STALE_MS by the clock
 * of the file system, and is not while we watch: no machine's own clock is trusted. */
#ifndef BERTH_TRAIN_CHECKPOINT_OWNER_H
#define BERTH_TRAIN_CHECKPOINT_OWNER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define OWNER_PERIOD_MS 20000
#define OWNER_STALE_MS 600000
#define OWNER_WATCH_MS 45000 /* more than two periods */

/* Who we are. Strings borrowed during owner_acquire; "" where there is none. */
struct owner_identity {
	const char *scheduler; /* "slurm", "pbs" */
	const char *job;
	const char *predecessors; /* job ids between commas, that this job goes on for */
	int attempt; /* within the job, more with each: restarts and requeues together */
	/* Is a scheduler's job gone? 1: yes, 0: no, -1: nobody knows. May be NULL. Waits for
	 * seconds at most. */
	int (*job_has_ended)(void *context, const char *scheduler, const char *job);
	void *context;
};

struct owner_request {
	const char *directory; /* exists; borrowed until owner_release */
	const struct owner_identity *self;
	bool take_over;		   /* whoever has it */
	int stale_ms, watch_ms;	   /* 0: the defaults */
	const atomic_bool *cancel; /* looked at while it waits: set, it refuses. May be NULL */
	/* Told of a folder that another job had. May be NULL. */
	void (*notify)(void *context, const char *text);
	void *context;
};

struct owner; /* opaque */

/* -ERR_OUTPUT: another job has the folder (err names it, and says what to do), or the file cannot
 * be written. May wait: for the scheduler's tool, OWNER_WATCH_MS where there is no better sign of
 * life, 10 s for a process of the same job that is about to end. */
int owner_acquire(const struct owner_request *request, struct owner **out, struct error *err);
/* -ERR_OUTPUT: another job has taken the folder (owner_is_lost is true from then on); -ERR_IO: it
 * could not be renewed. */
int owner_renew(struct owner *owner, struct error *err);
bool owner_is_lost(const struct owner *owner);
void owner_release(struct owner *owner); /* NULL is fine */

#endif
