/* SPDX-License-Identifier: BSD-3-Clause */
/* What the runs of a user on one node use, so that concurrent runs of one job share no GPU, and
 * which of them wait for something.
 *
 * A run's claim is a file in its agent's directory (tmpdir.h). It counts as long as that directory
 * is locked: until the agent and its guardian have ended, however they end, and thus until the
 * guardian has killed the agent's ranks.
 *
 * A claim is a JSON object:
 *   scope  the job, "slurm 4711"; "" without a scheduler
 *   run    the run's name, which its ranks find in BERTH_RUN
 *   by     the run for people: "process 4711 on n1, since 10:02"
 *   uses   array of names, as plan_claim makes them
 *   what   the same for people: "GPU 0,2"
 *   since  only in the claim of a run that waits: since when, in microseconds of the wall clock */
#ifndef BERTH_PROCESS_CLAIMS_H
#define BERTH_PROCESS_CLAIMS_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

/* The claims that count, of all runs with this scope but those in outer, a list of names with
 * commas (NULL: none) in which this run runs itself. dir: this agent's own directory, left out;
 * its parent is searched. Each has its directory as member dir. A new array; NULL if memory is out.
 */
json_t *claims_read(const char *dir, const char *scope, const char *outer);

/* Write the claim of the agent whose directory is dir, and return 0; or return 1 if another run
 * uses something of it (share: never). *others is what claims_read returns, in both cases. Each
 * claim replaces the one before; one without uses and since removes it. Of two agents that try at
 * once, only one succeeds. Return -ERR_DATA if another user has taken the lock's name, -ERR_OUTPUT
 * if the claim cannot be written, or if another process keeps the lock for 2 s, or -ERR_UNAVAILABLE
 * if memory is out. */
int claims_take(const char *dir, const json_t *claim, const char *outer, bool share,
		json_t **others, struct error *err);

/* Runs that wait also have a place in the queue of the machine where they were started: a claim
 * without uses, as a file of its own in dir, so that agents need not read those of many runs. Write
 * it, and return those of the other runs in *others. -ERR_OUTPUT, -ERR_UNAVAILABLE. */
int claims_queue(const char *dir, const json_t *claim, json_t **others, struct error *err);

/* How many runs in claims have waited for longer than the run of the claim own. *dir (may be NULL):
 * the directory of one of them, number place from the last one; NULL if there are fewer. It belongs
 * to claims. */
size_t claims_before(const json_t *claims, const json_t *own, size_t place, const char **dir);

#endif
