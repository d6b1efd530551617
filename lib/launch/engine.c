/* SPDX-License-Identifier: BSD-3-Clause */
#include "launch/engine.h"

#include <stdio.h>
#include <string.h>

/* The first that fits is taken: the most particular first. */
static const struct engine *const engines[] = {&engine_fork, &engine_loopback};

#define ENGINES (sizeof engines / sizeof *engines)

const struct engine *engine_at(size_t index)
{
	return index < ENGINES ? engines[index] : NULL;
}

int engine_find(const char *name, const struct alloc *alloc, const struct env *env,
		const struct engine **out, struct error *err)
{
	char known[256] = "";

	for (size_t i = 0; i < ENGINES; i++) {
		if (name ? !strcmp(name, engines[i]->name) : engines[i]->fits(alloc, env)) {
			*out = engines[i];
			return 0;
		}
		snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
			 engines[i]->name);
	}
	if (name)
		return error_set(err, ERR_USAGE, "no engine is called '%s'; there are: %s", name,
				 known);
	return error_set(err, ERR_UNAVAILABLE,
			 "no engine starts agents on the %zu node%s of this allocation (%s, the "
			 "first: %s); there are: %s",
			 alloc->node_count, alloc->node_count == 1 ? "" : "s",
			 alloc->why ? alloc->why : alloc->source, alloc->nodes[0].name, known);
}

struct env *engine_agent_env(const struct engine_job *job, size_t node_index)
{
	struct env *env = env_copy(job->env);
	const struct {
		const char *name, *value;
	} set[] = {
		{ENGINE_ENV_HEAD, job->head},
		{ENGINE_ENV_JOB, job->job},
		{ENGINE_ENV_SECRET, job->secret},
		{ENGINE_ENV_NAME, job->alloc->nodes[node_index].name},
	};
	int rc = env ? 0 : -1;

	for (size_t i = 0; !rc && i < sizeof set / sizeof *set; i++)
		rc = env_set(env, set[i].name, set[i].value, ENV_FROM_BERTH, NULL, NULL);
	if (!rc)
		rc = env_setf(env, ENGINE_ENV_NODE, ENV_FROM_BERTH, NULL, NULL, "%zu", node_index);
	if (!rc)
		rc = env_setf(env, ENGINE_ENV_TIMEOUT, ENV_FROM_BERTH, NULL, NULL, "%d",
			      job->node_timeout_ms);
	if (!rc)
		return env;
	env_free(env);
	return NULL;
}
