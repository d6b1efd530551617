/* SPDX-License-Identifier: BSD-3-Clause */
/* The lease of a checkpoint directory. It ensures that two runs never write to the same one.
 *
 * DIRECTORY/.lease-NNNNNN is one JSON object that names a run. The file with the highest number is
 * the lease. A run judges that file; if it is released or stale, the run creates the file with the
 * next number, lists the directory again, and has the lease if its file is the highest.
 * Why two runs never hold it at once:
 * - Creating a name is exclusive, so of all runs that judged number N one gets N + 1. The others
 *   list the directory again and find it.
 * - Numbers only grow. The highest file is never moved, replaced or removed: release changes a byte
 *   of it, renewal its date, both through the descriptor. So whatever a stalled call does when it
 *   continues, it cannot undo a takeover.
 * - Files below the highest are removed. A run with an old list may then get a low number, but
 *   finds the highest in its second list and starts again.
 * - A client may list what it saw 20 s ago (sshfs), but a name that it looks up is current. So the
 *   numbers that follow the highest of a list are looked up, and two files below it are kept.
 * - The directory's content decides, not what a call returned. A file whose create was reported as
 *   failed has no text, so it belongs to no run and is stale after a watch.
 * A run that was taken over finds a higher number. It checks before each rename and removal in the
 * directory. One gap remains: a rename that a file system delays past that check.
 *
 * The run renews its file every LEASE_PERIOD_MS in a thread, even while a write hangs, and keeps a
 * lock on it. A killed run does not release it. Another run may take over a lease that is not
 * released in these cases, which are tried in this order:
 * 1. --take-over.
 * 2. This machine wrote the file, and its lock is free: the holder has ended. If the lock is held,
 *    the holder is alive, and nothing else counts.
 * 3. A lock does not tell, and this is a later attempt of the same job, or a job that continues it.
 * 4. The file is not renewed while we watch it for LEASE_WATCH_MS.
 * No clock is trusted: a watch looks only whether the file's date changes. */
#ifndef BERTH_TRAIN_CHECKPOINT_LEASE_H
#define BERTH_TRAIN_CHECKPOINT_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"

#define LEASE_PERIOD_MS 5000
#define LEASE_WATCH_MS 20000 /* four periods */

/* This run's identity. Strings are borrowed during lease_acquire; "" if there is none. */
struct lease_identity {
	const char *scheduler; /* "slurm", "pbs" */
	const char *job;
	const char *predecessors; /* ids of jobs that this job continues, separated by commas */
	int attempt;		  /* grows within the job: restarts and requeues together */
};

#define LEASE_RUN_BYTES 33
struct lease_request {
	const char *directory; /* created if missing; borrowed until lease_release */
	const struct lease_identity *self;
	const char *run;	 /* from lease_new_run, the same on all ranks */
	int rank;		 /* within the run */
	bool take_over;		 /* even from a live run */
	int period_ms, watch_ms; /* 0: the defaults */
	/* Checked while waiting: once it is set, lease_acquire fails. May be NULL. */
	const atomic_bool *cancel;
	/* Called if another job had the lease. May be NULL. */
	void (*notify)(void *context, const char *text);
	void *context;
};

struct lease; /* opaque */

/* Make a new random id, for all ranks of a run. */
void lease_new_run(char run[LEASE_RUN_BYTES]);
/* Take the lease and start the thread that renews it. *out is NULL if another rank of this run has
 * it. Return 0; -ERR_OUTPUT if another run has it (err names it and says what to do) or the
 * directory cannot be written; or -ERR_UNAVAILABLE. May wait for LEASE_WATCH_MS if there is no
 * better sign of life, or for 10 s for a process of the same job that is about to end. */
int lease_acquire(const struct lease_request *request, struct lease **out, struct error *err);
/* Check the directory, from any thread. Return 0 if the lease is still ours; -ERR_OUTPUT if it is
 * lost, now and from then on; or -ERR_IO if that is unknown. NULL: 0. */
int lease_check(struct lease *lease, struct error *err);
/* Return -ERR_OUTPUT if lease_check or the thread has found that the lease is lost. Never blocks.
 * NULL: 0. */
int lease_lost(struct lease *lease, struct error *err);
/* Put a temporary file in its place: fsync and close fd, check the lease (NULL: not checked),
 * rename temp to path, fsync the directory. failed: writing it failed, with errno. Return 0 or
 * -ERR_IO: path is unchanged and temp removed; or lease_check's error: nothing was touched. */
int lease_commit(struct lease *lease, int fd, int failed, const char *temp, const char *path,
		 struct error *err);
/* Release the lease within timeout_ms and free it. Return false if a file system blocks the thread
 * for longer: the lease must then stay until the process ends. NULL: true. */
bool lease_release(struct lease *lease, int timeout_ms);

#endif
