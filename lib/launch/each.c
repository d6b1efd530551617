/* SPDX-License-Identifier: BSD-3-Clause */
/* Engines that run one tool a node. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launcher.h"

void engine_words_free(struct engine_words *words)
{
	for (char **at = words->argv; at && *at; at++)
		free(*at);
	free(words->argv);
	/* It may hold the secret. */
	if (words->input)
		explicit_bzero(words->input, strlen(words->input));
	free(words->input);
	memset(words, 0, sizeof *words);
}

char *engine_input(const struct engine_job *job, size_t node)
{
	struct env *all = engine_agent_env(job, node);
	char *text = NULL;
	size_t size = 0;
	FILE *stream = all ? open_memstream(&text, &size) : NULL;

	if (!stream) {
		env_free(all);
		return NULL;
	}
	fprintf(stream, "%s=%s\n", ENGINE_ENV_SECRET, job->secret ? job->secret : "");
	for (size_t i = 0; i < env_count(all); i++) {
		const struct env_var *var = env_at(all, i);

		if (var->value && engine_carries(var->name) && !strchr(var->value, '\n') &&
		    strcmp(var->name, ENGINE_ENV_SECRET))
			fprintf(stream, "%s=%s\n", var->name, var->value);
	}
	fputc('\n', stream);
	env_free(all);
	if (!fclose(stream))
		return text;
	free(text);
	return NULL;
}

static void end_all(struct engine_child *children, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		engine_kill(&children[i], SIGKILL);
		waitpid(children[i].pid, NULL, 0);
		close(children[i].words_fd);
	}
}

int engine_start_each(const struct engine_job *job, const struct env *env,
		      int (*make)(const struct engine_job *job, size_t node,
				  struct engine_words *out),
		      struct engine_child **out, size_t *count, struct error *err)
{
	size_t nodes = job->alloc->node_count, started = 0;
	struct engine_child *children = calloc(nodes, sizeof *children);
	int rc = children ? 0 : error_memory(err, "the agents");

	while (!rc && started < nodes) {
		struct engine_words words = {0};

		rc = make(job, started, &words) ? error_memory(err, "an agent's start")
						: engine_spawn(words.argv, env, words.input,
							       &children[started], err);
		engine_words_free(&words);
		if (!rc)
			children[started].node_index = (long)started;
		started += !rc;
	}
	if (rc) {
		end_all(children, started);
		free(children);
		return rc;
	}
	*out = children;
	*count = nodes;
	return 0;
}

char *engine_line_each(const struct engine_job *job,
		       int (*make)(const struct engine_job *job, size_t node,
				   struct engine_words *out))
{
	struct engine_words words = {0};
	char *first = make(job, 0, &words) ? NULL : engine_line(words.argv), *all = NULL;

	engine_words_free(&words);
	if (!first || job->alloc->node_count == 1)
		return first;
	if (asprintf(&all, "%s   (and so for %zu more node%s)", first, job->alloc->node_count - 1,
		     job->alloc->node_count == 2 ? "" : "s") < 0)
		all = NULL;
	free(first);
	return all;
}

static size_t length(const char *const *list)
{
	size_t count = 0;

	while (list && list[count])
		count++;
	return count;
}

char **engine_argv(const char *const *begin, const struct env *names, const char *const *end)
{
	size_t room = length(begin) + length(end) + (names ? env_count(names) : 0) + 1, n = 0;
	char **argv = calloc(room, sizeof *argv);
	struct engine_words words = {.argv = argv};
	bool whole = argv != NULL;

	for (; whole && begin && *begin; begin++)
		whole = (argv[n++] = strdup(*begin)) != NULL;
	for (size_t i = 0; whole && names && i < env_count(names); i++) {
		const struct env_var *var = env_at(names, i);

		if (!var->value)
			continue;
		whole = asprintf(&argv[n], "%s=%s", var->name, var->value) >= 0;
		if (!whole)
			argv[n] = NULL;
		n++;
	}
	for (; whole && end && *end; end++)
		whole = (argv[n++] = strdup(*end)) != NULL;
	if (whole)
		return argv;
	engine_words_free(&words);
	return NULL;
}
