/* SPDX-License-Identifier: BSD-3-Clause */
#include "roles/ray.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/scheduler_tool.h"
#include "base/bytes.h"
#include "base/env.h"
#include "ray_script.h" /* generated: file_text, from ray.sh */

#define RUN_SCRIPT "eval \"$BERTH_RAY\""
#define SEPARATOR "\036" /* in no argument of the driver */
#define VERSION_MS 10000
#define VERSION_MAX 100

/* What all nodes compare their own with. Empty if Ray is not here, as on a login node, or in an
 * image.
 */
static char *find_version(const struct env *env, bool inside)
{
	static char sh[] = "sh", option[] = "-c", word[] = "version";
	char *argv[] = {sh, option, (char *)(uintptr_t)file_text, word, NULL}, *out;
	struct scheduler_tool_output answer = {0};
	bool known = !inside &&
		     scheduler_tool_run(argv, env, VERSION_MS, VERSION_MAX, &answer) ==
			     SCHEDULER_TOOL_EXITED &&
		     !answer.code && answer.text;

	if (known)
		answer.text[strcspn(answer.text, "\n")] = '\0';
	out = text_format("BERTH_RAY_VERSION=%s", known ? answer.text : "");
	free(answer.text);
	return out;
}

static int find_variables(struct role_options *options, struct error *err)
{
	struct env *env = env_capture();
	char **out = options->variables;

	if (!env)
		return error_memory(err, "--ray");
	out[0] = text_format("BERTH_RAY=%s", file_text);
	out[1] = text_format("RAY_AUTH_MODE=%s", env_get(env, "RAY_AUTH_MODE")
							 ? env_get(env, "RAY_AUTH_MODE")
							 : "token");
	out[2] = find_version(env, options->ray_inside);
	out[3] = text_format("BERTH_RAY_ARGS=%s", options->ray_args ? options->ray_args : "");
	env_free(env);
	for (size_t i = 0; i < ROLE_RAY_VARIABLES; i++)
		if (!out[i])
			return error_memory(err, "--ray");
	return 0;
}

int ray_expand(struct role_options *options, char ***program, struct error *err)
{
	char **variables = options->variables;
	int rc = find_variables(options, err);
	static const char ready[] = "command:sh -c '" RUN_SCRIPT "' ready";
	/* The ports are numbered in ray.sh. */
	const char *const roles[] = {
		"--per-node", "--service",  "--ports", "5",	     "--ready",	  ready,
		"--env",      variables[0], "--env",   variables[1], "--env",	  variables[2],
		"--env",      variables[3], "--",      "sh",	     "-c",	  RUN_SCRIPT,
		"node",	      SEPARATOR,    "--role",  "driver",     "--overlap", "--per-node",
		"-N",	      "1",	    "--env",   variables[0], "--env",	  variables[1],
		"--",	      "sh",	    "-c",      RUN_SCRIPT,   "driver"};
	size_t count = sizeof roles / sizeof *roles, words = 0;

	if (rc)
		return rc;
	while ((*program)[words])
		words++;
	options->words = calloc(count + words + 1, sizeof *options->words);
	if (!options->words)
		return error_memory(err, "--ray");
	memcpy(options->words, roles, sizeof roles);
	memcpy(options->words + count, *program, words * sizeof *options->words);
	options->first = "ray";
	options->separator = SEPARATOR;
	*program = options->words;
	return 0;
}
