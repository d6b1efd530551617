/* SPDX-License-Identifier: BSD-3-Clause */
/* Helpers for launchers that run one tool per node, or one tool for all nodes. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "launch/launcher.h"

void launcher_command_free(struct launcher_command *command)
{
	free(command->argv);
	/* The text may hold the secret. */
	if (command->input)
		explicit_bzero(command->input, strlen(command->input));
	free(command->input);
	env_free(command->env);
	memset(command, 0, sizeof *command);
}

char *launcher_stdin_text(const struct launcher_job *job, size_t node)
{
	struct env *env = launcher_forwarded_env(job, node);
	char *text = NULL;
	size_t size = 0;
	FILE *stream = env ? open_memstream(&text, &size) : NULL;

	if (!stream) {
		env_free(env);
		return NULL;
	}
	fprintf(stream, "%s=%s\n", LAUNCHER_ENV_SECRET, job->secret ? job->secret : "");
	for (size_t i = 0; i < env_count(env); i++) {
		const struct env_var *var = env_at(env, i);

		/* A line is one variable, so a value with a newline cannot be passed on. */
		if (var->value && !strchr(var->value, '\n'))
			fprintf(stream, "%s=%s\n", var->name, var->value);
	}
	fputc('\n', stream);
	env_free(env);
	if (!fclose(stream))
		return text;
	free(text);
	return NULL;
}

void launcher_kill_all(struct launcher_process *processes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		launcher_kill(&processes[i], SIGKILL);
		waitpid(processes[i].pid, NULL, 0);
		if (processes[i].output_fd >= 0)
			close(processes[i].output_fd);
		free(processes[i].nodes_covered);
	}
	free(processes);
}

int launcher_start_tool(const struct launcher_job *job, size_t node, struct launcher_process *out,
			struct error *err)
{
	const struct launcher *launcher = job->launch->launcher;
	struct launcher_command command = {0};
	int rc =
		launcher->make(job, node, &command)
			? error_memory(err, "an agent's start")
			: launcher_spawn(command.argv, command.env ? command.env : job->launch->env,
					 command.input, out, err);

	launcher_command_free(&command);
	if (!rc && !launcher->one_tool)
		out->node_index = (long)node;
	return rc;
}

int launcher_start_tools(const struct launcher_job *job, struct launcher_process **out,
			 size_t *count, struct error *err)
{
	const struct launcher *launcher = job->launch->launcher;
	/* By hand, only this machine's agent is ours to start. */
	bool one = launcher->one_tool || launcher->shape == LAUNCH_BY_HAND;
	size_t tools = one ? 1 : job->launch->alloc->node_count, started = 0;
	struct launcher_process *processes = calloc(tools, sizeof *processes);
	int rc = processes ? 0 : error_memory(err, "the agents");

	while (!rc && started < tools) {
		rc = launcher_start_tool(job, started, &processes[started], err);
		started += !rc;
	}
	if (rc) {
		launcher_kill_all(processes, started);
		return rc;
	}
	*out = processes;
	*count = tools;
	return 0;
}

char *launcher_tools_line(const struct launcher_job *job)
{
	const struct launcher *launcher = job->launch->launcher;
	size_t nodes = job->launch->alloc->node_count;
	struct launcher_command command = {0};
	char *first = launcher->make(job, 0, &command) ? NULL : launcher_command_line(command.argv);
	char *all = NULL;

	launcher_command_free(&command);
	if (!first || nodes == 1 || launcher->one_tool)
		return first;
	all = text_format("%s   (likewise for %zu more node%s)", first, nodes - 1,
			  nodes == 2 ? "" : "s");
	free(first);
	return all;
}

char **launcher_argv(const char *const *begin, const char *const *middle, const char *const *end)
{
	struct words words = {0};

	words_add_list(&words, begin);
	words_add_list(&words, middle);
	words_add_list(&words, end);
	return words_end(&words);
}
