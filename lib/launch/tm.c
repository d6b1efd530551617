/* SPDX-License-Identifier: BSD-3-Clause */
/* PBS's own task manager: pbs_tmrsh, or pbsdsh, once per node.
 *
 * Tasks inherit nothing of our environment, but PBS gives them PBS_JOBCOOKIE and the job's own
 * variables. What an agent must know is on its command line, which everybody can read. Its
 * secret is therefore derived from the cookie or read from a file, which other users cannot read.
 * Hosts are named exactly as in the node file. A task's output goes to the job's output, pbsdsh
 * returns 0 whatever happened to the task, and killing the tool does not end the task. So an
 * agent ends by itself when its controller has ended. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pbs.h"
#include "launch/launcher.h"

static bool tm_find(const struct env *env, char *path, size_t size, bool *dsh)
{
	*dsh = false;
	if (!pbs_find_tool(env, "pbs_tmrsh", path, size))
		return true;
	*dsh = true;
	return !pbs_find_tool(env, "pbsdsh", path, size);
}

static bool tm_fits(const struct launcher *launcher, const struct alloc *alloc,
		    const struct env *env)
{
	char path[PATH_MAX];
	bool dsh;

	return alloc->source == ALLOC_FROM_PBS && tm_find(env, path, sizeof path, &dsh);
}

static int make(const struct launcher_job *job, size_t node, struct launcher_command *out)
{
	const char *host = job->launch->alloc->nodes[node].name;
	const char *end[] = {job->launch->berth_path, "agent", NULL};
	struct env *agent_vars = launcher_forwarded_env(job, node);
	char path[PATH_MAX], **variables = agent_vars ? env_to_envp(agent_vars) : NULL;
	bool dsh;

	/* The tool counts the lines of the file that the variable names. */
	if (!pbs_node_file(job->launch->env, path, sizeof path) &&
	    (out->env = env_copy(job->launch->env)))
		env_set(out->env, "PBS_NODEFILE", path, ENV_FROM_SCHEDULER, NULL, NULL);
	if (variables && tm_find(job->launch->env, path, sizeof path, &dsh)) {
		const char *tmrsh[] = {path, host, "/usr/bin/env", NULL};
		const char *pbsdsh[] = {path, "-h", host, "--", "/usr/bin/env", NULL};

		out->argv =
			launcher_argv(dsh ? pbsdsh : tmrsh, (const char *const *)variables, end);
	}
	env_free(agent_vars);
	free(variables);
	return out->argv ? 0 : -1;
}

static int tm_start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		    struct error *err)
{
	char path[PATH_MAX];
	bool dsh;

	if (job->launch->alloc->source != ALLOC_FROM_PBS)
		return error_set(err, ERR_USAGE,
				 "launcher tm works only inside a PBS job, and there is none (%s); "
				 "use it in a job script or in qsub -I",
				 job->launch->alloc->why);
	if (!tm_find(job->launch->env, path, sizeof path, &dsh))
		return error_set(err, ERR_UNAVAILABLE,
				 "found neither pbs_tmrsh nor pbsdsh in PATH or in PBS_EXEC of "
				 "/etc/pbs.conf; choose another --launcher");
	return launcher_start_tools(job, out, count, err);
}

/* pbs_comm is restarted. With another second number, the node's pbs_mom was, and PBS starts no task
 * of this job there again. */
static const char *const passing[] = {"not connected (17002) 0", NULL};

const struct launcher launcher_tm = {
	.name = "tm",
	.passing = passing,
	.secret_from_cookie = true,
	.fits = tm_fits,
	.start = tm_start,
	.command_line = launcher_tools_line,
	.make = make,
};
