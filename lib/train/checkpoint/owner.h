/* SPDX-License-Identifier: BSD-3-Clause */
/* Who owns a checkpoint directory: DIRECTORY/.owner, so that two jobs never write to one.
 *
 * The file is one JSON object: scheduler, job, attempt, host, boot, pid, started, token, renewals,
 * renewed. A live run renews it every OWNER_PERIOD_MS (renewer.h), even while it writes, and
 * removes it when it ends, well or badly. A run whose file has gone has lost the directory: another
 * may have taken it over and ended in between.
 *
 * A killed run leaves its file behind. Another run may take it over in these cases:
 * - the file's process is on this machine and has ended;
 * - this is a later attempt of the same job, or a job that continues it;
 * - this is the same attempt elsewhere, and the file is not renewed while we watch;
 * - the scheduler reports that the file's job is over;
 * - the scheduler cannot tell, and the file was not renewed for OWNER_STALE_MS by the file
 *   system's clock, nor while we watch.
 * No machine's own clock is trusted. */
#ifndef BERTH_TRAIN_CHECKPOINT_OWNER_H
#define BERTH_TRAIN_CHECKPOINT_OWNER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"

#define OWNER_PERIOD_MS 20000
#define OWNER_STALE_MS 600000
#define OWNER_WATCH_MS 45000 /* more than two periods */

/* This run's identity. Strings are borrowed during owner_acquire; "" if there is none. */
struct owner_identity {
	const char *scheduler; /* "slurm", "pbs" */
	const char *job;
	const char *predecessors; /* ids of jobs that this job continues, separated by commas */
	int attempt;		  /* grows within the job: restarts and requeues together */
	/* Has a scheduler's job ended? 1: yes, 0: no, -1: unknown. May be NULL. Waits for seconds
	 * at most. */
	int (*job_has_ended)(void *context, const char *scheduler, const char *job);
	void *context;
};

struct owner_request {
	const char *directory; /* must exist; borrowed until owner_release */
	const struct owner_identity *self;
	bool take_over;		/* whoever owns it */
	int stale_ms, watch_ms; /* 0: the defaults */
	/* Checked while waiting: if set, owner_acquire refuses. May be NULL. */
	const atomic_bool *cancel;
	/* Called if another job had the directory. May be NULL. */
	void (*notify)(void *context, const char *text);
	void *context;
};

struct owner; /* opaque */

/* Return 0, or -ERR_OUTPUT if another job owns the directory (err names it and says what to do) or
 * the file cannot be written. May wait for the scheduler's tool; OWNER_WATCH_MS if there is no
 * better sign of life; or 10 s for a process of the same job that is about to end. */
int owner_acquire(const struct owner_request *request, struct owner **out, struct error *err);
/* Return 0; -ERR_OUTPUT if another job has taken the directory (owner_is_lost is true from then
 * on); -ERR_IO if the file could not be renewed. */
int owner_renew(struct owner *owner, struct error *err);
bool owner_is_lost(const struct owner *owner);
void owner_release(struct owner *owner); /* NULL is fine */

#endif
