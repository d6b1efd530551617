/* SPDX-License-Identifier: BSD-3-Clause */
/* ssh without a password, once per node. What the agent must know, including the secret, goes
 * through its standard input, so that ps shows none of it. Processes started over ssh escape the
 * scheduler's cgroup and environment, so any other launcher that fits is preferred. This machine
 * itself needs no ssh. */
#include <stdlib.h>
#include <string.h>

#include "launch/launcher.h"

static bool ssh_fits(const struct launcher *launcher, const struct alloc *alloc,
		     const struct env *env)
{
	return alloc->source == ALLOC_FROM_PBS || alloc->source == ALLOC_FROM_HOSTS;
}

static int make(const struct launcher_job *job, size_t node, struct launcher_command *out)
{
	const char *libraries = env_get(job->launch->env, "LD_LIBRARY_PATH");
	struct env *agent_vars = env_new();
	const char *begin[] = {"env", NULL},
		   *end[] = {job->launch->berth_path, "agent", "--stdin", NULL};
	struct launcher_command remote = {0};
	char *command = NULL, **variables;
	int rc = agent_vars ? 0 : -1;

	if (launcher_is_this_host(job->launch->alloc->nodes[node].name)) {
		out->argv = launcher_argv(end, NULL, NULL);
		out->input = launcher_stdin_text(job, node);
		env_free(agent_vars);
		return out->argv && out->input ? 0 : -1;
	}
	/* What the agent needs before it can read its input. The remote shell receives it
	 * quoted. */
	if (!rc && libraries && *libraries)
		rc = env_set(agent_vars, "LD_LIBRARY_PATH", libraries, ENV_FROM_USER, NULL, NULL);
	variables = rc ? NULL : env_to_envp(agent_vars);
	if (variables && (remote.argv = launcher_argv(begin, (const char *const *)variables, end)))
		command = launcher_command_line(remote.argv);
	if (command) {
		const char *base[] = {"ssh",   "-T",
				      "-x",    "-a",
				      "-o",    "BatchMode=yes",
				      "-o",    "ConnectTimeout=15",
				      "-o",    "LogLevel=ERROR",
				      "--",    job->launch->alloc->nodes[node].name,
				      command, NULL};

		out->argv = launcher_argv(base, NULL, NULL);
		out->input = launcher_stdin_text(job, node);
	}
	rc = out->argv && out->input ? 0 : -1;
	launcher_command_free(&remote);
	env_free(agent_vars);
	free(variables);
	free(command);
	return rc;
}

const struct launcher launcher_ssh = {
	.name = "ssh",
	.fits = ssh_fits,
	.start = launcher_start_tools,
	.command_line = launcher_tools_line,
	.make = make,
};
