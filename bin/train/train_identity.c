/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/train_identity.h"

#include <limits.h>
#include <string.h>

#include "alloc/alloc.h"
#include "base/number.h"

#define ASK_MS 10000
#define ATTEMPTS 10000 /* of a job between two requeues */

static int job_gone(void *context, const char *scheduler, const char *job)
{
	return alloc_job_gone(context, scheduler, job, ASK_MS);
}

static const char *first(const struct env *env, const char *const *names)
{
	for (; *names; names++)
		if (env_get(env, *names) && *env_get(env, *names))
			return env_get(env, *names);
	return "";
}

void train_self_read(const struct env *env, struct owner_self *out)
{
	static const char *const ours[] = {"BERTH_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", NULL};
	static const char *const slurm[] = {"SLURM_JOB_ID", NULL}, *const pbs[] = {"PBS_JOBID",
										   NULL};
	static const char *const before[] = {"BERTH_JOB_BEFORE", NULL};
	static const char *const attempts[] = {"BERTH_ATTEMPT", NULL};
	static const char *const restarts[] = {"SLURM_RESTART_COUNT", NULL};
	int requeued;

	*out = (struct owner_self){
		.job = first(env, ours),
		/* As long as berth's id is the scheduler's own. */
		.scheduler = *first(env, slurm) ? "slurm"
			     : *first(env, pbs) ? "pbs"
						: "",
		.follows = first(env, before),
		.job_gone = job_gone,
		.context = (void *)env,
	};
	/* A job of ours within a scheduler's is named otherwise, and no scheduler knows it. */
	if (*out->scheduler && strcmp(out->job, first(env, *out->scheduler == 's' ? slurm : pbs)))
		out->scheduler = "";
	if (number_int("BERTH_ATTEMPT", first(env, attempts), 0, ATTEMPTS - 1, &out->attempt, NULL))
		out->attempt = 0;
	/* A job that was queued again keeps its number, and berth counts from 0. */
	if (!number_int("SLURM_RESTART_COUNT", first(env, restarts), 0, INT_MAX / ATTEMPTS - 1,
			&requeued, NULL))
		out->attempt += requeued * ATTEMPTS;
}
