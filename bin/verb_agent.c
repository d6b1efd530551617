/* SPDX-License-Identifier: BSD-3-Clause */
/* berth agent: one node's part of a job; started by launchers. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "alloc/pbs.h"
#include "arguments.h"
#include "base/env.h"
#include "base/log.h"
#include "launch/launcher.h"
#include "verb.h"

#define STDIN_MAX (1 << 20)
#define STDIN_S 60

struct agent_options {
	bool from_stdin;
	char **tmrsh; /* after --tmrsh: HOST COMMAND..., even if a word looks like an option */
};

static const struct arguments_option option_table[] = {
	{"stdin", NULL,
	 "Read the variables from standard input first, one NAME=VALUE per line up to an empty "
	 "line; the secret then appears neither in ps nor in an environment",
	 ARGUMENTS_FLAG, offsetof(struct agent_options, from_stdin)},
	{"tmrsh", NULL,
	 "Act as Open MPI's remote shell in a PBS job: run COMMAND... on HOST with pbs_tmrsh and a "
	 "shell there",
	 ARGUMENTS_REST, offsetof(struct agent_options, tmrsh)},
	{0},
};

/* From the first line on: at most 1 MiB, 60 s. */
static int read_stdin(struct env *env, struct error *err)
{
	char *line = NULL;
	size_t room = 0, total = 0;
	ssize_t n;
	int rc = 0;

	alarm(STDIN_S); /* a starter that sends nothing leaves no process behind */
	while (!rc && (n = getline(&line, &room, stdin)) > 0 && line[0] != '\n') {
		char *value = strchr(line, '=');

		total += (size_t)n;
		line[n - (line[n - 1] == '\n')] = '\0';
		if (!value || total > STDIN_MAX) {
			rc = error_set(err, ERR_DATA,
				       "standard input: expected one NAME=VALUE per line, at most "
				       "%d bytes",
				       STDIN_MAX);
			break;
		}
		*value++ = '\0';
		rc = env_set(env, line, value, ENV_FROM_USER, NULL, err);
	}
	alarm(0);
	if (line)
		explicit_bzero(line, room);
	free(line);
	return rc;
}

/* HOST COMMAND...: as with ssh, a shell runs the words joined by spaces. It gets its own session
 * because PBS kills the task's session as soon as the shell has exited. Open MPI's daemon forks,
 * and its child would be killed if it had not called setsid by then. */
static int run_tmrsh(char *const *arguments, const struct env *env, struct error *err)
{
	char path[PATH_MAX], file[PATH_MAX], *command = NULL;
	size_t size = 0;
	FILE *stream;

	if (!arguments[0] || !arguments[1])
		return error_set(err, ERR_USAGE, "--tmrsh: expected HOST COMMAND...");
	if (pbs_find_tool(env, "pbs_tmrsh", path, sizeof path))
		return error_set(err, ERR_UNAVAILABLE, "--tmrsh: pbs_tmrsh not found");
	stream = open_memstream(&command, &size);
	for (int i = 1; stream && arguments[i]; i++)
		fprintf(stream, "%s%s", i > 1 ? " " : "", arguments[i]);
	if (!stream || fclose(stream))
		return error_memory(err, "the remote command");
	if (!pbs_node_file(env, file, sizeof file)) /* see tm.c */
		setenv("PBS_NODEFILE", file, 1);
	execl(path, "pbs_tmrsh", arguments[0], "/usr/bin/env", "setsid", "-w", "/bin/sh", "-c",
	      command, (char *)NULL);
	free(command);
	return error_set(err, ERR_UNAVAILABLE, "%s: %s", path, strerror(errno));
}

int verb_agent(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{option_table}},
		.doc = "Run one node's part of a job: start its ranks and supervise them. berth "
		       "run starts it through the cluster's launcher.\vReads its place from the "
		       "environment: " LAUNCHER_ENV_CONTROLLER ", " LAUNCHER_ENV_JOB
		       ", " LAUNCHER_ENV_NODE ", " LAUNCHER_ENV_NAME " (or " LAUNCHER_ENV_NODES
		       " and " LAUNCHER_ENV_SELF "), " LAUNCHER_ENV_SECRET
		       " (or " LAUNCHER_ENV_SECRET_SOURCE "), " LAUNCHER_ENV_NODE_TIMEOUT ".",
	};
	struct agent_options options = {0};
	struct agent_params params = {0};
	struct error err = {0};
	struct env *env;
	int rc;

	arguments_parse(&command, argc, argv, &options);
	env = env_capture();
	rc = env ? 0 : error_memory(&err, "the environment");
	if (!rc && options.tmrsh) {
		run_tmrsh(options.tmrsh, env, &err);
		env_free(env);
		return verb_fail(&err);
	}
	if (!rc && options.from_stdin)
		rc = read_stdin(env, &err);
	if (!rc)
		rc = log_configure(env_get(env, "BERTH_LOG"), &err);
	if (!rc)
		rc = agent_params_read(env, &params, &err);
	if (!rc) {
		/* Processes that start from here on must not inherit the secret, and others must
		 * not read it from this one or its guardian. */
		env_erase(env, LAUNCHER_ENV_SECRET);
		rc = agent_run(&params, &err);
	}
	if (rc)
		fprintf(stderr, LAUNCHER_NO_AGENT "%s: %s\n",
			params.name ? params.name : "this node", err.text);
	env_free(env);
	return -rc;
}
