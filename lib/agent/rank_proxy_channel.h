/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that are tasks of the scheduler's own step (--launcher srun-ranks), and supervised all the
 * same.
 *
 *   agent -> keeper           the agent's child in the place of the rank: it has the rank's
 * environment, |               cores, folder and output, and runs no program step  -> task ->
 * program  the scheduler's: takes all that from the keeper of its rank, runs the program, and tells
 * how it ended; the keeper then ends alike
 *
 * So an end is known from the agent, signals and output go the way they always go, and the program
 * keeps what the scheduler gave its task: SLURM_* and PMIX_* variables, accounting, PMIx.
 * Keeper and task meet at an abstract socket of the node (one network namespace), named by the
 * job's token and the rank; each takes the other's user id from the kernel. */
#ifndef BERTH_AGENT_RANK_PROXY_CHANNEL_H
#define BERTH_AGENT_RANK_PROXY_CHANNEL_H

#include "base/env.h"
#include "base/error.h"

/* In the environment of both: the token, 32 hexadecimal digits. Does not reach the program. */
#define RANK_PROXIES_ENV "BERTH_AGENT_TASKS"
#define RANK_PROXIES_TOKEN 32
#define RANK_PROXIES_WAIT_MS 60000 /* for the other one to come */

/* Keep the rank that RANK in env names for its task, which is to run argv. Returns, having said
 * why, only when that failed: the exit code; else this process ends as the program did. Takes
 * signals for itself. */
int rank_proxy_run(const struct env *env, char *const argv[]);

/* Be the task of the rank that SLURM_PROCID in env names. Returns the exit code: the program's,
 * 128+N for a signal, or one of berth's own, having said why. */
int slurm_task_run(const struct env *env);

#endif
