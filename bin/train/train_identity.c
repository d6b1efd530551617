/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/train_identity.h"

#include <limits.h>
#include <string.h>

#include "alloc/alloc.h"
#include "base/number.h"

#define QUERY_MS 10000
#define ATTEMPTS 10000 /* of a job between two requeues */

static int job_has_ended(void *context, const char *scheduler, const char *job)
{
	return job_status_is_over(context, scheduler, job, QUERY_MS);
}

static const char *value_of(const struct env *env, const char *name)
{
	const char *value = env_get(env, name);

	return value ? value : "";
}

void train_identity_read(const struct env *env, struct owner_identity *out)
{
	const char *ours = value_of(env, "BERTH_JOB_ID"), *slurm = value_of(env, "SLURM_JOB_ID");
	const char *theirs = *slurm ? slurm : value_of(env, "PBS_JOBID");
	int requeued;

	*out = (struct owner_identity){
		.job = *ours ? ours : theirs,
		.scheduler = *slurm    ? "slurm"
			     : *theirs ? "pbs"
				       : "",
		.predecessors = value_of(env, "BERTH_JOB_BEFORE"),
		.job_has_ended = job_has_ended,
		.context = (void *)env,
	};
	/* A job of ours within a scheduler's is named otherwise, and no scheduler knows it. */
	if (strcmp(out->job, theirs))
		out->scheduler = "";
	if (number_int("BERTH_ATTEMPT", value_of(env, "BERTH_ATTEMPT"), 0, ATTEMPTS - 1,
		       &out->attempt, NULL))
		out->attempt = 0;
	/* A job that was queued again keeps its number, and berth counts from 0. */
	if (!number_int("SLURM_RESTART_COUNT", value_of(env, "SLURM_RESTART_COUNT"), 0,
			INT_MAX / ATTEMPTS - 1, &requeued, NULL))
		out->attempt += requeued * ATTEMPTS;
}
