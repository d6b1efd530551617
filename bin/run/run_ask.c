/* SPDX-License-Identifier: BSD-3-Clause */
/* accelerate launch and deepspeed: the launcher itself tells, in the Python that runs it, which
 * program and variables it would give to its ranks. berth starts these ranks in its own places. A
 * copy of the launchers' rules here would change the training in silence with each release. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/scheduler_tool.h"
#include "ask_launcher.h" /* generated: file_text, from ask_launcher.py */
#include "base/json.h"
#include "base/log.h"
#include "process/executable.h"
#include "run/run.h"

#define ASK_MS 120000 /* its import of PyTorch from a cold file system takes this long at most */
#define ANSWER_BYTES (1 << 20)
#define WORDS_MAX 8 /* of the interpreter's line */

/* Find in a script's first two lines the Python that runs it: "#!/usr/bin/env python3", or, as pip
 * writes it for long paths, #!/bin/sh and '''exec' "/long path/python" "$0" "$@". lines is changed,
 * and words points into it. Return the number of words, 0 if there is no Python. */
static size_t find_python(char *lines, char **words)
{
	char *second = strchr(lines, '\n'), *rest = NULL;
	size_t count = 0;

	if (strncmp(lines, "#!", 2) != 0 || !second)
		return 0;
	*second++ = '\0';
	if (strstr(lines, "python")) {
		for (char *word = strtok_r(lines + 2, " \t", &rest); word && count < WORDS_MAX;
		     word = strtok_r(NULL, " \t", &rest))
			words[count++] = word;
		return count;
	}
	if (strncmp(second, "'''exec' ", 9) != 0)
		return 0;
	second += 9;
	words[0] = strtok_r(second, *second == '"' ? "\"" : " ", &rest);
	return words[0] && strstr(words[0], "python");
}

static int read_python(const char *name, const struct env *env, char *lines, size_t size,
		       char **words, size_t *count, struct error *err)
{
	char path[4096];
	FILE *file;

	executable_find(name, env, path, sizeof path);
	file = fopen(path, "re");
	if (!file)
		return error_set(err, ERR_INPUT, "cannot read '%s': %m", path);
	lines[fread(lines, 1, size - 1, file)] = '\0';
	fclose(file);
	*count = find_python(lines, words);
	if (!*count)
		return error_set(err, ERR_USAGE,
				 "'%s' does not begin with the Python that runs it, which berth "
				 "asks for the ranks' variables: start it as python -m MODULE",
				 path);
	return 0;
}

/* Take over the answer: variables into setup->env, the program, and the sizes. */
static int apply(struct run_setup *setup, const json_t *answer, struct error *err)
{
	struct plan_sizes *sizes = &setup->sizes;
	json_t *argv = json_object_get(answer, "argv"), *word;
	const char *source = json_string_value(json_object_get(answer, "source")), *name;
	size_t i;
	int rc = 0;

	json_object_foreach(json_object_get(answer, "env"), name, word) if (!rc) rc =
		env_set(setup->env, name, json_string_value(word), ENV_FROM_OPTION,
			"set by the launcher that berth replaces", err);
	setup->kept_argv = calloc(json_array_size(argv) + 1, sizeof *setup->kept_argv);
	if (!setup->kept_argv)
		return error_memory(err, "the ranks' program");
	json_array_foreach(argv, i, word) setup->kept_argv[i] =
		json_string_value(word); /* setup->answer owns it */
	json_array_foreach(json_object_get(answer, "ignored"), i, word)
		log_user(LOG_NOTE, "%s has no effect: berth gives each rank its GPU",
			 json_string_value(word));
	sizes->ranks = (int)json_integer_value(json_object_get(answer, "ranks"));
	sizes->nodes = (int)json_integer_value(json_object_get(answer, "nodes"));
	sizes->ranks_per_node = (int)json_integer_value(json_object_get(answer, "ranks_per_node"));
	sizes->source = source;
	/* Without a scheduler nothing else says how many ranks the user wants. */
	if (setup->alloc.source == ALLOC_FROM_LOCAL && !setup->plan.ranks &&
	    !setup->plan.ranks_per_node)
		setup->plan.ranks = sizes->ranks > 0 ? sizes->ranks : sizes->ranks_per_node;
	if (source)
		setup->plan.sizes = sizes;
	return rc;
}

int run_ask_launcher(struct run_setup *setup, const char *const *argv, struct error *err)
{
	struct run_asked asked = run_asked(setup->options, argv);
	char lines[1024], *words[WORDS_MAX];
	struct scheduler_tool_output output = {0};
	const char *why = "it did not answer within 120 s", *text;
	size_t count = 0, used = 0;
	char **line;
	int rc = 0;

	if (!asked.name || run_is_agent(setup))
		return 0;
	if (setup->options->job.container.image)
		return error_set(err, ERR_USAGE,
				 "--container: berth would ask the %s of the host for the ranks' "
				 "variables, not that of the image. Name the program that it "
				 "starts: berth run --container IMAGE -- python train.py",
				 asked.name);
	if (!asked.module)
		rc = read_python(argv[0], setup->env, lines, sizeof lines, words, &count, err);
	if (rc)
		return rc;
	while (argv[used])
		used++;
	line = calloc(count + used + 4, sizeof *line);
	if (!line)
		return error_memory(err, "the launcher's arguments");
	used = 0;
	for (size_t i = 0; i < count; i++)
		line[used++] = words[i];
	for (size_t i = 0; i < asked.module; i++) /* python's own options */
		line[used++] = (char *)(uintptr_t)argv[i];
	line[used++] = (char *)(uintptr_t) "-c";
	line[used++] = (char *)(uintptr_t)file_text;
	line[used++] = (char *)(uintptr_t)asked.name;
	for (const char *const *word = argv + asked.first; *word; word++)
		line[used++] = (char *)(uintptr_t)*word;
	enum scheduler_tool_result result =
		scheduler_tool_run(line, setup->env, ASK_MS, ANSWER_BYTES, &output);

	if (result == SCHEDULER_TOOL_EXITED)
		setup->answer = json_loads(output.text ? output.text : "", 0, NULL);
	free(output.text);
	free(line);
	text = json_string_value(json_object_get(setup->answer, "error"));
	if (!text && setup->answer)
		return apply(setup, setup->answer, err);
	if (text)
		why = text;
	else if (result != SCHEDULER_TOOL_TIMEOUT)
		why = output.stderr_text[0] ? output.stderr_text : "its Python cannot be started";
	return error_set(err,
			 json_is_true(json_object_get(setup->answer, "usage")) ? ERR_USAGE
									       : ERR_UNAVAILABLE,
			 "cannot ask %s for the ranks' variables: %s", asked.name, why);
}
