/* SPDX-License-Identifier: BSD-3-Clause */
/* What Slurm reports besides the allocation itself (alloc.h). */
#ifndef BERTH_ALLOC_SLURM_H
#define BERTH_ALLOC_SLURM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"

/* Is this process a task of a step that srun started? A batch script and salloc's interactive shell
 * are not, although both have a step's variables. Pure. */
bool slurm_in_step(const struct env *env);

/* Does Slurm show this task only part of the step's GPUs on this node? Then ranks cannot open each
 * other's GPU memory (peer-to-peer, CUDA IPC). tasks is the step's task count on this node. out
 * receives which variables show it, what breaks and what to write instead. A list that the user has
 * narrowed looks the same, and affects libraries that use it in the same way. Pure. */
#define SLURM_ISOLATION_MAX 900
bool slurm_gpus_isolated(const struct env *env, int tasks, char *out, size_t size);

/* Expand Slurm's counts, "2(x3),1" for 2, 2, 2, 1. The first count numbers go into out; entries
 * beyond the text stay as they are. *described becomes how many numbers the text has, at most
 * HOSTLIST_MAX_HOSTS plus one item. err calls the text by name. Return 0 or -ERR_DATA; out may then
 * be partly filled. */
int slurm_counts(const char *name, const char *text, size_t count, int *out, size_t *described,
		 struct error *err);

/* Parse the time left as squeue -o %L prints it: "57", "9:57", "1:09:57", "1-02:00:00", with blanks
 * around it. Return 0; 1 if there is no limit (UNLIMITED, NOT_SET); or -ERR_DATA. */
int slurm_time_left(const char *text, int64_t *seconds, struct error *err);

/* Copy the job's GPUs per node from the output of `scontrol -d -o show job` into alloc's nodes.
 * Nodes that the text omits stay as they are. Pure. */
void slurm_job_gpus(const char *text, struct alloc *alloc);

/* Copy the value of a field of scontrol's line about a job, "" if it is missing. Fields in front of
 * JobState are not found. */
void slurm_job_field(const char *text, const char *name, char *out, size_t size);
/* The time left according to such a line, TimeLimit less RunTime. Return as slurm_time_left. */
int slurm_job_time_left(const char *text, int64_t *seconds);
/* A value of `scontrol show config` in seconds, -1 if it is missing. */
int slurm_config_seconds(const char *config, const char *name);

/* Must Slurm be asked for GPUs before srun starts the agents? srun is given their number, which the
 * variables may leave out for other nodes. Pure. */
bool slurm_lacks_gpus(const struct env *env, const struct alloc *alloc);

/* Write a sentence about what Slurm will do when the job loses a node. job, config, script: see
 * struct alloc_query; NULL if missing. True if the job is known to continue. Pure. */
bool slurm_lost_node_policy(const char *job, const char *config, const char *script, char *out,
			    size_t size);
/* Will Slurm truncate the batch job's output when it requeues the job? Write a warning. False if
 * that is not known for sure. job, config: as above. Pure. */
bool slurm_requeue_truncates(const struct env *env, const char *job, const char *config, char *out,
			     size_t size);
/* Do the job script's #SBATCH lines contain --no-kill? Pure. */
bool slurm_script_no_kill(const char *script);

#endif
