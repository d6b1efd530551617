/* SPDX-License-Identifier: BSD-3-Clause */
/* What Slurm says, beside the allocation itself (alloc.h). */
#ifndef BERTH_ALLOC_SLURM_H
#define BERTH_ALLOC_SLURM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"

/* Is this a task of a step that srun started? Not a batch script, and not the interactive shell
 * of salloc, although those have a step's variables. Pure. */
bool slurm_in_step(const struct env *env);

/* In a task of a step with tasks (of them) on this node: does Slurm show it a part of the step's
 * GPUs here only, so that ranks cannot open each other's GPU memory (peer-to-peer, CUDA IPC)? out:
 * which variables showed it, what it breaks and what to write instead. A list that the user has
 * narrowed looks the same, and has the same effect on libraries that go by it. Pure. */
#define SLURM_ISOLATION_MAX 900
bool slurm_gpus_isolated(const struct env *env, int tasks, char *out, size_t size);

/* Slurm's counts, "2(x3),1" for 2, 2, 2, 1: the first count of them into out (what is not
 * described is left alone); *described: how many the text has, at most HOSTLIST_MAX_HOSTS and one
 * item more. name: the variable's. -ERR_DATA; out may then be half filled. */
int slurm_counts(const char *name, const char *text, size_t count, int *out, size_t *described,
		 struct error *err);

/* Time left as squeue -o %L prints it: "57", "9:57", "1:09:57", "1-02:00:00"; blanks around it.
 * 0; 1: there is no limit (UNLIMITED, NOT_SET); -ERR_DATA. */
int slurm_time_left(const char *text, int64_t *seconds, struct error *err);

/* The GPUs that `scontrol -d -o show job` says the job has on each node, into alloc's nodes; what
 * it does not name is left alone. Pure. */
void slurm_job_gpus(const char *text, struct alloc *alloc);

/* What the variables do not say, asked of Slurm's tools, each at most timeout_ms: where
 * SLURM_JOB_END_TIME is not set (before 23.02) end_time and end_reason by squeue, and the GPUs of
 * nodes other than this one by scontrol. Where that fails end_time stays 0, end_reason says why,
 * and gpus stay -1: never an error. Starts processes and waits for them; SIGCHLD is the caller's to
 * bear. Allocations that are not Slurm's are left alone. */
#define SLURM_QUERY_MS 2000
void slurm_query(const struct env *env, int timeout_ms, struct alloc *alloc);

/* What will Slurm do when the job loses a node, as a sentence; "" where the allocation is none of
 * Slurm's. Starts processes, as slurm_query. */
void slurm_lost_node_policy(const struct env *env, const struct alloc *alloc, int timeout_ms,
			    char *out, size_t size);
/* Do a job script's #SBATCH lines say --no-kill? Pure. */
bool slurm_script_no_kill(const char *script);

#endif
