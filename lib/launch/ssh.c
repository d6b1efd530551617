/* SPDX-License-Identifier: BSD-3-Clause */
/* ssh, once a node, without a password. What the agent must know, the secret first, goes through
 * its standard input: nothing of it stands in ps. A process started so escapes the scheduler's
 * cgroup and environment: where there is another way, that is taken. On this machine no ssh is
 * needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/launcher.h"

static bool fits(const struct alloc *alloc, const struct env *env)
{
	(void)env;
	return !strcmp(alloc->source, "pbs") || !strcmp(alloc->source, "hosts");
}

static int make(const struct engine_job *job, size_t node, struct engine_words *out)
{
	const char *libraries = env_get(job->env, "LD_LIBRARY_PATH");
	struct env *told = env_new();
	const char *begin[] = {"env", NULL}, *end[] = {job->program, "agent", "--stdin", NULL};
	struct engine_words remote = {0};
	char *command = NULL;
	int rc = told ? 0 : -1;

	if (engine_is_here(job->alloc->nodes[node].name)) {
		out->argv = engine_argv(end, NULL, NULL);
		out->input = engine_input(job, node);
		env_free(told);
		return out->argv && out->input ? 0 : -1;
	}
	/* What is needed before it can read: the shell at the other end sees it quoted. */
	if (!rc && libraries && *libraries)
		rc = env_set(told, "LD_LIBRARY_PATH", libraries, ENV_FROM_USER, NULL, NULL);
	if (!rc && (remote.argv = engine_argv(begin, told, end)))
		command = engine_line(remote.argv);
	if (command) {
		const char *words[] = {"ssh", "-T", "-x", "-a", "-o", "BatchMode=yes", "-o",
				       "ConnectTimeout=15", "-o", "LogLevel=ERROR", "--",
				       job->alloc->nodes[node].name, command, NULL};

		out->argv = engine_argv(words, NULL, NULL);
		out->input = engine_input(job, node);
	}
	rc = out->argv && out->input ? 0 : -1;
	engine_words_free(&remote);
	env_free(told);
	free(command);
	return rc;
}

static int start(const struct engine_job *job, struct engine_child **out, size_t *count,
		 struct error *err)
{
	return engine_start_each(job, job->env, make, out, count, err);
}

static char *line(const struct engine_job *job)
{
	return engine_line_each(job, make);
}

const struct engine engine_ssh = {
	.name = "ssh",
	.summary = "hosts that let us in by ssh without a password",
	.fits = fits,
	.start = start,
	.line = line,
};
