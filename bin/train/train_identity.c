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

static const char *first_set(const struct env *env, const char *const *names)
{
	for (; *names; names++)
		if (env_get(env, *names) && *env_get(env, *names))
			return env_get(env, *names);
	return "";
}

void train_identity_read(const struct env *env, struct owner_identity *out)
{
	static const char *const ours[] = {"BERTH_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", NULL};
	static const char *const slurm[] = {"SLURM_JOB_ID", NULL}, *const pbs[] = {"PBS_JOBID",
										   NULL};
	static const char *const before[] = {"BERTH_JOB_BEFORE", NULL};
	static const char *const attempts[] = {"BERTH_ATTEMPT", NULL};
	static const char *const restarts[] = {"SLURM_RESTART_COUNT", NULL};
	int requeued;

	*out = (struct owner_identity){
		.job = first_set(env, ours),
		/* As long as berth's id is the scheduler's own. */
		.scheduler = *first_set(env, slurm) ? "slurm"
			     : *first_set(env, pbs) ? "pbs"
						    : "",
		.predecessors = first_set(env, before),
		.job_has_ended = job_has_ended,
		.context = (void *)env,
	};
	/* A job of ours within a scheduler's is named otherwise, and no scheduler knows it. */
	if (*out->scheduler &&
	    strcmp(out->job, first_set(env, *out->scheduler == 's' ? slurm : pbs)))
		out->scheduler = "";
	if (number_int("BERTH_ATTEMPT", first_set(env, attempts), 0, ATTEMPTS - 1, &out->attempt,
		       NULL))
		out->attempt = 0;
	/* A job that was queued again keeps its number, and berth counts from 0. */
	if (!number_int("SLURM_RESTART_COUNT", first_set(env, restarts), 0, INT_MAX / ATTEMPTS - 1,
			&requeued, NULL))
		out->attempt += requeued * ATTEMPTS;
}
