/* SPDX-License-Identifier: BSD-3-Clause */
/* accelerate launch and deepspeed: the launcher itself tells, in the Python that runs it, which
 * program and variables it would give to its ranks. berth starts these ranks in its own places. A
 * copy of the launchers' rules here would change the training in silence with each release. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/scheduler_tool.h"
#include "ask_launcher.h" /* generated: file_text, from ask_launcher.py */
#include "base/bytes.h"
#include "base/json.h"
#include "base/log.h"
#include "run/run.h"

#define ASK_MS 120000 /* its import of PyTorch from a cold file system takes this long at most */
#define ANSWER_BYTES (1 << 20)

/* Run the Python that $0, a launcher, names in its first lines: "#!/usr/bin/env python3", or, as
 * pip writes it for long paths, #!/bin/sh and '''exec' "/long path/python" "$0" "$@". */
static const char with_its_python[] =
	"command -v \"$0\" >/dev/null || { echo '{\"error\": \"there is no such program\"}'; exit; "
	"}\n"
	"{ read -r one; read -r two; } <\"$(command -v \"$0\")\"\n"
	"case $one in *python*) eval \"exec ${one#??} \\\"\\$@\\\"\" ;; esac\n"
	"two=${two#\"'''exec' \"}\n"
	"case $two in *python*) eval \"exec ${two%% \\\"\\$0\\\"*} \\\"\\$@\\\"\" ;; esac\n"
	"echo '{\"usage\": true, \"error\": \"it does not begin with the Python that runs it; "
	"start it as python -m MODULE\"}'";

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

int run_ask_launcher(struct run_setup *setup, struct error *err)
{
	const char *const *argv = setup->request->program;
	struct run_asked asked = run_asked(&setup->request->place.plan, argv);
	const struct container *container = &setup->request->job.container;
	char name[40];
	struct container_start start = {
		.dir = setup->cwd, .cwd = setup->cwd, .name = name, .env = setup->env};
	struct scheduler_tool_output output = {0};
	enum scheduler_tool_result result = SCHEDULER_TOOL_UNAVAILABLE;
	const char *why = "it did not answer within 120 s", *text;
	struct words words = {0};
	struct env *env;
	char **line, **inside = NULL;
	int rc = 0;

	if (!asked.name || run_is_agent(setup))
		return 0;
	if (!asked.module)
		words_add_list(&words,
			       (const char *const[]){"sh", "-c", with_its_python, argv[0], NULL});
	for (size_t i = 0; i < asked.module; i++) /* python's own options */
		words_add(&words, "%s", argv[i]);
	words_add_list(&words, (const char *const[]){"-c", file_text, asked.name, NULL});
	words_add_list(&words, argv + asked.first);
	line = words_end(&words);
	env = env_copy(setup->env);
	if (!line || !env)
		rc = error_memory(err, "the launcher's arguments");
	start.argv = (const char *const *)line;
	snprintf(name, sizeof name, "berth-ask-%d", (int)getpid());
	if (!rc && container->image)
		rc = container_pull(container, setup->env, err);
	if (!rc && container->image && !(inside = container_command(container, &start)))
		rc = error_memory(err, "the launcher's arguments");
	if (!rc && inside)
		rc = container_environment(container, env, err);
	if (!rc)
		result = scheduler_tool_run(inside ? inside : line, env, ASK_MS, ANSWER_BYTES,
					    &output);
	free(line);
	free(inside);
	env_free(env);
	if (rc)
		return rc;
	if (result == SCHEDULER_TOOL_EXITED)
		setup->answer = json_loads(output.text ? output.text : "", 0, NULL);
	free(output.text);
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
